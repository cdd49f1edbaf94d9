"""Commands of operators: permissions, effects, and the record of each command."""

import getpass
import json
import os
import socket
import subprocess

import pytest

import bps
from cluster import BUILD
from keys import derived, new_key
from screens import waiting_job


def test_killed_job_tells_its_workers_who_and_why(cluster):
    c = cluster(agents=2, servers=1)
    workers = waiting_job(c)
    p = c.steer("job", "kill", "digits", "--reason", "wrong data")
    assert p.returncode == 0 and "wrong data" in p.stdout, p
    told = c.finish(workers)[0]
    assert told["code"] == bps.EJOB_FAILED, told
    for part in (
        "killed by",
        getpass.getuser(),
        f"uid {os.getuid()}",
        socket.gethostname(),
        "wrong data",
    ):
        assert part in told["text"], told
    steered = [text for kind, text in c.events() if kind == "steer"]
    assert (
        len(steered) == 1 and getpass.getuser() in steered[0] and "job kill digits" in steered[0]
    ), steered


def test_forming_job_can_be_killed(cluster):
    c = cluster(agents=1, servers=1)
    worker = c.start_job("error", 2, {"what": "nothing"}, job="lonely", placement=[0])
    c.wait_for("job 'lonely' forms", lambda: "lonely" in c.bpsctl("jobs").stdout)
    number = c.scheduler.status()["jobs"][0]["id"]
    assert c.steer("job", "kill", f"#{number}").returncode == 0
    told = c.finish(worker)[0]
    assert told["code"] == bps.EJOB_FAILED and "killed by" in told["text"], told
    assert "lonely" not in c.bpsctl("jobs").stdout


def test_what_cannot_be_killed_is_said(cluster):
    c = cluster(agents=0, servers=0)
    p = c.steer("job", "kill", "nothing")
    assert p.returncode == 2 and "no forming or running job 'nothing'" in p.stderr, p
    assert any(
        "refused: there is no forming" in text for kind, text in c.events() if kind == "steer"
    )


def test_scheduler_that_is_not_there_or_hangs_is_no_hung_bpsctl(cluster):
    c = cluster(agents=0, servers=0)
    p = c.steer("--scheduler", "127.0.0.1:1", "key", "status")
    assert p.returncode == 3 and "control port 127.0.0.1:1" in p.stderr, p
    c.scheduler.kill(19)
    p = c.steer("key", "status")
    assert p.returncode == 3 and p.stderr, p
    c.scheduler.kill(18)


def test_master_key_and_operators_key_steer(cluster, master):
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    key = derived(master, "ctl:alice")
    assert c.steer("--key-file", master, "key", "status").returncode == 0
    assert c.steer("--key-file", key, "--as", "alice", "key", "status").returncode == 0
    p = c.steer("--key-file", key, "--as", "bob", "key", "status")
    assert p.returncode == 3 and "keys do not match" in p.stderr, p


def test_without_the_key_nobody_steers_a_cluster_that_has_one(cluster, master, tmp_path):
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    other = new_key(tmp_path / "other", "key", "new")
    assert c.steer("key", "status").returncode == 3
    assert c.steer("--key-file", other, "key", "status").returncode == 3
    p = c.steer("--key-file", tmp_path / "absent", "key", "status")
    assert p.returncode == 2 and "cannot open key file" in p.stderr, p
    (tmp_path / "damaged").write_text("no key\n")
    (tmp_path / "damaged").chmod(0o600)
    p = c.steer("--key-file", tmp_path / "damaged", "undrain", "server:s0")
    assert p.returncode == 2 and "holds neither" in p.stderr, p  # 64: the scheduler refused it


def test_operators_key_is_no_members_key(cluster, master):
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    key = derived(master, "ctl:s0")
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
    assert not c.scheduler.status()["members"]


def test_key_status_names_the_members(cluster, master):
    key = ["--key-file", master]
    c = cluster(agents=1, servers=1, server_args=key, agent_args=key, scheduler_args=key)
    p = c.steer(*key, "--json", "key", "status")
    d = json.loads(p.stdout)
    assert [(k["key"], k["members"]) for k in d["keys"]] == [("current", 2)], d
    assert {(m["role"], m["name"], m["key"]) for m in d["members"]} == {
        ("server", "s0", "current"),
        ("agent", "a0", "current"),
    }


@pytest.mark.parametrize(
    "words", [["job", "kill"], ["job", "kill", "a", "b"], ["key", "status", "x"]]
)
def test_wrong_words_are_not_sent(words):
    p = subprocess.run(
        [str(BUILD / "bpsctl"), *words], capture_output=True, text=True, timeout=10, check=False
    )
    assert p.returncode == 64, p


def test_muted_problem_leaves_health_and_exit_code_and_comes_back(cluster):
    c = cluster(agents=1, servers=2, scheduler_args=["--server-window", "100ms"])
    c.servers[1].kill()
    c.wait_for("s1 is down", lambda: "SERVER_DOWN" in c.bpsctl("status").stdout)
    assert c.bpsctl("status").returncode == 1
    p = c.steer("mute", "server_down", "2h", "--reason", "node is being repaired")
    assert p.returncode == 0 and "SERVER_DOWN is muted for 2.0 h" in p.stdout, p
    for _ in range(2):  # check twice: before and after a restart of the scheduler
        p = c.bpsctl("status")
        assert p.returncode == 0 and "HEALTH_OK" in p.stdout, p.stdout
        lines = [line for line in p.stdout.splitlines() if "SERVER_DOWN" in line]
        assert len(lines) == 1 and lines[0].startswith("  muted: SERVER_DOWN (1 now, for 01:5"), (
            p.stdout
        )
        assert "node is being repaired" in p.stdout
        d = json.loads(c.bpsctl("--json", "status").stdout)
        assert [(x["code"], x["muted"]) for x in d["problems"]] == [("SERVER_DOWN", True)]
        assert getpass.getuser() in d["muted"][0]["who"]
        assert 'bps_health{code="SERVER_DOWN"} 1' in c.scheduler.get("/metrics")
        c.scheduler.kill()
        c.scheduler.pin()
        c.scheduler.start()
        c.wait_for(
            "all members except the killed server are up",
            lambda: [m["state"] for m in c.scheduler.status()["members"]] == ["up", "down", "up"],
        )
    p = c.steer("unmute", "SERVER_DOWN")
    assert p.returncode == 0 and "unmuted" in p.stdout, p
    p = c.bpsctl("status")
    assert p.returncode == 1 and "! SERVER_DOWN" in p.stdout, p.stdout
    assert (
        sum("mute SERVER_DOWN" in text for kind, text in c.events() if kind == "steer") == 2
    )  # one line from each of the two scheduler processes


def test_what_cannot_be_muted_is_refused(cluster):
    c = cluster(agents=0, servers=0)
    for args, text in (
        (("mute", "NONSENSE"), "there is no problem code 'NONSENSE'"),
        (("mute", "STRAGGLER", "tomorrow"), "'tomorrow' is not a duration"),
        (("mute", "STRAGGLER", "0s"), "'0s' is not a duration"),
        (("unmute", "NONSENSE"), "there is no problem code 'NONSENSE'"),
    ):
        p = c.steer(*args)
        assert p.returncode == 64 and text in p.stderr, p
    p = c.steer("unmute", "STRAGGLER")
    assert (p.returncode, p.stdout) == (0, "STRAGGLER is not muted\n"), p
    for args in (("mute",), ("unmute",), ("mute", "STRAGGLER", "1h", "more")):
        assert c.steer(*args).returncode == 64
