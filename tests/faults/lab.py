"""A cluster with faults: network namespaces, failpoints, memory cgroups, and jobs that run until
a test stops them.

Network namespaces allow faults of the network. Failpoints can be changed while daemons run.
"""

import atexit
import contextlib
import ctypes
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

from cluster import BUILD, DEADLINE_S, ROOT, Cluster, Daemon, read_ready
from keeper import KeptDaemon

CLONE_NEWNET = 0x40000000
NETLAB = str(ROOT / "tests" / "netlab.sh")


def sh(*command):
    p = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 0, f"{' '.join(command)}: {p.stdout}{p.stderr}"
    return p.stdout


class Lab:
    """Network namespaces ("hosts") on one switch.

    Hosts are counted from 1. A fault of the network stays until heal(). cards: number of network
    cards of each host.
    """

    def __init__(self, n_hosts, cards=1):
        self.prefix, self.n, self.n_cards = f"f{os.getpid() % 1000000}", n_hosts, cards
        more = ("--subnet", "10.78.0", "--cards", str(cards))
        sh(NETLAB, "up", self.prefix, str(n_hosts), *more)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        sh(NETLAB, "down", self.prefix, "--kill")

    def ns(self, host):
        return f"{self.prefix}-{host}"

    def addr(self, host, card=0):
        return f"10.78.{card}.{host}"

    def inside(self, host, *command):
        return sh("ip", "netns", "exec", self.ns(host), *command)

    def socket(self, host):
        """Return a socket in the host's network namespace. A socket stays in the namespace in which
        it was created."""
        made, libc = [], ctypes.CDLL(None, use_errno=True)

        def make():
            fd = os.open(f"/run/netns/{self.ns(host)}", os.O_RDONLY)
            try:
                if libc.setns(fd, CLONE_NEWNET) == 0:
                    made.append(socket.socket())
            finally:
                os.close(fd)

        t = threading.Thread(target=make)
        t.start()
        t.join()
        assert made, f"cannot enter {self.ns(host)}"
        return made[0]

    def rules(self, host, *rules, card=0):
        """Add nft rules for a network card of the host. Each rule begins with the name of its
        chain, which is `in` or `out`."""
        text = ["table inet fault {"]
        for hook in ("in", "out"):
            match = "iif" if hook == "in" else "oif"
            text += [f"chain {hook} {{", f"type filter hook {hook}put priority 0; policy accept;"]
            text += [
                f'{match} "eth{card}" {r.split(" ", 1)[1]}'
                for r in rules
                if r.split(" ", 1)[0] == hook
            ]
            text += ["}"]
        text += ["}"]
        p = subprocess.run(
            ["ip", "netns", "exec", self.ns(host), "nft", "-f", "-"],
            input="\n".join(text) + "\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert p.returncode == 0, p.stderr

    def cut(self, host, ways=("in", "out"), other=None, card=0):
        """Drop packets of a network card of the host in the directions `ways`.

        "in" drops packets to the host, and "out" drops packets from the host. If `other` names a
        second host, drop only packets between the two hosts.
        """
        match = {
            w: f"ip {'saddr' if w == 'in' else 'daddr'} {self.addr(other)} " if other else ""
            for w in ways
        }
        self.rules(host, *[f"{w} {match[w]}drop" for w in ways], card=card)

    def cut_off(self, host, how):
        """Cut the host off.

        how: "down": set the host's link down. "in", "out", "both": drop packets to the host, from
        the host, or in both directions.
        """
        if how == "down":
            self.link(host, False)
        else:
            self.cut(host, ("in", "out") if how == "both" else (how,))

    def blink(self, host, seconds):
        """Drop all packets to and from the host for this number of seconds."""
        until = time.monotonic() + seconds
        self.cut(host)
        wait_until(until)
        self.mend(host)

    def half_open(self, host):
        """Remove the host's TCP sockets without a message to their peers."""
        until = time.monotonic() + 0.5
        self.cut(host)
        self.kill_connections(host)
        wait_until(until)
        self.mend(host)

    def reset(self, host, port):
        """Reply with a reset to all packets for a port of the host, as some firewalls do."""
        self.rules(host, f"in tcp dport {port} reject with tcp reset")

    def kill_connections(self, host):
        self.inside(host, "ss", "-K", "-t", "dst", "10.78.0.0/24")

    def link(self, host, is_up, card=0):
        port = f"p{host}c{card}" if card else f"p{host}"
        sh("ip", "-n", f"{self.prefix}-sw", "link", "set", port, "up" if is_up else "down")

    def rate(self, host, rate):
        """Limit the rate of the host's network card in each direction.

        rate: a rate as tc writes it, or None for no limit.
        """
        for ns, card in ((self.ns(host), "eth0"), (f"{self.prefix}-sw", f"p{host}")):
            if rate:
                sh(
                    "tc",
                    "-n",
                    ns,
                    "qdisc",
                    "replace",
                    "dev",
                    card,
                    "root",
                    "tbf",
                    "rate",
                    rate,
                    "burst",
                    "80000",
                    "limit",
                    "2000000",
                )
            else:
                subprocess.run(
                    ["tc", "-n", ns, "qdisc", "del", "dev", card, "root"],
                    capture_output=True,
                    timeout=30,
                    check=False,
                )

    def mend(self, host):
        subprocess.run(
            ["ip", "netns", "exec", self.ns(host), "nft", "delete", "table", "inet", "fault"],
            capture_output=True,
            timeout=30,
            check=False,
        )
        for card in range(self.n_cards):
            self.link(host, True, card)
        self.rate(host, None)

    def heal(self):
        for h in range(1, self.n + 1):
            self.mend(h)


def faults_of(text):
    """Return the faults of a setting as POINT=ACTION, without arguments and options."""
    return [re.split("[:,]", w)[0] for w in text.split() if not w.startswith("seed=")]


def acted_in(output, fault):
    """Return the id of the process that reports that the fault POINT=ACTION acted, or 0."""
    point, action = fault.split("=")
    found = re.search(f"a fault is injected: point={point} action={action} pid=([0-9]+)", output)
    return int(found[1]) if found else 0


class FaultyDaemon(Daemon):
    """A daemon of LabCluster on a host of the lab. Failpoints can be set while it runs."""

    def __init__(self, cluster, program, name, args, is_awaited=True):
        self.host = cluster.host_of(name)
        self.conf = cluster.dir / f"{name}.conf"
        self.conf.write_text("")
        self.starting = None  # pipe of a process that begin_again() has started
        self.armed = []  # (start of the log's part with their lines, faults) for each setting
        # Put the state folder on a file system of state_bytes bytes.
        if program == "bps-scheduler" and cluster.state_bytes:
            mount = 'mount -t tmpfs -o size=$1 none "$0" && shift && exec "$@"'
            self.prefix = (
                "unshare",
                "-m",
                "sh",
                "-c",
                mount,
                str(cluster.dir / "state"),
                str(cluster.state_bytes),
            )
        if cluster.lab:
            self.prefix = ("ip", "netns", "exec", cluster.lab.ns(self.host))
        super().__init__(cluster, program, name, ["--config", str(self.conf), *args], is_awaited)

    @property
    def pid(self):
        return self.process.pid

    def set_faults(self, text):
        """Write faults into the settings. The daemon reads them at its next start or SIGHUP."""
        self.conf.write_text(f"faults = {text}\n" if text else "")
        self.armed.append((self.log.stat().st_size, faults_of(text)))

    def faults(self, text, is_confirmed=True):
        """Replace the daemon's failpoints.

        If is_confirmed is true, wait until the daemon has read the new failpoints.
        """
        n = self.log.read_text().count("reloaded:")
        self.set_faults(text)
        self.process.send_signal(signal.SIGHUP)
        if is_confirmed:
            self.cluster.wait_for(
                f"{self.name} has its faults", lambda: self.log.read_text().count("reloaded:") > n
            )

    def acted(self):
        """Return {fault: process in which it acted, or 0} for the faults that were set last."""
        return self.acted_of(-1)

    def acted_of(self, i):
        start, faults = self.armed[i]
        end = self.armed[i + 1][0] if -1 < i < len(self.armed) - 1 else None
        log = self.log.read_bytes()[start:end].decode(errors="replace")
        return {f: acted_in(log, f) for f in faults}

    def all_acted(self):
        """Yield (fault, process in which it acted, or 0) for each time that faults were set."""
        for i in range(len(self.armed)):
            yield from self.acted_of(i).items()

    def get(self, path):
        if not self.cluster.lab:
            return super().get(path)
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=5)
        connection.sock = self.cluster.lab.socket(self.host)
        connection.sock.settimeout(5)
        connection.sock.connect(("127.0.0.1", self.http))
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
            assert answer.status == 200, (answer.status, body)
            return body

    def start_again(self):
        """Restart the daemon with the same addresses, as a service manager does."""
        self.begin_again()
        self.await_start()

    def begin_again(self):
        """Restart the daemon as start_again does, but do not wait until it serves."""
        if "--listen" in self.args:
            at = self.args.index("--listen") + 1
            self.args[at] = f"{self.args[at].rsplit(':', 1)[0]}:{self.port}"
        if self.starting is not None:
            os.close(self.starting)
        self.starting = self.spawn()

    def await_start(self):
        """Wait until the daemon serves."""
        fd, self.starting = self.starting, None
        self.port, self.http = read_ready(fd, self.process, self.name, self.log)

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics"), re.M)
        return float(found[1]) if found else 0.0


