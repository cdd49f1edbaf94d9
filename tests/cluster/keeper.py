"""A service manager for one daemon: it keeps descriptors (FDSTORE=1 of sd_notify(3)), starts the daemon anew when it has ended, and
hands them to it, as systemd does."""

import array
import fcntl
import os
import select
import signal
import socket
import threading
import time

from cluster import DEADLINE_S, Daemon

FIRST_FD = 500  # ours are kept above those that the daemon gets
RESTART_S = 0.1  # as systemd's default RestartSec=


class KeptDaemon(Daemon):
    def __init__(self, cluster, program, name, args, is_awaited=True):
        path = cluster.dir / f"{name}.notify"
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(path))
        self.path, self.store = path, []  # (name, descriptor)
        self.restarts, self.is_stopping, self.has_failed, self.restart_s = 0, False, None, RESTART_S
        self.most_kept, self.is_still = 0, False
        self.wake = os.eventfd(0)
        super().__init__(cluster, program, name, args, is_awaited)
        self.thread = threading.Thread(target=self.supervise, daemon=True)
        self.thread.start()

    def environment(self):
        env = dict(self.cluster.env, NOTIFY_SOCKET=str(self.path))
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
            self.store += [(lines["FDNAME"], fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)) for fd in fds]
            self.most_kept = max(self.most_kept, len(self.store))
        if lines.get("FDSTOREREMOVE") == "1":
            for name, fd in self.store:
                if name == lines["FDNAME"]:
                    os.close(fd)
            self.store = [(name, fd) for name, fd in self.store if name != lines["FDNAME"]]
        for fd in fds:
            os.close(fd)

    def stand_still(self, is_still):
        """It reads nothing, as systemd while it reloads."""
        self.is_still = is_still
        if not is_still:
            os.eventfd_write(self.wake, 1)

    def supervise(self):
        try:
            while not self.is_stopping:
                pidfd = os.pidfd_open(self.process.pid)
                readable = select.select([self.wake, pidfd, *([] if self.is_still else [self.notify])], [], [], 1)[0]
                if self.wake in readable:
                    os.eventfd_read(self.wake)
                if self.notify in readable:
                    self.take()
                os.close(pidfd)
                if pidfd in readable and not self.is_stopping:
                    self.process.wait()
                    time.sleep(self.restart_s)
                    self.start()
                    self.restarts += 1
        except Exception as e:  # pylint: disable=broad-except
            if not self.is_stopping:
                self.has_failed = e

    def die(self, sig=signal.SIGKILL):
        """It ends by this signal and is back when this returns: how long that took."""
        n, begun = self.restarts, time.monotonic()
        self.process.send_signal(sig)
        end = time.monotonic() + DEADLINE_S
        while self.restarts == n:
            if self.has_failed:
                raise AssertionError(f"{self.name} did not come back") from self.has_failed
            assert time.monotonic() < end, f"{self.name} did not come back:\n{self.log.read_text()[-4000:]}"
            select.select([], [], [], 0.005)
        return time.monotonic() - begun

    def lose(self, name):
        """As a manager that has no room."""
        self.store = [(n, fd) for n, fd in self.store if n != name]

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
