"""Tensors in device memory: disagreements, error texts, types, routes, elastic jobs, leaks."""

import errno
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

import bps
from cluster import BUILD, DEADLINE_S, IS_ASAN, IS_TSAN, gpu_args
from keeper import kept_cluster
from test_device import (  # noqa: F401
    CALLS,
    LOST,
    Rig,
    calls,
    calls_between_gpus,
    check_ended,
    gone,
    needs_cuda,
    rig,
    staging,
    start_and_wait,
)
from test_topology import fakes, make


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_worker_at_a_barrier_cannot_submit(rig, kind):
    r = rig(agents=1)
    got = r.run("gpu_barrier", 2, {"d": str(r.c.dir), "kind": kind})[0]
    assert got[0] == bps.EBUSY and "barrier" in got[1], got


def test_memory_with_a_submission_in_it_is_not_released(rig):
    r = rig(agents=1)
    got, end = zip(*r.run("gpu_release", 2, {"d": str(r.c.dir)}))
    assert got[0][0] == bps.EBUSY, got
    assert all(e[0] == 0 for e in end), end


@pytest.mark.parametrize("first", ["gpu", "host"])
def test_tensor_on_gpu_and_on_host_is_an_error_at_all_workers(rig, first):
    r = rig(agents=1)
    results = r.run("gpu_unlike", 2, {"d": str(r.c.dir), "first": first})
    for mine, got, end, took in results:
        code, text = got if got[0] else end
        assert code == bps.EMISMATCH, results
        assert took is None or took < 5, results


@needs_cuda
def test_open_without_a_context_may_be_repeated(cluster):
    r = Rig(cluster, "cuda", agents=1)
    results = r.run("gpu_no_context_then_again", 2, {"d": str(r.c.dir)})
    assert results[1][0][0] == bps.EDEVICE and "context" in results[1][0][1]
    assert results[0][1][0] == 0 and results[1][1][0] == 0, results
    assert results[0][2][0] == 0, results


NEEDS_20_GB_WITH_TSAN = pytest.mark.skipif(
    IS_TSAN, reason="ThreadSanitizer needs 20 GB for 250 segments"
)


@needs_cuda
@pytest.mark.parametrize(
    "chunks,lead,tail,code",
    [
        ([1] * 12, 0, 0, 0),
        ([1] * 12, 4096, 8192, 0),
        ([10] * 3, 64, 0, 0),
        ([1, 2, 1], 0, 0, -errno.ENOTSUP),
        pytest.param([1] * 250, 0, 0, 0, marks=NEEDS_20_GB_WITH_TSAN),
        pytest.param([1] * 251, 0, 0, -errno.ENOTSUP, marks=NEEDS_20_GB_WITH_TSAN),
    ],
)
def test_growing_segments_are_imported(cluster, chunks, lead, tail, code):
    r = Rig(cluster, "cuda", agents=1)
    n_rounds = 1 if len(chunks) > 100 else 3  # half a gigabyte takes 10 s a round
    args = {"chunks": chunks, "lead": lead, "tail": tail, "n_rounds": n_rounds}
    for got, end in r.run("gpu_segments", 2, args):
        assert got[0] == code, got
        assert code or end[0] == 0


@pytest.mark.parametrize("route", ["copy", "ce", "rs_ag", "roots"])
def test_every_type_and_operation_is_right_on_every_route(rig, route):
    r = rig(agents=2, args=["--gpu-strategy", route])
    results = r.run("gpu_types", 6, {"route": route}, deadline_s=200)
    bad, digest = results[0]
    assert not bad, bad[:10]
    assert all(other == digest for _, other in results), "workers hold different bytes"


def stop(r):
    (r.c.dir / "stop").touch()


def rounds(r):
    p = r.c.dir / "rounds"
    return int(p.read_text()) if p.exists() else 0


