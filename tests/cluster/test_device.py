"""Tensors in device memory.

On back-end `host`, plain memory stands for GPU memory. On the CUDA back-end, fake libraries replace
the driver and NCCL. Trainers, agents, executors, servers and scheduler are real processes.
"""

import json
import os
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest

import bps
from cluster import BUILD, WORKER_BUILD, gpu_args

FAKE = BUILD / "fake"
HAS_CUDA = (BUILD / "bps-agent" / "bps-agent-cuda").exists() and (FAKE / "libcuda.so.1").exists()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="built without CUDA")
HOST = gpu_args("host")
# Error codes that workers may get when a worker, an executor or a GPU is lost.
LOST = {bps.EWORKER_LOST, bps.EJOB_FAILED, bps.EDEVICE}
KINDS = [
    ("i64", "sum"),
    ("f32", "sum"),
    ("f32", "avg"),
    ("i32", "max"),
    ("f64", "min"),
    ("f64", "avg"),
]


class Rig:
    """A cluster whose agents drive GPUs. `kind` is the back-end of the GPUs, for example "cuda"."""

    def __init__(
        self, cluster, kind, agents=2, servers=2, gpus=4, args=(), agent_env=None, delay_us=None
    ):
        self.kind = kind
        cuda = {
            "LD_LIBRARY_PATH": str(FAKE),
            "FAKE_CUDA_GPUS": str(gpus),
            "FAKE_CUDA_DELAY_US": "100",
        }
        cuda = cuda if kind == "cuda" else {}
        old = {k: os.environ.get(k) for k in {**cuda, **(agent_env or {})}}
        os.environ.update({**cuda, **(agent_env or {})})
        try:
            self.c = cluster(agents=agents, servers=servers, agent_args=[*gpu_args(kind), *args])
        finally:
            for k, v in old.items():
                os.environ.pop(k, None) if v is None else os.environ.__setitem__(k, v)
        slow = {"FAKE_CUDA_DELAY_US": str(delay_us)} if delay_us else {}
        self.env = {**cuda, **slow, "TEST_DEVICE": kind}
        if kind == "cuda":
            self.env["LD_LIBRARY_PATH"] = str(WORKER_BUILD / "fake")

    def run(self, function, workers, args=None, **kw):
        return self.c.run(function, workers, args, env=self.env, **kw)

    def start(self, function, workers, args=None, **kw):
        return self.c.start_job(function, workers, args, env=self.env, **kw)

    def executors(self, agent=0):
        """Return the process ids of an agent's children."""
        pid = self.c.agents[agent].process.pid
        children = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text().split()
        return [int(c) for c in children]


@pytest.fixture(params=["host", pytest.param("cuda", marks=needs_cuda)])
def rig(request, cluster):
    return lambda **kw: Rig(cluster, request.param, **kw)


@pytest.mark.parametrize("workers,agents", [(2, 2), (4, 2), (4, 1), (8, 2), (8, 1)])
def test_sums_in_device_memory_are_exact(rig, workers, agents):
    r = rig(agents=agents, gpus=8)
    routes = r.run("device_rounds", workers, {"sizes": [1, 1000, 300001], "n_rounds": 4})
    assert set(routes) == {"copy" if workers == agents else "rs_ag"}


# The calls between GPUs that the executor makes on each route. The tail of a tensor that cannot be
# scattered evenly is reduced and broadcast.
ROOTS = {"ncclReduce", "ncclBroadcast"}
SCATTER = {"ncclReduceScatter", "ncclAllGather", *ROOTS}
CALLS = {
    "copy": set(),
    "ce": {"cuMemcpyDtoDAsync"},
    "rs_ag": SCATTER,
    "switch_sum": SCATTER,
    "roots": ROOTS,
}


def calls(trace):
    """Return the process id and the name of each call in a trace of the fake driver."""
    return re.findall(r"^(\d+) (\w+?)(?:_v\d)? ", trace.read_text(), re.M)


def calls_between_gpus(trace):
    """Return the calls in the trace that move data between GPUs."""
    seen = {name for _, name in calls(trace)}
    assert "cuMemcpyDtoHAsync" in seen, seen
    return seen & set.union(*CALLS.values())


@pytest.mark.parametrize("route", ["copy", "ce", "rs_ag", "switch_sum", "roots"])
def test_every_route_gives_the_same_sums(rig, tmp_path, route):
    trace = tmp_path / "trace"
    r = rig(args=["--gpu-strategy", route], agent_env={"FAKE_CUDA_TRACE": str(trace)})
    r.run("device_rounds", 6, {"sizes": [3, 70001], "n_rounds": 3, "kinds": KINDS, "route": route})
    if r.kind == "cuda":
        assert calls_between_gpus(trace) == CALLS[route]


