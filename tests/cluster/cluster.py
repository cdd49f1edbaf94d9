"""A private cluster of real daemons on loopback, and jobs of real worker processes on it.

All files are in one temporary folder, the system chooses the ports, and every wait has a deadline.
A worker is a Python function of workers.py, which worker.py runs in a separate process. The worker
writes its result as JSON.
"""

import fcntl
import functools
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import forks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = Path(os.environ.get("BPS_BUILD", ROOT / "build" / "debug")).resolve()
IS_ASAN, IS_TSAN = BUILD.name == "asan", BUILD.name == "tsan"
# Python is not built for ThreadSanitizer, so workers load the library of the debug build instead.
WORKER_BUILD = BUILD.parent / "debug" if IS_TSAN else BUILD
# The provider of all servers and agents, unless a test sets one. If the string is empty, the
# servers and agents use their default provider.
PROVIDER = os.environ.get("BPS_TEST_PROVIDER", "")
# The number of I/O threads of all agents. More than one run all the time, not only under load.
IO_THREADS = os.environ.get("BPS_TEST_IO_THREADS", "1")
DEADLINE_S = int(os.environ.get("BPS_TEST_DEADLINE_S", 60 if IS_ASAN or IS_TSAN else 30))


def host_executor(build=BUILD):
    """Return the executor of a build that emulates GPUs in plain memory."""
    program = Path(build) / "tests" / "bps-agent-host"
    # Releases before the compatibility mark installed it.
    return program if program.exists() else Path(build) / "bps-agent" / "bps-agent-host"


def gpu_args(kind):
    """Return the options of an agent with GPUs: "cuda", or "host" for emulated ones."""
    program = ["--gpu-program", str(host_executor())] if kind == "host" else []
    return ["--gpu", "cuda", *program]


def read_ready(fd, process, name, log):
    """Return the PORT= and HTTP= lines that a daemon writes as soon as it serves."""
    end = time.monotonic() + DEADLINE_S
    data = b""
    with os.fdopen(fd, "rb", buffering=0) as f:
        readable = select.poll()
        readable.register(f, select.POLLIN)
        while True:
            left = end - time.monotonic()
            if left <= 0 or not readable.poll(left * 1000):
                raise AssertionError(
                    f"{name} is not ready after {DEADLINE_S} s:\n{log.read_text()}"
                )
            chunk = f.read(4096)
            if not chunk:
                break
            data += chunk
    pairs = dict(line.split("=", 1) for line in data.decode().split())
    if "HTTP" not in pairs:
        process.wait(DEADLINE_S)
        raise AssertionError(
            f"{name} ended with {process.returncode} before it served:\n{log.read_text()}"
        )
    return int(pairs["PORT"]), int(pairs["HTTP"])


class Process(subprocess.Popen):
    """A daemon's process. It records the signals that the test has sent to the process."""

    def __init__(self, *args, **kw):
        self.sent = set()
        super().__init__(*args, **kw)

    def send_signal(self, sig):
        self.sent.add(sig)
        super().send_signal(sig)


