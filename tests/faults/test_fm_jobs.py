"""Fault matrix, column E: jobs whose members change while faults happen."""

import time

import pytest

import bps
from elastic import WINDOW, agreed, lost

STAY = 10
GRACE_S = 0.5


def job_of(c):
    return next(iter(c.scheduler.status()["jobs"]), {})


def hurt(c, what, kept=0):
    """Kill and restart a daemon. The restart must not make any round of a job fail.

    An agent is restarted with its kept descriptors. The scheduler and servers restart at once.
    """
    if what == "agent":
        c.agents[kept].die()
    elif what in ("server", "scheduler"):
        d = c.servers[0] if what == "server" else c.scheduler
        d.kill()
        d.start_again()


@pytest.mark.parametrize("what", ["nothing", "server", "agent", "scheduler"])
def test_late_machine_is_left_out_of_a_round_and_named(faulty, cell, what):
    """FM-E-backup: with backup=1, a round goes on without a late member after the grace time.

    The late member contributes only after the other members have the sum. The round's info names
    the late member, and the late member gets the same sum as the others. This holds even if a
    daemon is restarted before the late member contributes.
    """
    c = faulty(agents=3, is_kept=True)
    until = c.dir / "until"
    slow = {"rank": 2, "first": 6, "last": 6, "until": str(until)}
    args = {"n_elems": 40000, "n_rounds": 6, "backup": 1, "backup_grace": GRACE_S, "slow": slow}
    started, progress = c.start_running("elastic", 3, args, after=4)
    hurt(c, what, kept=2)
    progress.wait(5)
    until.touch()
    results = c.finish(started)
    masks = agreed(results)
    assert masks[5] == [0b011], masks
    for r in results:
        assert r["missing"] == [2] and not lost(r), r
    cell.within(
        "round of the others",
        max(r["times"][5] for r in results[:2]),
        GRACE_S + (0.5 if what == "nothing" else 1.5),
    )


GROW = {"n_elems": 20000, "n_rounds": 20, "elastic": 1, "max_size": 3, "pause": 0.02}


def growing(c, every=2):
    """Start two workers of a job that may have three.

    Return the workers, the job's Progress, and the arguments for a newcomer.
    """
    args = dict(GROW, every=every, go=str(c.dir / "go"))
    return *c.start_running("growing", 2, args, job="grow", placement=[0, 1]), args


def all_have_the_same(c, workers):
    (c.dir / "go").touch()
    results = c.finish(workers)
    assert all(r["code"] == 0 for r in results), results
    assert len({r["weights"] for r in results}) == 1, results
    return results


@pytest.mark.parametrize("when", ["waiting", "let-in", "let-in-machine"])
def test_newcomer_that_is_lost_delays_no_other(faulty, cell, when):
    """FM-E-join: the newcomer dies while it waits, or right after the job has admitted it.

    In one case the agent of the newcomer's machine dies as well. The newcomer's place is free at
    once. The other workers go on, and another worker joins.
    """
    c = faulty(agents=3, scheduler_args=WINDOW)
    started, progress, args = growing(c, every=60 if when == "waiting" else 2)

    def let_in():
        return c.scheduler.log.read_text().count("admits rank 2")

    new = c.add_worker(2, "growing", args, 2, 2, "grow")
    if when == "waiting":
        c.wait_for("the newcomer waits", lambda: job_of(c).get("newcomers") == 1)
    else:
        c.wait_for("the newcomer is admitted", let_in)
    if when == "let-in-machine":
        c.agents[2].process.kill()
    new.process.kill()
    at = time.monotonic()
    if when == "waiting":
        c.wait_for("the newcomer's place is free", lambda: job_of(c).get("newcomers") == 0)
        cell.within("its place is free", time.monotonic() - at, 1)
    n = let_in()  # the job may have admitted the newcomer just before the newcomer was killed
    if n:
        c.wait_for(
            "the job goes on without agent a2",
            lambda: "goes on without agent a2" in c.scheduler.log.read_text(),
        )
    progress.goes_on(3)
    if when != "waiting":
        cell.within("three rounds without it", time.monotonic() - at, 2.5)
    if when == "let-in-machine":
        c.agents[2].start_again()
    again = c.add_worker(2, "growing", args, 2, 2, "grow")
    c.wait_for("another newcomer is admitted", lambda: let_in() == n + 1)
    progress.goes_on(STAY)
    results = all_have_the_same(c, [*started, again])
    assert results[0]["masks"][list(results[0]["masks"])[-1]] == [0b111]