class KeptFaultyDaemon(FaultyDaemon, KeptDaemon):
    """A FaultyDaemon whose service manager keeps the descriptors and restarts the daemon."""

    def start(self):
        """Start the daemon. If it is killed before it serves, start it again without faults."""
        try:
            super().start()
        except AssertionError:
            if self.process.poll() != -signal.SIGKILL or self.is_stopping:
                raise
            self.conf.write_text("")
            super().start()


class LabCluster(Cluster):
    """A cluster on hosts of a lab. Host 1 has the scheduler, the next hosts have the servers, and
    the last hosts have the agents.

    Without a lab, all daemons are on loopback. is_kept: agents have a service manager, which keeps
    the descriptors of the agents and restarts the agents.
    """

    daemon_type = FaultyDaemon

    def __init__(
        self,
        agents=2,
        servers=2,
        lab=None,
        server_args=(),
        agent_args=(),
        scheduler_args=(),
        daemon_env=None,
        state_bytes=0,
        is_kept=False,
    ):
        self.lab, self.n_servers, self.key_file = lab, servers, None
        self.daemon_env, self.state_bytes, self.is_kept = daemon_env, state_bytes, is_kept
        self.jobs = []
        if lab:
            assert 1 + servers + agents <= lab.n
            key = sh(str(BUILD / "bpsctl"), "key", "new")
            fd, path = tempfile.mkstemp(prefix="bps-lab-")
            self.key_file = Path(path)
            os.close(fd)
            self.key_file.write_text(key)
            more = ("--key-file", str(self.key_file))
            server_args, agent_args, scheduler_args = (
                (*more, *server_args),
                (*more, *agent_args),
                (*more, *scheduler_args),
            )
        try:
            super().__init__(agents, servers, server_args, agent_args, scheduler_args)
        except BaseException:
            self.forget_key()
            raise

    def forget_key(self):
        if self.key_file:
            self.key_file.unlink(missing_ok=True)

    def host_of(self, name):
        if name in ("scheduler", "other"):
            return 1
        return 2 + int(name[1:]) + (self.n_servers if name[0] == "a" else 0)

    def card_of(self, name):
        """Return the network card with the address of a daemon."""
        del name
        return 0

    def add(self, program, name, *args, kind=None):
        args = [str(a) for a in args]
        if self.daemon_env is not None:
            self.env.update(self.daemon_env)
        if self.lab:
            at = args.index("--listen") + 1
            args[at] = f"{self.lab.addr(self.host_of(name), self.card_of(name))}:0"
            if "--scheduler" in args:
                args[args.index("--scheduler") + 1] = f"{self.lab.addr(1)}:{self.scheduler.port}"
        if self.is_kept and program == "bps-agent":
            kind = KeptFaultyDaemon
        return super().add(program, name, *args, kind=kind)

    def bpsctl(self, *args):
        if not self.lab:
            return super().bpsctl(*args)
        command = [
            "ip",
            "netns",
            "exec",
            self.lab.ns(1),
            str(BUILD / "bpsctl"),
            "--scheduler-http",
            f"127.0.0.1:{self.scheduler.http}",
            *args,
        ]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, env=self.env, check=False
        )

    def steady(self, workers=2, placement=None, **args):
        """Start a job that runs until it is stopped.

        By default, the job pauses 10 ms after each round.
        """
        self.jobs.append(Steady(self, workers, placement, {"pause": 0.01, **args}))
        return self.jobs[-1]

    def said(self, has_failed):
        """Return the cluster's logs. If the cell (cells.py) has failed, add bpsctl's output."""
        return Said(self, has_failed)

    def all_acted(self):
        """Yield (fault, process in which it acted, or 0) for all faults of daemons and trainers."""
        for d in self.daemons:
            yield from d.all_acted()
        for job in self.jobs:
            for rank, text in job.faults.items():
                for fault in faults_of(text):
                    yield fault, acted_in(job.workers[int(rank)].text(), fault)

    def close(self):
        for (
            d
            # After a failed cell, a daemon may be paused (SIGSTOP) or hung. So kill each daemon
            # that has not exited and whose failpoints were set.
        ) in self.daemons:
            if d.process.poll() is None and d.conf.read_text():
                d.process.kill()
                d.process.wait()
        try:
            return super().close()
        finally:
            self.forget_key()


