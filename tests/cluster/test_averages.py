"""Averages of integers are the floor of the exact mean, even when the sum overflows the type."""

import signal

import pytest

import bps
from elastic import WINDOW
from keeper import kept_cluster
from reference import same_everywhere


@pytest.mark.parametrize("agents,servers,workers", [(2, 2, 8), (1, 0, 4), (3, 1, 3)])
def test_average_of_integers_is_the_floor_of_the_exact_mean(cluster, agents, servers, workers):
    c = cluster(agents=agents, servers=servers)
    same_everywhere(c.run("averages", workers, {"n_elems": 40003, "n_rounds": 7}))


def test_average_of_integers_with_a_backup_machine_is_over_those_that_came(cluster):
    c = cluster(agents=3, servers=2)
    same_everywhere(
        c.run("averages", 3, {"n_elems": 20003, "n_rounds": 12, "backup": 1, "backup_grace": 0.001})
    )


def test_average_of_integers_goes_on_without_a_lost_machine(cluster):
    c = cluster(agents=3, servers=2, scheduler_args=WINDOW)
    args = {"n_elems": 20003, "n_rounds": 9, "victim": 1, "at": 5, "on_agent_loss": "shrink"}
    started = c.start_job("averages", 3, args)
    same_everywhere(c.finish([started[0], started[2]]))


def test_average_of_integers_survives_restarts_of_agents(cluster, tmp_path):
    c = kept_cluster(cluster)
    stop = tmp_path / "stop"
    started, progress = c.start_running("averages", 4, {"n_elems": 20003, "stop": str(stop)})
    for i in range(4):
        c.agents[i % 2].die(signal.SIGKILL)
        progress.goes_on(3)
    stop.touch()
    same_everywhere(c.finish(started))


def test_average_of_integers_survives_suspension(cluster):
    c = cluster(agents=2, servers=1)
    c.run("averages_after_resume", 2, {"n_elems": 5000})


@pytest.mark.parametrize("placement", [[0, 0], [0, 1]])
def test_average_against_a_sum_fails_the_job_at_once(cluster, placement):
    c = cluster(agents=2, servers=1)
    results = c.run("average_against_sum", 2, placement=placement)
    assert all(code == bps.EMISMATCH and "'w'" in text for code, text in results), results
    assert all("avg" in text and "sum" in text for _, text in results), results


@pytest.mark.parametrize("placement", [[0, 0], [0, 1]])
def test_average_of_a_tensor_with_two_types_fails_and_names_both(cluster, placement):
    c = cluster(agents=2, servers=1)
    results = c.run("average_of_two_types", 2, placement=placement)
    assert any(
        code == bps.EMISMATCH and "u8 x 10" in text and "i8 x 10" in text for code, text in results
    ), results
