"""Tensors in shards: each worker gets its part of a sum (O1 to O4, docs/reference/shards.md)."""

import errno
import re
import signal

import bps
import pytest
from cluster import DEADLINE_S
from keeper import Job, kept_cluster

SMALL = [("f32", 64), ("i32", 70_000), ("q8", 512)]


@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("agents, workers", [(2, 2), (3, 6), (4, 4), (2, 3)])
def test_each_worker_gets_its_shard(cluster, meeting, is_near, agents, workers):
    at = ("--same-host-dir", str(meeting)) if is_near else ()
    c = cluster(agents=agents, servers=2, server_args=at, agent_args=at)
    assert c.run("scattering", workers, {"n_rounds": 7}) == [7] * workers


@pytest.mark.parametrize("workers", [1, 3])
def test_shards_need_no_server_on_one_machine(cluster, workers):
    c = cluster(agents=1, servers=0)
    assert c.run("scattering", workers, {"n_rounds": 4}) == [4] * workers


def test_deterministic_job_may_have_shards(cluster):
    c = cluster(agents=3, servers=2)
    args = {"n_rounds": 4, "deterministic": True}
    assert c.run("scattering", 6, args) == [4] * 6


def test_machine_receives_only_the_shards_of_its_workers(cluster):
    c = cluster(agents=4, servers=2)
    shard, n = 1 << 20, 4
    for sent, received in c.run("scattered_bytes", 4, {"shard_bytes": shard, "n_rounds": n}):
        assert 4 * shard * n < sent < 4.1 * shard * n
        assert shard * n < received < 1.1 * shard * n


def test_agents_and_servers_that_die_lose_no_shard(cluster):
    c = kept_cluster(cluster, agents=3)
    job = Job(c, 6, sizes=SMALL, function="scattering")
    job.goes_on()
    for i in range(3):
        c.agents[i].die(signal.SIGKILL)
        job.goes_on()
        c.servers[i].kill()
        c.add_server(2 + i)
        job.goes_on()
    job.finish()


def test_drained_server_loses_no_shard(cluster):
    c = cluster(agents=2, servers=2)
    job = Job(c, 4, sizes=SMALL, function="scattering")
    job.goes_on()
    assert c.steer("drain", "s0", "--wait").returncode == 0
    job.goes_on()
    job.finish()


@pytest.mark.parametrize(
    "what, code, text",
    [
        ("backup", -errno.EINVAL, "the option backup cannot have tensors in shards"),
        ("elastic", -errno.EINVAL, "the option elastic cannot have tensors in shards"),
        ("shrink", -errno.EINVAL, "on_agent_loss=shrink cannot have tensors in shards"),
        ("count", -errno.EINVAL, "until their number is a multiple of 2"),
        ("blocks", -errno.EINVAL, "until their number is a multiple of 512"),
        ("value", -errno.EINVAL, "a value cannot be cut into shards"),
        ("copy", -errno.EINVAL, "pass NULL for dst"),
        ("read", -errno.EINVAL, "is in shards, and rank"),
        ("mixed", bps.EMISMATCH, "(in shards)"),
    ],
)
def test_what_a_tensor_in_shards_does_not_allow_is_refused(cluster, what, code, text):
    c = cluster(agents=2, servers=1)
    for found, words in c.run("refused_shards", 2, {"what": what}):
        assert found == code and text in words, words


def test_lost_owner_is_named_to_all(cluster):
    c = cluster(agents=3, servers=1)
    job = Job(c, 3, sizes=SMALL, function="scattering")
    job.goes_on()
    job.workers[1].process.kill()
    for worker in (job.workers[0], job.workers[2]):
        worker.process.wait(DEADLINE_S)
        assert re.search(r"rank 1 .* was lost", worker.text()), worker.text()