@pytest.mark.parametrize("route", ["copy", "ce", "rs_ag", "switch_sum", "roots"])
def test_average_of_f16_that_would_overflow_as_a_sum(rig, route):
    r = rig(args=["--gpu-strategy", route])
    args = {"sizes": [3, 70001], "n_rounds": 2, "route": route}
    r.run("device_f16_averages", 5, args, placement=[0, 0, 0, 1, 1])


def test_a_stream_may_be_rounds_ahead(rig):
    r = rig(agents=2)
    assert r.run("device_ahead", 2, {"n_elems": 1000, "n_rounds": 20}) == [1 << 20] * 2


def test_a_job_has_tensors_in_host_and_in_device_memory(rig):
    rig().run("device_and_host_tensors", 4, {"n_elems": 100003, "n_rounds": 5})


@needs_cuda
def test_tensors_may_lie_in_memory_of_the_trainers_own(cluster):
    Rig(cluster, "cuda").run(
        "device_rounds", 4, {"sizes": [1000, 70001], "n_rounds": 3, "imported": True}
    )


def staging(agent):
    """Return the NUMA policy and the pages per node of each piece of an agent's staging memory."""
    pieces = []
    for line in Path(f"/proc/{agent.process.pid}/numa_maps").read_text().splitlines():
        if "memfd:bps-staging" in line:
            pieces.append(
                (line.split()[1], {int(n): int(k) for n, k in re.findall(r" N(\d+)=(\d+)", line)})
            )
    return pieces


# ---- faults ----


def check_ended(results, codes, bound_s=10):
    """Check the results of workers whose job has ended.

    Each worker must get one of the error codes in `codes`, with a text, within `bound_s` seconds. A
    further submission must fail.
    """
    for code, text, took, again in results:
        assert code in codes, text
        assert text and took < bound_s, (text, took)
        assert again < 0


def gone(r, agent):
    """Wait until the executors of the agent's jobs have ended."""
    r.c.wait_for("no executor is left", lambda: not r.executors(agent))


@pytest.mark.parametrize("workers,agents", [(4, 2), (2, 2)])
def test_a_trainer_that_dies_releases_all_streams(rig, workers, agents):
    r = rig(agents=agents)
    job = r.start("device_until_failure", workers, {"n_elems": 5000, "die_rank": 1})
    results = r.c.finish([w for w in job if w.rank != 1])
    job[1].process.wait(20)
    check_ended(results, LOST)
    for agent in range(agents):
        gone(r, agent)
    r.run(
        "device_rounds", workers, {"sizes": [1000], "n_rounds": 2}
    )  # the next job gets a new executor


@pytest.mark.parametrize("workers,agents", [(2, 1), (4, 2)])
def test_error_of_a_waiting_stream_names_the_dead_worker(rig, workers, agents):
    """Lose a worker of a job in which only GPU streams wait for rounds.

    The loss ends the executors. The errors of the other workers must name the dead worker, not an
    executor.
    """
    r = rig(agents=agents)
    go = r.c.dir / "go"
    job = r.start("device_stream_alone", workers, {"go": str(go)})
    job[1].process.wait(60)
    for agent in range(agents):
        gone(r, agent)
    go.touch()
    for code, text in r.c.finish([w for w in job if w.rank != 1]):
        assert code in (bps.EWORKER_LOST, bps.EJOB_FAILED) and (
            "was lost" in text or "has left" in text
        ), (code, text)


def start_and_wait(r, workers, args):
    started = r.c.dir / f"started{time.monotonic_ns()}"
    job = r.start(
        "device_until_failure", workers, {"n_elems": 5000, "started": str(started), **args}
    )
    r.c.wait_for(
        "the job runs", lambda: all(Path(f"{started}.{w}").exists() for w in range(workers))
    )
    return job


def test_an_executor_that_is_killed_fails_its_job_only(rig):
    r = rig()
    job = start_and_wait(r, 4, {})
    (pid,) = r.executors(0)
    r.c.wait_for("the status counts the executor", lambda: r.c.agents[0].status()["executors"] == 1)
    os.kill(pid, signal.SIGKILL)
    results = r.c.finish(job)
    check_ended(results, LOST)
    assert any("signal 9" in text or "executor" in text for _, text, _, _ in results), results
    r.c.wait_for(
        "the agent counts the failure of the executor",
        lambda: "bps_agent_executor_failures_total 1\n" in r.c.agents[0].get("/metrics"),
    )
    r.run("device_rounds", 4, {"sizes": [1000], "n_rounds": 2})
    gone(r, 0)


