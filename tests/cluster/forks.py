"""Worker processes that are forks of one server process.

Importing NumPy and the functions of the workers takes most of the processor time of a short job.
A server imports them once, and forks for each worker. It has one thread, and does not load the
library. A worker replaces its environment and seeds NumPy's global generator, so it does not differ
from a process of its own.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress

# The loader, the C library, Python and modules read these variables when a process starts. If one
# of them differs, a worker needs another server.
START = ("LD_", "MALLOC_", "PYTHON", "OMP_", "OPENBLAS_", "ASAN_", "UBSAN_", "KERAS_")
_servers = {}  # (program, modules, variables of START) -> Server


class Server:
    """A process that forks workers, and the socket for the requests to it."""

    def __init__(self, program, modules, env):
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, program, "--serve", *modules]
            self.process = subprocess.Popen(command, stdin=theirs, env=env)

    def fork(self, *fds):
        """Fork a worker that gets these descriptors. Return its process id."""
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.requests, [b"fork"], fds)
            return self.number(self.requests.recv(4))
        return self.number(b"")

    def number(self, data):
        """Return the number that the server has sent. `data` is empty if the server has ended."""
        if not data:
            raise RuntimeError(f"the fork server ended with status {self.process.wait(10)}")
        return struct.unpack("i", data)[0]


class Fork:
    """A forked worker. It has those methods of subprocess.Popen that the tests use."""

    def __init__(self, server, pid, status):
        self.server, self.pid, self.returncode, self.status = server, pid, None, status

    def wait(self, timeout=None):
        if self.returncode is None:
            ended = select.poll()  # select() takes no descriptor above 1023
            ended.register(self.status, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            status = self.server.number(self.status.read(4))
            self.returncode = os.waitstatus_to_exitcode(status)
            self.status.close()
        return self.returncode

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, sig):
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since then
                os.kill(self.pid, sig)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def start(program, args, out, env, user=None, folder=None, modules=()):
    """Start a worker, as subprocess.Popen([python, program, *args], env=env, user=user) does.

    program: path of a Python program that calls serve() if its first argument is --serve.
    args: strings, which serve() returns in the worker.
    out: file for the worker's output and errors.
    folder: the worker's current folder. None: that of this process.
    modules: names of modules that the server imports.
    """
    first = {k: v for k, v in env.items() if k.startswith(START)}
    server = _servers.get(key := (program, tuple(modules), tuple(sorted(first.items()))))
    if not server:
        server = _servers[key] = Server(program, modules, first)
    r, w = os.pipe()
    with tempfile.TemporaryFile() as request, open(w, "wb") as end:
        words = {"args": args, "env": env, "user": user, "folder": str(folder or os.getcwd())}
        request.write(json.dumps(words).encode())
        request.seek(0)
        status = open(r, "rb", buffering=0)
        pid = server.fork(request.fileno(), out.fileno(), end.fileno())
    return Fork(server, pid, status)


def serve():
    """Fork whenever start() asks. Return its arguments in the worker.

    The server ends when the process of the tests has ended.
    """
    for name in sys.argv[2:]:
        importlib.import_module(name)
    requests = socket.socket(fileno=os.dup(0))
    ended, wake = socket.socketpair()  # a byte arrives for each worker that has ended
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ends = {}  # process id of a worker -> file for its status
    gc.freeze()  # else each worker's garbage collector would copy the pages of all modules
    while True:
        ready = select.select([requests, ended], [], [])[0]
        if ended in ready:
            ended.recv(4096)
            reap(ends)
        if requests in ready:
            word, fds, _, _ = socket.recv_fds(requests, 16, 3)
            if not word:
                sys.exit()
            request, out, end = (open(fd, "r+b", buffering=0) for fd in fds)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for f in (requests, ended, wake, end, *ends.values()):
                    f.close()
                return become(json.load(request), out)
            ends[pid] = end
            requests.send(struct.pack("i", pid))


def reap(ends):
    """Write the status of each worker that has ended to its file."""
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with ends.pop(pid) as end, suppress(BrokenPipeError):
            end.write(struct.pack("i", status))


def become(request, out):
    """Give this process what subprocess.Popen would give the worker. Return the arguments."""
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    out.close()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["user"] is not None:
        os.setreuid(request["user"], request["user"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all workers draw the same numbers
    return request["args"]