class Said:
    """The logs of a cluster, and screens of bpsctl if the cell has failed.

    Log files are kept open, because the cluster removes its folder when it is closed.
    """

    def __init__(self, cluster, has_failed):
        self.files = [(d.name, open(d.log, "rb")) for d in cluster.daemons]
        self.workers = [
            (f"worker-{i}-rank-{w.rank}", w.text()) for i, w in enumerate(cluster.workers)
        ]
        self.screens = [
            (word, bpsctl_says(cluster, word))
            for word in ("status", "why-stuck", "events")
            if has_failed
        ]

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, f in self.files:
            (folder / f"{name}.log").write_bytes(f.read())
        for name, text in self.workers + self.screens:
            (folder / f"{name}.log").write_text(text)

    def close(self):
        for _, f in self.files:
            f.close()


def bpsctl_says(cluster, word):
    try:
        p = cluster.bpsctl(word)
        return p.stdout + p.stderr
    # bpsctl got no answer, or the scheduler has not started
    except (subprocess.TimeoutExpired, AttributeError) as e:
        return f"{e}\n"


def kind_for(options):
    """Return the kind of a job's tensors: $FM_TYPE, unless the job's options forbid it."""
    kind = os.environ.get("FM_TYPE") or "i64"
    refused = {"shards": ("on_agent_loss", "elastic", "backup"), "abstain": (),
               "value": ("elastic", "backup", "deterministic")}  # fmt: skip
    return "i64" if any(options.get(name) for name in refused.get(kind, ())) else kind


