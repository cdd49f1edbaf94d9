"""An agent's process dies or is replaced while its trainers live: they see a pause, and nothing else."""

import re
import signal
import statistics
import time

import pytest
from keeper import KeptDaemon

SIZES = [200_000, 100, 70_000]  # offered, inline, one that is not a whole number of partitions


def make(cluster, agents=2, servers=2, args=(), **kw):
    c = cluster(agents=0, servers=servers, **kw)
    for i in range(agents):
        c.add_agent(i, *args, kind=KeptDaemon)
    return c


class Job:
    """Rounds that go on until they are told to stop."""

    def __init__(self, c, workers, sizes=None, **kw):
        self.c, n = c, len(c.workers)
        self.trace, self.stop = c.dir / f"trace{n}", c.dir / f"stop{n}"
        args = {"sizes": sizes or SIZES, "stop": str(self.stop), "trace": str(self.trace)}
        args.update(kw.pop("args", {}))
        self.workers = c.start_job("kept_rounds", workers, args, **kw)

    def rounds(self):
        return self.trace.read_text().count("\n") if self.trace.exists() else 0

    def goes_on(self, n=3):
        before = self.rounds()
        self.c.wait_for(f"{n} more rounds", lambda: self.rounds() >= before + n)

    def longest_since(self, when):
        rows = [tuple(map(float, line.split())) for line in self.trace.read_text().splitlines()]
        return max(end - start for start, end in rows if end > when)

    def finish(self):
        self.stop.touch()
        results = self.c.finish(self.workers)
        assert all(r == results[0] for r in results)
        return results[0]


def wound(jobs, agents, sig, times):
    """Let agents die; returns how long jobs paused then, and how long the daemon was away."""
    pauses = []
    for _ in range(times):
        begun = time.monotonic()
        back = [a.die(sig) for a in agents][0]
        for job in jobs:
            job.goes_on()
        pauses.append((max(job.longest_since(begun) for job in jobs), back))
    return pauses


def check_pauses(pauses):
    """At most a second in all, when the machine starts a process in its usual time; never much longer than that start takes."""
    print("pauses", [f"{p:.2f} ({b:.2f} of it away)" for p, b in pauses])
    assert statistics.median(p for p, _ in pauses) < 1.0
    for pause, back in pauses:
        assert pause < max(1.0, back + 0.5)


def losses(agents):
    return [line for a in agents for line in a.log.read_text().splitlines() if line.startswith(("<3>", "<4>"))]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_one_agent_that_dies_again_and_again_costs_pauses(cluster, sig):
    c = make(cluster)
    job = Job(c, 4)
    job.goes_on()
    pauses = wound([job], c.agents[:1], sig, 6)
    job.finish()
    check_pauses(pauses)
    assert not losses(c.agents)
    c.wait_for("nothing is kept for long", lambda: c.agents[0].names() == ["listen"])


def test_all_agents_die_at_once_and_two_jobs_go_on(cluster):
    c = make(cluster)
    jobs = [Job(c, 2), Job(c, 4, sizes=[50_000, 3])]
    for job in jobs:
        job.goes_on()
    for _ in range(3):
        begun = time.monotonic()
        n = [a.restarts for a in c.agents]
        for a in c.agents:
            a.process.send_signal(signal.SIGKILL)
        for a, before in zip(c.agents, n):
            c.wait_for("it is back", lambda a=a, before=before: a.restarts > before)
        for job in jobs:
            job.goes_on()
            assert job.longest_since(begun) < 10
    for job in jobs:
        job.finish()
    assert not losses(c.agents)