def goes_on(r, n=10):
    at = rounds(r)
    r.c.wait_for("rounds go on", lambda: rounds(r) > at + n, 2 * DEADLINE_S)


@pytest.mark.parametrize("how", ["kill", "drain", "stop_scheduler"])
def test_servers_and_scheduler_come_and_go_under_device_tensors(rig, how):
    r = rig(agents=2, servers=3)
    job = r.start("gpu_until", 4, {"d": str(r.c.dir), "n_elems": 300001})
    goes_on(r)
    if how == "kill":
        r.c.servers[1].kill()
        goes_on(r)
        r.c.servers[2].kill()
    elif how == "drain":
        print(r.c.steer("drain", "s1").stdout)
    else:
        r.c.scheduler.kill(signal.SIGSTOP)
        time.sleep(1)
        r.c.scheduler.kill(signal.SIGCONT)
    goes_on(r)
    stop(r)
    r.c.finish(job)


def test_stopped_trainer_only_delays_the_job(rig):
    r = rig(agents=2)
    job = r.start("gpu_until", 4, {"d": str(r.c.dir), "n_elems": 10001})
    goes_on(r)
    job[2].process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    job[2].process.send_signal(signal.SIGCONT)
    goes_on(r)
    stop(r)
    r.c.finish(job)


def test_jobs_of_two_users_share_the_gpus(rig):
    r = rig(agents=2)
    r.c.open_to_all()
    (r.c.dir / "a").mkdir()
    (r.c.dir / "b").mkdir()
    for x in "ab":
        (r.c.dir / x).chmod(0o777)
    a = r.start("gpu_until", 4, {"d": str(r.c.dir / "a"), "n_elems": 30001}, uid=1)
    b = r.start("gpu_until", 4, {"d": str(r.c.dir / "b"), "n_elems": 30001}, uid=2)

    def done(x):
        p = r.c.dir / x / "rounds"
        return p.exists() and int(p.read_text()) > 5

    r.c.wait_for("both jobs run", lambda: done("a") and done("b"), 60)
    assert len(r.executors(0)) == 2
    a[1].process.kill()
    a[1].process.wait()
    for w in a:
        w.process.wait(30)
    at = int((r.c.dir / "b" / "rounds").read_text())
    r.c.wait_for("b goes on", lambda: int((r.c.dir / "b" / "rounds").read_text()) > at + 10, 60)
    (r.c.dir / "b" / "stop").touch()
    r.c.finish(b)


def test_executors_of_one_user_are_limited_and_another_user_goes_on(rig):
    r = rig(agents=1, args=["--user-executors", "1"])
    r.c.open_to_all()
    (r.c.dir / "a").mkdir()
    (r.c.dir / "a").chmod(0o777)
    a = r.start("gpu_until", 2, {"d": str(r.c.dir / "a"), "n_elems": 30001}, uid=1)
    r.c.wait_for("job a runs", lambda: (r.c.dir / "a" / "rounds").exists())
    for got, _ in r.run("gpu_open", 2, uid=1):
        assert (
            got[0] == bps.EQUOTA and "1 of 1 executors" in got[1] and "--user-executors" in got[1]
        ), got
    r.run("device_rounds", 2, {"sizes": [1000], "n_rounds": 2}, uid=2)
    (r.c.dir / "a" / "stop").touch()
    r.c.finish(a)
    gone(r, 0)
    r.run("device_rounds", 2, {"sizes": [1000], "n_rounds": 2}, uid=1)
    assert 'quota_refused_total{quota="user-executors"} 2\n' in r.c.agents[0].get("/metrics")


def test_executor_that_could_not_start_does_not_count_for_the_limit(cluster):
    c = cluster(
        agents=1,
        servers=1,
        agent_args=["--gpu", "cuda", "--gpu-program", "/bin/false", "--user-executors", "1"],
    )
    a = c.start_job("gpu_ask_twice", 2, {"d": str(c.dir)})
    c.wait_for("the first bps_gpu_open has returned", lambda: (c.dir / "told").exists())
    for got, _ in c.run("gpu_open", 2):
        assert got[0] == bps.EDEVICE and "status 1" in got[1], got
    (c.dir / "go").touch()
    for first, second in c.finish(a):
        assert first[0] == second[0] == bps.EDEVICE


