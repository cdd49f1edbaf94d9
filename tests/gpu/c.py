"""Test run C: PyTorch end to end, over the product's own daemons on loopback.

A scheduler, a server and two agents run on one machine. Each agent has an executor and a trainer.
Both executors and both trainers use the same GPU. tests/gpu/run starts this file. This file prints
lines of JSON, as the programs of the runs A, B and D do.

    c.py [--host] [ITEM]

--host: use plain memory and CPU tensors in place of a GPU, to test this file. BPS_GPU_LOGS names a
file for the daemons' logs.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT_S = 120
SPEED_LIMIT_S = 240
TORCH_LIMIT_S = 250
LOG_BYTES = 3000
BAR_HOST_US = 20
BAR_SLOWDOWN = 0.05
STEPS, HOST_STEPS = 50, 16
# The largest allowed relative difference between a trained weight and its value in the reference,
# after STEPS steps of SGD with momentum. In each step, sums of f32 in a different order change a
# weight by about 1e-6 of its value.
BAR_WEIGHTS = 2e-3
# The same if gradients are sent as bf16. Each gradient then has a relative error of up to 2^-9. The
# difference was 0.02 over host memory and on an H200.
BAR_WEIGHTS_BF16 = 0.05
# Limit in seconds from the death of a trainer or an executor until the other worker's stream is
# released and the worker has the error.
BAR_KILLED_S = 3
WAKES = 300
SLEEP_LIMIT_S = 5
MEASURE = "c_measure.py"
TORCH_MODES = (
    "optimizer",
    "side_stream",
    "cross_barrier",
    "bf16",
    "wrapper",
    "hook",
    "backend",
    "collectives",
)


class Missing(Exception):
    pass


def find_executor(is_host):
    return (
        find("bps-agent-host", "tests/bps-agent-host")
        if is_host
        else find("bps-agent-cuda", "bps-agent/bps-agent-cuda")
    )


def find(*names):
    """Return the path of a file in the bundle or in a build folder."""
    folders = [
        HERE,
        *(
            ROOT / "build" / b
            for b in (
                [os.environ["BPS_GPU_BUILD"]]
                if "BPS_GPU_BUILD" in os.environ
                else ["release", "debug"]
            )
        ),
    ]
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise Missing(f"{names[-1]} is not built here")


def answer(item, ok, **rest):
    print(json.dumps({"item": item, "ok": bool(ok), **rest}), flush=True)


class Cluster:
    """Daemons whose files are in a temporary folder. The system chooses their ports."""

    def __init__(self, is_host):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="bps-gpu-"))
        self.daemons, self.is_host = [], is_host
        try:
            (self.dir / "state").mkdir(mode=0o700)
            self.port = self.start(
                "scheduler",
                "scheduler",
                "--listen",
                "127.0.0.1:0",
                "--state-dir",
                self.dir / "state",
            )
            to = ("--scheduler", f"127.0.0.1:{self.port}")
            self.start(
                "server",
                "server",
                "--listen",
                "127.0.0.100:0",
                "--name",
                "s0",
                "--host",
                "server-host",
                "--threads",
                "4",
                "--sums-memory",
                "8GiB",
                "--staging-memory",
                "2GiB",
                *to,
            )
            self.agents = []
            for i in range(2):
                # Pass fixed host names. A virtual machine may change its host name during the run.
                self.start(
                    "agent",
                    f"agent{i}",
                    "--listen",
                    f"127.0.0.{10 + i}:0",
                    "--socket",
                    self.socket(i),
                    "--name",
                    f"a{i}",
                    "--host",
                    f"host{i}",
                    "--gpu",
                    "cuda",
                    "--gpu-program",
                    find_executor(is_host),
                    "--memory",
                    "32GiB",
                    "--user-memory",
                    "16GiB",
                    "--job-memory",
                    "16GiB",
                    *to,
                )
                self.agents.append(self.daemons[-1])
        except BaseException:
            self.close()
            raise

    def socket(self, i):
        return self.dir / f"agent{i}.sock"

    def start(self, role, name, *args):
        """Start a daemon. Return its port when it is ready."""
        program = find(f"bps-{role}", f"bps-{role}/bps-{role}")
        r, w = os.pipe()
        os.set_inheritable(w, True)
        env = {k: v for k, v in os.environ.items() if not k.startswith("BPS_")}
        with open(self.dir / f"{name}.log", "ab") as log:
            p = subprocess.Popen(
                [str(program), *map(str, args), "--http", "127.0.0.1:0", "--ready-fd", str(w)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                pass_fds=[w],
                env=env,
            )
        os.close(w)
        self.daemons.append(p)
        with os.fdopen(
            r
        ) as f:  # reading ends when the daemon is ready or dead; tests/gpu/run limits the time
            lines = dict(line.strip().split("=", 1) for line in f)
        if "PORT" not in lines:
            raise RuntimeError(
                f"bps-{role} does not serve: " + self.log(name)[-600:].replace("\n", " | ")
            )
        return int(lines["PORT"])

    def log(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")

    def logs(self):
        return {p.stem: self.log(p.stem) for p in sorted(self.dir.glob("*.log"))}

    def tell_logs(self):
        """Print the last part of each log, to explain a failure."""
        for name, text in self.logs().items():
            print(f"--- {name}\n{text[-LOG_BYTES:]}", file=sys.stderr, flush=True)

    def close(self):
        if "BPS_GPU_LOGS" in os.environ:
            with open(os.environ["BPS_GPU_LOGS"], "w", encoding="utf-8") as f:
                f.writelines(f"--- {name}\n{text}\n" for name, text in self.logs().items())
        for p in reversed(self.daemons):
            p.terminate()
        for p in self.daemons:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def trainer_env(cluster, rank, job, extra):
    library = find("libbpsclient.so.0")
    python = HERE if (HERE / "bps").is_dir() else ROOT / "libbpsclient" / "python"
    env = dict(
        os.environ,
        BPS_LIBRARY=str(library),
        PYTHONPATH=f"{python}:{os.environ.get('PYTHONPATH', '')}",
        BPS_TIMEOUT="60s",
        GLOO_SOCKET_IFNAME="lo",
        **extra,
    )
    if cluster:
        env.update(
            BPS_AGENT_SOCKET=str(cluster.socket(rank)),
            BPS_JOB=job,
            BPS_RANK=str(rank),
            BPS_SIZE="2",
        )
    return env


def run_trainers(cluster, job, args, extra, n=2, limit_s=LIMIT_S, program="c_train.py", killed=()):
    """Run the trainers of a job. Return the JSON object that each trainer printed.

    If a trainer fails, raise RuntimeError with the reason. The trainers whose ranks are in `killed`
    must end by SIGKILL.
    """
    command = [sys.executable, "-X", "faulthandler", str(HERE / program), json.dumps(args)]
    workers = [
        subprocess.Popen(
            command,
            env=trainer_env(cluster, i, job, extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(n)
    ]
    end, results, reasons = time.monotonic() + limit_s, [], []
    for i, p in enumerate(workers):
        is_late = False
        try:
            out, err = p.communicate(timeout=max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            err += f"\nnot ready after {limit_s} s"
            is_late = True
        if i in killed and p.returncode == -signal.SIGKILL and not is_late:
            continue
        if i not in killed and p.returncode == 0:
            results.append(json.loads(out.splitlines()[-1]))
            continue
        print(f"--- rank {i} of {args['mode']}\n{err[-LOG_BYTES:]}", file=sys.stderr, flush=True)
        reasons.append(
            f"rank {i} ended with {p.returncode}: " + " | ".join(err.strip().splitlines()[-3:])
        )
    if reasons:
        raise RuntimeError("; ".join(reasons)[-700:])
    return results


def train(cluster, mode, name, args, extra):
    args = dict(args, mode=mode, has_segments=bool(extra))
    first, second = sorted(run_trainers(cluster, name, args, extra), key=lambda r: r["rank"])
    worst = max(first["worst"], second["worst"])
    in_place = mode == "arena-copy" or first["moved"] == second["moved"] == 0
    answer(
        f"weights_{name}",
        worst < BAR_WEIGHTS and first["hash"] == second["hash"] and in_place,
        worst=float(f"{worst:.2g}"),
        same_at_both=first["hash"] == second["hash"],
        step_ms=round(first["step_ms"], 2),
        step_p99_ms=round(first["step_p99_ms"], 2),
        route=first["route"],
        copied=first["moved"],
    )
    us = {
        k: round(max(first[k], second[k]), 1)
        for k in ("submit_us", "submit_p99_us", "wait_us", "wait_p99_us")
    }
    answer(
        f"host_time_{name}",
        us["submit_us"] < BAR_HOST_US and us["wait_us"] < BAR_HOST_US,
        **us,
        bar_us=BAR_HOST_US,
    )


def train_torch(cluster, mode, args):
    """Train with bps.torch, in one of the modes of c_torch.py."""
    args = dict(args, mode=mode)
    results = run_trainers(cluster, f"torch-{mode}", args, {}, program="c_torch.py")
    first, second = sorted(results, key=lambda r: r["rank"])
    if mode == "collectives":
        bad = first["bad"] + second["bad"]
        answer("torch_collectives", not bad, **({"wrong": bad} if bad else {}))
        return
    worst = max(first["worst"], second["worst"])
    bar = BAR_WEIGHTS_BF16 if mode == "bf16" else BAR_WEIGHTS
    answer(
        f"torch_{mode}",
        worst < bar and first["hash"] == second["hash"],
        worst=float(f"{worst:.2g}"),
        same_at_both=first["hash"] == second["hash"],
        step_ms=round(first["step_ms"], 2),
        step_p99_ms=round(first["step_p99_ms"], 2),
    )


def measure_beside(cluster, args):
    """Measure a step of two trainers that share the GPU, without an exchange."""
    results = run_trainers(cluster, "beside", dict(args, mode="beside"), {}, program=MEASURE)
    answer("beside", True, step_ms=round(max(r["step_ms"] for r in results), 2))


def measure_lone_step(cluster, args):
    """Measure a step of the only trainer on the GPU. The other trainer uses host memory."""
    args = dict(args, mode="lone_step")
    results = run_trainers(cluster, "lone-step", args, {}, program=MEASURE)
    r = next(r for r in results if r["rank"] == 0)
    answer(
        "lone_step",
        r["submit_us"] < BAR_HOST_US,
        step_ms=round(r["step_ms"], 2),
        step_p99_ms=round(r["step_p99_ms"], 2),
        submit_us=round(r["submit_us"], 1),
        bar_us=BAR_HOST_US,
    )


def measure_rounds(cluster, args):
    """Measure rounds whose tensor is in GPU memory at one worker, or in host memory at both."""
    times = {}
    for kind, is_on_gpu in (("gpu", True), ("host", False)):
        run_args = dict(args, mode="rounds", is_on_gpu=is_on_gpu)
        results = run_trainers(cluster, f"rounds-{kind}", run_args, {}, program=MEASURE)
        first = next(r for r in results if r["rank"] == 0)
        for n_bytes, us in first["times"].items():
            times[f"{kind}_{int(n_bytes) >> 10}KiB_us"] = round(us)
    answer("rounds", True, **times)


def check_killed(cluster, who, args):
    """Kill a trainer or an executor. The other worker's stream must be released with an error."""
    args = dict(args, mode="killed", who=who, agent=cluster.agents[0].pid)
    dead = (1,) if who == "trainer" else ()
    results = run_trainers(cluster, f"killed-{who}", args, {}, program=MEASURE, killed=dead)
    r = next(r for r in results if r["rank"] == 0)
    named = "rank 1" if who == "trainer" else "bps-agent-"
    others = [o["error"] for o in results if o["rank"] != 0]
    answer(
        f"killed_{who}",
        named in r["error"] and r["gpu_works"] and all(others),
        gpu_works=r["gpu_works"],
        error=r["error"],
        **({"error_at_rank_1": others[0]} if others else {}),
    )
    answer(
        f"killed_{who}_time",
        r["released_s"] < BAR_KILLED_S and r["error_s"] < BAR_KILLED_S,
        released_s=round(r["released_s"], 4),
        error_s=round(r["error_s"], 4),
        bar_s=BAR_KILLED_S,
    )


