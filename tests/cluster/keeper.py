"""Two fake service managers for tests of daemons, and a job that runs until it is stopped.

KeptDaemon keeps a daemon's descriptors (FDSTORE=1 of sd_notify(3)). When the daemon has ended,
KeptDaemon starts the daemon again and passes the descriptors to it, as systemd does. The class
Manager only receives the messages of a daemon.
"""

import array
import contextlib
import fcntl
import os
import select
import signal
import socket
import threading
import time

from cluster import DEADLINE_S, Daemon

# The manager's copies of descriptors have numbers from FIRST_FD on. The descriptors of the daemon
# have lower numbers.
FIRST_FD = 500
RESTART_S = 0.1  # default of systemd's setting RestartSec=


class KeptDaemon(Daemon):
    def __init__(self, cluster, program, name, args, is_awaited=True):
        path = cluster.dir / f"{name}.notify"
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(path))
        self.path, self.store = path, []  # store: (name, descriptor) of each kept descriptor
        self.restarts, self.is_stopping, self.has_failed, self.restart_s = 0, False, None, RESTART_S
        self.most_kept, self.is_still = 0, False
        self.start_faults = ""  # failpoints of the processes that are started from now on
        self.between = None  # function that is called before each restart
        self.wake = os.eventfd(0)
        super().__init__(cluster, program, name, args, is_awaited)
        self.thread = threading.Thread(target=self.supervise, daemon=True)
        self.thread.start()

    def environment(self):
        env = dict(super().environment(), NOTIFY_SOCKET=str(self.path))
        if self.start_faults:
            env["BPS_FAULTS"] = self.start_faults
        if self.store:
            env["LISTEN_FDNAMES"] = ":".join(name for name, _ in self.store)
        return env

    def spawn(self):
        self.drain()
        self.listen_fds = [fd for _, fd in self.store]
        return super().spawn()

    def drain(self):
        while select.select([self.notify], [], [], 0)[0]:
            self.take()

    def take(self):
        data, control, _, _ = self.notify.recvmsg(4096, 8192)
        fds = array.array("i")
        for level, kind, part in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
        lines = dict(line.split("=", 1) for line in data.decode().splitlines())
        if lines.get("FDSTORE") == "1":
            assert lines["FDPOLL"] == "0" and fds
            self.store += [
                (lines["FDNAME"], fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)) for fd in fds
            ]
            self.most_kept = max(self.most_kept, len(self.store))
        if lines.get("FDSTOREREMOVE") == "1":
            for name, fd in self.store:
                if name == lines["FDNAME"]:
                    os.close(fd)
            self.store = [(name, fd) for name, fd in self.store if name != lines["FDNAME"]]
        for fd in fds:
            os.close(fd)

    def stand_still(self, is_still):
        """Stop reading messages if `is_still` is true, as systemd does while it reloads. Continue
        to read messages if `is_still` is false."""
        self.is_still = is_still
        if not is_still:
            os.eventfd_write(self.wake, 1)

    def has_ended(self):
        """Receive messages for a second, or until the process ends. Return whether it has ended."""
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except ProcessLookupError:  # another thread has reaped the process
            return True
        readable = select.select(
            [self.wake, pidfd, *([] if self.is_still else [self.notify])], [], [], 1
        )[0]
        os.close(pidfd)
        if self.wake in readable:
            os.eventfd_read(self.wake)
        if self.notify in readable:
            self.take()
        return pidfd in readable

    def supervise(self):
        try:
            while not self.is_stopping:
                if self.has_ended() and not self.is_stopping:
                    self.process.wait()
                    time.sleep(self.restart_s)
                    if self.between:
                        self.between()
                    self.start()
                    self.restarts += 1
        except Exception as e:  # pylint: disable=broad-except
            if not self.is_stopping:
                self.has_failed = e

    def die(self, sig=signal.SIGKILL):
        """End the daemon with a signal. Return the seconds until it runs again."""
        n, begun = self.restarts, time.monotonic()
        self.process.send_signal(sig)
        end = time.monotonic() + DEADLINE_S
        while self.restarts == n:
            if self.has_failed:
                raise AssertionError(f"{self.name} did not come back") from self.has_failed
            assert time.monotonic() < end, (
                f"{self.name} did not come back:\n{self.log.read_text()[-4000:]}"
            )
            select.select([], [], [], 0.005)
        return time.monotonic() - begun

    def lose(self, name):
        """Lose a kept descriptor, as a manager with a full store does."""
        self.store = [(n, fd) for n, fd in self.store if n != name]

    def close_kept(self, name):
        """Close a kept descriptor, as a manager does after a unit has been stopped."""
        for n, fd in self.store:
            if n == name:
                os.close(fd)
        self.lose(name)

    def names(self):
        return sorted(name for name, _ in self.store)

    def stop(self):
        self.is_stopping = True
        self.thread.join(DEADLINE_S)
        status = super().stop()
        self.drain()
        for _, fd in self.store:
            os.close(fd)
        self.store = []
        self.notify.close()
        os.close(self.wake)
        return status


# Numbers of elements of three tensors. The first tensor is sent as an offer. The second tensor is
# small and is sent inside a message. The third tensor is not a whole number of partitions.
SIZES = [200_000, 100, 70_000]


def kept_cluster(cluster, agents=2, servers=2, args=(), **kw):
    """Return a cluster whose agents have a service manager that keeps their descriptors."""
    kw.setdefault(
        "scheduler_args", ["--agent-window", "30s", "--agent-dead", "30s"]
    )  # long, because a machine under load may start a process late
    c = cluster(agents=0, servers=servers, **kw)
    for i in range(agents):
        c.add_agent(i, *args, kind=KeptDaemon)
    return c


class Job:
    """A job that runs rounds until it is stopped."""

    def __init__(self, c, workers, sizes=None, function="kept_rounds", **kw):
        self.c, n = c, len(c.workers)
        self.trace, self.stop = c.dir / f"trace{n}", c.dir / f"stop{n}"
        args = {"sizes": sizes or SIZES, "stop": str(self.stop), "trace": str(self.trace)}
        args.update(kw.pop("args", {}))
        self.workers = c.start_job(function, workers, args, **kw)

    def rounds(self):
        return self.trace.read_text().count("\n") if self.trace.exists() else 0

    def goes_on(self, n=3):
        before = self.rounds()
        self.c.wait_for(f"{n} more rounds", lambda: self.rounds() >= before + n)

    def longest_since(self, when):
        rows = [tuple(map(float, line.split())) for line in self.trace.read_text().splitlines()]
        return max(end - start for start, end in rows if end > when)

    def finish(self):
        self.stop.touch()
        results = self.c.finish(self.workers)
        assert all(r == results[0] for r in results)
        return results[0]

    def finish_each(self):
        """Stop the job, whose workers return different results. Return them."""
        self.stop.touch()
        return self.c.finish(self.workers)


class Manager:
    """A service manager that receives messages of sd_notify(3)."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
        self.lines = []

    def fill(self):
        """Fill the queue of the socket, so that the daemon's messages get lost until they are
        received here."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            s.connect(self.env["NOTIFY_SOCKET"])
            with contextlib.suppress(BlockingIOError):
                while True:
                    s.send(b"X=1")

    def wait_for(self, word, deadline_s=20):
        end = time.monotonic() + deadline_s
        while not any(line.startswith(word) for line in self.lines):
            left = max(0, end - time.monotonic())
            assert select.select([self.socket], [], [], left)[0], f"no {word} in {self.lines}"
            self.lines += self.socket.recv(4096).decode().splitlines()
        seen, self.lines = self.lines, []
        return seen