def test_input_that_is_written_after_an_executors_loss_is_in_no_sum(cluster):
    """Bytes that a worker writes after the loss of its executor must not be summed.

    The server on this worker's host reads the worker's input in place. The test stops the
    scheduler, so the other members are notified late that the job has ended.
    """
    with tempfile.TemporaryDirectory(prefix="bps-") as d:
        at = ["--same-host-dir", d]
        c = cluster(agents=2, servers=1, agent_args=[*HOST, *at], server_args=at)
        r = Rig.__new__(Rig)
        r.kind, r.c = "host", c
        n = 300000
        args = {
            "n_elems": n,
            "lost": str(c.dir / "lost"),
            "victim": 1,
            "n_rounds": 3,
            "has_gpu": True,
        }
        started = c.start_job("orphan", 2, args, env={"TEST_DEVICE": "host"})
        c.wait_for(
            "the server has the victim's last contribution",
            lambda: c.servers[0].status()["same_host"]["received_bytes"] == 5 * n * 8,
        )
        c.scheduler.process.send_signal(signal.SIGSTOP)
        os.kill(r.executors(1)[0], signal.SIGKILL)
        c.wait_for("the victim has got an error", (c.dir / "lost").exists)
        c.wait_for(
            "the other worker has got its sum", lambda: started[0].process.poll() is not None
        )
        c.scheduler.process.send_signal(signal.SIGCONT)
        results = c.finish(started)
        assert results[0][1] is True and results[1][0] == bps.EDEVICE, results


def test_an_executor_that_hangs_is_killed(cluster):
    r = Rig(cluster, "host")
    job = start_and_wait(r, 2, {})
    (pid,) = r.executors(0)
    os.kill(pid, signal.SIGSTOP)
    said = f"the executor of its GPUs (this host, pid {pid}) has made no progress for"
    r.c.wait_for(
        "why-stuck shows the executor",
        lambda: said in " ".join(r.c.bpsctl("why-stuck").stdout.split()),
    )
    results = r.c.finish(job)
    check_ended(results, LOST, bound_s=40)
    assert any("hangs" in text for _, text, _, _ in results), results
    gone(r, 0)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_that_ends_leaves_no_stream_waiting(rig, sig):
    r = rig()
    job = start_and_wait(r, 4, {})
    r.c.agents[1].kill(sig)
    check_ended(r.c.finish(job), LOST | {bps.ENOAGENT, bps.EAGENT_LOST}, bound_s=20)


def test_workers_get_an_error_when_an_absent_worker_is_killed(rig):
    """The other workers wait until the absent worker is killed, and then get an error."""
    r = rig(agents=1)
    job = start_and_wait(r, 3, {"absent_rank": 2})
    time.sleep(0.3)
    assert all(w.process.poll() is None for w in job)
    job[2].process.kill()
    check_ended(r.c.finish(job[:2]), LOST)


