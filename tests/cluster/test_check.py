"""Test `bpsctl check`, which checks the settings, keys, ports, limits and devices of a host."""

import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from cluster import BUILD


def check(conf, *args, scheduler=1):
    start = time.monotonic()
    p = subprocess.run(
        [
            str(BUILD / "bpsctl"),
            "--json",
            *(["--scheduler-http", f"127.0.0.1:{scheduler}"] if scheduler else []),
            "check",
            "--config-dir",
            str(conf),
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("BPS_") or k == "BPS_BUILD"},
    )
    assert time.monotonic() - start < 4, "bpsctl took 4 s or more; its limit is 2 s"
    d = json.loads(p.stdout)
    assert d["schema"] == 1 and p.returncode == (2 if d["bad"] else 1 if d["warn"] else 0), p
    for c in d["checks"]:
        assert c["state"] == "ok" or c["action"], c
    return {c["name"]: (c["state"], c["what"]) for c in d["checks"]}


def put(conf, name, text):
    (conf / name).write_text(text)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def host(cluster, tmp_path):
    """Yield a cluster whose daemons' settings are in files of a folder."""
    c = cluster(agents=1, servers=1)
    put(
        tmp_path,
        "scheduler.conf",
        f"listen = 127.0.0.1:{c.scheduler.port}\nhttp = 127.0.0.1:{c.scheduler.http}\n",
    )
    put(
        tmp_path,
        "server.conf",
        f"listen = 127.0.0.100:{c.servers[0].port}\nhttp = 127.0.0.1:{c.servers[0].http}\n"
        f"scheduler = 127.0.0.1:{c.scheduler.port}\n",
    )
    put(
        tmp_path,
        "agent.conf",
        f"http = 127.0.0.1:{c.agents[0].http}\nscheduler = 127.0.0.1:{c.scheduler.port}\n",
    )
    c.conf = tmp_path
    return c


def test_host_of_running_daemons_is_well_but_for_keys(host):
    d = check(host.conf, scheduler=host.scheduler.http)
    bad = {name: v for name, v in d.items() if v[0] != "ok"}
    assert set(bad) <= {"scheduler key", "server key", "agent key", "open files", "huge pages"}, bad
    assert (
        "is used by the running bps-server" in d["server listen"][1]
        and "is used by the running bps-agent" in d["agent http"][1]
    ), d
    assert (
        d["agent's scheduler"][0] == "ok" and d["scheduler"][0] == "ok" and d["releases"][0] == "ok"
    ), d
    assert d["kernel"][1] == os.uname().release
    assert "of the running daemon" in d["open files"][1]


def test_wrong_setting_is_reported_with_the_right_one(host):
    put(host.conf, "server.conf", "lisen = 127.0.0.1:1\n")
    state, what = check(host.conf)["server settings"]
    assert (
        state == "bad" and "server.conf:1: unknown setting 'lisen' (did you mean 'listen'?)" in what
    )


def test_other_providers_of_server_and_agent_are_reported(host):
    place = f"http = 127.0.0.1:{host.agents[0].http}\n"
    put(host.conf, "agent.conf", f"{place}provider = tcp\n")
    d = check(host.conf)
    assert d["provider"] == (
        "bad",
        "the server's settings select 'sockets', those of the agent 'tcp'",
    ), d
    put(host.conf, "agent.conf", f"{place}provider = sockets\n")
    assert "provider" not in check(host.conf)


def test_scheduler_is_asked_at_the_address_of_its_settings(host):
    d = check(host.conf, scheduler=None)
    assert f"answers at 127.0.0.1:{host.scheduler.http}" in d["scheduler"][1], d


def test_port_of_another_program_is_distinguished_from_ours(host):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(64)
        put(
            host.conf,
            "server.conf",
            f"listen = 127.0.0.1:{s.getsockname()[1]}\nhttp = 127.0.0.1:{free_port()}\n",
        )
        d = check(host.conf)
    assert d["server listen"][0] == "bad" and "used by another program" in d["server listen"][1], d
    assert d["server http"] == ("ok", d["server http"][1]) and "is free" in d["server http"][1], d


