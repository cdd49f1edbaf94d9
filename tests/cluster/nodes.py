"""Network namespaces as the nodes of a job, on each of which the same bpsrun is started."""

import os
import signal
import subprocess
import time
from pathlib import Path

from cluster import BUILD, ROOT, WORKER_BUILD

BPSRUN = BUILD / "bpsrun"
BPSCTL = BUILD / "bpsctl"
NETLAB = str(ROOT / "tests" / "netlab.sh")
SUBNET = "10.79.0"
LIMIT_S = 60
# All processes of a run must be gone after this time, whichever was killed (rule T6).
GONE_S = 15

# A worker whose rounds go on until the file $GO exists. It leaves a process of its own behind,
# which is in no process group of bpsrun. argv: number of rounds; -1: no limit.
TRAIN = """
import os, subprocess, sys
subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], check=True)
import bps
n, go = int(sys.argv[1]), os.environ.get("GO", "/nonexistent")
with bps.open() as job:
    t = job.declare("w", "i64", 1000)
    over = job.declare("over", "i64", 1)
    r = 0
    while True:
        t.input[:] = job.rank + r
        over.input[:] = r == n or os.path.exists(go)
        t.push_pull()
        over.push_pull()
        assert (t.wait() == job.size * r + job.size * (job.size - 1) // 2).all()
        if job.rank == 0 and r % 20 == 0:
            print("round", r, flush=True)
        if over.wait()[0]:
            break
        r += 1
    print("all sums of", job.size, "are right", flush=True)
"""


def new_key():
    """Return a new cluster key in hex digits."""
    return subprocess.check_output([BPSCTL, "key", "new"], text=True, timeout=10).strip()


def wait_until(what, condition, limit_s=LIMIT_S):
    """Wait for a condition. what: its description, or a function that returns it."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.02)


def children(pid):
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def descendants(pid):
    found = children(pid)
    return found + [p for child in found for p in descendants(child)]


def program_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Node:
    """A bpsrun in a namespace.

    Args:
        lab (Lab): the namespaces.
        host (int): number of the namespace, from 1; 0: the tests' own.
        args (list): its command line.
        env (dict): further variables.
    """

    def __init__(self, lab, host, args, env):
        self.lab, self.host = lab, host
        self.folder = lab.folder / f"node{host}-{len(lab.started)}"
        self.folder.mkdir()
        self.out = self.folder / "out"
        enter = ["ip", "netns", "exec", lab.ns(host)] if host else []
        with open(self.out, "wb") as out:
            self.process = subprocess.Popen(
                [*enter, str(BPSRUN), *map(str, args)],
                env=lab.environment() | {"XDG_RUNTIME_DIR": str(self.folder)} | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.pid = self.process.pid
        lab.started.append(self)

    @property
    def text(self):
        return self.out.read_text()

    def named(self, name):
        """Return the processes below this one with this program's name."""
        return [p for p in descendants(self.pid) if program_of(p) == name]

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)

    def wait(self, limit_s=LIMIT_S):
        """Return the exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"bpsrun still runs after {limit_s} s:\n{self.text}") from None

    def wait_for_text(self, words, limit_s=LIMIT_S):
        wait_until(lambda: f"no '{words}' in: {self.text}", lambda: words in self.text, limit_s)

    def rounds(self):
        """Return the number of lines about rounds."""
        return self.text.count("round")

    def goes_on(self):
        """Wait for some rounds more."""
        n = self.rounds()
        wait_until(lambda: f"no rounds any more: {self.text}", lambda: self.rounds() > n + 1)


class Lab:
    """Namespaces on one switch, and the bpsruns in them.

    Args:
        folder (Path): folder of the nodes' files.
        n_hosts (int): number of namespaces.
    """

    def __init__(self, folder, n_hosts):
        self.folder, self.n = folder, n_hosts
        self.prefix, self.started, self.go = f"b{os.getpid() % 1000000}", [], folder / "go"
        self.netlab("up", self.prefix, n_hosts, "--subnet", SUBNET)

    def netlab(self, *args):
        p = subprocess.run(
            [NETLAB, *map(str, args)], capture_output=True, text=True, timeout=60, check=False
        )
        assert p.returncode == 0, p.stderr

    def close(self):
        self.netlab("down", self.prefix, "--kill")

    def ns(self, host):
        return f"{self.prefix}-{host}"

    def addr(self, host):
        return f"{SUBNET}.{host}"

    def environment(self):
        words = ("BPS_", "BYTEPS_", "DMLC_", "SLURM_", "PET_", "GROUP_", "MASTER_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(words)}
        return env | {
            "BPS_TIMEOUT": "60s",
            "BPS_LIBRARY": str(WORKER_BUILD / "libbpsclient.so.0"),
            "PYTHONPATH": str(ROOT / "libbpsclient" / "python"),
            "OPENBLAS_NUM_THREADS": "1",
            "GO": str(self.go),
        }

    def start(self, host, *args, **env):
        return Node(self, host, args, {k: str(v) for k, v in env.items()})

    def train(self, host, *args, rounds=-1, **env):
        """Start bpsrun with the workers TRAIN."""
        return self.start(host, *args, "--", "/usr/bin/python3", "-c", TRAIN, rounds, **env)

    def processes(self):
        """Return the processes of bpsruns of this test, with their command lines: those in the
        namespaces, and those that have the variable GO of this test."""
        found, inside = {}, self.inside()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = str(self.go).encode() in (folder / "environ").read_bytes()
                words = (folder / "cmdline").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state != "Z" and (is_ours or int(folder.name) in inside):
                found[int(folder.name)] = b" ".join(words).decode()
        return found

    def inside(self):
        """Return the processes in all namespaces."""
        found = set()
        for host in range(1, self.n + 1):
            command = ["ip", "netns", "pids", self.ns(host)]
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found |= set(map(int, listed.split()))
        return found

    def files(self):
        """Return the folders that bpsruns have left behind."""
        return [p for node in self.started for p in node.folder.glob("bpsrun-*")]

    def must_be_gone(self, since):
        """Check that no process and no folder is left GONE_S seconds after the time `since`."""

        def text():
            shown = [f"--- {n.host}\n{n.text}" for n in self.started]
            return "\n".join([f"left: {self.processes()} {self.files()}", *shown])

        limit = since + GONE_S - time.monotonic()
        wait_until(text, lambda: not self.processes() and not self.files(), limit)