@needs_cuda
@pytest.mark.parametrize(
    "fault,words",
    [
        ("cuMemcpyDtoHAsync:9=700", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
        ("cuMemcpy2DAsync:5=719", "(719)"),
        ("ncclReduceScatter:3=1", "unhandled cuda error"),
    ],
)
def test_an_error_of_the_gpu_ends_the_job_with_the_drivers_words(cluster, fault, words):
    r = Rig(cluster, "cuda", agents=1, agent_env={"FAKE_CUDA_FAULTS": fault})
    results = r.c.finish(r.start("device_until_failure", 2, {"n_elems": 5000}))
    check_ended(results, {bps.EDEVICE})
    for _, text, _, _ in results:
        assert words in text, text
    gone(r, 0)


def test_nonsense_about_device_memory_is_refused(rig):
    rig(agents=1).run("device_nonsense", 2)


@needs_cuda
@pytest.mark.parametrize("way", ["abort", "close"])
def test_queued_work_ends_before_a_job_frees_its_memory_and_counters(cluster, way):
    r = Rig(cluster, "cuda", agents=1, delay_us=100_000)
    args = {"way": way, "queued": str(r.c.dir / "queued")}
    assert r.run("device_leave_behind", 2, args) == [True, True]


def test_nothing_leaks_job_after_job(rig):
    r = rig(agents=1)
    before = len(os.listdir(f"/proc/{r.c.agents[0].process.pid}/fd"))
    for seen in r.run("device_cycles", 2, {"n_cycles": 6}):
        assert seen[2] == seen[-1], seen
    gone(r, 0)
    r.c.wait_for(
        "the agent has closed the jobs' descriptors",
        lambda: len(os.listdir(f"/proc/{r.c.agents[0].process.pid}/fd")) <= before,
    )


@needs_cuda
@pytest.mark.parametrize("agents", [1, 2])
def test_worker_whose_stream_is_late_is_named(cluster, agents):
    r = Rig(cluster, "cuda", agents=agents)
    for text in r.run("device_late", 2, {"late_rank": 1}):
        assert "rank 1" in text and "stream has not reached" in text, text


@pytest.mark.parametrize("agents", [1, 2])
def test_a_wait_for_a_worker_that_does_not_submit_names_it(cluster, agents):
    told = Rig(cluster, "host", agents=agents).run("device_plain_late", 2, {"late_rank": 1})[0]
    assert told[0] == bps.ETIMEDOUT and "'layer'" in told[1] and "rank 1" in told[1], told


def test_worker_that_has_not_called_bps_gpu_open_is_named(cluster):
    r = Rig(cluster, "host", agents=1)
    go, told = r.c.dir / "go", r.c.dir / "told"
    job = r.start("device_late_open", 2, {"late_rank": 1, "go": str(go), "told": str(told)})
    late = f"pid {job[1].process.pid})"
    r.c.wait_for(
        "why-stuck shows the late worker",
        lambda: "have not called it" in r.c.bpsctl("why-stuck").stdout,
    )
    text = r.c.bpsctl("why-stuck").stdout
    assert (
        "bps_gpu_open: 1 worker waiting for" in text and f"rank 1 (host agent-host0, {late}" in text
    ), text
    assert f"waiting: rank 0 (host agent-host0, pid {job[0].process.pid})" in text, text
    (wait,) = json.loads(r.c.bpsctl("--json", "why-stuck").stdout)["jobs"][0]["waits"]
    assert (wait["why"], wait["n_missing"], wait["tensor"]) == ("gpu_open", 1, None), wait
    r.c.wait_for("the first call has failed", told.exists)
    go.touch()
    (_, said), _ = r.c.finish(job)
    assert (
        said[0] == bps.ETIMEDOUT
        and f"rank 1 (this host, {late} has not called bps_gpu_open" in said[1]
    ), said


def test_barrier_names_missing_workers_when_gpus_were_given_up(cluster):
    r = Rig(cluster, "host", agents=1)
    go = r.c.dir / "go"
    job = r.start("device_given_up", 3, {"go": str(go)})
    for rank in (0, 1):
        r.c.wait_for("the barrier call has failed", (r.c.dir / f"go.{rank}").exists)
    stuck = r.c.bpsctl("why-stuck").stdout
    go.touch()
    for _, at in r.c.finish(job)[:2]:
        assert at[0] == bps.ETIMEDOUT and "rank 2" in at[1] and "bps_gpu_open" not in at[1], (
            at,
            stuck,
        )
    assert "bps_gpu_open" not in stuck, stuck


# ---- no GPU ----


def test_without_a_driver_the_error_has_the_reason_and_host_tensors_work(cluster):
    c = cluster(agents=2, servers=1, agent_args=["--gpu", "cuda"])
    for text in c.run("no_device", 2, {"n_elems": 1000}):
        assert "libcuda.so.1" in text or "bps-agent-cuda" in text, text


@needs_cuda
def test_without_a_device_the_error_has_the_drivers_reason(cluster):
    r = Rig(cluster, "cuda", agents=2, gpus=0)
    for text in r.run("no_device", 2, {"n_elems": 1000}):
        assert "GPU" in text or "device" in text, text


def test_setting_gpu_off_keeps_an_agent_from_gpus(cluster):
    c = cluster(agents=2, servers=1, agent_args=["--gpu", "off"])
    for text in c.run("no_device", 2, {"n_elems": 1000}):
        assert "--gpu" in text


@needs_cuda
def test_trainer_without_cuda_gets_a_clear_error(cluster):
    r = Rig(cluster, "cuda", agents=2)
    r.env = {}
    for text in r.run("no_device", 2, {"n_elems": 1000}):
        assert "no CUDA" in text, text
