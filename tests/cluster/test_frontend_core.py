"""The core of the Python front-ends, tested with NumPy arrays and without a framework.

The tests cover names, large arrays in pieces, the comparison of calls between workers, and objects.
"""

import pytest

import bps


@pytest.mark.parametrize("agents", [1, 2])
def test_collectives_of_the_core_are_exact_on_several_agents(cluster, agents):
    results = cluster(agents=agents).run("frontend_collectives", 3)
    assert [r["sum"] for r in results] == [3.0 * 40_000] * 3
    assert results[0] == results[1] == results[2]


def test_calls_that_differ_are_errors_at_all_workers_and_the_job_goes_on(cluster):
    for result in cluster(agents=2).run("frontend_differences", 3):
        assert result["codes"] == [bps.EMISMATCH] * 5, result["texts"]
        assert "rank 1 has float64 [3], avg, rank 2 has float64 [10], avg" in result["texts"][0]
        assert "rank 2 calls all_gather_object" in result["texts"][3]
        assert result["sums"] == [3.0, 3.0]


def test_hooks_of_a_training_step_fill_buckets_in_any_order(cluster):
    results = cluster(agents=2).run("frontend_hooks", 2)
    assert results[0] == results[1] == [[1.5] * 3, [3.0] * 500, [4.5] * 40]


def test_a_step_after_a_time_out_goes_on_without_an_error(cluster, tmp_path):
    results = cluster().run("frontend_late_step", 2, {"ready": str(tmp_path / "ready")})
    # each of the two workers has added 1 in each of its three steps
    assert results == [[bps.ETIMEDOUT, 6.0], [None, 6.0]]


def test_a_call_that_timed_out_never_gives_later_values_to_another_worker(cluster, tmp_path):
    for sums in cluster().run("frontend_late", 2, {"ready": str(tmp_path / "ready")}):
        assert all(total == 20 * int(i) + 1 for i, total in sums.items()), sums
