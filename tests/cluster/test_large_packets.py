"""Find paths that pass small packets and drop large ones, as a wrong MTU does."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "faults"))

from lab import Lab, LabCluster, status_of

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft"),
    reason="hosts with filters of their own need root and nft",
)

SERVER, AGENT = 2, 3
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


def unstable(c):
    return [p for p in status_of(c)["problems"] if p["code"] == "CONNECTION_UNSTABLE"]


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