class Daemon:
    prefix = ()  # words before the daemon's command, for example to enter another namespace

    def __init__(self, cluster, program, name, args, is_awaited=True):
        self.name = name
        self.program = program
        self.cluster = cluster
        self.build = cluster.build  # the daemon's processes that start later may use another build
        self.args = args
        self.log = cluster.dir / f"{name}.log"
        self.http_at = "127.0.0.1:0"
        self.processes = []  # all processes of the daemon; the last one is self.process
        self.may_end_with = {0}  # exit statuses, negative for a signal, that are no problem
        self.listen_fds = []  # sockets to pass to the daemon, as systemd's socket activation does
        if is_awaited:
            self.start()
        else:
            os.close(self.spawn())

    def spawn(self):
        r, low = os.pipe()
        # Give this descriptor a high number, because the shell moves listen_fds to the numbers
        # from 3 on.
        w = fcntl.fcntl(low, fcntl.F_DUPFD, 400)
        os.close(low)
        command = [
            *self.prefix,
            str(self.build / self.program / self.program),
            *self.args,
            "--http",
            self.http_at,
            "--ready-fd",
            str(w),
        ]
        env = self.environment()
        if (
            self.listen_fds
        ):  # a shell sets LISTEN_PID to its own process id, and then executes the daemon
            env["LISTEN_FDS"] = str(len(self.listen_fds))
            moves = " ".join(f"{3 + i}<&{fd}" for i, fd in enumerate(self.listen_fds))
            moves += "".join(
                f" {fd}<&-" for fd in self.listen_fds if fd >= 3 + len(self.listen_fds)
            )
            command = [
                "/bin/bash",
                "-c",
                f'export LISTEN_PID=$$; exec "$@" {moves}',
                "bash",
                *command,
            ]
        with open(self.log, "ab") as log:
            self.process = Process(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                pass_fds=[w, *self.listen_fds],
                env=env,
            )
        self.processes.append(self.process)
        os.close(w)
        return r

    def environment(self):
        env = dict(self.cluster.env)
        if self.program == "bps-agent" and int(IO_THREADS) > 1:
            env["BPS_FAULTS"] = "agent.io.load=drop"
        return env

    def pin(self):
        """Make the daemon's next process listen on the ports of the present process."""
        self.http_at = f"127.0.0.1:{self.http}"
        at = self.args.index("--listen") + 1
        self.args[at] = f"{self.args[at].rsplit(':', 1)[0]}:{self.port}"

    def start(self):
        self.port, self.http = read_ready(self.spawn(), self.process, self.name, self.log)

    def kill(self, sig=signal.SIGKILL):
        """Send a signal. If the signal ends or stops the process, wait until that has happened."""
        self.process.send_signal(sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            self.process.wait(DEADLINE_S)
        elif sig == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(
                    f"{self.name} did not stop on SIGTERM:\n{self.log.read_text()[-4000:]}"
                ) from None
        return self.process.returncode

    def bad_ends(self):
        """Return a text for each process of this daemon that has not ended as the test wanted.

        A process may end with one of `may_end_with`, by a signal that the test has sent, or by its
        own failpoint.
        """
        text, problems = self.log.read_text(), []
        for p in self.processes:
            status = p.wait(DEADLINE_S)
            is_asked = -status in p.sent or f"action=crash pid={p.pid}\n" in text
            if p is self.process:  # stop() has sent SIGTERM, which must not end it as a signal
                is_asked &= status == -signal.SIGKILL
            if status not in self.may_end_with and not is_asked:
                problems.append(f"{self.name} ended with {status}:\n{text[-6000:]}")
        return problems

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=5) as f:
            return f.read().decode()

    def status(self):
        return json.loads(self.get("/status"))


@functools.cache
def asan_library():
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


class Worker:
    def __init__(self, cluster, agent, function, args, rank, size, job, env, uid=None):
        self.rank = rank
        self.out = tempfile.TemporaryFile(dir=cluster.dir)
        self.result_file = cluster.dir / f"result-{job}-{rank}-{time.monotonic_ns()}"
        full = dict(
            cluster.env,
            BPS_LIBRARY=str(WORKER_BUILD / "libbpsclient.so.0"),
            BPS_AGENT_SOCKET=str(agent.socket),
            BPS_JOB=job,
            BPS_RANK=str(rank),
            BPS_SIZE=str(size),
            BPS_TIMEOUT="60s",
            PYTHONPATH=str(ROOT / "libbpsclient" / "python"),
            OMP_NUM_THREADS="1",
            OPENBLAS_NUM_THREADS="1",
        )
        if IS_ASAN:
            full["LD_PRELOAD"] = asan_library()
            full["ASAN_OPTIONS"] = "detect_leaks=0"
        full.update(env)
        self.process = forks.start(
            str(HERE / "worker.py"),
            [function, json.dumps(args), str(self.result_file)],
            self.out,
            full,
            uid,
        )

    def text(self):
        self.out.seek(0)
        return self.out.read().decode(errors="replace")

    def result(self, end):
        try:
            self.process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {self.rank} hangs:\n{self.text()[-4000:]}") from None
        if self.process.returncode != 0:
            raise AssertionError(
                f"rank {self.rank} ended with {self.process.returncode}:\n{self.text()[-4000:]}"
            )
        return json.loads(self.result_file.read_text())


