"""Tests of rule J15: workers that finish while others wait for them are named at once."""

import signal

import pytest

import bps
from cluster import DEADLINE_S
from keeper import kept_cluster

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


@pytest.mark.parametrize(
    "placement", [[0, 0, 0], [0, 1, 1], [0, 1, 2]], ids=["one", "two", "three"]
)
@pytest.mark.parametrize("way", ["abandoned", "unsubmitted"])
def test_wait_for_another_tensor_does_not_count_for_an_abandoned_one(cluster, placement, way):
    c = cluster(agents=max(placement) + 1, servers=1)
    args = {"way": way, "leavers": [0], "n_rounds": 3, "pause": 2.5}
    results = c.run("leaving", 3, args, placement=placement)
    assert [code for code, *_ in results] == [0, 0, 0], results


@pytest.mark.parametrize(
    "placement", [[0, 0, 0], [0, 1, 1], [0, 1, 2]], ids=["one", "two", "three"]
)
def test_wait_for_several_tensors_counts_for_each(cluster, placement):
    c = cluster(agents=max(placement) + 1, servers=1)
    args = {"way": "group", "leavers": [0], "n_rounds": 3, "pause": 2.5}
    results = c.run("leaving", 3, args, placement=placement)
    expect_named(results, 0, "'lone'")
    assert results[1][3] < 2, results


def on_one_and_two(test):
    return pytest.mark.parametrize("placement", [[0, 0], [0, 1]], ids=["one", "two"])(test)


def run_without_leaver(c, args, tmp_path, placement, meanwhile=None):
    """Run a job of two workers in which rank 1 gives up closing the job and exits. Rank 0 goes on
    after that, and after the function `meanwhile`."""
    gone = tmp_path / "gone"
    args = args | {"leavers": [1], "n_rounds": 3, "gone": str(gone)}
    workers = c.start_job("leaving", 2, args, placement=placement)
    assert workers[1].process.wait(DEADLINE_S) == 0
    if meanwhile:
        meanwhile()
    gone.touch()
    return c.finish(workers)


@on_one_and_two
@pytest.mark.parametrize(
    "way,waits_for", [("round", "'t0'"), ("declare", "'late'"), ("barrier", "at a barrier")]
)
def test_worker_that_gave_up_closing_and_exited_is_named(
    cluster, tmp_path, placement, way, waits_for
):
    c = cluster(agents=2, servers=1)
    expect_named(run_without_leaver(c, {"way": way}, tmp_path, placement), 1, waits_for)


@on_one_and_two
def test_round_of_a_worker_that_gave_up_closing_and_exited_completes(cluster, tmp_path, placement):
    c = cluster(agents=2, servers=1)
    results = run_without_leaver(c, {"way": "late"}, tmp_path, placement)
    assert [code for code, *_ in results] == [0, 0], results


@on_one_and_two
def test_scheduler_that_restarts_learns_which_workers_have_finished(cluster, tmp_path, placement):
    c = cluster(agents=2, servers=1)

    def restart():
        c.scheduler.pin()
        c.scheduler.kill()
        c.scheduler.start()
        c.wait_for("the agents are back", lambda: all(a.status()["scheduler_up"] for a in c.agents))

    results = run_without_leaver(c, {"way": "late"}, tmp_path, placement, restart)
    assert [code for code, *_ in results] == [0, 0], results


class Held:
    """A job of two workers in which rank 1 waits until the test lets it leave."""

    def __init__(self, c, tmp_path, placement):
        self.c, self.hold, self.gone = c, tmp_path / "hold", tmp_path / "gone"
        args = {"way": "late", "leavers": [1], "n_rounds": 3}
        args |= {"gone": str(self.gone), "hold": str(self.hold)}
        self.workers = c.start_job("leaving", 2, args, placement=placement)
        c.wait_for("rank 1 is about to leave", (tmp_path / "hold.at").exists)

    def let_leave(self):
        """Let rank 1 give up closing the job and exit."""
        self.hold.touch()
        assert self.workers[1].process.wait(DEADLINE_S) == 0

    def results(self):
        self.gone.touch()
        return self.c.finish(self.workers)


@on_one_and_two
def test_worker_may_finish_and_exit_while_the_scheduler_is_down(cluster, tmp_path, placement):
    c = cluster(agents=2, servers=1)
    job = Held(c, tmp_path, placement)
    c.scheduler.pin()
    c.scheduler.kill()
    job.let_leave()
    c.scheduler.start()
    results = job.results()
    assert [code for code, *_ in results] == [0, 0], results


@on_one_and_two
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_worker_may_finish_and_exit_while_its_agent_restarts(cluster, tmp_path, placement, way):
    """The agent's next process finds the worker's last message in its socket."""
    c = kept_cluster(cluster)
    job = Held(c, tmp_path, placement)
    agent = c.agents[placement[1]]
    agent.between = job.let_leave
    agent.die(way)
    results = job.results()
    assert [code for code, *_ in results] == [0, 0], results
