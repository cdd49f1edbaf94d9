"""Run C: PyTorch end to end, over the product's own daemons on loopback: a scheduler, a server, two agents with an executor
each, and a trainer at each agent, all on one GPU. Started by tests/gpu/run; prints lines of JSON as the other runs do.

    c.py [--host]     --host: plain memory and CPU tensors in the place of a GPU, to test this file
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
BAR_HOST_US = 20
BAR_SLOWDOWN = 0.05
# Sums of f32 in another order, over 50 steps of SGD with momentum: each step adds about 1e-6 of a weight.
BAR_WEIGHTS = 2e-3


class Missing(Exception):
    pass


def find(*names):
    """A file of the bundle, or of a build."""
    folders = [HERE, *(ROOT / "build" / b for b in ([os.environ["BPS_GPU_BUILD"]] if "BPS_GPU_BUILD" in os.environ else ["release", "debug"]))]
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise Missing(f"{names[-1]} is not built here")


def answer(item, ok, **rest):
    print(json.dumps({"item": item, "ok": bool(ok), **rest}), flush=True)


class Cluster:
    """The daemons, in a folder of their own; ports are the system's choice."""

    def __init__(self, is_host):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="bps-gpu-"))
        self.daemons, self.is_host = [], is_host
        try:
            (self.dir / "state").mkdir(mode=0o700)
            self.port = self.start("scheduler", "--listen", "127.0.0.1:0", "--state-dir", self.dir / "state")
            to = ("--scheduler", f"127.0.0.1:{self.port}")
            self.start(
                "server", "--listen", "127.0.0.100:0", "--name", "s0", "--host", "server-host", "--threads", "4",
                "--sums-memory", "8GiB", "--staging-memory", "2GiB", *to
            )
            for i in range(2):
                self.start(
                    "agent", "--listen", f"127.0.0.{10 + i}:0", "--socket", self.socket(i), "--name", f"a{i}",
                    "--host", f"host{i}", "--gpu", "host" if is_host else "cuda", *to
                )
        except BaseException:
            self.close()
            raise

    def socket(self, i):
        return self.dir / f"agent{i}.sock"

    def start(self, role, *args):
        """Its port, once it serves."""
        program = find(f"bps-{role}", f"bps-{role}/bps-{role}")
        r, w = os.pipe()
        os.set_inheritable(w, True)
        env = {k: v for k, v in os.environ.items() if not k.startswith("BPS_")}
        with open(self.dir / f"{role}.log", "ab") as log:
            p = subprocess.Popen(
                [str(program), *map(str, args), "--http", "127.0.0.1:0", "--ready-fd", str(w)], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, pass_fds=[w], env=env
            )
        os.close(w)
        self.daemons.append(p)
        with os.fdopen(r) as f:  # it closes its end when it serves or dies; a hang is ended by run's limit
            lines = dict(line.strip().split("=", 1) for line in f)
        if "PORT" not in lines:
            raise RuntimeError(f"bps-{role} does not serve: " + self.log(role))
        return int(lines["PORT"])

    def log(self, role):
        return (self.dir / f"{role}.log").read_text(errors="replace")[-600:].replace("\n", " | ")

    def close(self):
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
    python = HERE if (HERE / "bps.py").is_file() else ROOT / "libbpsclient" / "python"
    env = dict(
        os.environ, BPS_LIBRARY=str(library), PYTHONPATH=f"{python}:{os.environ.get('PYTHONPATH', '')}", BPS_TIMEOUT="60s", **extra
    )
    if cluster:
        env.update(BPS_AGENT_SOCKET=str(cluster.socket(rank)), BPS_JOB=job, BPS_RANK=str(rank), BPS_SIZE="2")
    return env


