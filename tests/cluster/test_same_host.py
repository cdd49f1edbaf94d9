"""Agents and servers of one host share memory: exact sums, faults, and fallback to the network."""

import os
import re
import signal
import socket
import time

import bps
import pytest

from keeper import Job, kept_cluster
from reference import same_everywhere

OFF = ["--same-host", "off"]


def at(meeting):
    return ["--same-host-dir", str(meeting)]


def same_host(d):
    return d.status()["same_host"]


def sums(d):
    """Return how many bytes a daemon received through shared memory, and how many over the
    network."""
    s = d.status()
    return s["same_host"]["received_bytes"], s["received_bytes"]


def test_sums_within_one_host_are_exact_and_leave_the_network_alone(cluster, meeting):
    c = cluster(agents=2, servers=2, agent_args=at(meeting), server_args=at(meeting))
    args = {
        "dtypes": ["f32", "f16", "i32", "u8"],
        "ops": ["sum", "avg", "max"],
        "sizes": [1, 4095, 70001, 1 << 20],
        "rounds": 3,
        "part_bytes": 65536,
    }
    same_everywhere(c.run("matrix", 3, args, placement=[0, 0, 1]))
    for d in [*c.agents, *c.servers]:
        by_memory, by_network = sums(d)
        assert by_memory > 1 << 20 and by_network == 0, (d.name, by_memory, by_network)


def test_sums_are_exact_with_some_agents_on_the_host_and_some_not(cluster, meeting):
    c = cluster(agents=1, servers=2, agent_args=at(meeting), server_args=at(meeting))
    c.add_agent(1, *OFF)
    c.add_agent(2, *at(meeting))
    args = {
        "dtypes": ["f32", "bf16", "i64"],
        "ops": ["sum", "avg"],
        "sizes": [17, 4095, 300001],
        "rounds": 4,
        "part_bytes": 65536,
        "deterministic": 1,
    }
    same_everywhere(c.run("matrix", 5, args, placement=[0, 1, 1, 2, 2]))
    for a, is_near in zip(c.agents, [True, False, True]):
        by_memory, by_network = sums(a)
        assert (by_memory > 1 << 20) == is_near and (by_network > 1 << 20) != is_near, (
            a.name,
            by_memory,
            by_network,
        )
    for s in c.servers:
        assert min(sums(s)) > 1 << 20, s.name


def test_metrics_count_bytes_through_memory_separately(cluster, meeting):
    c = cluster(agents=2, servers=1, agent_args=at(meeting), server_args=at(meeting))
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 10})
    for d in [*c.agents, *c.servers]:
        values = dict(re.findall(r"^(bps_\w+) ([0-9.e+]+)$", d.get("/metrics"), re.M))
        assert float(values["bps_same_host_received_bytes_total"]) >= 10 * 800000, d.name
        role = "server" if d in c.servers else "agent"
        assert float(values[f"bps_{role}_received_bytes_total"]) == 0, d.name
        assert float(values[f"bps_{role}_sent_bytes_total"]) == 0, d.name
    for word in ("agents", "servers"):
        c.wait_for(
            f"bpsctl {word} shows shared memory",
            lambda w=word: "shares memory within its host" in c.bpsctl(w).stdout,
        )


@pytest.mark.parametrize("side", ["agent", "server"])
def test_setting_off_on_either_side_goes_through_the_network(cluster, meeting, side):
    c = cluster(
        agents=2,
        servers=1,
        agent_args=at(meeting) + (OFF if side == "agent" else []),
        server_args=at(meeting) + (OFF if side == "server" else []),
    )
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5})
    d = c.agents[0] if side == "agent" else c.servers[0]
    assert same_host(d)["state"] == "off"
    word = "agents" if side == "agent" else "servers"
    c.wait_for(f"bpsctl {word} shows the setting", lambda: "same-host=off" in c.bpsctl(word).stdout)
    for d in [*c.agents, *c.servers]:
        assert sums(d)[0] == 0 and sums(d)[1] > 0, d.name
    assert not list(meeting.iterdir()) or side == "agent"


def test_server_that_cannot_make_its_socket_says_so_and_goes_through_the_network(cluster, meeting):
    c = cluster(agents=2, servers=1, agent_args=at(meeting / "no"), server_args=at(meeting / "no"))
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5})
    assert "no memory is shared with agents of this host" in c.servers[0].log.read_text()
    assert "choose another --same-host-dir" in c.servers[0].log.read_text()
    assert same_host(c.servers[0])["state"] == "no place"


def test_agent_that_is_refused_says_so_and_goes_through_the_network(cluster, meeting):
    real, fake = meeting / "real", meeting / "fake"
    real.mkdir()
    fake.mkdir()
    c = cluster(agents=2, servers=1, agent_args=at(fake), server_args=at(real))
    names = [p.name for p in real.iterdir()]
    assert len(names) == 2
    for name in names:  # leave socket files behind, as a dead server does
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(str(fake / name))
            s.listen()
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5})
    for a in c.agents:
        assert "using the network" in a.log.read_text(), a.name
        assert sums(a)[0] == 0, a.name


