"""Daemons of the compatibility mark and of today form one cluster.

Jobs go on with exact sums while daemons are replaced one by one, in both directions. While the
cluster is mixed, jobs of either release begin and end.
"""

import functools
import json
import signal

import pytest

from cluster import BUILD
from keeper import kept_cluster
from releases import THEN, TODAY, WAYS, is_healthy, release, replace, runs, start_job
from test_device import Rig

import formats
import mark

ways = pytest.mark.parametrize("old,new", WAYS, ids=["upgrade", "back"])
EXIT_WARN = 1
STATUS = ["status", "servers", "agents", "jobs", "events", "why-stuck"]


def daemons(c, order):
    """Return the daemons in the given order of their kinds."""
    kinds = {"scheduler": [c.scheduler], "servers": c.servers, "agents": c.agents}
    return [d for kind in order.split() for d in kinds[kind]]


def shows_no_problem(c, r, command):
    """Return whether a command of a release's bpsctl reads the cluster and has no warning."""
    p = c.bpsctl(command, build=r.build)
    assert p.returncode in (0, EXIT_WARN), (str(r), command, p.stdout, p.stderr)
    return p.returncode == 0


def every_bpsctl_works(c):
    """Check that the bpsctl of both releases understands the cluster.

    On a busy machine, some rounds take longer than 0.5 s, or one agent is often last. bpsctl warns
    of both, so only a warning that lasts is an error.
    """
    for r in (THEN, TODAY):
        for command in STATUS:
            c.wait_for(
                f"`bpsctl {command}` of {r} shows no problem",
                functools.partial(shows_no_problem, c, r, command),
            )
        p = c.bpsctl("--json", "status", build=r.build)
        assert {m["name"] for m in json.loads(p.stdout)["members"]} >= {"s0", "a0"}
        for verb in ("drain", "undrain"):
            p = c.steer(verb, "s1", build=r.build)
            assert p.returncode == 0, (str(r), verb, p.stderr)


@ways
@pytest.mark.parametrize("order", ["scheduler servers agents", "agents servers scheduler"])
def test_daemons_are_replaced_one_by_one_while_jobs_run(cluster, old, new, order):
    c = kept_cluster(cluster, build=old.build)
    assert all(runs(d, old) for d in c.daemons)
    jobs = [start_job(c, old, 4)]
    for d in daemons(c, order):
        replace(d, new)
        for job in jobs:
            job.goes_on()
        c.wait_for("the cluster is healthy", lambda: is_healthy(c))
        every_bpsctl_works(c)
        # The cluster is mixed now. Start a job, and let the job of the last step end.
        jobs.append(start_job(c, new if len(jobs) % 2 else old))
        if len(jobs) > 2:
            jobs.pop(1).finish()
    assert all(runs(d, new) for d in c.daemons)
    for job in jobs:
        job.finish()
    assert not [line for line in c.logs().splitlines() if line.startswith("<3>")]


@ways
def test_daemons_within_one_host_are_replaced(cluster, meeting, old, new):
    at = ["--same-host-dir", str(meeting)]
    c = kept_cluster(cluster, args=at, server_args=at, build=old.build)
    job = start_job(c, old, 4)
    for d in daemons(c, "servers agents"):
        replace(d, new)
        job.goes_on()
        c.wait_for(
            "every server has a connection within the host",
            lambda: all(s.status()["same_host"]["connections"] for s in c.servers),
        )
    job.finish()


@ways
def test_state_that_one_release_has_written_is_read_by_the_other(cluster, old, new):
    c = kept_cluster(cluster, servers=3, build=old.build)
    ended, job = start_job(c, old), start_job(c, old, 4)
    ended.finish()
    assert c.steer("drain", "s1", "--reason", "new disk", build=old.build).returncode == 0
    assert c.steer("mute", "SERVER_DOWN", "1h", build=old.build).returncode == 0
    c.wait_for("s1 is empty", lambda: not c.member("s1")["partitions"])

    def state():
        status = json.loads(c.bpsctl("--json", "status", build=old.build).stdout)
        members = [(m["id"], m["name"], m["role"], m["state"]) for m in status["members"]]
        return members, [(j["id"], j["name"]) for j in status["jobs"]]

    before = state()
    for r, sig in ((new, signal.SIGKILL), (old, signal.SIGTERM), (new, signal.SIGKILL)):
        c.scheduler.pin()
        c.scheduler.build = r.build
        c.scheduler.kill(sig)
        c.scheduler.start()
        job.goes_on()
        c.wait_for("the state is the same", lambda: state() == before)
        text = c.bpsctl("servers", build=r.build).stdout
        assert "drained: new disk, by " in text, text
        assert c.steer("unmute", "SERVER_DOWN", build=r.build).returncode == 0
        assert c.steer("mute", "SERVER_DOWN", "1h", build=r.build).returncode == 0
    job.finish()


@ways
def test_executors_outlive_an_agent_of_the_other_release(cluster, old, new):
    def kept_by_manager(agents, servers, agent_args):
        return kept_cluster(cluster, agents, servers, agent_args, build=old.build)

    r = Rig(kept_by_manager, "host")
    job = start_job(r.c, old, 4, function="device_kept_rounds", env=r.env)
    for d in daemons(r.c, "scheduler servers agents"):
        replace(d, new)
        job.goes_on()
    started = r.start("device_rounds", 2, {"sizes": [1000], "n_rounds": 3})
    r.c.finish(started)
    job.finish()


def test_layouts_are_those_of_the_mark():
    assert not list(formats.broken(mark.tree_at(THEN.tree), mark.tree_at(TODAY.tree))), (
        formats.TO_DO
    )


def test_the_mark_has_the_recorded_versions():
    assert {name: THEN.version(name) for name in formats.FORMATS} == mark.read().versions


def test_the_tests_start_the_programs_of_both_releases():
    assert BUILD == TODAY.build
    assert (THEN.build / "bpsctl").exists()
    for name in formats.FORMATS:
        raised = release("raised", mark.BUILDS / name)
        assert raised.version(name) == TODAY.version(name) + 1
