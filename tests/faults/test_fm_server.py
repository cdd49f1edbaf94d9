"""Fault matrix, column S: servers. No round fails, whatever happens to a server."""

import os
import signal
import socket
import time

import pytest

import bps
from control import PROTO, SERVER, answer_to, hello
from lab import clock_env, cpu_cgroup, memory_cgroup, wait_until

MUST_SEE_S = 3  # 2.4 s (--server-dead) and one heartbeat interval of 0.5 s, rounded up
WINDOW_S = 1  # the setting --server-window
STRANDED_S = 10  # the setting --stranded-after
STAY = 20


@pytest.mark.quick
def test_killed_server_is_replaced(faulty, cell):
    """FM-S-kill9: server s0 is killed and not restarted.

    The scheduler moves the server's partitions after --server-window.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.servers[0].kill()
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), WINDOW_S + 0.5)


@pytest.mark.quick
@pytest.mark.parametrize("by", ["kill9", "term"])
@pytest.mark.parametrize("servers", [1, 2])
def test_restarted_server_costs_no_round(faulty, cell, by, servers):
    """FM-S-restart: server s0 is killed, or ended with SIGTERM, and restarted immediately.

    The cluster has one or two servers.
    """
    c = faulty(servers=servers)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.servers[0].kill(signal.SIGKILL if by == "kill9" else signal.SIGTERM)
    c.servers[0].start_again()
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 1)


@pytest.mark.quick
def test_drained_server_costs_no_round(faulty, cell):
    """FM-S-drain: the server's partitions move between two rounds.

    Then the server is stopped and restarted.
    """
    c = faulty()
    job = c.steady(2, n_tensors=8).wait_rounds()
    at = time.monotonic()
    p = c.steer("drain", "s0", "--wait")
    assert p.returncode == 0, p
    assert not c.member("s0")["partitions"]
    assert c.servers[0].stop() == 0
    job.wait_rounds(STAY)
    c.servers[0].start_again()
    assert c.steer("undrain", "s0").returncode == 0
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)


def test_stopped_server_is_replaced_and_fenced(faulty, cell):
    """FM-S-stop: the server is stopped, and its partitions move within 3 s.

    When the server continues, its messages belong to an old placement and have no effect.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.servers[0].kill(signal.SIGSTOP)
    c.wait_for(
        "server s0 is declared dead",
        lambda: (
            "server s0: up -> down" in c.scheduler.log.read_text()
            or "server s0: suspect -> down" in c.scheduler.log.read_text()
        ),
    )
    job.wait_rounds(STAY)
    c.servers[0].kill(signal.SIGCONT)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), MUST_SEE_S)
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5})