def await_sleep(pid):
    """Wait until a process sleeps."""
    end = time.monotonic() + SLEEP_LIMIT_S
    stat = pathlib.Path(f"/proc/{pid}/stat")
    while stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] != "S":
        if time.monotonic() > end:
            raise RuntimeError(f"process {pid} does not sleep after {SLEEP_LIMIT_S} s")


def measure_wake():
    """Measure the call that wakes a sleeping process, as a submission wakes the agent."""
    fd = os.eventfd(0)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            os.eventfd_read(fd)
    times = []
    try:
        for _ in range(WAKES):
            await_sleep(child)
            begin = time.perf_counter_ns()
            os.eventfd_write(fd, 1)
            times.append((time.perf_counter_ns() - begin) / 1e3)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(fd)
    times.sort()
    p50, p99 = (times[int(WAKES * share)] for share in (0.5, 0.99))
    answer("wake", True, call_us=round(p50, 1), p99_us=round(p99, 1))


def measure_speed(cluster, args, is_host):
    size = (16 << 20) if is_host else (1 << 30)
    args = dict(
        args, mode="speed", bytes=size, rounds=3 if is_host else 8, seconds=0.2 if is_host else 4
    )
    r = next(
        r for r in run_trainers(cluster, "speed", args, {}, limit_s=SPEED_LIMIT_S) if r["rank"] == 0
    )
    answer(
        "speed",
        r["slowdown"] < BAR_SLOWDOWN,
        slowdown=round(r["slowdown"], 3),
        bar_slowdown=BAR_SLOWDOWN,
        alone_s=[round(v, 1) for v in r["alone"]],
        rounds=r["rounds"],
        first_round_s=round(r["first_s"], 2),
        mib=size >> 20,
        round_s=round(r["round_s"], 3),
        round_beside_s=round(r["round_beside_s"], 3),
        gbytes_s=round(r["gbytes_s"], 2),
        products_s=round(r["products_s"], 1),
        route=r["route"],
    )


