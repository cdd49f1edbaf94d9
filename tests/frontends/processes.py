"""Scripts that a test runs as the workers of a job, on a separate cluster with several agents."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ["BPS_LIBRARY"]).parent
LIMIT_S = 120

os.environ.setdefault("BPS_BUILD", str(BUILD))
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
import forks  # noqa: E402
from cluster import Cluster  # noqa: E402

__all__ = ["LIMIT_S", "Cluster", "environment", "finish", "process", "start", "torchrun", "worker"]
# The modules that a script may find imported. With TensorFlow, Keras starts threads, and a fork
# would lack them.
SLOW = () if find_spec("tensorflow") else ("torch", "jax", "keras")
WARM = [name for name in SLOW if find_spec(name)]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def environment(**more):
    """Return this process's environment without the variables of its job, such as BPS_RANK."""
    keep = ("BPS_LIBRARY", "BPS_TIMEOUT")
    env = {k: v for k, v in os.environ.items() if not k.startswith("BPS_") or k in keep}
    return env | {k: str(v) for k, v in more.items()}


def torchrun(rank, size, port):
    """Return the variables that torchrun sets for one of the workers on a machine."""
    return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip


def process(script, **env):
    """Start a script as a process that belongs to no job."""
    return subprocess.Popen([sys.executable, "-c", script], env=environment(**env), **PIPES)


class Warm:
    """A script in a fork of a process that has imported modules (warm.py), which takes seconds.

    It has those methods of subprocess.Popen that the tests use.
    """

    def __init__(self, script, folder, env, modules):
        self.out = tempfile.TemporaryFile()
        program = str(Path(__file__).with_name("warm.py"))
        self.fork = forks.start(program, [script], self.out, env, folder=folder, modules=modules)
        self.pid = self.fork.pid
        self.poll, self.wait = self.fork.poll, self.fork.wait
        self.send_signal, self.kill = self.fork.send_signal, self.fork.kill

    @property
    def returncode(self):
        return self.fork.returncode

    def communicate(self, timeout=None):
        self.wait(timeout)
        self.out.seek(0)
        return self.out.read().decode(), None


def worker(script, folder, env):
    """Start a script as one worker of a job, with this environment and current folder."""
    if modules := [m for m in WARM if re.search(rf"\b{m}\b", script)]:
        return Warm(script, folder, env, modules)
    command = [sys.executable, "-c", script]
    if folder:  # TensorFlow reads the source of functions
        path = Path(folder, "script.py")
        if not path.exists() or path.read_text() != script:  # a worker may be reading it
            path.write_text(script)
        command = [sys.executable, path]
    return subprocess.Popen(command, cwd=folder, env=env, **PIPES)


def start(script, n, cluster, name, folder=None, ranks=None, **env):
    """Start a script as the n workers of a job, spread evenly over the cluster's agents.

    ranks: start only the workers of these ranks.
    """
    placement = [r * len(cluster.agents) // n for r in range(n)]
    started = []
    for rank in range(n) if ranks is None else ranks:
        agent = placement[rank]
        own = environment(
            BPS_JOB=name,
            BPS_RANK=rank,
            BPS_SIZE=n,
            BPS_LOCAL_RANK=placement[:rank].count(agent),
            BPS_LOCAL_SIZE=placement.count(agent),
            BPS_AGENT_SOCKET=cluster.agents[agent].socket,
            **env,
        )
        started.append(worker(script, folder, own))
    return started


def finish(started, limit_s=LIMIT_S):
    """Wait for processes. Return their exit codes and outputs.

    Processes that still run at the time limit are killed.
    """
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in started]
        return [process.returncode for process in started], outputs
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