def test_member_that_is_lost_while_another_joins_is_left_behind(faulty, cell):
    """FM-E-join-loss: a member dies while a newcomer joins. All other members go on."""
    c = faulty(agents=3)
    started, progress, args = growing(c)
    new = c.add_worker(2, "growing", args, 2, 2, "grow")
    c.wait_for(
        "the newcomer waits or is admitted",
        lambda: job_of(c).get("newcomers") == 1 or "admits rank 2" in c.scheduler.log.read_text(),
    )
    at = time.monotonic()
    started[1].process.kill()
    c.wait_for(
        "the job goes on without agent a1",
        lambda: "goes on without agent a1" in c.scheduler.log.read_text(),
    )
    c.wait_for("the newcomer is in", lambda: "admits rank 2" in c.scheduler.log.read_text())
    progress.goes_on(3)
    cell.within("rounds of the two", time.monotonic() - at, 2.5)
    results = all_have_the_same(c, [started[0], new])
    assert results[0]["masks"][list(results[0]["masks"])[-1]] == [0b101]


@pytest.mark.parametrize("what", ["agent", "server", "scheduler"])
def test_barrier_outlives_what_is_lost_while_some_wait_at_it(faulty, cell, what):
    """FM-E-barrier: an agent, a server or the scheduler restarts while workers wait at a barrier.

    Two of three workers wait. They pass the barrier when the third worker reaches it, and rounds
    go on.
    """
    c = faulty(agents=3, is_kept=True)
    go = c.dir / "go"
    started = c.start_job("at_barrier", 3, {"n_elems": 20000, "late_rank": 1, "go": str(go)})
    c.wait_for("two workers wait at the barrier", lambda: job_of(c).get("at_barrier") == 2)
    hurt(c, what)
    c.wait_for("two workers wait at the barrier again", lambda: job_of(c).get("at_barrier") == 2)
    at = time.monotonic()
    go.touch()
    for r in c.finish(started):
        cell.within("the barrier", r["passed_at"] - at, 1)
        cell.within("a round behind it", r["longest"], 1)


@pytest.mark.parametrize("what", ["nothing", "server", "scheduler", "agent", "drain"])
def test_job_is_resumed_with_other_servers_after_a_loss(faulty, cell, what):
    """FM-E-resume: while a job is suspended, some of the daemons change.

    During the first suspension, a server joins. In every case except "nothing", another server is
    also drained, or one daemon is killed and restarted. During the second suspension, a server is
    killed. Each time, the job is resumed with a different number of workers. All sums are exact.
    """
    c = faulty(agents=3, is_kept=True)
    ready, wait = c.dir / "ready", c.dir / "wait"
    args = {"sizes": [2, 3, 1], "n_elems": 200000, "ready": str(ready), "wait": str(wait)}
    started = [c.add_worker(a, "resized", args, a, 2, "resize") for a in (0, 1)]
    c.wait_for("the first phase", (c.dir / "ready.0").exists)
    c.add_server(2)
    if what == "drain":
        assert c.steer("drain", "s0", "--wait").returncode == 0
        assert c.servers[0].stop() == 0
    hurt(c, what)
    late = c.add_worker(2, "resized", dict(args, first_phase=1), 2, 3, "resize")
    at = time.monotonic()
    (c.dir / "wait.0").touch()
    c.wait_for("the second phase", (c.dir / "ready.1").exists)
    cell.within("resume and three rounds, Python's start included", time.monotonic() - at, 3)
    c.servers[1].kill()
    (c.dir / "wait.1").touch()
    results = c.finish([*started, late])
    assert [len(r) for r in results] == [3, 2, 1], results


def test_machine_whose_results_differ_ends_the_job_and_is_named(faulty, cell):
    """FM-E-diverged: a machine's echo of a result differs from the other machines' echoes.

    The error names this machine.
    """
    c = faulty(agents=3)
    job = c.steady(3).wait_rounds()
    at = time.monotonic()
    c.agents[2].faults("agent.contrib.echo=drop,count=1")
    for r in job.errors():
        assert r["code"] == bps.EDIVERGED, r
        assert "agent-host2" in r["text"] and "that differs from" in r["text"], r["text"]
        cell.within("error", r["failed_at"] - at, 1)
    c.run("rounds", 3, {"n_elems": 1000, "n_rounds": 3})
