"""Hostile users and peers must not slow down an honest job, and must not leave anything behind."""

import contextlib
import os
import socket

import pytest

from attack import ALICE, ATTACKS_MIN, BOB, Attacker, Honest, footprint, log_lines, measure

pytestmark = pytest.mark.alone

# Limit of the log lines of all daemons together. Thousands of attacks of one kind cause a few
# hundred lines a minute.
LOG_LINES_MAX = 3000


def settled(c, before):
    """Wait until no daemon has more resources than before the attack."""
    c.wait_for(
        "no agent has a trainer or a job",
        lambda: all(a.status()["trainers"] == a.status()["jobs"] == 0 for a in c.agents),
    )
    for d, was in before:
        c.wait_for(
            f"nothing is left in {d.name}",
            lambda d=d, was=was: all(x <= y for x, y in zip(footprint(d), was)),
        )


def begin(c):
    """Run a first job, so that all threads and connections exist.

    Return the footprint of each daemon.
    """
    c.open_to_all()
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3}, uid=BOB)
    c.wait_for("the job has ended", lambda: all(a.status()["jobs"] == 0 for a in c.agents))
    return [(d, footprint(d)) for d in c.daemons]


@pytest.mark.parametrize(
    "kind, rate", [("socket", 200), ("ring", 60), ("memory", 60), ("churn", 300)]
)
def test_hostile_user_slows_no_other_and_leaves_nothing_behind(cluster, kind, rate):
    c = cluster(agents=2, servers=1)
    before = begin(c)
    honest = Honest(c)
    attacker = Attacker(kind, rate, c.agents[0].socket)
    slower = measure(c, honest, attacker)
    if kind == "churn":  # continue the attack until 1000 jobs were opened
        attacker.go()
        c.wait_for("a thousand jobs were opened", lambda: opened(c) >= 1000, 180)
    n = attacker.end()
    assert n >= ATTACKS_MIN, n
    assert not slower.is_much(), f"{kind}: {slower}, {n} attacks\n{c.logs()}"
    assert len(set(honest.end())) == 1
    settled(c, before)
    lines = log_lines(c)
    assert lines < LOG_LINES_MAX, lines
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3}, uid=BOB)


def opened(c):
    """Return the id of the newest job."""
    return max(j["id"] for j in c.scheduler.status()["jobs"] + c.scheduler.status()["ended"])


def ports_of(c):
    control = [f"127.0.0.1:{c.scheduler.port}"]
    data = [f"127.0.0.{100 + i}:{s.port}" for i, s in enumerate(c.servers)]
    return control + data + [f"127.0.0.1:{d.http}" for d in c.daemons]


def with_key(tmp_path):
    """Return the arguments that give every daemon of a cluster the same key."""
    key = tmp_path / "cluster.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(32))
    args = ["--key-file", str(key)]
    return {"scheduler_args": args, "server_args": args, "agent_args": args}


def test_strangers_on_every_port_slow_no_job_and_leave_nothing_behind(cluster, tmp_path):
    c = cluster(agents=2, servers=1, **with_key(tmp_path))
    before = begin(c)
    honest = Honest(c)
    attacker = Attacker("strangers", 300, *ports_of(c))
    slower = measure(c, honest, attacker)
    attacker.go()
    late = c.add_agent(2, *with_key_args(c))  # an agent with the key must still be able to connect
    c.open_to_all()
    c.run("rounds", 3, {"n_elems": 100000, "n_rounds": 3}, uid=ALICE)
    assert late.stop() == 0
    c.agents.remove(late)
    n = attacker.end()
    assert not slower.is_much(), f"{slower}, {n} strangers\n{c.logs()}"
    honest.end()
    settled(c, before)
    assert log_lines(c) < LOG_LINES_MAX


def with_key_args(c):
    i = c.agents[0].args.index("--key-file")
    return c.agents[0].args[i : i + 2]


def test_five_hundred_silent_strangers_on_each_port_take_no_descriptor_for_long(cluster, tmp_path):
    c = cluster(agents=1, servers=1, **with_key(tmp_path))
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
    before = [(d, footprint(d)) for d in c.daemons]

    def has_met_them():
        try:
            return "bps_server_silent_strangers_total 0\n" not in c.servers[0].get("/metrics")
        except OSError:  # the server closed this connection to make room for a newer one
            return False

    with contextlib.ExitStack() as held:
        for at in ports_of(c):
            host, port = at.rsplit(":", 1)
            for _ in range(500):
                s = held.enter_context(socket.socket())
                s.setblocking(False)
                s.connect_ex((host, int(port)))
        c.wait_for("the server has counted silent strangers", has_met_them)
        for d, (
            fds,
            *_,
            # The HTTP port and the control port each keep up to 64 connections. When a further
            # connection arrives, the daemon closes the oldest connection of the port.
        ) in before:
            c.wait_for(
                f"{d.name} has closed the strangers' connections",
                lambda d=d, fds=fds: footprint(d)[0] <= fds + 64 + 64,
            )
        c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 3})
    for d, was in before:
        c.wait_for(f"nothing is left in {d.name}", lambda d=d, was=was: footprint(d)[0] <= was[0])
