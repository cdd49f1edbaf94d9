"""A trainer of run C that measures or checks one thing: python c_measure.py JSON.

Environment variables give its job and rank. It prints one line of JSON. Modes:

    beside       both trainers train on the GPU at the same time, without an exchange
    lone_step    rank 0 trains on the GPU; rank 1 adds zeros from host memory
    rounds       times of rounds of several sizes; rank 0 has the tensor in GPU or host memory
    killed       rank 1, or the executor of rank 0, is killed while a stream of rank 0 waits
"""

import json
import os
import signal
import sys
import threading
import time

import c_train
import torch

import bps

# The sizes of the measured rounds in bytes, each with the number of rounds.
ROUNDS = {4096: 200, 1 << 20: 100, 16 << 20: 40}
FIND_S = 10
WAIT_S = 60


def train_beside(args, place):
    """Train without an exchange. Both trainers begin at the same time."""
    with bps.open() as job:
        model = c_train.model_of(place)
        c_train.train_alone(model, job.size, place, args["steps"])
        job.barrier(WAIT_S)
        _, times = c_train.train_alone(model, job.size, place, args["steps"])
        return {"rank": job.rank, "step_ms": c_train.percentile(times, 50)}


def add_zeros(job, n_steps):
    """Take part in the sums of measure_lone_step with zeros."""
    sizes = [p.numel() for p in c_train.model_of(c_train.Host()).parameters()]
    tensors = [job.declare(f"p{i}", "f32", n) for i, n in enumerate(sizes)]
    for t in tensors:
        t.input[:] = 0
    for _ in range(n_steps):
        for t in reversed(tensors):
            t.push_pull(bps.AVG)
        for t in tensors:
            t.wait(WAIT_S)


def measure_lone_step(args, place):
    """Measure the steps of rank 0, the only trainer on the GPU."""
    with bps.open() as job:
        if job.rank > 0:
            add_zeros(job, args["steps"])
            return {"rank": job.rank}
        job.gpu_open()
        model = c_train.model_of(place)
        exchange = c_train.Exchange(job, model, "arena", place)
        optimizer, marks = c_train.optimizer_of(model), []
        for step in range(args["steps"]):
            marks.append(place.mark())
            exchange.zero()
            c_train.loss_of(model, step, 0, job.size, place).backward()
            exchange.wait()
            optimizer.step()
        exchange.finish()
        times = c_train.step_times(place, marks)
        calls = len(exchange.tensors) * 5  # skip 5 steps that load modules and map memory
        return {
            "rank": job.rank,
            "step_ms": c_train.percentile(times, 50),
            "step_p99_ms": c_train.percentile(times, 99),
            "submit_us": c_train.percentile(exchange.submit_us[calls:], 50),
        }


def measure_rounds(args, place):
    """Measure rounds of one tensor, from push_pull to the result, in microseconds."""
    with bps.open() as job:
        is_on_gpu = job.rank == 0 and args["is_on_gpu"]
        base, times = 0, {}
        if is_on_gpu:
            job.gpu_open()
            base = job.gpu_alloc(max(ROUNDS))
        for n_bytes, n in ROUNDS.items():
            if is_on_gpu:
                t = job.gpu_declare(f"r{n_bytes}", "f32", n_bytes // 4, base)
            else:
                t = job.declare(f"r{n_bytes}", "f32", n_bytes // 4)
            taken = []
            for _ in range(n):
                job.barrier(WAIT_S)
                begin = time.perf_counter_ns()
                t.push_pull()
                if is_on_gpu:
                    t.wait_stream(place.stream())
                    place.synchronize()
                else:
                    t.wait(WAIT_S)
                taken.append((time.perf_counter_ns() - begin) / 1e3)
            times[str(n_bytes)] = c_train.percentile(taken[n // 4 :], 50)
        return {"rank": job.rank, "times": times}


def children_of(agent):
    """Return the ids of an agent's executors that have not ended."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as f:
                name, _, rest = f.read().partition("(")[2].rpartition(")")
        except OSError:
            continue  # the process has ended
        state, parent = rest.split()[:2]
        if name.startswith("bps-agent-") and int(parent) == agent and state != "Z":
            found.append(int(entry))
    return found


def executor_of(agent):
    """Return the process id of the agent's only executor. Executors of earlier jobs may still be
    ending, so wait for them."""
    end = time.monotonic() + FIND_S
    while len(found := children_of(agent)) != 1:
        if time.monotonic() > end:
            raise RuntimeError(f"agent {agent} has {len(found)} executors, not one")
        time.sleep(0.01)
    return found[0]


def begin_wait(t, place):
    """Make a stream wait for the tensor's sum. Return a function that returns when the stream is
    released. With host memory in place of a GPU, a thread takes the place of the stream."""
    if place.device == "cuda":
        t.wait_stream(place.stream())
        return place.synchronize

    def wait():
        try:
            t.wait_stream(place.stream())
        except bps.Error:
            pass  # the caller gets the error from the tensor

    thread = threading.Thread(target=wait)
    thread.start()
    return thread.join


def check_killed(args, place):
    """Kill a process while a stream of rank 0 waits for a sum that cannot come. Return the seconds
    until the stream was released and until the error was raised, and the error."""
    job = bps.open()
    job.gpu_open()
    t = job.gpu_declare("sum", "f32", 1 << 20, job.gpu_alloc(4 << 20))
    for _ in range(3):
        t.push_pull(stream=place.stream())
        t.wait_stream(place.stream())
    place.synchronize()
    executor = executor_of(args["agent"]) if job.rank == 0 else 0
    job.barrier(WAIT_S)
    if job.rank == 0:
        t.push_pull(stream=place.stream())
        released = begin_wait(t, place)
    job.barrier(WAIT_S)
    begin = time.perf_counter()
    if job.rank == 1:
        if args["who"] == "trainer":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            job.barrier(WAIT_S)  # rank 0 never calls it, so only the end of the job ends the call
        except bps.Error as error:
            job.abort()
            return {"rank": 1, "error": str(error)}
        raise RuntimeError("rank 1 has passed a barrier that rank 0 does not enter")
    if args["who"] == "executor":
        os.kill(executor, signal.SIGKILL)
    released()
    released_s, error = time.perf_counter() - begin, ""
    try:
        t.wait(WAIT_S)
    except bps.Error as failure:
        error = str(failure)
    error_s = time.perf_counter() - begin
    works = bool((torch.ones(1 << 20, device=place.device).sum() == 1 << 20).item())
    job.abort()
    return {
        "rank": 0,
        "released_s": released_s,
        "error_s": error_s,
        "error": error,
        "gpu_works": works,
    }


MODES = {
    "beside": train_beside,
    "lone_step": measure_lone_step,
    "rounds": measure_rounds,
    "killed": check_killed,
}


def main():
    args = json.loads(sys.argv[1])
    is_lone = args["mode"] in ("lone_step", "rounds") and os.environ["BPS_RANK"] != "0"
    place = c_train.Cuda() if args["place"] == "cuda" and not is_lone else c_train.Host()
    print(json.dumps(MODES[args["mode"]](args, place)), flush=True)


if __name__ == "__main__":
    main()
