"""The messages of daemons to their service manager."""

import os
import socket

import pytest
from cluster import read_ready
from keeper import Manager


@pytest.mark.parametrize("which", ["scheduler", "s0", "a0"])
def test_daemon_says_ready_feeds_its_watchdog_and_says_stopping(cluster, tmp_path, which):
    c = cluster(agents=1, servers=1)
    d = c.daemon(which)
    d.stop()
    manager = Manager(tmp_path / "notify")
    c.env.update(manager.env)
    d.start()
    manager.wait_for("READY=1")
    for _ in range(3):
        manager.wait_for("WATCHDOG=1")
    assert d.stop() == 0
    manager.wait_for("STOPPING=1")


@pytest.mark.parametrize("which", ["s0", "a0"])
def test_member_is_up_while_it_waits_for_the_scheduler_and_says_what_it_does(
    cluster, tmp_path, which
):
    c = cluster(agents=1, servers=1)
    d = c.daemon(which)
    d.stop()
    c.scheduler.stop()
    manager = Manager(tmp_path / "notify")
    c.env.update(manager.env)
    ready = d.spawn()
    assert "READY=1" in manager.wait_for("STATUS=waiting for the scheduler for ")
    del c.env["NOTIFY_SOCKET"]
    c.scheduler.pin()
    manager.fill()  # a status that cannot be sent is sent again
    c.scheduler.start()
    read_ready(ready, d.process, d.name, d.log)
    manager.wait_for("STATUS=summing: " if which == "s0" else "STATUS=accepting trainers: ")
    c.scheduler.stop()
    manager.wait_for("STATUS=running jobs go on; the scheduler cannot be reached for 0 s: ")


def test_scheduler_reports_the_number_of_members_to_its_service_manager(cluster, tmp_path):
    c = cluster(agents=0, servers=0)
    c.scheduler.stop()
    manager = Manager(tmp_path / "notify")
    c.env.update(manager.env)
    c.scheduler.start()
    manager.wait_for("STATUS=servers 0 of 0, agents 0 of 0, jobs 0 running")
    del c.env["NOTIFY_SOCKET"]
    c.add_server(0)
    manager.wait_for("STATUS=servers 1 of 1, agents 0 of 0, jobs 0 running")


def test_scheduler_keeps_its_state_in_the_service_managers_folder(cluster):
    c = cluster(agents=0, servers=0)
    c.scheduler.stop()
    at = c.scheduler.args.index("--state-dir")
    del c.scheduler.args[at : at + 2]
    state = c.make("managed")
    c.env["STATE_DIRECTORY"] = str(state)
    c.scheduler.start()
    assert (state / "state.log").stat().st_size > 0


def test_agent_takes_the_socket_of_the_service_manager(cluster):
    c = cluster(agents=1, servers=0)
    a = c.agents[0]
    a.stop()
    path = c.dir / "activated.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)
    a.socket = path
    # The client connects before the agent starts, and waits in the socket's queue.
    early = c.start_job("collectives", 2)
    a.listen_fds = [listener.fileno()]
    a.start()
    c.finish(early)
    assert os.path.exists(path), "the agent removed a socket that is not its own"
    listener.close()