def test_server_that_stops_for_a_moment_costs_no_round(faulty, cell):
    """FM-S-pause: the server is stopped for a second, less than --server-dead.

    The server's partitions do not move.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.servers[0].kill(signal.SIGSTOP)
    wait_until(at + 1)
    c.servers[0].kill(signal.SIGCONT)
    cell.within("stall", job.wait_rounds(STAY).stall(at), 1 + 0.5)
    assert "-> down" not in c.scheduler.log.read_text()


def test_server_whose_data_thread_hangs_ends_itself(faulty, cell):
    """FM-S-thread: one data thread hangs. After 5 s the server ends itself and is replaced."""
    c = faulty()
    c.servers[0].may_end_with.add(70)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.servers[0].faults("server.thread.tick=hang,count=1")
    assert c.servers[0].process.wait(30) == 70
    cell.within("its end", time.monotonic() - at, 5.5)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 5.5 + WINDOW_S + 0.5)


def test_server_without_memory_is_replaced_as_if_killed(faulty, cell):
    """FM-S-oom: the server uses too much memory, so the kernel kills the server during rounds."""
    cgroup = memory_cgroup(f"bps-{os.getpid()}", 1 << 30)
    if not cgroup:
        pytest.skip("no memory cgroup here")
    c = faulty()
    c.servers[0].may_end_with.add(-signal.SIGKILL)
    with cgroup as (put, squeeze):
        job = c.steady(2).wait_rounds()
        put(c.servers[0].pid)
        squeeze(24 << 20)
        # sums and staging memory of this job exceed the limit
        big = c.steady(2, n_elems=4 << 20, n_tensors=1)
        assert c.servers[0].process.wait(60) == -signal.SIGKILL
        at = time.monotonic()
        job.wait_rounds(STAY)
        big.wait_rounds(3)
        big.stop()
        cell.within("stall", job.stall(at), WINDOW_S + 1)


def test_slow_server_is_waited_for(faulty, cell):
    """FM-S-slow: the server sleeps 10 ms before each sum. Sums are exact. No partition moves."""
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.servers[0].faults("server.sum.start=sleep:10ms")
    job.wait_rounds(10)
    c.servers[0].faults("")
    cell.within("stall", job.stall(at), 1)
    assert "-> down" not in c.scheduler.log.read_text()


@pytest.mark.alone
def test_server_with_a_slow_processor_is_waited_for(faulty, cell):
    """FM-S-cpu: the server has a tenth of a processor.

    Sums are exact, and the server is not declared dead.
    """
    cgroup = cpu_cgroup(f"bps-{os.getpid()}", 0.1)
    if not cgroup:
        pytest.skip("no cgroup for processors here")
    c = faulty()
    with cgroup as put:
        job = c.steady(2).wait_rounds()
        at = time.monotonic()
        put(c.servers[0].pid)
        wait_until(at + 5)
        cell.within("stall", job.wait_rounds(10).stall(at), MUST_SEE_S)
        assert "-> down" not in c.scheduler.log.read_text()


@pytest.mark.alone
def test_server_with_a_slow_network_card_is_waited_for(faulty, cell, lab):
    """FM-S-nic: the server's card has 20 Mbit/s in each direction.

    The server is not declared dead.
    """
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.rate(c.servers[0].host, "20mbit")
    job.wait_rounds(10)
    lab.rate(c.servers[0].host, None)
    cell.within("stall", job.wait_rounds(STAY).stall(at), 3)
    assert "-> down" not in c.scheduler.log.read_text()


@pytest.mark.parametrize("how", ["down", "both", "in", "out"])
def test_server_that_is_cut_off_is_replaced(faulty, cell, lab, how):
    """FM-S-cut: the server's link is down, or packets are lost in one direction or both.

    The server's partitions move within 3 s. The server joins again after the fault.
    """
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    host = c.servers[0].host
    at = time.monotonic()
    lab.cut_off(host, how)
    c.wait_for("the server is declared dead", lambda: "-> down" in c.scheduler.log.read_text())
    job.wait_rounds(STAY)
    lab.mend(host)
    c.wait_for(
        "server s0 is up again",
        lambda: c.scheduler.log.read_text().rstrip().count("s0: down -> up") > 0,
    )
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), MUST_SEE_S)


def test_short_cut_of_a_server_costs_no_round(faulty, cell, lab):
    """FM-S-blink: all packets to and from the server are lost for a second."""
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.blink(c.servers[0].host, 1)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 1 + 2)


@pytest.mark.quick
def test_connections_of_a_server_that_are_reset_are_opened_again(faulty, cell, lab):
    """FM-S-rst: every connection of the server is reset, ten times.

    The server keeps its partitions. Each reset happens as soon as the server is a member again.
    """
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    joined = c.servers[0].log.read_text().count("joined the cluster")
    for i in range(10):
        lab.kill_connections(c.servers[0].host)
        c.wait_for(
            "server s0 has joined again",
            lambda n=joined + i: c.servers[0].log.read_text().count("joined the cluster") > n,
        )
        job.wait_rounds(1)
    cell.within("stall", job.stall(at), 1.5)
    assert "-> down" not in c.scheduler.log.read_text()


def test_firewall_that_resets_all_new_connections_is_outlived(faulty, cell, lab):
    """FM-S-reject: for two seconds, all packets to the server's data port are answered with RST."""
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.reset(c.servers[0].host, c.servers[0].port)
    lab.kill_connections(c.agents[0].host)
    wait_until(at + 2)
    lab.mend(c.servers[0].host)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 2 + 2)


def test_half_open_connections_to_a_server_are_noticed(faulty, cell, lab):
    """FM-S-halfopen: the server's sockets vanish without a message to the agents."""
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.half_open(c.servers[0].host)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 3.5)


