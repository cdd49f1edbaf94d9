"""Workers that take part in a round and add nothing (W1 to W4 of docs/reference/faults.md)."""

import os
import signal

import bps
import pytest
from keeper import Job, kept_cluster


@pytest.mark.parametrize("deterministic", [None, True])
@pytest.mark.parametrize("is_near", [True, False])
def test_sums_have_the_values_of_the_workers_that_do_not_abstain(
    cluster, meeting, is_near, deterministic
):
    at = ("--same-host-dir", str(meeting)) if is_near else ()
    c = cluster(agents=3, servers=2, server_args=at, agent_args=at)
    args = {"n_rounds": 25, "deterministic": deterministic}
    assert c.run("abstaining", 6, args) == [[25]] * 6


def test_workers_of_one_machine_may_abstain(cluster):
    c = cluster(agents=1, servers=0)
    assert c.run("abstaining", 3, {"n_rounds": 25}) == [[25]] * 3


def test_agent_that_dies_abstains_again(cluster):
    c = kept_cluster(cluster)
    job = Job(c, 4, sizes=[100, 70_000], function="abstaining")
    job.goes_on()
    for _ in range(6):
        c.agents[0].die(signal.SIGKILL)
        job.goes_on()
    job.finish()


def test_job_survives_a_server_that_dies_while_workers_abstain(cluster):
    c = cluster(agents=2, servers=2)
    job = Job(c, 4, sizes=[100, 70_000], function="abstaining")
    job.goes_on()
    for i, server in enumerate(c.servers[:2]):
        server.kill()
        job.goes_on()
        c.add_server(2 + i)
        job.goes_on()
    job.finish()


def test_collectives_move_each_byte_once(cluster):
    """A broadcast sends its bytes once, and an all-gather each worker's bytes once. Each machine
    receives the result. The bars are those of the design: 1.03 of the bytes."""
    n_bytes, n = 64 << 20, 4
    c = cluster(agents=n, servers=2)
    moved = c.run("moved_bytes", n, {"n_bytes": n_bytes})
    for i in range(2):
        sent = sum(worker[i][0] for worker in moved)
        print(f"sent by all agents, over the bytes: {sent / n_bytes:.4f}")
        assert sent <= 1.03 * n_bytes
        assert all(worker[i][1] <= 1.03 * n_bytes for worker in moved)


def test_tensor_without_an_operation_that_others_use_fails_the_job(cluster):
    c = cluster(agents=2, servers=1)
    codes = {code for code, _ in c.run("abstain_with_another_op", 2)}
    assert codes == {bps.EMISMATCH}, os.linesep.join(codes)