def test_daemon_that_runs_with_other_settings_is_reported(host):
    put(
        host.conf,
        "server.conf",
        f"listen = 127.0.0.1:{free_port()}\nhttp = 127.0.0.1:{host.servers[0].http}\n",
    )
    state, what = check(host.conf)["server listen"]
    assert state == "warn" and "the running bps-server listens on another address" in what


def test_roles_without_a_settings_file_are_not_checked(host):
    names = {"server key", "server listen", "server http"}
    assert names <= set(check(host.conf))
    (host.conf / "server.conf").unlink()
    assert not names & set(check(host.conf))


def test_address_of_another_host_is_refused(host):
    put(host.conf, "server.conf", "listen = 192.0.2.1:7302\nkey-file = nothing\n")
    assert check(host.conf)["server listen"][0] == "bad"


def test_key_that_other_users_may_read_is_bad(host):
    key = host.conf / "server.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    assert check(host.conf)["server key"][0] == "ok"
    key.chmod(0o644)
    assert check(host.conf)["server key"][0] == "bad"
    key.unlink()
    assert check(host.conf)["server key"][0] == "warn"


def test_missing_rdma_that_a_setting_requires_is_bad(host):
    if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        pytest.skip("this machine has RDMA")
    assert check(host.conf)["RDMA"][0] == "ok"
    put(host.conf, "server.conf", f"provider = verbs\nhttp = 127.0.0.1:{host.servers[0].http}\n")
    d = check(host.conf)
    assert d["RDMA"][0] == "bad", d
    assert "server listen" not in d and d["server http"][0] == "ok", (
        "TCP calls cannot check an RDMA port"
    )


def test_scheduler_that_is_away_or_hangs_is_bad_within_the_bound(host):
    assert check(host.conf)["scheduler"][0] == "bad"
    host.scheduler.kill(signal.SIGSTOP)
    d = check(host.conf, scheduler=host.scheduler.http)
    assert d["scheduler"][0] == "bad" and "in time" in d["scheduler"][1], d
    assert d["scheduler daemon"][0] == "bad", d
    host.scheduler.kill(signal.SIGCONT)


def test_scheduler_on_another_host_is_not_asked_over_http(tmp_path):
    p = subprocess.run(
        ["ip", "-4", "-o", "addr", "show", "scope", "global"],
        capture_output=True,
        text=True,
        check=False,
    )
    own = re.search(r" inet ([0-9.]+)/", p.stdout)
    if not own:
        pytest.skip("this machine has no address but loopback")
    # Open a port on which no process answers the protocol. `bpsctl check` cannot distinguish this
    # port from the port of a scheduler on another host.
    with socket.create_server((own[1], 0)) as s:
        put(tmp_path, "agent.conf", f"scheduler = {own[1]}:{s.getsockname()[1]}\n")
        d = check(tmp_path, scheduler=free_port())
    assert d["scheduler"][0] == "ok" and "another host" in d["scheduler"][1], d
    assert d["agent's scheduler"][0] == "ok", d


def test_control_port_that_never_answers_is_bad_within_the_bound(host):
    # With a full backlog the kernel drops new connections, as a firewall does.
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(0)
        held = []
        for _ in range(3):
            x = socket.socket()
            x.setblocking(False)
            x.connect_ex(s.getsockname())
            held.append(x)
        put(host.conf, "agent.conf", f"scheduler = 127.0.0.1:{s.getsockname()[1]}\n")
        d = check(host.conf)
        for x in held:
            x.close()
    assert d["agent's scheduler"][0] == "bad" and "does not answer" in d["agent's scheduler"][1], d


def test_text_is_narrow_and_says_what_to_do(host):
    p = subprocess.run(
        [
            str(BUILD / "bpsctl"),
            "check",
            "--config-dir",
            str(host.conf),
            "--scheduler-http",
            "127.0.0.1:1",
        ],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert p.returncode == 2 and max(map(len, p.stdout.splitlines())) < 100, p
    assert (
        re.search(r"(?m)^bad +scheduler ", p.stdout)
        and "        do: start bps-scheduler" in p.stdout
    ), p.stdout
    assert re.search(r"\d+ ok, \d+ warnings, \d+ bad\n$", p.stdout), p.stdout