def run_trainers(cluster, job, args, extra, n=2):
    """What each printed; RuntimeError with the reason when one fails."""
    command = [sys.executable, str(HERE / "c_train.py"), json.dumps(args)]
    workers = [
        subprocess.Popen(
            command, env=trainer_env(cluster, i, job, extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(n)
    ]
    end, results, reasons = time.monotonic() + LIMIT_S, [], []
    for i, p in enumerate(workers):
        try:
            out, err = p.communicate(timeout=max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            err += f"\nnot ready after {LIMIT_S} s"
        if p.returncode == 0:
            results.append(json.loads(out.splitlines()[-1]))
        else:
            reasons.append(f"rank {i}: " + " | ".join(err.strip().splitlines()[-3:]))
    if reasons:
        raise RuntimeError("; ".join(reasons)[-700:])
    return results


def train(cluster, mode, name, args, extra):
    first, second = sorted(run_trainers(cluster, name, dict(args, mode=mode), extra), key=lambda r: r["rank"])
    worst = max(first["worst"], second["worst"])
    answer(
        f"weights_{name}", worst < BAR_WEIGHTS and first["hash"] == second["hash"], worst=float(f"{worst:.2g}"),
        same_at_both=first["hash"] == second["hash"], step_ms=round(first["step_ms"], 2), route=first["route"],
        copied=first["moved"]
    )
    us = {k: round(max(first[k], second[k]), 1) for k in ("submit_us", "submit_p99_us", "wait_us", "wait_p99_us")}
    answer(f"host_time_{name}", us["submit_us"] < BAR_HOST_US and us["wait_us"] < BAR_HOST_US, **us, bar_us=BAR_HOST_US)


def measure_speed(cluster, args, is_host):
    size = (16 << 20) if is_host else (1 << 30)
    args = dict(args, mode="speed", bytes=size, rounds=3 if is_host else 8, seconds=0.2 if is_host else 4)
    r = next(r for r in run_trainers(cluster, "speed", args, {}) if r["rank"] == 0)
    answer(
        "speed", r["slowdown"] < BAR_SLOWDOWN, slowdown=round(r["slowdown"], 3), bar_slowdown=BAR_SLOWDOWN,
        mib=size >> 20, round_s=round(r["round_s"], 3), round_beside_s=round(r["round_beside_s"], 3),
        gbytes_s=round(r["gbytes_s"], 2), products_s=round(r["products_s"], 1), route=r["route"]
    )


def attempt(name, do, *args):
    try:
        do(*args)
    except (RuntimeError, ValueError, KeyError, StopIteration) as e:
        answer(name, False, why=str(e))


def check_torch(is_host):
    test = "import torch, sys; sys.exit(0 if torch.cuda.is_available() or %r else 2)" % is_host
    p = subprocess.run([sys.executable, "-c", test], capture_output=True, text=True, timeout=100, check=False)
    if p.returncode == 2:
        raise Missing("PyTorch finds no GPU")
    if p.returncode != 0:
        raise Missing("PyTorch cannot be imported: " + (p.stderr.strip().splitlines() or ["?"])[-1])


def run(is_host):
    check_torch(is_host)
    find("bps-agent-host", "bps-agent/bps-agent-host") if is_host else find("bps-agent-cuda", "bps-agent/bps-agent-cuda")
    cluster = Cluster(is_host)
    try:
        args = {"place": "host" if is_host else "cuda", "file": str(cluster.dir / "weights.npy")}
        run_trainers(None, "", dict(args, mode="reference"), {}, n=1)
        segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        attempt("weights_arena", train, cluster, "arena", "arena", args, {})
        attempt("weights_arena-copy", train, cluster, "arena-copy", "arena-copy", args, {})
        if not is_host:  # the host's back-end shares no memory of others
            attempt("weights_import", train, cluster, "import", "import", args, {})
            attempt("weights_import_segments", train, cluster, "import", "import_segments", args, segments)
        attempt("speed", measure_speed, cluster, args, is_host)
    finally:
        cluster.close()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        run("--host" in sys.argv[1:])
    except Missing as e:
        print(f"tests/gpu/run: {e}", file=sys.stderr)
        return 77
    except RuntimeError as e:
        answer("cluster", False, why=str(e))
    return 0


if __name__ == "__main__":
    sys.exit(main())
