"""Sums of sparse tables (bps._union)."""

import doctest

import bps
import pytest
from bps import _union
from keeper import Job

# Rows of the table, values of a row, draws of a worker. With few draws the workers send indices,
# else bitmaps. The third sum has several pieces, which its rows do not fill, and the rows of the
# last one are larger than a piece.
SHAPES = [(5000, 64, 300), (400_000, 2, 20), (2000, 1000, 1500), (5, 300_000, 2)]


@pytest.mark.parametrize("agents, workers", [(1, 3), (3, 4)])
def test_sum_equals_the_dense_sum_bit_by_bit(cluster, agents, workers):
    c = cluster(agents=agents, servers=2)
    results = c.run("sparse_equals_dense", workers, {"shapes": SHAPES})
    assert all(one == results[0] for one in results)
    # In one step of four no worker has rows. Then there is nothing to send.
    assert [counts for _, *counts in results[0]] == [[3, 1], [0, 4], [3, 1], [3, 1]]
    assert results[0][2][0] > 2 * (1 << 20) / 4000


def test_rows_of_each_type_are_summed_and_averaged(cluster):
    assert cluster(agents=2).run("sparse_types", 3) == [3] * 3


def test_tables_that_differ_are_errors_at_all_workers_and_the_job_goes_on(cluster):
    for texts, rows in cluster(agents=2).run("sparse_differences", 2):
        assert [code for code, _ in texts] == [bps.EMISMATCH] * 4 + [0] * 2
        for wanted, (_, text) in zip(
            (
                "rank 0 has a sparse tensor, float32 [5, 2], sum, rank 1 has a sparse tensor, "
                "float32 [6, 2], sum",
                "float32 [5, 2], sum, rank 1 has a sparse tensor, float32 [5, 3], sum",
                "float32 [5, 2], sum, rank 1 has a sparse tensor, float64 [5, 2], sum",
                "float32 [5, 2], avg, rank 1 has a sparse tensor, float32 [5, 2], sum",
                "has row -1, but its table has 5 rows",
                "has row 5, but its table has 5 rows",
            ),
            texts,
        ):
            assert wanted in text
        assert rows == [[2.0, 2.0]]


def test_sums_survive_a_server_that_dies(cluster):
    c = cluster(agents=2, servers=2)
    job = Job(c, 4, sizes=[(3000, 64, 2000), (100_000, 2, 20)], function="sparse_rounds")
    job.goes_on()
    for i, server in enumerate(c.servers[:2]):
        server.kill()
        job.goes_on()
        c.add_server(2 + i)
        job.goes_on()
    job.finish()


# The victim is lost before it sends anything, before it sends which rows it has, and before it
# sends its rows.
@pytest.mark.parametrize("when", ["_count", "_find", "_sum"])
def test_average_divides_by_the_workers_that_began_the_sum(cluster, when):
    c = cluster(agents=3, servers=2)
    args = {"victim": 1, "when": when, "n_steps": 6}
    started = c.start_job("sparse_with_a_loss", 3, args)
    results = c.finish([started[0], started[2]])
    assert results[0] == results[1]
    whole, left = {"0": 1 / 3, "1": 2 / 3, "2": 1.0, "7": 2.0}, {"0": 0.5, "2": 1.5, "7": 2.0}
    during = left if when == "_count" else {"0": 1 / 3, "2": 1.0, "7": 4 / 3}
    for step, want in zip(results[0], [whole, whole, during, left, left, left]):
        assert step == pytest.approx(want)


@pytest.mark.parametrize("is_in_time", [True, False])
def test_rows_that_only_a_late_machine_has_are_left_out(cluster, is_in_time):
    c = cluster(agents=3, servers=2)
    args = {"ahead": str(c.dir / "ahead"), "is_in_time": is_in_time}
    results = c.run("sparse_with_a_late_machine", 3, args)
    assert results[0] == results[1] == results[2]
    assert results[0][1] == {"0": 1.0, "1": 70.0 if is_in_time else 30.0, "3": 2.0}


def test_example_of_the_documentation_runs():
    assert doctest.testmod(_union).attempted and not doctest.testmod(_union).failed
