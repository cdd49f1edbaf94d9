"""An agent's process dies or is replaced while its trainers' tensors are in device memory.

The executor and the trainers keep running. They notice only a pause.
"""

import os
import signal
from pathlib import Path

import pytest

import bps
from cluster import host_executor
from keeper import Job, kept_cluster
from test_device import LOST, Rig, check_ended, needs_cuda, staging, start_and_wait

SIZES = [50_000, 100, 70_001]


@pytest.fixture(params=["host", pytest.param("cuda", marks=needs_cuda)])
def kept(request, cluster):
    """Return a Rig whose agents have a service manager that keeps their descriptors."""

    def make(agents=2, kind=request.param, args=(), **kw):
        def kept_by_manager(agents, servers, agent_args):
            return kept_cluster(cluster, agents, servers, agent_args, **kw)

        return Rig(kept_by_manager, kind, agents=agents, args=args)

    return make


def device_job(r, workers, **kw):
    return Job(r.c, workers, kw.pop("sizes", SIZES), function="device_kept_rounds", env=r.env, **kw)


def nothing_kept(r):
    for a in r.c.agents:
        r.c.wait_for(
            "the manager keeps no descriptor of a job",
            lambda a=a: a.names() == ["cluster", "listen"],
        )


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_agents_that_die_repeatedly_only_pause_jobs(kept, sig):
    r = kept()
    job = device_job(r, 4)
    job.goes_on()
    for i in range(6):
        r.c.agents[i % 2].die(sig)
        job.goes_on(2)
    job.finish()
    nothing_kept(r)


@pytest.mark.parametrize("route", ["copy", "ce", "rs_ag", "switch_sum", "roots"])
def test_every_route_goes_on_when_all_agents_die_at_once(kept, route):
    """Agents also die while tensors are declared."""
    r = kept(args=["--gpu-strategy", route])
    job = device_job(r, 8, args={"declare_each": 2})
    job.goes_on()
    for _ in range(3):
        n = [a.restarts for a in r.c.agents]
        for a in r.c.agents:
            a.process.send_signal(signal.SIGKILL)
        for a, before in zip(r.c.agents, n):
            r.c.wait_for("the agent runs again", lambda a=a, before=before: a.restarts > before)
        job.goes_on(2)
    job.finish()
    nothing_kept(r)


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def away(r, what):
    """Kill an agent, call `what` before the agent restarts, and wait for the agent's new process.

    Return the process id of the executor, which is not a child of the agent's new process.
    """
    agent = r.c.agents[1]
    (pid,) = r.executors(1)
    agent.restart_s, n = 1.0, agent.restarts
    agent.process.kill()
    agent.process.wait()
    what(pid)
    r.c.wait_for("the agent runs again", lambda: agent.restarts > n)
    return pid


def test_an_executor_that_dies_while_its_agent_is_away_fails_its_job(kept):
    r = kept()
    job = start_and_wait(r, 4, {})
    away(r, lambda pid: os.kill(pid, signal.SIGKILL))
    results = r.c.finish(job)
    check_ended(results, LOST, bound_s=20)
    assert any("executor" in text for _, text, _, _ in results), results
    nothing_kept(r)
    r.run("device_rounds", 4, {"sizes": [1000], "n_rounds": 2})


def test_a_trainer_that_dies_while_its_agent_is_away_ends_its_job(kept):
    r = kept()
    job = start_and_wait(r, 4, {})
    pid = away(r, lambda pid: job[3].process.kill())
    check_ended(r.c.finish(job[:3]), LOST, bound_s=20)
    r.c.wait_for("the executor has ended", lambda: not lives(pid))
    nothing_kept(r)


def test_an_agent_that_stops_for_good_leaves_no_stream_waiting(kept):
    """The agent is not restarted. The service manager closes the descriptors that it has kept."""
    r = kept(scheduler_args=["--agent-window", "2s", "--agent-dead", "2s"])
    job = start_and_wait(r, 4, {})
    (pid,) = r.executors(1)
    agent = r.c.agents[1]
    agent.is_stopping = True
    agent.process.terminate()
    assert agent.process.wait(20) == 0
    agent.drain()
    for name in agent.names():
        agent.close_kept(name)
    check_ended(r.c.finish(job), LOST | {bps.ENOAGENT, bps.EAGENT_LOST}, bound_s=60)
    r.c.wait_for("the executor has ended", lambda: not lives(pid))