def refer(args):
    (r,) = run_trainers(None, "", dict(args, mode="reference"), {}, n=1)
    answer(
        "reference",
        True,
        step_ms=round(r["step_ms"], 2),
        half_batch_step_ms=round(r["half_ms"], 2),
        loss=round(r["loss"], 4),
    )


def attempt(cluster, name, do, *args):
    """Run one item. When it fails, print the reason and continue with the next item."""
    try:
        do(*args)
    except Exception as e:  # pylint: disable=broad-except
        answer(name, False, why=str(e) or repr(e))
        cluster.tell_logs()


def check_torch(is_host):
    test = "import torch, sys; sys.exit(0 if torch.cuda.is_available() or %r else 2)" % is_host
    try:
        p = subprocess.run(
            [sys.executable, "-c", test],
            capture_output=True,
            text=True,
            timeout=TORCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"PyTorch cannot be imported within {TORCH_LIMIT_S} s") from None
    if p.returncode == 2:
        raise Missing("PyTorch finds no GPU")
    if p.returncode != 0:
        raise Missing("PyTorch cannot be imported: " + (p.stderr.strip().splitlines() or ["?"])[-1])


def run(is_host, only):
    check_torch(is_host)
    find_executor(is_host)
    cluster = Cluster(is_host)
    try:
        args = {
            "place": "host" if is_host else "cuda",
            "file": str(cluster.dir / "weights.npy"),
            "steps": HOST_STEPS if is_host else STEPS,
        }
        # The first two variables mean the same: PyTorch 2.9 renamed the variable. The third
        # variable lets PyTorch make segments that other processes can map by descriptor.
        segments = {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "1",
        }
        todo = [
            ("reference", refer, args),
            ("weights_arena", train, cluster, "arena", "arena", args, {}),
            ("weights_arena-copy", train, cluster, "arena-copy", "arena-copy", args, {}),
        ]
        if not is_host:  # the host back-end cannot map memory of other libraries
            todo.append(("weights_import", train, cluster, "import", "import", args, {}))
            todo.append(
                (
                    "weights_import_segments",
                    train,
                    cluster,
                    "import",
                    "import_segments",
                    args,
                    segments,
                )
            )
        todo += [(f"torch_{m}", train_torch, cluster, m, args) for m in TORCH_MODES]
        todo.append(("wake", measure_wake))
        todo.append(("beside", measure_beside, cluster, args))
        todo.append(("lone_step", measure_lone_step, cluster, args))
        todo.append(("rounds", measure_rounds, cluster, args))
        todo += [
            (f"killed_{who}", check_killed, cluster, who, args) for who in ("trainer", "executor")
        ]
        todo.append(("speed", measure_speed, cluster, args, is_host))
        if only:
            if only not in [t[0] for t in todo]:
                raise Missing(f"there is no item {only} here")
            # items that train compare the weights with the file that the item "reference" writes
            is_training = only.startswith(("weights_", "torch_")) and only != "torch_collectives"
            todo = [t for t in todo if t[0] == only or (t[0] == "reference" and is_training)]
        print(json.dumps({"expect": [t[0] for t in todo]}), flush=True)
        for name, do, *rest in todo:
            attempt(cluster, name, do, *rest)
    finally:
        cluster.close()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    only = next((a for a in sys.argv[1:] if not a.startswith("--")), None)
    try:
        run("--host" in sys.argv[1:], only)
    except Missing as e:
        print(f"tests/gpu/run: {e}", file=sys.stderr)
        return 77
    except RuntimeError as e:
        answer("cluster", False, why=str(e))
    return 0


if __name__ == "__main__":
    sys.exit(main())
