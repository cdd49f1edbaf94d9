"""Servers get shares of a job according to the speeds of their network cards.

The cards have different speeds. No setting names the speeds, so the daemons measure them.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "faults"))

from lab import Lab, LabCluster  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"),
    reason="hosts with cards of their own need root and tc",
)

MBIT, SLOW_MBIT = 200, 100


@pytest.fixture(scope="module")
def hosts():
    """Yield a lab of five hosts.

    Host 1 has the scheduler. Hosts 2 and 3 have servers, and host 3 has the slow card. Hosts 4 and
    5 have agents.
    """
    with Lab(5) as lab:
        for host in range(1, 6):
            lab.rate(host, f"{SLOW_MBIT if host == 3 else MBIT}mbit")
        yield lab


@pytest.fixture
def cluster(hosts):
    made = []

    def make(**kw):
        made.append(LabCluster(agents=2, servers=2, lab=hosts, **kw))
        return made[-1]

    yield make
    problems = [p for c in made for p in c.close()]
    assert not problems, "\n".join(problems)


def members(c):
    return {m["name"]: m for m in json.loads(c.scheduler.get("/status"))["members"]}


def share_of_slow(c):
    m = members(c)
    placed = [m[s]["partitions_bytes"] for s in ("s0", "s1")]
    return placed[1] / max(1, sum(placed))


def is_measured(m):
    return m["nic_source"] == "measured" and m["measured_mbps"]


@pytest.mark.alone
def test_server_with_a_slow_card_gets_less_once_its_speed_is_measured(cluster):
    c = cluster()
    job = c.steady(n_elems=1000000).wait_rounds(1)
    assert 0.45 <= share_of_slow(c) <= 0.55
    c.wait_for("the server with the slow card has a third", lambda: share_of_slow(c) < 0.4, 60)
    m = members(c)
    assert is_measured(m["s0"]) and is_measured(m["s1"]), m
    assert 1.5 <= m["s0"]["nic_mbps"] / m["s1"]["nic_mbps"] <= 2.6, m
    for s in c.servers:
        nic = json.loads(s.get("/status"))["cards"][0]
        assert nic["name"] == "eth0" and nic["told_mbps"] == 0 and nic["measured_mbps"] > 0, nic
    assert " meas." in c.bpsctl("servers").stdout
    # The scheduler uses the measured speeds for the first placement of a new job.
    later = c.steady(n_elems=500000).wait_rounds(1)
    later.stop()
    job.wait_rounds(3).stop()
    # The share is 0 when all jobs have ended.
    assert 0.25 <= share_of_slow(c) < 0.4 or not share_of_slow(c)


@pytest.mark.alone
def test_set_speed_is_used_and_nothing_is_measured(cluster):
    c = cluster(server_args=("--nic-speed", MBIT), agent_args=("--nic-speed", MBIT))
    job = c.steady(n_elems=1000000).wait_rounds(5)
    assert 0.45 <= share_of_slow(c) <= 0.55
    assert all(
        (m["nic_source"], m["nic_mbps"], m["measured_mbps"]) == ("set", MBIT, 0)
        for m in members(c).values()
    )
    job.stop()
