"""Run one attacker: attacker.py KIND RATE ARG...

The attacker reads words from its standard input. After "go" it misbehaves RATE times a second;
after "stop" it pauses. At the end of the input it prints the number of its attacks and ends.
"""

import fcntl
import mmap
import os
import random
import select
import socket
import struct
import sys
import time
import types

from rawclient import DECLARE, F32, HELLO, RING, SQ_TAIL, WHY, Raw, frame

RNG = random.Random(4)
HELD_MAX = 500


def no_matter(do):
    """Run an action and ignore its errors.

    Errors are normal. The agent may close the attacker's connection. The attacker may also read
    zeros from pages that it has punched out of the shared memory.
    """
    try:
        return do()
    except (OSError, AssertionError, ZeroDivisionError, struct.error):
        return None


class Local:
    """Attacks by a user of this machine. agent: the path of the agent's socket."""

    def __init__(self, agent):
        self.agent = types.SimpleNamespace(socket=agent)
        self.n = 0
        self.held = []

    def connect(self):
        t = Raw(self.agent, uid=None)
        t.sock.settimeout(1)
        return t

    def open(self, size=1):
        self.n += 1
        return self.connect().open(f"bad{os.getpid()}.{self.n}", 0, size)

    def running(self):
        t = self.open()
        assert t.job()[0] == 0
        t.declare(("w", F32, 1000))
        return t

    def hold(self, t, n_max):
        self.held.append(t)
        if len(self.held) > n_max:
            self.held.pop(0).close()

    def socket(self):
        """Attack the agent's socket in one of five ways. The calls use the ways in turn.

        Send garbage, an incomplete frame, hundreds of descriptors, or nothing, or send requests
        without reading the replies.
        """
        t = self.connect()
        what = self.n = self.n + 1
        if what % 5 == 0:
            no_matter(lambda: t.sock.send(RNG.randbytes(RNG.randrange(1, 4000))))
        elif what % 5 == 1:
            whole = frame(RNG.choice((HELLO, DECLARE, WHY)), RNG.randbytes(60))
            no_matter(lambda: t.sock.send(whole[: RNG.randrange(1, len(whole))]))
        elif what % 5 == 2:
            no_matter(lambda: t.send(WHY, b"", fds=[0] * 200))
        elif what % 5 == 3:
            t.say_hello(f"deaf{self.n}", 0, 2)
            for _ in range(5):
                no_matter(lambda: t.send(WHY, struct.pack("<IQ", 0xFFFFFFFF, 0)))
        self.hold(t, 40)

    def ring(self):
        """Write garbage into the ring and the control page: wrong counters, unknown tensors."""
        t = self.running()
        what = self.n % 5
        if what == 0:
            t.push(RNG.randrange(1, 1 << 32))
        elif what == 1:
            struct.pack_into("<I", t.control, SQ_TAIL, RNG.randrange(1 << 32))
        elif what == 2:
            t.control[RING : RING + 16384] = RNG.randbytes(16384)
            struct.pack_into("<I", t.control, SQ_TAIL, 1024)
        elif what == 3:
            t.control[:] = bytes([RNG.randrange(256)]) * len(t.control)
        else:
            t.push(0, round_=RNG.randrange(1 << 63))
        no_matter(t.wake)
        self.hold(t, 20)

    def memory(self):
        """Truncate shared memory, punch holes, declare large tensors, and leave during a round."""
        t = self.open()
        assert t.job()[0] == 0
        t.declare(("w", F32, 1 << 17))
        t.submit(0)
        for fd in t.fds:
            no_matter(lambda fd=fd: os.ftruncate(fd, 0))
            no_matter(lambda fd=fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE))
            # punch a hole: reading the page returns zeros
            no_matter(lambda fd=fd: mmap.mmap(fd, 4096).madvise(mmap.MADV_REMOVE))
        no_matter(lambda: t.push(0, round_=2))
        no_matter(t.wake)
        if self.n % 10 == 0:
            no_matter(lambda: t.ask_declare(("large", F32, 1 << 21)))
        t.close()

    def churn(self):
        """Open and close jobs, and open more connections than allowed."""
        if self.n % 2:
            self.hold(self.connect(), 100)
            self.n += 1
            return
        t = self.open(size=1 + self.n % 4)
        t.close()


class Stranger:
    """Attacks by a network peer that has no key. ports: the daemons' ports as address:port."""

    def __init__(self, *ports):
        self.ports = [(p.rsplit(":", 1)[0], int(p.rsplit(":", 1)[1])) for p in ports]
        self.n = 0
        self.held = []
        self.slow = []

    def strangers(self):
        """Open connections and keep all of them open.

        Some stay silent, some send garbage or send slowly, some send half a TLS or HTTP request.
        """
        s = socket.socket()
        s.settimeout(1)
        self.n += 1
        if no_matter(lambda: s.connect(self.ports[self.n % len(self.ports)]) or True):
            what = self.n // len(self.ports) % 6
            if what == 1:
                no_matter(lambda: s.send(RNG.randbytes(RNG.randrange(1, 4000))))
            elif what == 2:
                self.slow.append(s)
            elif what == 3:
                no_matter(
                    lambda: s.send(
                        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + RNG.randbytes(40)
                    )
                )
            elif what == 4:
                no_matter(lambda: s.send(b"GET /status HTTP/1.1\r\nHost: "))
            elif what == 5:
                no_matter(lambda: s.send(struct.pack("<IH", 1 << 19, 1)))
        self.held.append(s)
        for x in self.slow[-3:]:
            no_matter(lambda x=x: x.send(b"x"))
        self.slow = self.slow[-100:]
        if len(self.held) > HELD_MAX * len(self.ports):
            self.held.pop(0).close()


def main():
    kind, rate = sys.argv[1], float(sys.argv[2])
    act = getattr(Stranger(*sys.argv[3:]) if kind == "strangers" else Local(*sys.argv[3:]), kind)
    n, word, due = 0, "stop", time.monotonic()
    while word:
        wait = max(0.0, due - time.monotonic()) if word == "go" else 60.0
        if select.select([0], [], [], wait)[0]:
            word = (os.read(0, 64).decode().split() or [""])[-1]
            due = time.monotonic()
            if word != "go":
                print(n, flush=True)
        elif word == "go":
            no_matter(act)
            n += 1
            due = max(due + 1 / rate, time.monotonic() - 0.1)


main()