def test_refused_request_for_an_executor_may_be_repeated(cluster):
    r = Rig(cluster, "host", agents=1, args=["--user-executors", "1"])
    (r.c.dir / "a").mkdir()
    a = r.start("gpu_until", 2, {"d": str(r.c.dir / "a"), "n_elems": 30001})
    r.c.wait_for("job a runs", lambda: (r.c.dir / "a" / "rounds").exists())
    b = r.start("gpu_ask_twice", 2, {"d": str(r.c.dir)})
    r.c.wait_for("the first bps_gpu_open has returned", lambda: (r.c.dir / "told").exists())
    (r.c.dir / "a" / "stop").touch()
    r.c.finish(a)
    gone(r, 0)
    (r.c.dir / "go").touch()
    for first, second in r.c.finish(b):
        assert first[0] == bps.EQUOTA and second[0] == 0, (first, second)


def test_memory_is_released_while_another_thread_trains(cluster):
    r = Rig(cluster, "host", agents=2)
    assert max(r.run("gpu_release_beside", 2, {"n_steps": 3000})) < 5


def test_unaligned_tensor_is_refused(rig):
    r = rig(agents=1)
    for got, end, took, after in r.run("gpu_unaligned", 2):
        assert (got[0] or end[0]) < 0, (got, end)
        print(got, end, took, after)
        assert took is None or took < 5
        assert after[0] == 0


@needs_cuda
def test_workers_share_gpus(cluster):
    r = Rig(cluster, "cuda", agents=1, gpus=2)
    assert r.run("gpu_shared_gpu", 4, {"gpus": 2}) == ["copy"] * 4


@needs_cuda
def test_without_nccl_the_processor_sums(cluster):
    r = Rig(cluster, "cuda", agents=1, agent_env={"FAKE_NCCL_VERSION": "21000"})
    assert r.run("device_rounds", 4, {"sizes": [1, 70001], "n_rounds": 3}) == ["ce"] * 4


@pytest.mark.parametrize(
    "program,word",
    [("/nonexistent/bps-agent-cuda", "installed"), ("/bin/false", "status 1"), ("/bin/cat", "")],
)
def test_program_that_is_no_executor_is_reported(cluster, program, word):
    c = cluster(agents=1, servers=1, agent_args=["--gpu", "cuda", "--gpu-program", program])
    for got, took in c.run("gpu_open", 2):
        print(got, took)
        assert got[0] == bps.EDEVICE and word in got[1], got
        assert took < 10, took


def test_an_executor_that_never_answers(cluster, tmp_path):
    script = tmp_path / "silent"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o755)
    c = cluster(agents=1, servers=1, agent_args=["--gpu", "cuda", "--gpu-program", str(script)])
    for got, took in c.run("gpu_open", 2):
        print(got, took)
        assert got[0] < 0 and took < 35, (got, took)


def test_forked_child_of_a_dead_trainer_delays_no_error(rig):
    r = rig(agents=1)
    pid_file = r.c.dir / "child"
    job = r.start("gpu_fork_and_die", 3, {"n_elems": 5000, "pid_file": str(pid_file)})
    try:
        results = r.c.finish([job[0], job[2]])
        check_ended(results, LOST)
        gone(r, 0)
    finally:
        if pid_file.exists():
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


@needs_cuda
def test_a_clique_that_never_gets_ready_is_given_up(cluster):
    """NCCL starts to connect its ranks and never completes."""
    r = Rig(cluster, "cuda", agents=1, agent_env={"FAKE_CUDA_FAULTS": "ncclCommGetAsyncError:1+=7"})
    results = r.c.finish(r.start("device_until_failure", 2, {"n_elems": 5000}), 70)
    check_ended(results, {bps.EDEVICE}, bound_s=50)
    gone(r, 0)


