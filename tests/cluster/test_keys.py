"""A cluster with a key rejects peers that have no key, or a key of another cluster or identity."""

import json
import os
import re
import socket
import subprocess

import pytest

from cluster import BUILD, DEADLINE_S
from keys import derived, new_key


def output(c, program, *args):
    p = subprocess.run(
        [str(BUILD / program / program), *args, "--http", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=c.env,
        check=False,
    )
    return p.returncode, p.stderr


def members(c):
    return [m["name"] for m in c.scheduler.status()["members"]]


@pytest.mark.parametrize("listen", ["127.0.0.1:7300", "0.0.0.0:7300", "127.0.0.1:7400"])
def test_orders_of_bpsctl_do_not_count_as_failed_connections(master, listen):
    """Without --scheduler, bpsctl finds the local scheduler and causes no failed connections.

    The test runs in a network namespace, where the default port is free.
    """
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    script = """
        ip link set lo up
        "$1/bps-scheduler/bps-scheduler" --listen "$3" --key-file "$2" --ready-fd 3 \
            3>"$2.ready" 2>"$2.log" &
        trap 'kill $!; wait $!' EXIT
        until grep -q HTTP= "$2.ready"; do kill -0 $! || exit 9; done
        for i in 1 2 3; do "$1/bpsctl" --key-file "$2" key status >&2 || exit 8; done
        exec 4<>/dev/tcp/127.0.0.1/7301
        printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&4
        cat <&4
    """
    p = subprocess.run(
        ["unshare", "-n", "bash", "-c", script, "bash", BUILD, master, listen],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    log = master.with_name(f"{master.name}.log").read_text()
    assert p.returncode == 0, (p, log)
    counts = dict(re.findall(r'^bps_auth_failures_total{reason="(\w+)"} (\d+)$', p.stdout, re.M))
    assert counts and set(counts.values()) == {"0"}, counts
    assert "refused a connection" not in log and "closed the connection" not in log, log


def test_error_of_a_host_key_without_the_cluster_key_names_the_next_step(tmp_path):
    p = subprocess.run(
        [str(BUILD / "bpsctl"), "key", "derive", "server:s0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, "BPS_KEY_FILE": ""},
    )
    assert p.returncode == 2 and "bpsctl key new" in p.stderr, p


def test_cluster_with_a_key_sums(cluster, master):
    key = ["--key-file", master]
    c = cluster(agents=2, servers=2, server_args=key, agent_args=key, scheduler_args=key)
    c.run("rounds", 4, {"n_elems": 100000, "n_rounds": 5, "n_tensors": 2})
    assert [p["code"] for p in c.scheduler.status()["problems"]] == ["MASTER_KEY"]


def test_member_with_the_master_key_is_named_by_its_log_and_key_status(cluster, master):
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    c.add_server(0, "--key-file", derived(master, "server:s0"))
    c.add_server(1, "--key-file", master)
    c.wait_for("s1 warns", lambda: "bpsctl key derive server:s1" in c.servers[1].log.read_text())
    assert "master key" not in c.servers[0].log.read_text()
    text = c.steer("--key-file", master, "key", "status").stdout
    assert (
        re.search(r"HAS THE MASTER KEY +HOST\nserver s1 +server-host1\n", text)
        and "server s0" not in text
    ), text


def test_keys_of_hosts_are_enough_for_members(cluster, master):
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    c.add_server(0, "--key-file", derived(master, "server:s0"))
    for i in range(2):
        c.add_agent(i, "--key-file", derived(master, f"agent:a{i}"))
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5})


def test_key_of_another_host_is_refused(cluster, master):
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    key = derived(master, "server:s1")
    d = c.spawn(
        "bps-server",
        "s0",
        "--listen",
        "127.0.0.100:0",
        "--scheduler",
        f"127.0.0.1:{c.scheduler.port}",
        "--name",
        "s0",
        "--key-file",
        key,
    )
    c.wait_for("the server is refused", lambda: "cannot reach the scheduler" in d.log.read_text())
    assert not members(c)
    c.wait_for(
        "the status shows the refused key",
        lambda: "as server:s0 in the last minute" in c.bpsctl("status").stdout,
    )
    refused = json.loads(c.scheduler.get("/status"))["refused"]
    assert [r["identity"] for r in refused] == ["server:s0"] and refused[0]["count"] >= 1


@pytest.mark.parametrize("with_key", [False, True])
def test_member_without_the_key_is_refused(cluster, master, tmp_path, with_key):
    args = ["--key-file", new_key(tmp_path / "other.key", "key", "new")] if with_key else []
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    d = c.spawn(
        "bps-server",
        "s0",
        "--listen",
        "127.0.0.100:0",
        "--scheduler",
        f"127.0.0.1:{c.scheduler.port}",
        "--name",
        "s0",
        *args,
    )
    c.wait_for(
        "the server is refused",
        lambda: (
            "connection to the scheduler is lost" in d.log.read_text()
            or "cannot reach the scheduler" in d.log.read_text()
        ),
    )
    assert not members(c)
    key = ["--key-file", master]
    c.add_server(1, *key)
    for i in range(2):
        c.add_agent(i, *key)
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 3})
    assert members(c) == ["s1", "a0", "a1"]


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]:0", "[::ffff:0.0.0.0]:0", "*:0", "a-name"])
def test_server_needs_one_numeric_address_for_agents_to_connect_to(cluster, master, address):
    c = cluster(agents=0, servers=0)
    status, text = output(
        c,
        "bps-server",
        "--listen",
        address,
        "--key-file",
        str(master),
        "--scheduler",
        f"127.0.0.1:{c.scheduler.port}",
    )
    assert status == 78 and "--listen needs the numeric address" in text, (status, text)


def test_strangers_cannot_keep_members_of_a_cluster_with_a_key_out(cluster, master):
    key = ["--key-file", master]
    c = cluster(agents=1, servers=1, server_args=key, agent_args=key, scheduler_args=key)
    held = []
    for i in range(200):
        for target in (("127.0.0.1", c.scheduler.port), ("127.0.0.100", c.servers[0].port)):
            s = socket.create_connection(target, timeout=5)
            if i % 2:
                s.sendall(b"\x16\x03\x01" if i % 4 == 1 else b"\xff" * 2048)
            held.append(s)
    c.add_agent(1, *key)
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 10})
    for s in held:
        s.close()
    for d in c.daemons:
        warnings = [
            line for line in d.log.read_text().splitlines() if line.startswith(("<3>", "<4>"))
        ]
        assert len(warnings) < 30, warnings