class Steady:
    """A job whose workers run the function steady.steady, and the results of these workers."""

    def __init__(self, cluster, workers, placement, args):
        self.c = cluster
        self.n_jobs = len(cluster.jobs)
        self.stop_file = cluster.dir / f"stop-{self.n_jobs}"
        self.progress = cluster.dir / f"rounds-{self.n_jobs}"
        env = args.pop("env", None)
        args.setdefault("dtype", kind_for(args.get("options") or {}))
        self.faults = args.get("faults") or {}
        self.workers = cluster.start_job(
            "steady",
            workers,
            dict(args, stop=str(self.stop_file), progress=str(self.progress)),
            placement=placement,
            env=env,
        )

    def rounds(self, rank=0):
        try:
            return int(Path(f"{self.progress}-{rank}").read_text() or 0)
        except FileNotFoundError:
            return 0

    def has_failed(self):
        return any(w.process.poll() is not None for w in self.workers)

    def wait_rounds(self, n=10, deadline_s=DEADLINE_S):
        """Wait until the job has done n more rounds."""
        at = self.rounds()
        self.c.wait_for(
            f"{n} more rounds", lambda: self.rounds() >= at + n or self.has_failed(), deadline_s
        )
        return self

    def stop(self, deadline_s=2 * DEADLINE_S):
        """Stop the job.

        Check that all sums were right and no call failed. Return the workers' results.
        """
        self.stop_file.touch()
        results = self.c.finish(self.workers, deadline_s)
        for r in results:
            assert r["code"] == 0 and not r["is_late"], f"{r}\n{self.c.logs()}"
        return results

    def stall(self, since=0.0, deadline_s=2 * DEADLINE_S):
        """Stop the job. Return the duration of the job's longest round, in seconds.

        since: a time of CLOCK_MONOTONIC. Rounds that ended earlier do not count.
        """
        results = self.stop(deadline_s)
        return max(
            (r["longest"] for r in results if r["longest_at"] + r["longest"] >= since), default=0.0
        )

    def errors(self, ranks=None, deadline_s=2 * DEADLINE_S):
        """Return the results of the workers of these ranks. Each of these workers must have got an
        error."""
        workers = [w for w in self.workers if ranks is None or w.rank in ranks]
        results = self.c.finish(workers, deadline_s)
        for r in results:
            assert r["code"] < 0, f"no error: {r}\n{self.c.logs()}"
        return results