@needs_cuda
def test_submit_and_wait_do_not_block_while_the_gpu_stands_still(cluster):
    r = Rig(cluster, "cuda", agents=1)
    for longest, busy in r.run("gpu_nonblocking", 2, {"n": 50}):
        print(longest)
        assert longest < 0.05 and busy < 0


@needs_cuda
def test_an_executor_that_hangs_on_cuda_is_killed(cluster):
    r = Rig(cluster, "cuda", agents=1)
    job = start_and_wait(r, 2, {})
    (pid,) = r.executors(0)
    os.kill(pid, signal.SIGSTOP)
    results = r.c.finish(job)
    check_ended(results, LOST, bound_s=40)
    gone(r, 0)


def test_a_job_goes_on_without_a_machine_and_its_gpus(rig):
    r = rig(agents=3)
    args = {"n_elems": 60000, "n_rounds": 12, "victim": 3, "at": 6, "on_agent_loss": "shrink"}
    started = r.start("gpu_members", 6, args)
    results = r.c.finish([w for w in started if w.rank not in (2, 3)])
    for x in results:
        assert x["code"] == 0 and x["rounds"][0] == [0b111111] and x["rounds"][-1] == [0b110011], x
        assert x["rounds"] == results[0]["rounds"]
    (other,) = r.c.finish([started[2]])
    assert other["code"] < 0, other
    gone(r, 1)


def test_a_backup_machine_is_not_waited_for(rig):
    r = rig(agents=3)
    args = {"n_elems": 60000, "n_rounds": 8, "slow": 2, "backup": 1, "backup_grace": 0.05}
    results = r.run("gpu_members", 3, args)
    for x in results:
        assert x["code"] == 0, x
        assert x["rounds"] == results[0]["rounds"]
    assert any(m == [0b011] for m in results[0]["rounds"])


def test_a_machine_with_gpus_joins_a_running_job(rig):
    r = rig(agents=3)
    go = r.c.dir / "go"
    args = {"n_elems": 20000, "max_size": 3, "go": str(go)}
    os.environ.update(TEST_DEVICE=r.kind)
    started, progress = r.c.start_running(
        "gpu_grow", 2, args, job="grow", placement=[0, 1], env=r.env
    )
    from cluster import Worker

    new = Worker(r.c, r.c.agents[2], "gpu_grow", args, 2, 2, "grow", r.env)
    r.c.workers.append(new)
    r.c.wait_for("rank 2 is admitted", lambda: "admits rank 2" in r.c.scheduler.log.read_text())
    progress.goes_on()
    go.touch()
    results = r.c.finish([*started, new])
    assert results[0][-1] == results[2][-1] and results[0][-1][1] == 3
    assert results[0] == results[1]


def test_tensor_beyond_the_staging_quota_is_refused_and_smaller_ones_work(cluster):
    c = cluster(agents=1, servers=1, agent_args=[*gpu_args("host"), "--job-memory", "64MiB"])
    for got, end, host in c.run(
        "gpu_fallback", 2, {"n_elems": 8 << 20}, env={"TEST_DEVICE": "host"}
    ):
        print(got, end, host)
        assert got[0] == bps.EQUOTA and "memory" in got[1], got
        assert end[0] == 0


# Sanitizers keep memory for their records, so the limit is larger with a sanitizer. In that case
# LeakSanitizer finds leaks.
GROWTH_KIB = 300_000 if IS_ASAN or IS_TSAN else 3000


