"""Find paths that pass small packets and drop large ones, as a wrong MTU does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import BUILD

sys.path.append(str(Path(__file__).resolve().parents[1] / "faults"))

from lab import Lab, LabCluster, status_of

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft"),
    reason="hosts with filters of their own need root and nft",
)

SCHEDULER, SERVER, AGENT = 1, 2, 3
LARGE = "meta length > 600"
# A data connection without an answer ends after some seconds. The problem needs three such losses.
LOSSES_S = 60


@pytest.fixture(scope="module")
def hosts():
    with Lab(4) as lab:
        yield lab


@pytest.fixture
def cluster(hosts):
    c = LabCluster(agents=2, servers=1, lab=hosts)
    yield c
    hosts.heal()
    problems = c.close()
    assert not problems, "\n".join(problems)


def check(c, folder, env=None):
    """Run `bpsctl check` on the host of the first agent. Return its lines and its exit status."""
    folder.mkdir(exist_ok=True)
    (folder / "agent.conf").write_text(
        f"http = 127.0.0.1:{c.agents[0].http}\n"
        f"listen = {c.lab.addr(AGENT)}\n"
        f"scheduler = {c.lab.addr(SCHEDULER)}:{c.scheduler.port}\n"
        f"key-file = {c.key_file}\n"
    )
    command = [str(BUILD / "bpsctl"), "--json", "check", "--config-dir", str(folder)]
    p = subprocess.run(
        ["ip", "netns", "exec", c.lab.ns(AGENT), *command],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert "checks" in p.stdout, p
    return {d["name"]: d for d in json.loads(p.stdout)["checks"]}, p.returncode


def unstable(c):
    return [p for p in status_of(c)["problems"] if p["code"] == "CONNECTION_UNSTABLE"]


def test_check_sends_a_large_message_on_each_path(cluster, tmp_path):
    d, _ = check(cluster, tmp_path)
    assert d["path to scheduler"]["state"] == "ok", d
    assert d["path to server s0"]["state"] == "ok", d
    assert "64 KiB in both directions" in d["path to server s0"]["what"], d
    log = cluster.servers[0].log.read_text()
    assert "ticket" not in log and "refused" not in log, log


@pytest.mark.parametrize("host", [AGENT, SERVER], ids=["answers", "messages"])
def test_check_names_the_server_whose_path_drops_large_packets(cluster, tmp_path, host):
    cluster.lab.rules(host, f"in {LARGE} drop")
    d, status = check(cluster, tmp_path)
    path = d["path to server s0"]
    assert status == 2 and path["state"] == "bad", d
    assert "small messages pass, but" in path["what"] and "64 KiB" in path["what"], path
    assert cluster.lab.addr(SERVER) in path["what"] and "MTU" in path["action"], path


def test_check_names_the_scheduler_whose_path_drops_large_packets(cluster, tmp_path):
    cluster.lab.rules(SCHEDULER, f"in {LARGE} drop")
    d, status = check(cluster, tmp_path)
    path = d["path to scheduler"]
    assert status == 2 and path["state"] == "bad" and d["path to server s0"]["state"] == "ok", d
    assert "small messages pass, but" in path["what"] and "MTU" in path["action"], path


def test_check_measures_servers_when_openssl_makes_no_message(cluster, tmp_path):
    """The settings of the host's OpenSSL can forbid the message to the scheduler."""
    old = tmp_path / "openssl.cnf"
    old.write_text(
        "openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\nMaxProtocol = TLSv1.2\n"
    )
    d, _ = check(cluster, tmp_path / "check", {"OPENSSL_CONF": str(old)})
    assert d["path to scheduler"]["state"] == "warn", d
    assert "cannot measure the path" in d["path to scheduler"]["what"], d
    assert d["path to server s0"]["state"] == "ok", d


def test_health_names_the_data_connection_that_is_lost_again_and_again(cluster):
    """A path of data drops large packets. Heartbeats are small, so all members stay up."""
    job = cluster.steady(timeout=2 * LOSSES_S)
    job.wait_rounds()
    assert not unstable(cluster)
    cluster.lab.rules(SERVER, f"in ip saddr {cluster.lab.addr(AGENT)} {LARGE} drop")
    cluster.wait_for("the problem", lambda: unstable(cluster), LOSSES_S)
    found = unstable(cluster)
    assert [p["subject"] for p in found] == ["agent a0"], found
    assert "server s0" in found[0]["what"] and "bpsctl check" in found[0]["action"], found
    cluster.lab.heal()
    job.wait_rounds()
    job.stop()