@pytest.mark.parametrize("victim", ["s0", "a0"])
def test_stopped_daemon_costs_no_round_and_comes_back_to_shared_memory(cluster, meeting, victim):
    quick = ["--ping", "100ms", "--ping-dead", "500ms"]
    c = cluster(
        agents=2,
        servers=2,
        agent_args=at(meeting) + quick,
        server_args=at(meeting) + quick,
        scheduler_args=["--server-dead", "1500ms"],
    )
    started, _ = c.start_running("rounds", 2, {"n_elems": 300000, "n_rounds": 150, "n_tensors": 3})
    d = c.daemon(victim)
    other = c.agents[0] if victim == "s0" else c.servers[0]
    n = same_host(other)["connections"]
    d.kill(signal.SIGSTOP)
    c.wait_for(
        "the peer has closed its shared-memory connection",
        lambda: same_host(other)["connections"] < n,
    )
    d.kill(signal.SIGCONT)
    c.finish(started)
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5})
    c.wait_for("agents and server share memory again", lambda: same_host(other)["connections"] > 0)
    assert not any("using the network" in a.log.read_text() for a in c.agents)


def test_killed_server_costs_no_round(cluster, meeting):
    c = cluster(agents=2, servers=2, agent_args=at(meeting), server_args=at(meeting))
    started, progress = c.start_running(
        "rounds", 4, {"n_elems": 300000, "n_rounds": 200, "n_tensors": 3}
    )
    for _ in range(4):
        n = progress.rounds()
        c.servers[0].kill()
        c.servers[0].start()
        progress.wait(n + 10)
    c.finish(started)
    left = {p.name.split(".")[0] for p in meeting.iterdir()}
    assert len(left) == 2, "dead processes' sockets are left"
    assert all(sums(a)[1] == 0 for a in c.agents)


def test_killed_agent_leaves_no_wrong_sum_and_the_server_goes_on(cluster, meeting):
    c = cluster(agents=2, servers=1, agent_args=at(meeting), server_args=at(meeting))
    started, _ = c.start_running("rounds", 2, {"n_elems": 2000000, "n_rounds": 20000})
    c.agents[1].kill()  # the server may be reading the agent's memory
    c.wait_for(
        "the server notices the killed agent", lambda: same_host(c.servers[0])["connections"] == 2
    )
    c.agents[1].start()
    c.wait_for(
        "agent a1 is connected to the scheduler", lambda: c.agents[1].status()["scheduler_up"]
    )
    for w in started:
        w.process.kill()
        w.process.wait()
        assert "wrong" not in w.text() and "Assertion" not in w.text(), w.text()
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5})
    assert sums(c.servers[0])[1] == 0


def test_input_that_is_written_after_the_agents_loss_is_in_no_sum(cluster, meeting):
    c = cluster(agents=2, servers=1, agent_args=at(meeting), server_args=at(meeting))
    n = 300000
    args = {"n_elems": n, "lost": str(c.dir / "lost"), "victim": 1, "n_rounds": 3}
    started = c.start_job("orphan", 2, args)
    c.wait_for(
        "the server has the victim's last contribution", lambda: sums(c.servers[0])[0] == 5 * n * 8
    )
    c.agents[1].kill()
    results = c.finish(started)
    assert results[0][1] is not False and results[1][0] == bps.ENOAGENT, results


def test_agent_that_dies_and_comes_back_costs_no_round(cluster, meeting):
    c = kept_cluster(cluster, args=at(meeting), server_args=at(meeting))
    # With three workers per machine, the server reads local sums from the agents' memory.
    job = Job(c, 6)
    for _ in range(4):
        job.goes_on(5)
        c.agents[0].die(signal.SIGKILL)
    job.goes_on(5)
    job.finish()
    assert all(sums(s)[0] > 0 and sums(s)[1] == 0 for s in c.servers)


@pytest.mark.parametrize(
    "sock,threads,why",
    [
        ("no", 0, "no agent on this host"),
        ("yes", 0, "with an agent on this host"),
        ("yes", 3, "as set by --threads"),
    ],
)
def test_server_says_how_many_threads_it_has_chosen_and_why(cluster, meeting, sock, threads, why):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(meeting / "yes"))
        c = cluster(
            agents=1,
            servers=1,
            server_args=["--agent-socket", str(meeting / sock), "--threads", threads],
        )
    n = c.servers[0].status()["threads"]
    alone = min(8, max(1, len(os.sched_getaffinity(0)) // 2))
    assert n == threads or n == (alone if sock == "no" else max(1, alone // 4))
    assert f"started {n} data threads: why={why}" in c.servers[0].log.read_text()
    assert [m["threads"] for m in c.scheduler.status()["members"] if m["role"] == "server"] == [n]
    assert c.agents[0].status()["threads"] == 1


def test_strangers_at_the_socket_get_nothing_and_delay_no_job(cluster, meeting):
    c = cluster(agents=2, servers=1, agent_args=at(meeting), server_args=at(meeting))
    started, _ = c.start_running("rounds", 2, {"n_elems": 200000, "n_rounds": 100})
    held = []
    for path in meeting.iterdir():
        for junk in (b"", b"x", b"\0" * 56, os.urandom(56), os.urandom(4000)):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.settimeout(5)
            s.connect(str(path))
            if junk:
                assert len(s.recv(100)) == 16  # the server's challenge
                s.send(junk)
                assert s.recv(100) == b""
            held.append(s)
    c.finish(started)
    assert c.servers[0].status()["same_host"]["connections"] == 4
    metrics = c.servers[0].get("/metrics")
    assert int(re.search(r"^bps_same_host_refused_total (\d+)", metrics, re.M)[1]) >= 4
    until = time.monotonic() + 10
    for s in held:  # the server must also close the connections that sent nothing
        s.settimeout(max(0.1, until - time.monotonic()))
        while s.recv(100):
            pass
        s.close()