def footprint(pid):
    """Return how many descriptors, shared mappings, threads and resident KiB a process has."""
    proc = Path(f"/proc/{pid}")
    maps = sum("memfd" in line for line in (proc / "maps").read_text().splitlines())
    rss = next(
        int(line.split()[1])
        for line in (proc / "status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return len(os.listdir(proc / "fd")), maps, len(os.listdir(proc / "task")), rss


def test_nothing_leaks_over_many_jobs(rig):
    r = rig(agents=1)
    pid = r.c.agents[0].process.pid
    r.run("gpu_cycles", 2, {"n_cycles": 10, "first": 1000})
    gone(r, 0)
    before = footprint(pid)
    seen = r.run("gpu_cycles", 2, {"n_cycles": 30}, deadline_s=200)
    gone(r, 0)
    r.c.wait_for(
        "the agent has no more resources than before",
        lambda: all(a <= b for a, b in zip(footprint(pid)[:3], before[:3])),
    )
    assert footprint(pid)[3] < before[3] + GROWTH_KIB
    for s in seen:
        assert s[20][:3] == s[-1][:3] and s[-1][3] < s[20][3] + GROWTH_KIB, (s[20], s[-1])


def test_nothing_leaks_over_jobs_that_die(rig):
    """Kill trainers while their memory is in use.

    Every executor must end, and every descriptor must be closed.
    """
    r = rig(agents=1)
    pid = r.c.agents[0].process.pid

    def one(i):
        job = r.start(
            "device_until_failure", 2, {"n_elems": 5000, "die_rank": i % 2, "after": 1 + i % 5}
        )
        r.c.finish([w for w in job if w.rank != i % 2])
        for w in job:
            w.process.wait(20)
            w.out.close()
            r.c.workers.remove(w)

    for i in range(5):
        one(i)
    gone(r, 0)
    before = footprint(pid)
    for i in range(8):
        one(i)
    gone(r, 0)
    r.c.wait_for(
        "the agent has no more resources than before",
        lambda: all(a <= b for a, b in zip(footprint(pid)[:3], before[:3])),
    )
    assert footprint(pid)[3] < before[3] + GROWTH_KIB


@pytest.mark.parametrize("kind", ["host", pytest.param("cuda", marks=needs_cuda)])
def test_agents_that_die_and_processes_that_stop_at_random_cost_pauses(cluster, kind):
    """Kill agents, which restart, and stop executors and workers for a while.

    Sums must be exact. Rounds may take longer, but no round may fail.
    """
    rng = random.Random(6)
    r = Rig(
        lambda agents, servers, agent_args: kept_cluster(cluster, agents, servers, agent_args),
        kind,
        agents=2,
        servers=2,
    )
    job = r.start("gpu_until", 4, {"d": str(r.c.dir), "n_elems": 70001})
    goes_on(r)
    pids = [r.executors(0)[0], r.executors(1)[0]] + [w.process.pid for w in job]
    fds = lambda: [len(os.listdir(f"/proc/{p}/fd")) for p in pids]  # noqa: E731
    before = fds()
    for _ in range(10):
        a = r.c.agents[rng.randrange(2)]
        stopped = [p for p in pids if rng.random() < 0.2]
        for p in stopped:
            os.kill(p, signal.SIGSTOP)
        time.sleep(rng.random() * 0.2)
        n = a.restarts
        a.process.send_signal(signal.SIGKILL)
        time.sleep(rng.random() * 0.3)
        for p in stopped:
            os.kill(p, signal.SIGCONT)
        r.c.wait_for("the agent runs again", lambda: a.restarts > n)
        if rng.random() < 0.5:
            goes_on(r, 2)
    goes_on(r)
    assert fds() == before
    stop(r)
    r.c.finish(job)
    for a in r.c.agents:
        r.c.wait_for(
            "the manager keeps no descriptor of a job",
            lambda a=a: a.names() == ["cluster", "listen"],
        )


@needs_cuda
def test_an_executor_that_hangs_when_its_agent_is_gone_ends_itself(cluster, tmp_path):
    """The executor hangs in a driver call, so its main thread does not notice the agent's end."""
    trace = tmp_path / "trace"
    r = Rig(
        cluster,
        "cuda",
        agents=1,
        agent_env={
            "FAKE_CUDA_FAULTS": "cuMemcpyDtoHAsync:40=hang",
            "FAKE_CUDA_TRACE": str(trace),
        },
    )
    r.env["FAKE_CUDA_FAULTS"] = ""
    job = start_and_wait(r, 2, {})
    (pid,) = r.executors(0)

    def last_call():
        return [name for p, name in calls(trace) if int(p) == pid and name != "work"][-1]

    stat = Path(f"/proc/{pid}/stat")

    def state():  # without the parent, which changes when the agent ends
        fields = stat.read_text().split()
        return fields[:3], fields[4:]

    seen = [str(state())]

    def hangs():
        seen.append(str(state()))
        return len(seen) > 50 and len(set(seen[-50:])) == 1

    r.c.wait_for("the executor hangs", hangs)
    assert last_call() == "cuMemcpyDtoHAsync"
    said = "ending a hung GPU executor whose agent has ended"
    r.c.agents[0].kill()
    check_ended(r.c.finish(job), LOST | {bps.ENOAGENT})
    assert str(state()) == seen[-1] and said not in r.c.agents[0].log.read_text()
    r.c.wait_for(
        "the executor has ended",
        lambda: not stat.exists() or stat.read_text().split()[2] == "Z",
        40,
    )
    assert said in r.c.agents[0].log.read_text()
    assert last_call() == "cuMemcpyDtoHAsync"


@needs_cuda
@pytest.mark.parametrize(
    "machine,links,workers,want",
    [
        ("two-switches-both", "pci", 8, "switch_sum"),
        ("two-switches-both", "pci", 4, "rs_ag"),
        ("two-switches-roots", "nvlink", 8, "roots"),
        ("two-switches-both", "nvlink", 4, "rs_ag"),
        ("one-switch", "pci", 4, "copy"),
    ],
)
def test_job_takes_the_route_that_bpsctl_shows(cluster, tmp_path, machine, links, workers, want):
    """The executor uses the agent's setting `sysfs`, so jobs take the route that bpsctl shows.

    The calls of the executor show the route that it really takes.
    """
    make(tmp_path / "m", machine)
    env = {"FAKE_CUDA_LINKS": links, **fakes(machine)}
    trace = tmp_path / "trace"
    r = Rig(
        cluster,
        "cuda",
        agents=1,
        gpus=workers,
        agent_env={**env, "FAKE_CUDA_TRACE": str(trace)},
        args=["--sysfs", str(tmp_path / "m")],
    )

    def shown():
        p = r.c.bpsctl("agent", f"127.0.0.1:{r.c.agents[0].http}", "--topology", "--json")
        t = json.loads(p.stdout)["topology"]
        return t["strategy"]["name"] if t["source"] == "executor" else None

    r.c.wait_for("the executor has answered", shown)
    assert shown() == want
    r.env.update(env)
    assert set(r.run("device_rounds", workers, {"sizes": [1, 70001], "n_rounds": 3})) == {want}
    assert calls_between_gpus(trace) == CALLS[want]


@needs_cuda
@pytest.mark.parametrize("n_elems", [70001, 600 << 10])
@pytest.mark.parametrize(
    "machine,links,workers,route,nodes",
    [
        ("two-switches-both", "pci", 8, "switch_sum", "0,1/-"),
        ("two-switches-both", "pci", 8, "ce", "0,0,0,0,1,1,1,1/-"),
        ("two-switches-both", "pci", 4, "rs_ag", "0/0"),
        ("two-switches-roots", "nvlink", 8, "rs_ag", "1/1"),
        ("two-switches-roots", "nvlink", 3, "copy", "0,0,0/0"),
    ],
)
def test_staging_memory_lies_where_its_gpus_and_cards_are(
    cluster, tmp_path, machine, links, workers, route, nodes, n_elems
):
    """Staging memory gets a policy for NUMA node 0, which this machine has.

    Memory for a node that does not exist gets no policy.
    """
    make(tmp_path / "m", machine)
    env = {"FAKE_CUDA_LINKS": links, **fakes(machine)}
    r = Rig(
        cluster,
        "cuda",
        agents=2,
        gpus=8,
        agent_env=env,
        args=["--sysfs", str(tmp_path / "m"), "--gpu-strategy", route],
    )
    r.env.update(env)
    job = r.start("gpu_until", 2 * workers, {"d": str(r.c.dir), "n_elems": n_elems, "n_tensors": 1})
    goes_on(r, 2)
    for a in r.c.agents:
        log = a.log.read_text()
        assert f" nodes={nodes} " in log, log
        wished = set(nodes.replace("/", ",").split(","))
        assert {policy for policy, _ in staging(a)} == {
            "prefer:0" if n == "0" else "default" for n in wished
        }, staging(a)
    stop(r)
    r.c.finish(job)


@needs_cuda
@pytest.mark.parametrize("route", ["copy", "ce", "rs_ag", "roots"])
def test_imported_memory_works_on_every_route(cluster, route):
    r = Rig(cluster, "cuda", agents=2, args=["--gpu-strategy", route])
    r.run(
        "device_rounds",
        6,
        {"sizes": [3, 1000, 70001], "n_rounds": 3, "imported": True, "route": route},
    )


@needs_cuda
def test_the_toolkits_stub_is_named(cluster):
    r = Rig(cluster, "cuda", agents=1, agent_env={"LD_LIBRARY_PATH": str(BUILD / "stub")})
    for text in r.run("no_device", 2, {"n_elems": 1000}):
        assert "stub" in text, text


def test_large_tensors_take_memory_of_their_own(rig):
    r = rig(agents=2)
    r.run("device_rounds", 2, {"sizes": [5_000_003], "n_rounds": 2}, deadline_s=120)


def test_executors_that_are_killed_at_any_moment_end_their_job_only(rig):
    """Kill executors at any time, even during memory allocations and tensor declarations."""
    rng = random.Random(3)
    r = rig(agents=1)
    pid = r.c.agents[0].process.pid
    ends = []
    for _ in range(5):
        job = r.start("gpu_storm", 2)
        until = time.monotonic() + 10
        while not r.executors(0) and time.monotonic() < until and job[0].process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.5)
        for p in r.executors(0):
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        ends.append([x[0] for x in r.c.finish(job)])
        for w in job:
            w.out.close()
            r.c.workers.remove(w)
        assert os.path.exists(f"/proc/{pid}")
        gone(r, 0)
    print(ends)
    for codes in ends:
        assert all(c in LOST | {0} for c in codes), ends
    r.run("device_rounds", 2, {"sizes": [1000], "n_rounds": 2})


@needs_cuda
@pytest.mark.parametrize(
    "fault",
    [
        "cuMemCreate:1=2",
        "cuMemHostRegister:1=304",
        "cuMemHostRegister:2=304",
        "cuStreamWriteValue64:5=700",
        "cuStreamCreateWithPriority:2=2",
        "ncclCommInitRankConfig:1=3",
        "ncclGroupEnd:3=1",
        "ncclGetUniqueId:1=2",
        "cuMemExportToShareableHandle:1=801",
        "cuDevicePrimaryCtxRetain:1=2",
        "cuMemcpyDtoHAsync:3=2",
        "cuStreamQuery:1=700",
        "cuMemSetAccess:1=1",
        "ncclCommGetAsyncError:20=3",
        "cuInit:1=100",
    ],
)
def test_every_failure_in_an_executor_ends_with_a_sentence(cluster, fault):
    r = Rig(cluster, "cuda", agents=1, agent_env={"FAKE_CUDA_FAULTS": fault})
    r.env["FAKE_CUDA_FAULTS"] = ""
    for code, text, took in r.c.finish(r.start("gpu_fault", 2, {"n_elems": 5000}), 80):
        print(fault, code, text, took)
        assert (
            code in (0, bps.EDEVICE, -errno.ENOMEM, -errno.EINVAL, -errno.ENOTSUP, bps.EWORKER_LOST)
            and (code == 0 or text)
            and took < 45
        )
    gone(r, 0)


def check_went_on(r, started, n_rounds):
    """Check a job on three machines with two workers each. Machine 1 has lost its GPUs.

    The workers of machine 1 must get an error. The other workers must do n_rounds rounds.
    In their last round, machine 1 must not take part. Return the results of all workers.
    """
    results = r.c.finish(started)
    for rank, x in enumerate(results):
        if rank in (2, 3):
            assert x["code"] in (bps.EDEVICE, bps.EEVICTED) and x["rounds"][-1] == [0b111111], (
                rank,
                x,
            )
        else:
            assert (
                x["code"] == 0 and x["rounds"][-1] == [0b110011] and len(x["rounds"]) == n_rounds
            ), (rank, x)
    return results


def test_a_job_goes_on_without_a_machine_whose_executor_dies(rig):
    r = rig(agents=3)
    progress = r.c.dir / "progress"
    args = {
        "n_elems": 60000,
        "n_rounds": 100,
        "progress": str(progress),
        "on_agent_loss": "shrink",
        "pause": 0.01,
    }
    started = r.start("gpu_members", 6, args)
    r.c.wait_for("the job runs", lambda: progress.exists() and int(progress.read_text() or 0) > 5)
    (pid,) = r.executors(1)
    os.kill(pid, signal.SIGKILL)
    results = check_went_on(r, started, 100)
    assert any(
        "executor" in results[i]["text"] or "signal 9" in results[i]["text"] for i in (2, 3)
    ), [x.get("text") for x in results]
    assert any(
        kind == "job" and "goes on without agent a1" in text for kind, text in r.c.events()
    ), r.c.events()


@needs_cuda
def test_a_job_goes_on_without_a_machine_whose_gpu_fails(cluster):
    r = Rig(cluster, "cuda", agents=1)
    cuda = {**r.env, "FAKE_CUDA_FAULTS": "cuMemcpyDtoHAsync:20=719"}
    r.c.env.update(cuda)
    r.c.add_agent(1, "--gpu", "cuda")
    del r.c.env["FAKE_CUDA_FAULTS"]
    r.c.add_agent(2, "--gpu", "cuda")
    started = r.start(
        "gpu_members", 6, {"n_elems": 60000, "n_rounds": 40, "on_agent_loss": "shrink"}
    )
    results = check_went_on(r, started, 40)
    assert any("719" in results[i]["text"] or "LAUNCH" in results[i]["text"] for i in (2, 3)), [
        x.get("text") for x in results
    ]


def test_averages_are_over_the_remaining_workers(rig):
    """Averages include ranks 0 to 5 until a machine is lost.

    After the machine of ranks 4 and 5 is lost, averages include only ranks 0 to 3.
    """
    r = rig(agents=3)
    started = r.start(
        "gpu_average",
        6,
        {"n_elems": 60000, "n_rounds": 12, "victim": 5, "at": 6, "on_agent_loss": "shrink"},
    )
    for x in r.c.finish([w for w in started if w.rank not in (4, 5)]):
        assert x["code"] == 0 and x["rounds"][0] == [2.5] and x["rounds"][-1] == [1.5], x


def test_averages_over_machines_with_unlike_numbers_of_workers(rig):
    r = rig(agents=2)
    started = r.start(
        "gpu_average",
        5,
        {"n_elems": 60000, "n_rounds": 3, "victim": None, "at": 0},
        placement=[0, 0, 0, 0, 1],
    )
    for x in r.c.finish(started):
        assert x["code"] == 0 and x["rounds"] == [[2.0]] * 3, x
