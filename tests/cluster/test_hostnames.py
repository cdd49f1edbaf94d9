"""Machines with equal host names: a daemon of the second is refused, and the first goes on."""

import os
import signal
import subprocess
import time

import pytest
from cluster import DEADLINE_S, clusters
from machines import NODE, Machine


@pytest.fixture
def cluster():
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if subprocess.run(["unshare", "--uts", "--mount", "true"], check=False).returncode:
        pytest.skip("cannot mount here")
    with clusters() as make:
        yield make


def joins(d):
    return d.log.read_text().count("joined the cluster")


def is_accepted(c, d, n=1):
    """Wait until a daemon has joined the cluster n times, or has ended.

    Return whether it has joined n times.
    """
    c.wait_for(f"{d.name} joins or ends", lambda: joins(d) == n or d.process.poll() is not None)
    return joins(d) == n


def must_be_refused(c, d, holder):
    """Check that d was refused, and that the logs of d and of the scheduler name both machines."""
    assert not is_accepted(c, d)
    assert d.process.returncode == 75
    words = [
        "two machines have the host name 'node'",
        f"is pid {holder.process.pid} on node.rack1.example at 127.0.0.{holder.machine.nr}",
        f"process is pid {d.process.pid} on {d.machine.host_name} at 127.0.0.{d.machine.nr}",
        "give one of the machines another host name",
    ]
    for log in (d.log.read_text(), c.scheduler.log.read_text()):
        assert all(w in log for w in words), log


def start_again_until_accepted(c, d):
    """Start a daemon again and again, as a service manager does. Return the number of refusals."""
    n, before = 0, joins(d)
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        os.close(d.spawn())
        if is_accepted(c, d, before + 1):
            return n
        assert d.process.returncode == 75
        n += 1
    raise AssertionError(f"not accepted within {DEADLINE_S} s:\n{c.logs()}")


@pytest.mark.parametrize("second_name", [NODE, "node.rack2.example"])
def test_agent_of_a_second_machine_is_refused_and_the_job_of_the_first_goes_on(
    cluster, second_name
):
    c = cluster(agents=1, servers=1)
    first, stop = Machine(c, 21), c.dir / "stop"
    agent = first.agent()
    assert is_accepted(c, agent)
    c.agents.append(agent)
    job, progress = c.start_running("averages", 4, {"n_elems": 5000, "stop": str(stop)})
    second = Machine(c, 22, "localhost", second_name).agent()
    must_be_refused(c, second, agent)
    progress.goes_on()
    found = f"agent node is pid {agent.process.pid} on {NODE} at 127.0.0.21, and pid"
    for command in ("status", "check"):
        shown = " ".join(c.bpsctl(command).stdout.split())
        assert found in shown and "127.0.0.22 is refused" in shown, shown
    # The scheduler stops, and the second machine is the first to find its successor.
    c.scheduler.pin()
    c.scheduler.kill()
    agent.kill(signal.SIGSTOP)
    c.scheduler.start()
    os.close(second.spawn())
    must_be_refused(c, second, agent)
    agent.kill(signal.SIGCONT)
    c.wait_for("the first machine is back", lambda: joins(agent) == 2)
    progress.goes_on()
    stop.touch()
    assert len({tuple(digests) for digests in c.finish(job)}) == 1
    assert agent.process.poll() is None and joins(second) == 0
    # The same machine may replace its agent.
    agent.kill(signal.SIGKILL)
    os.close(agent.spawn())
    assert is_accepted(c, agent, 3)


def test_server_of_a_second_machine_is_refused_and_its_partitions_stay(cluster):
    c = cluster(agents=2, servers=0)
    server = Machine(c, 21).server()
    assert is_accepted(c, server)
    stop = c.dir / "stop"
    job, progress = c.start_running("averages", 2, {"n_elems": 5000, "stop": str(stop)})
    second = Machine(c, 22, "localhost").server()
    must_be_refused(c, second, server)
    progress.goes_on()
    # The same machine may replace its server.
    server.kill(signal.SIGKILL)
    os.close(server.spawn())
    assert is_accepted(c, server, 2)
    progress.goes_on()
    stop.touch()
    assert len({tuple(digests) for digests in c.finish(job)}) == 1


@pytest.mark.parametrize("role", ["agent", "server"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["closed", "silent"])
def test_machine_that_was_booted_again_is_accepted_within_the_window(cluster, role, is_cut):
    """The old connection is closed, or silent because the former process is stopped."""
    times = ["--agent-window", "2s", "--server-window", "2s"]
    dead = ["--agent-dead", "3s", "--server-dead", "3s"]
    c = cluster(agents=1, servers=1, scheduler_args=[*times, *dead])
    machine = Machine(c, 21)
    d = getattr(machine, role)()
    assert is_accepted(c, d)
    former = d.process
    d.kill(signal.SIGSTOP if is_cut else signal.SIGKILL)
    machine.boot("localhost")
    refusals = start_again_until_accepted(c, d)
    former.kill()
    former.wait(DEADLINE_S)
    assert refusals > 0
    assert "refused a member: two machines have the host name 'node'" in c.scheduler.log.read_text()
    assert c.member("node")["state"] == "up"