class Progress:
    """The number of rounds that a job has done. Rank 0 of the job writes the number to a file."""

    def __init__(self, cluster, name="progress"):
        self.c, self.path = cluster, cluster.dir / name

    def __str__(self):
        return str(self.path)

    def rounds(self):
        text = self.path.read_text() if self.path.exists() else ""
        return int(text or 0)

    def wait(self, n):
        """Wait until the job has done more than n rounds."""
        self.c.wait_for(f"more than {n} rounds", lambda: self.rounds() > n)

    def goes_on(self, n=5):
        """Wait until the job has done more than n further rounds."""
        self.wait(self.rounds() + n)


class Cluster:
    """A scheduler, servers and agents. Each agent and each server has its own address in the
    network `data_net`."""

    daemon_type = Daemon
    build = BUILD  # folder of the programs of the daemons and workers that are added from now on
    data_net = "127.0.0"

    def __init__(
        self,
        agents=1,
        servers=1,
        server_args=(),
        agent_args=(),
        scheduler_args=(),
        wait_servers=True,
        build=None,
    ):
        self.build = build or self.build
        self.tmp = tempfile.TemporaryDirectory(prefix="bps-test-")
        self.dir = Path(self.tmp.name)
        # The environment of this process may have options of sanitizers. Remove these options.
        # Then daemons that are built with a sanitizer also search for leaks.
        drop = ("BPS_", "DMLC_", "BYTEPS_", "LD_PRELOAD", "ASAN_OPTIONS")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        # Let malloc fill memory with this byte, so that code that reads an unset field fails in
        # every run. Sanitizers replace malloc and ignore the variable.
        self.env["MALLOC_PERTURB_"] = "165"
        if PROVIDER:
            self.env["BPS_PROVIDER"] = PROVIDER
        self.daemons, self.workers, self.n_jobs = [], [], 0
        self.agents, self.servers = [], []
        try:
            self.scheduler = self.add(
                "bps-scheduler",
                "scheduler",
                "--listen",
                "127.0.0.1:0",
                "--state-dir",
                str(self.make("state")),
                *scheduler_args,
            )
            for i in range(servers):
                self.add_server(i, *server_args)
            for i in range(agents):
                self.add_agent(i, *agent_args)
        except BaseException:
            self.close()
            raise

    def make(self, name):
        path = self.dir / name
        path.mkdir(mode=0o700)
        return path

    def add(self, program, name, *args, kind=None):
        d = (kind or self.daemon_type)(self, program, name, [str(a) for a in args])
        self.daemons.append(d)
        return d

    def spawn(self, program, name, *args):
        """Start a daemon that may never become ready, and wait only for its first log line."""
        d = self.daemon_type(self, program, name, [str(a) for a in args], is_awaited=False)
        self.daemons.append(d)
        self.wait_for(f"{name} has begun", lambda: "starting" in d.log.read_text())
        return d

    def add_server(self, i, *args):
        d = self.add(
            "bps-server",
            f"s{i}",
            "--listen",
            f"{self.data_net}.{100 + i}:0",
            "--scheduler",
            f"127.0.0.1:{self.scheduler.port}",
            "--name",
            f"s{i}",
            "--host",
            f"server-host{i}",
            "--threads",
            2,
            "--sums-memory",
            "512MiB",
            "--staging-memory",
            "64MiB",
            *args,
        )
        self.servers.append(d)
        return d

    def add_agent(self, i, *args, kind=None):
        socket = self.dir / f"agent{i}.sock"
        d = self.add(
            "bps-agent",
            f"a{i}",
            "--listen",
            f"{self.data_net}.{10 + i}:0",
            "--scheduler",
            f"127.0.0.1:{self.scheduler.port}",
            "--socket",
            socket,
            "--name",
            f"a{i}",
            "--host",
            f"agent-host{i}",
            *(["--threads", IO_THREADS] if int(IO_THREADS) > 1 else ()),
            *args,
            kind=kind,
        )
        d.socket = socket
        self.agents.append(d)
        return d

    def open_to_all(self):
        """Let every user of this machine connect to the agents and write result files."""
        self.dir.chmod(0o777)
        for a in self.agents:
            a.socket.chmod(0o666)

    def start_job(self, function, workers, args=None, job=None, env=None, placement=None, uid=None):
        """Start a job of `workers` processes, which run as the user with the id `uid`.

        placement: the index of each rank's agent; by default the ranks are spread evenly over the
        agents.
        """
        self.n_jobs += 1
        job = job or f"job{self.n_jobs}"
        if placement is None:
            placement = [r * len(self.agents) // workers for r in range(workers)]
        started = [
            Worker(self, self.agents[a], function, args or {}, r, workers, job, env or {}, uid)
            for r, a in enumerate(placement)
        ]
        self.workers += started
        return started

    def start_running(self, function, workers, args, after=5, progress="progress", **kw):
        """Start a job as start_job does, and wait until it has done more than `after` rounds.

        Return its workers and its Progress.
        """
        rounds = Progress(self, progress)
        started = self.start_job(function, workers, dict(args, progress=str(rounds)), **kw)
        rounds.wait(after)
        return started, rounds

    def add_worker(self, agent, function, args, rank, size, job):
        """Start one more worker on an agent. The worker joins the job with the name `job`."""
        self.workers.append(Worker(self, self.agents[agent], function, args, rank, size, job, {}))
        return self.workers[-1]

    def finish(self, workers, deadline_s=None):
        end = time.monotonic() + (deadline_s or 4 * DEADLINE_S)
        try:
            return [w.result(end) for w in workers]
        except AssertionError as e:
            others = "\n".join(
                f"--- rank {w.rank}, {w.process.poll()}\n{w.text()[-1000:]}" for w in workers
            )
            raise AssertionError(f"{e}\n{others}\n{self.logs()}") from None

    def run(self, function, workers, args=None, deadline_s=None, **kw):
        return self.finish(self.start_job(function, workers, args, **kw), deadline_s)

    def bpsctl(self, *args, build=BUILD):
        return subprocess.run(
            [str(build / "bpsctl"), "--scheduler-http", f"127.0.0.1:{self.scheduler.http}", *args],
            capture_output=True,
            text=True,
            timeout=10,
            env=self.env,
            check=False,
        )

    def steer(self, *args, build=BUILD, **env):
        """Run a bpsctl command that uses the scheduler's control port."""
        begun = time.monotonic()
        p = subprocess.run(
            [
                str(build / "bpsctl"),
                "--scheduler",
                f"127.0.0.1:{self.scheduler.port}",
                *map(str, args),
            ],
            capture_output=True,
            text=True,
            timeout=10,
            env=dict(self.env, **env),
            check=False,
        )
        # bpsctl must end within 2 s. Allow 4 s, because bpsctl is slower on a machine under load.
        assert time.monotonic() - begun < 4, f"{args} took too long"
        return p

    def events(self):
        """Return the kind and the text of each of the scheduler's events."""
        return [
            (e["kind"], e["text"])
            for e in json.loads(self.scheduler.get("/status?events=0"))["events"]
        ]

    def daemon(self, name):
        return next(d for d in self.daemons if d.name == name)

    def member(self, name):
        """Return the member with this name from the scheduler's status."""
        return next(m for m in self.scheduler.status()["members"] if m["name"] == name)

    def wait_for(self, what, condition, deadline_s=DEADLINE_S):
        end = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {deadline_s} s: {what}\n{self.logs()}")
            select.select([], [], [], 0.02)

    def logs(self):
        return "\n".join(f"--- {d.name}\n{d.log.read_text()[-3000:]}" for d in self.daemons)

    def close(self):
        problems = []
        for w in self.workers:
            if w.process.poll() is None:
                w.process.kill()
                w.process.wait()
            w.out.close()
        for d in reversed(self.daemons):
            try:
                d.stop()
            except AssertionError as e:
                problems.append(str(e))
                continue
            text = d.log.read_text()
            if ends := d.bad_ends():
                problems += ends
            # Search the log for reports of sanitizers about the daemon's processes and their
            # children. Ignore reports of leaks, because an executor whose GPU has failed does not
            # free its memory.
            elif found := re.search(
                "ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error: ", text
            ):
                problems.append(f"{d.name}:\n{text[found.start() :][:6000]}")
        self.tmp.cleanup()
        return problems

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        problems = self.close()
        if kind is None and problems:
            raise AssertionError("\n".join(problems))


@contextmanager
def clusters(new=Cluster):
    """Yield a function that makes a cluster.

    At the end, all daemons of these clusters must stop without an error.
    """
    made = []

    def make(**kw):
        made.append(new(**kw))
        return made[-1]

    is_well = False
    try:
        yield make
        is_well = True
    finally:
        problems = [p for c in made for p in c.close()]
        assert not is_well or not problems, "\n".join(problems)