@pytest.mark.parametrize("what", ["x", "p"])
def test_executor_descriptor_that_the_manager_lost_ends_its_job_with_an_error(kept, what):
    r = kept(kind="host")
    job = start_and_wait(r, 4, {})
    away(
        r,
        lambda _: [
            r.c.agents[1].lose(n)
            for n in r.c.agents[1].names()
            if n.startswith("j") and n.endswith(what)
        ],
    )
    results = r.c.finish(job)
    check_ended(results, LOST, bound_s=20)
    assert any("executor of the job's GPUs has ended" in text for _, text, _, _ in results), results


def test_an_agent_that_dies_while_executors_start_costs_a_pause(kept, tmp_path):
    """The agent dies repeatedly. The first death comes before the executor has read any message."""
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {host_executor()} "$@"\n')
    slow.chmod(0o755)
    r = kept(kind="host", args=["--gpu-program", str(slow)])
    job = device_job(r, 4)
    for _ in range(4):
        r.c.wait_for(
            "an executor starts", lambda: any(n.endswith(".x") for n in r.c.agents[1].names())
        )
        r.c.agents[1].die()
    job.goes_on()
    job.finish()
    nothing_kept(r)


def test_a_tensor_that_was_refused_stays_refused(kept):
    r = kept()
    job = r.start(
        "device_refused_tensor", 4, {"go": str(r.c.dir / "go"), "seen": str(r.c.dir / "seen")}
    )
    r.c.wait_for(
        "all workers have seen the tensor fail",
        lambda: all((r.c.dir / f"seen.{w}").exists() for w in range(4)),
    )
    for a in r.c.agents:
        a.die()
    (r.c.dir / "go").touch()
    assert r.c.finish(job) == [True] * 4


@pytest.mark.parametrize(
    "function, memory", [("gpu_large", "memfd:bps-staging"), ("host_large", "memfd:bps-arena")]
)
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_memory_that_an_ending_agent_was_allocating_is_allocated_by_the_next(
    kept, function, memory, sig
):
    """The agent dies while trainers' declarations wait for memory.

    The agent's next process completes the declarations.
    """
    r = kept(agents=1)
    (a,) = r.c.agents
    maps = Path(f"/proc/{a.process.pid}/maps")
    job = r.start(function, 2, {"n_elems": 6 << 20})
    r.c.wait_for("the agent allocates memory", lambda: memory in maps.read_text())
    a.die(sig)
    assert r.c.finish(job) == [3, 3]


@needs_cuda
def test_memory_of_a_restarted_agent_is_on_the_nodes_reported_before(cluster):
    cuda = {"FAKE_CUDA_NUMA": "0,0,0,0"}
    r = Rig(
        lambda agents, servers, agent_args: kept_cluster(cluster, agents, servers, agent_args),
        "cuda",
        agents=1,
        agent_env=cuda,
    )
    (a,) = r.c.agents
    go = r.c.dir / "go"
    job = r.start("gpu_declare_late", 2, {"go": str(go), "n_elems": 3 << 20})
    r.c.wait_for("the agent has staging memory", lambda: len(staging(a)) > 0)
    a.die(signal.SIGKILL)
    r.c.wait_for("the restarted agent has staging memory", lambda: len(staging(a)) > 0)
    before = len(staging(a))
    go.touch()
    r.c.wait_for("the agent allocates more staging memory", lambda: len(staging(a)) > before)
    pieces = staging(a)
    assert r.c.finish(job) == [2, 2]
    assert "nodes=0/0" in a.log.read_text()
    assert {policy for policy, _ in pieces} == {"prefer:0"}, pieces


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_agent_that_dies_while_bps_gpu_open_waits_costs_a_pause(kept, sig):
    """The agent dies while a repeated call of bps_gpu_open waits for the other worker."""
    r = kept(agents=1)
    go, told = r.c.dir / "go", r.c.dir / "told"
    job = r.start("device_late_open", 2, {"late_rank": 1, "go": str(go), "told": str(told)})
    r.c.wait_for("the first bps_gpu_open has failed", told.exists)
    r.c.agents[0].die(sig)
    go.touch()
    (_, said), _ = r.c.finish(job)
    assert said[0] == (bps.ETIMEDOUT if r.kind == "host" else bps.EDEVICE), said
    nothing_kept(r)
