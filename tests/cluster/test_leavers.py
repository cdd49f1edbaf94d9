"""Tests of rule J15: workers that finish while others wait for them are named at once."""

import pytest

import bps
from cluster import DEADLINE_S

pytestmark = pytest.mark.alone  # a time limit
# The job's time-out is minutes. All errors come within this time.
LIMIT_S = 3


def expect_named(results, leaver, waits_for):
    for rank, (code, text, named, seconds) in enumerate(results):
        if rank == leaver:
            continue
        assert code == bps.EWORKER_LOST, results
        assert f"rank {leaver} (host" in text and waits_for in text, results
        assert named == leaver and seconds < LIMIT_S, results


@pytest.mark.parametrize(
    "placement", [[0, 0, 0], [0, 0, 1], [0, 1, 2]], ids=["one", "two", "three"]
)
@pytest.mark.parametrize(
    "way,waits_for",
    [
        ("round", "'t0'"),
        ("declare", "'late'"),
        ("barrier", "at a barrier"),
        ("broadcast", "tensor"),
    ],
)
def test_worker_that_closes_early_is_named_to_those_that_wait(cluster, placement, way, waits_for):
    c = cluster(agents=max(placement) + 1, servers=1)
    for leaver in (0, 2):
        args = {"way": way, "leavers": [leaver], "n_rounds": 3}
        results = c.run("leaving", 3, args, placement=placement, job=f"left{leaver}")
        expect_named(results, leaver, waits_for)


def test_tensor_that_nobody_uses_ends_no_job(cluster):
    """Rank 0 declares a tensor that the others, which close the job first, do not declare."""
    c = cluster(agents=2, servers=1)
    args = {"way": "unused", "leavers": [1], "n_rounds": 3, "pause": 2.5}
    for placement in ([0, 0], [0, 1]):
        results = c.run("leaving", 2, args, placement=placement, job=f"unused{placement[1]}")
        assert [code for code, *_ in results] == [0, 0], results


@pytest.mark.parametrize("way", ["round", "declare"])
@pytest.mark.parametrize("leavers", [[1], [1, 2, 3, 4, 5, 6]], ids=["one", "six"])
def test_workers_that_close_early_in_a_job_that_may_shrink_are_lost(cluster, way, leavers):
    """The other machines go on without their machines, which are lost at once."""
    size = max(3, 1 + len(leavers))
    c = cluster(agents=size, servers=1)
    args = {"way": way, "leavers": leavers, "n_rounds": 3, "on_agent_loss": "shrink"}
    results = c.run("leaving", size, args, placement=list(range(size)))
    for rank in set(range(size)) - set(leavers):
        code, _, _, seconds = results[rank]
        assert code == 0 and seconds < LIMIT_S, results


def test_rounds_of_a_worker_that_left_without_waiting_still_complete(cluster):
    c = cluster(agents=2, servers=1)
    args = {"way": "late", "leavers": [1], "n_rounds": 3, "pause": 2.5}
    results = c.run("leaving", 2, args, placement=[0, 1])
    assert [code for code, *_ in results] == [0, 0], results


def run_without_leaver(c, args, tmp_path, placement):
    """Run a job of two workers in which rank 1 gives up closing the job and exits. Rank 0 goes on
    after that."""
    gone = tmp_path / "gone"
    args = args | {"leavers": [1], "n_rounds": 3, "gone": str(gone)}
    workers = c.start_job("leaving", 2, args, placement=placement)
    assert workers[1].process.wait(DEADLINE_S) == 0
    gone.touch()
    return c.finish(workers)


@pytest.mark.parametrize("placement", [[0, 0], [0, 1]], ids=["one", "two"])
@pytest.mark.parametrize(
    "way,waits_for", [("round", "'t0'"), ("declare", "'late'"), ("barrier", "at a barrier")]
)
def test_worker_that_gave_up_closing_and_exited_is_named(
    cluster, tmp_path, placement, way, waits_for
):
    c = cluster(agents=2, servers=1)
    expect_named(run_without_leaver(c, {"way": way}, tmp_path, placement), 1, waits_for)


@pytest.mark.parametrize("placement", [[0, 0], [0, 1]], ids=["one", "two"])
def test_round_of_a_worker_that_gave_up_closing_and_exited_completes(cluster, tmp_path, placement):
    c = cluster(agents=2, servers=1)
    results = run_without_leaver(c, {"way": "late"}, tmp_path, placement)
    assert [code for code, *_ in results] == [0, 0], results