def test_server_cut_off_only_from_the_scheduler_is_replaced(faulty, cell, lab):
    """FM-S-scheduler: the server is cut off only from the scheduler.

    The server's partitions move when the time of --server-dead has passed.
    """
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.cut(c.servers[0].host, other=c.scheduler.host)
    wait_until(at + 2 * MUST_SEE_S)
    job.wait_rounds(STAY)
    lab.mend(c.servers[0].host)
    c.wait_for("server s0 is up again", lambda: "s0: down -> up" in c.scheduler.log.read_text())
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)


@pytest.mark.parametrize("agent", [0, 1])
def test_server_and_agent_that_are_cut_from_each_other_are_named(faulty, cell, lab, agent):
    """FM-S-agent: packets between an agent and a server are lost.

    Calls wait, and `bpsctl why-stuck` names the agent and the server. When the network is
    repaired, the calls complete.
    """
    c = faulty(lab=lab)
    job = c.steady(2, timeout=20).wait_rounds()
    at = time.monotonic()
    lab.cut(c.agents[agent].host, other=c.servers[0].host)
    words = f"agent a{agent} on agent-host{agent}: ", "server s0 (host server-host0)", "partition"
    c.wait_for(
        "why-stuck names the agent and the server",
        lambda: all(w in " ".join(c.bpsctl("why-stuck").stdout.split()) for w in words),
    )
    cell.within("told by why-stuck", time.monotonic() - at, 8)
    lab.mend(c.agents[agent].host)
    job.wait_rounds(STAY).stop()


@pytest.mark.quick
def test_second_server_of_a_name_is_refused(faulty, cell):
    """FM-S-duplicate: a second server is refused if it has the name of a live server.

    The second server is on another host. The error names the host of the first server.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    answer = answer_to(
        c.scheduler.port, hello(PROTO, "9", name="s0", host="elsewhere", role=SERVER)
    )
    cell.within("refusal", time.monotonic() - at, 1)
    assert b"server-host0" in answer, answer
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)


def test_clock_of_a_server_does_not_matter(faulty, cell, tmp_path):
    """FM-S-clock: the wall clock of all daemons jumps by an hour, ahead and back."""
    jump = tmp_path / "jump"
    c = faulty(daemon_env=clock_env(jump))
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    for seconds in (3600, -3600):
        jump.write_text(str(seconds))
        job.wait_rounds(STAY)
    wait_until(at + 2)
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)
    assert "-> down" not in c.scheduler.log.read_text()


def test_garbage_and_silence_on_the_data_port_disturb_no_round(faulty, cell):
    """FM-S-hostile: sixty hostile peers use the data and HTTP ports of each server."""
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    held = []
    for i in range(30):
        for d in c.servers:
            for target in ((f"127.0.0.{100 + c.servers.index(d)}", d.port), ("127.0.0.1", d.http)):
                s = socket.create_connection(target, timeout=5)
                s.sendall([b"", b"\xff" * 4096, b"GET / HTTP/1.0\r\n", b"\0" * 32][i % 4])
                held.append(s)
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)
    for s in held:
        s.close()


@pytest.mark.parametrize("come_back", [True, False])
def test_loss_of_all_servers_is_an_error_unless_they_return(faulty, cell, come_back):
    """FM-S-all: both servers are killed at once.

    Calls wait 10 s for a server. Then they fail, and the error says that no server is alive.
    """
    c = faulty()
    job = c.steady(2, timeout=30).wait_rounds()
    at = time.monotonic()
    for s in c.servers:
        s.kill()
    if not come_back:
        for r in job.errors():
            assert r["code"] in (bps.ENOSERVER, bps.EWORKER_LOST), r
        assert any("no server is alive" in r["text"] for r in job.errors())
        cell.within(
            "error", max(r["failed_at"] for r in job.errors()) - at, STRANDED_S + WINDOW_S + 1.5
        )
        return
    c.wait_for(
        "bpsctl status reports the loss of all servers",
        lambda: "no server is left" in c.bpsctl("status").stdout,
    )
    c.servers[1].start_again()
    back = time.monotonic()
    job.wait_rounds(STAY)
    cell.within("rounds go on", time.monotonic() - back, 2.5)
    job.stop()