def wait_until(at):
    left = at - time.monotonic()
    if left > 0:
        select.select([], [], [], left)


def memory_cgroup(name, limit_bytes):
    """Return a context whose put(pid) limits a process's memory. Return None if the machine has no
    memory cgroups."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    for root, limit in ((v2, "memory.max"), (v1, "memory.limit_in_bytes")):
        path = root / f"{name}-{time.monotonic_ns()}"
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / limit).exists():
            return _cgroup(path, limit, limit_bytes)
        path.rmdir()
    return None


def cpu_cgroup(name, share):
    """Return a context whose put(pid) limits a process to the fraction `share` of a processor.
    Return None if the machine has no cgroups for processors."""
    period_us = 100000
    quota_us = int(share * period_us)
    for root, limits in (
        (Path("/sys/fs/cgroup"), {"cpu.max": f"{quota_us} {period_us}"}),
        (
            Path("/sys/fs/cgroup/cpu"),
            {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us},
        ),
    ):
        path = root / f"{name}-{time.monotonic_ns()}"
        try:
            path.mkdir()
            if all((path / limit).exists() for limit in limits):
                return _cpu_cgroup(path, limits)
            path.rmdir()
        except OSError:
            continue
    return None


@contextlib.contextmanager
def _cpu_cgroup(path, limits):
    def put(pid):
        # the limit of the cgroup applies only to processes of the class SCHED_OTHER
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
        (path / "cgroup.procs").write_text(str(pid))

    for limit, value in limits.items():
        (path / limit).write_text(str(value))
    try:
        yield put
    finally:
        atexit.register(_remove, path)


@contextlib.contextmanager
def _cgroup(path, limit, limit_bytes):
    def put(pid):
        (path / "cgroup.procs").write_text(str(pid))

    def squeeze(n_bytes=limit_bytes):
        (path / limit).write_text(str(n_bytes))

    try:
        yield put, squeeze
    finally:
        # Remove the cgroup at exit, when its processes have ended. Before, rmdir would fail.
        atexit.register(_remove, path)


def _remove(path):
    with contextlib.suppress(OSError):
        path.rmdir()


def all_are_back(c):
    """Return whether all servers and agents of a cluster are up."""
    members = c.scheduler.status()["members"]
    return sum(m["state"] == "up" for m in members) == len(c.servers) + len(c.agents)


def status_of(c):
    return json.loads(c.bpsctl("--json", "status").stdout)


CLOCK_C = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void)
{
	char text[32] = "";
	int fd = open(getenv("CLOCK_JUMP"), O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ts);

	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		ts->tv_sec += jump();
	return rc;
}

int gettimeofday(struct timeval *tv, void *tz)
{
	struct timespec ts;

	(void)tz;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
"""


@cache
def clock_library():
    """Build a library that changes a process's wall clock. Return the library's path.

    The library adds the seconds in the file $CLOCK_JUMP to the clock.
    """
    folder = Path(tempfile.mkdtemp(prefix="bps-clock-"))
    (folder / "clock.c").write_text(CLOCK_C)
    sh("cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(folder / "clock.c"))
    return folder / "clock.so"


def clock_env(jump_file):
    jump_file.write_text("0")
    return {"LD_PRELOAD": str(clock_library()), "CLOCK_JUMP": str(jump_file)}
