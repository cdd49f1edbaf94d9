"""Test every dtype, operation and size on clusters of many shapes.

Integer results must be exact. Floats must be within a derived bound. All workers must have the same
bytes.
"""

import os

import pytest

from cluster import PROVIDER
from reference import same_everywhere

DTYPES = ["f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8"]
OPS = ["sum", "avg", "min", "max", "prod"]
BITWISE = ["band", "bor", "bxor"]
SIZES = [1, 2, 3, 17, 4095, (1 << 20) + 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_and_size_of_a_dtype_is_right_at_every_worker(cluster, dtype):
    c = cluster(agents=2, servers=2)
    ops = OPS if dtype[0] in "bf" else OPS + BITWISE
    same_everywhere(
        c.run("matrix", 3, {"dtypes": [dtype], "ops": ops, "sizes": SIZES}, placement=[0, 0, 1])
    )


@pytest.mark.skipif(
    PROVIDER != "tcp" or "LD_LIBRARY_PATH" not in os.environ,
    reason="needs two versions of libfabric, as in make check-providers",
)
def test_versions_of_libfabric_may_differ(cluster):
    c = cluster(agents=1, servers=1)
    del c.env["LD_LIBRARY_PATH"]
    c.add_server(1)
    c.add_agent(1)
    args = {"dtypes": ["f32", "i64"], "ops": ["sum"], "sizes": [17, 4095, (1 << 20) + 3]}
    same_everywhere(c.run("matrix", 3, args, placement=[0, 1, 1]))


# Shapes of clusters: (workers, agents, servers). For any two of the three positions, every
# combination of values occurs, except that there are never more agents than workers.
SHAPES = [
    (1, 1, 1),
    (2, 2, 2),
    (2, 1, 3),
    (3, 3, 1),
    (3, 2, 4),
    (4, 4, 3),
    (4, 1, 2),
    (4, 3, 3),
    (5, 4, 4),
    (5, 2, 1),
    (5, 3, 2),
    (5, 1, 3),
    (6, 3, 4),
    (6, 4, 2),
    (6, 1, 1),
    (6, 2, 3),
    (7, 4, 1),
    (7, 1, 4),
    (7, 2, 2),
    (7, 3, 3),
    (8, 4, 3),
    (8, 3, 2),
    (8, 2, 4),
    (8, 1, 1),
]


@pytest.mark.parametrize("workers,agents,servers", SHAPES)
def test_sums_are_right_for_any_number_of_workers_agents_and_servers(
    cluster, workers, agents, servers
):
    c = cluster(agents=agents, servers=servers)
    args = {
        "dtypes": ["f32", "f16", "i32", "u8"],
        "ops": ["sum", "avg"],
        "sizes": [1, 4095, 70001],
        "rounds": 3,
        "part_bytes": 65536,
    }
    same_everywhere(c.run("matrix", workers, args))


@pytest.mark.parametrize("placement", [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 2, 3]])
def test_average_of_f16_depends_on_the_placement_only_by_rounding(cluster, placement):
    """Sums of these values overflow f16 on a machine, at the server, or at both."""
    c = cluster(agents=max(placement) + 1, servers=2)
    values = [[40000, 65504, 60000 - 2000 * rank, 2.0**-24 * rank] for rank in range(4)]
    out = same_everywhere(c.run("f16_average", 4, {"values": values}, placement=placement))
    assert out[:2] == [40000, 65504]
    assert abs(out[2] - 57000) <= 32  # twice half of the distance of two f16 numbers
    assert abs(out[3] - 2.0**-24 * 1.5) <= 2.0**-24


@pytest.mark.parametrize("placement", [[0, 1], [0, 0, 1, 1], [0, 0, 0], [0, 1, 1, 2, 2, 2, 3]])
@pytest.mark.parametrize("dtype", ["q8", "q4", "sign"])
def test_blocks_are_encoded_once_per_machine_and_once_per_sum(cluster, dtype, placement):
    """Every byte of the results is compared with a plain loop in NumPy."""
    c = cluster(agents=max(placement) + 1, servers=2)
    args = {
        "dtypes": [dtype],
        "ops": ["sum", "avg"],
        "sizes": [1, 63, 1025, 30011],
        "placement": placement,
        "part_bytes": 4096,
    }
    same_everywhere(c.run("block_sums", len(placement), args, placement=placement))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_deterministic_job_gives_the_same_bits_run_after_run(cluster, dtype):
    c = cluster(agents=3, servers=2)
    args = {
        "dtypes": [dtype],
        "ops": ["sum", "avg", "prod"],
        "sizes": [3, 4095, 300001],
        "rounds": 4,
        "deterministic": 1,
    }
    runs = [c.run("matrix", 6, args) for _ in range(3)]
    for results in runs:
        same_everywhere(results)
        assert results[0] == runs[0][0], "another run gave other bits"


def test_several_jobs_at_once_do_not_mix(cluster):
    c = cluster(agents=2, servers=2)
    jobs = [
        c.start_job("rounds", 4, {"n_elems": 30011 + i, "n_rounds": 30, "n_tensors": 3})
        for i in range(3)
    ]
    for job in jobs:
        c.finish(job)


def test_wait_for_some_does_not_wait_for_the_last(cluster):
    c = cluster(agents=2, servers=1)
    order, _ = c.run("first_of_several", 2, {"done": str(c.dir / "done")})
    assert order[-1] == "t7" and len(order) == 8


def test_collectives_work_across_machines(cluster):
    c = cluster(agents=2, servers=1)
    results = c.run("collectives", 4)
    assert [r[:4] for r in results] == [[0, 4, 0, 2], [1, 4, 1, 2], [2, 4, 0, 2], [3, 4, 1, 2]]
    assert len({r[4] for r in results}) == 1


def test_a_job_of_one_machine_needs_no_server(cluster):
    c = cluster(agents=1, servers=0)
    same_everywhere(
        c.run("matrix", 4, {"dtypes": ["f32", "f16", "i8"], "ops": OPS, "sizes": [1, 4095, 300001]})
    )


def test_a_second_job_of_the_same_name_may_follow(cluster):
    c = cluster(agents=2, servers=1)
    for _ in range(3):
        c.run("rounds", 2, {"n_elems": 5000, "n_rounds": 3}, job="again")


def test_ten_thousand_tensors_are_in_flight_at_once(cluster):
    c = cluster(agents=2, servers=2)
    c.run("many_tensors", 2, {"n": 10000})


def test_workers_of_a_machine_share_the_quota_of_the_outputs(cluster):
    c = cluster(agents=1, servers=0, agent_args=["--memory", "47MiB", "--user-memory", "47MiB"])
    # The quota is enough for each worker's control page and input, and for two outputs that both
    # workers share.
    c.run("rounds", 2, {"n_elems": 10 << 17, "n_rounds": 2})


def test_worker_that_leaves_without_waiting_still_contributes(cluster):
    c = cluster(agents=2, servers=1)
    for i in range(5):
        # more tensors than the agent takes from the ring at once
        c.run("leave_in_flight", 2, {"n_tensors": 1000}, job=f"job{i}")
    for agent in c.agents:
        assert "violated the protocol" not in agent.log.read_text()
