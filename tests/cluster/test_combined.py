"""Two faults at once: no sum may be wrong, and the job must go on."""

import signal

import pytest

from elastic import agreed
from keeper import Job, kept_cluster

WINDOW = ["--agent-window", "5s", "--agent-dead", "6s"]


def exact_job(c, workers, det):
    return Job(
        c,
        workers,
        function="exact_rounds",
        args={"dtypes": ["i64", "f32", "f16"], "deterministic": det},
    )


@pytest.mark.parametrize("det", [False, True])
def test_agent_and_server_of_one_host_are_killed_at_once(cluster, meeting, det):
    at = ["--same-host-dir", str(meeting)]
    c = kept_cluster(cluster, args=at, server_args=at)
    job = exact_job(c, 4, det)
    job.goes_on()
    for i in range(4):
        agent, server = c.agents[i % 2], c.servers[i // 2 % 2]
        n = agent.restarts
        if i % 3:
            server.process.kill()
            agent.process.kill()
        else:
            agent.process.kill()
            server.process.kill()
        server.process.wait(30)
        server.start()
        c.wait_for("the agent is back", lambda: agent.restarts > n)
        job.goes_on()
    job.finish()


def test_job_shrinks_while_another_agent_restarts(cluster):
    c = kept_cluster(cluster, agents=3, scheduler_args=WINDOW)
    for i in range(2):
        args = {
            "n_elems": 40000,
            "n_rounds": 120,
            "n_tensors": 3,
            "on_agent_loss": "shrink",
            "pause": 0.01,
        }
        started, _ = c.start_running("elastic", 6, args, progress=f"progress{i}")
        n = c.agents[1].restarts
        order = [lambda: c.agents[1].process.kill(), lambda: started[4].process.kill()]
        for step in order if i % 2 else order[::-1]:
            step()
        c.wait_for("the agent is back", lambda: c.agents[1].restarts > n)
        results = c.finish(started[:4])
        masks = agreed(results)
        assert all(r["code"] == 0 for r in results), results
        assert masks[0] == [0b111111] and masks[-1] == [0b001111], masks[-1]
        started[5].process.kill()
        started[5].process.wait()


def test_machine_joins_while_a_server_is_drained_and_an_agent_restarts(cluster):
    c = kept_cluster(cluster, agents=3, servers=2, scheduler_args=WINDOW)
    for i in range(2):
        job = f"grow{i}"
        go = c.dir / f"go{i}"
        args = {
            "n_elems": 60000,
            "n_rounds": 20,
            "every": 2,
            "elastic": 1,
            "max_size": 3,
            "pause": 0.01,
            "go": str(go),
        }
        started, progress = c.start_running(
            "growing", 2, args, progress=f"progress{i}", job=job, placement=[0, 1]
        )
        new = c.add_worker(2, "growing", args, 2, 2, job)
        assert c.steer("drain", f"s{i % 2}").returncode == 0
        if i:
            c.agents[0].die(signal.SIGKILL)
        c.wait_for(
            "rank 2 is admitted", lambda: c.scheduler.log.read_text().count("admits rank 2") > i
        )
        if i:
            c.agents[2].die(signal.SIGKILL)
        c.wait_for("s is empty", lambda: not c.member(f"s{i % 2}")["partitions"])
        progress.goes_on()
        assert c.steer("undrain", f"s{i % 2}").returncode == 0
        go.touch()
        results = c.finish([*started, new])
        assert all(r["code"] == 0 for r in results), f"{results}\n{c.logs()}"
        assert len({r["weights"] for r in results}) == 1


def test_late_backup_agent_restarts(cluster):
    c = kept_cluster(cluster, agents=3, scheduler_args=WINDOW)
    args = {
        "n_elems": 60000,
        "n_rounds": 100,
        "n_tensors": 3,
        "pause": 0.01,
        "backup": 1,
        "backup_grace": 0.02,
        "slow": {"rank": 2, "first": 10, "last": 60, "seconds": 0.05},
    }
    started, progress = c.start_running("elastic", 3, args)
    for at in (12, 20, 35, 50):
        progress.wait(at)
        c.agents[2].die(signal.SIGKILL)
    results = c.finish(started)
    assert all(r["code"] == 0 for r in results), [(r["code"], r.get("text")) for r in results]
    agreed(results)
