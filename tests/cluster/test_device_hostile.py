"""A trainer sends wrong messages to its executor. Only the trainer's own job may end."""

import fcntl
import mmap
import os
import random
import socket
import struct
import time

import pytest

from rawclient import ABI, DEADLINE_S, DECLARE, F32, Q8, Raw, body, frame, shape, text
from test_device import Rig

DEVICE, DEVICE_AT = 13, 14
HELLO, WELCOME, ALLOC, IMPORT, REGION, RELEASE, RELEASED, FAILED = range(32, 40)


class Exec:
    """A trainer's socket to its executor."""

    def __init__(self, raw):
        n = len(raw.fds)
        raw.send(DEVICE, b"\0", seq=9)
        raw.expect(DEVICE_AT)
        self.sock = socket.socket(fileno=os.dup(raw.fds[n]))
        self.sock.settimeout(10)

    def send(self, kind, payload, seq=1, fds=()):
        data = frame(kind, payload, seq)
        if fds:
            socket.send_fds(self.sock, [data], list(fds))
        else:
            self.sock.send(data)

    def hello(self):
        self.send(HELLO, struct.pack("<H", ABI) + text("0.1.0") + text(b""))

    def recv(self):
        data, fds, _, _ = socket.recv_fds(self.sock, 65536, 70)
        if not data:
            return None, None, fds
        kind, _, _ = struct.unpack_from("<HHI", data)
        return kind, data[12:], fds

    def expect(self, kind):
        while True:
            k, b, fds = self.recv()
            assert k is not None, f"the executor closed the connection instead of sending {kind}"
            if k == kind:
                return b, fds
            for fd in fds:
                os.close(fd)


def memory(kind=3, nbytes=4096, chunk=4096, offset=0, version=1, uuid=b"\0" * 16, handle=b""):
    m = (
        struct.pack("<HH", version, kind)
        + text(uuid)
        + struct.pack("<QQQQ", nbytes, chunk, offset, 0)
        + text(handle)
    )
    return struct.pack("<I", 1) + body(m)


def memfd(n, seal=True):
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, n)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def declare_at(raw, name, n, region, offset, dtype=F32):
    raw.send(
        DECLARE,
        struct.pack("<I", 1)
        + body(text(name) + shape(dtype, n) + struct.pack("<IQ", region, offset)),
    )
    return raw.declared()[0]


def two(r, job):
    out = [Raw(r.c.agents[0]).open(job, i, 2) for i in range(2)]
    for t in out:
        assert t.job()[0] == 0
    ex = [Exec(t) for t in out]
    for e in ex:
        e.hello()
    pages = []
    for e in ex:
        _, fds = e.expect(WELCOME)
        pages.append(mmap.mmap(fds[0], 0))
        os.close(fds[0])
    return out, ex, pages


def end(out, ex):
    for e in ex:
        e.sock.close()
    for t in out:
        t.close()


def honest(r):
    r.run("device_rounds", 2, {"sizes": [1000], "n_rounds": 2})


NUMBERS = [
    0,
    1,
    63,
    64,
    4095,
    4096,
    1 << 20,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 4096,
    (1 << 64) - 1,
]


@pytest.fixture
def r(cluster):
    return Rig(cluster, "host", agents=1)


def test_random_messages_to_the_executor_harm_only_their_job(r):
    rng = random.Random(1)
    for i in range(60):
        out, ex, pages = two(r, f"bad{i}")
        fds = [
            memfd(4096),
            memfd(1 << 20),
            memfd(4096, seal=False),
            os.open("/dev/null", os.O_RDWR),
            os.open("/", os.O_RDONLY),
        ]
        try:
            for k in range(30):
                r.steps = getattr(r, "steps", 0) + 1
                e = rng.choice(ex)
                what = rng.randrange(8)
                n = rng.choice(NUMBERS)
                if what == 0:
                    e.send(ALLOC, struct.pack("<Q", n))
                elif what == 1:
                    e.send(
                        IMPORT,
                        memory(rng.randrange(0, 5), n, rng.choice(NUMBERS), rng.choice(NUMBERS)),
                        fds=[rng.choice(fds)],
                    )
                elif what == 2:
                    e.send(IMPORT, memory(3, n, n), fds=[rng.choice(fds)] * rng.choice([1, 2, 64]))
                elif what == 3:
                    e.send(
                        RELEASE,
                        struct.pack("<I", 0)
                        + text("")
                        + struct.pack("<I", rng.choice([0, 1, 1, 2, 3, 1 << 31])),
                    )
                elif what == 4:
                    pages[ex.index(e)][: 64 * 16] = rng.randbytes(64 * 16)
                elif what == 5:
                    declare_at(
                        rng.choice(out),
                        f"t{rng.randrange(4)}",
                        rng.choice([1, 1000, 1 << 18]),
                        rng.choice([0, 1, 2, 9]),
                        rng.choice([0, 4, 2, 4096, 1 << 62]),
                    )
                elif what == 6:
                    t = rng.choice(out)
                    t.submit(rng.randrange(3), rng.randrange(1, 4))
                elif rng.random() < 0.1:
                    e.send(rng.randrange(30, 50), rng.randbytes(rng.randrange(60)))
        except (OSError, AssertionError, struct.error):
            pass
        for fd in fds:
            os.close(fd)
        for p in pages:
            p.close()
        end(out, ex)
        if i % 10 == 9:
            honest(r)
    print("steps", r.steps)
    r.c.wait_for("no executor is left", lambda: not r.executors(0))


def test_counters_that_run_backwards_or_are_huge_harm_no_other_job(r):
    out, ex, pages = two(r, "bad")
    regions = []
    for e in ex:
        e.send(ALLOC, struct.pack("<Q", 1 << 21))
        b, fds = e.expect(REGION)
        regions.append(struct.unpack_from("<I", b, 8)[0])
        for fd in fds:
            os.close(fd)
    for t, region in zip(out, regions):
        assert declare_at(t, "t", 1000, region, 0)[0] == 0
        code, sentence, _ = declare_at(t, "blocks", 1000, region, 0, Q8)
        assert code and "a tensor of type q8 cannot lie in device memory" in sentence
    for n, (ready, done) in enumerate(
        [
            (1, None),
            (2, None),
            (0, None),
            (1 << 63, None),
            (3, (1 << 64) - 1),
            (4, 0),
            (5, 1 << 62),
        ],
        1,
    ):
        for t, p in zip(out, pages):
            struct.pack_into("<Q", p, 0, ready)
            if done is not None:
                struct.pack_into("<Q", p, 8, done)
            t.submit(0, n)
        struct.pack_into("<Q", pages[0], 0, 0)
        time.sleep(0.05)
    honest(r)
    end(out, ex)
    r.c.wait_for("no executor is left", lambda: not r.executors(0))


def test_a_trainer_that_reads_nothing_is_disconnected_and_harms_no_other_job(r):
    out, ex, pages = two(r, "deaf")
    ex[0].sock.settimeout(DEADLINE_S)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            ex[0].send(ALLOC, struct.pack("<Q", 4096))
    assert "does not accept a message" in r.c.agents[0].log.read_text()
    honest(r)
    end(out, ex)
    r.c.wait_for("no executor is left", lambda: not r.executors(0))


def test_repeated_requests_for_an_executor_leave_nothing(r):
    out, ex, pages = two(r, "again")

    def open_files():
        return [
            len(os.listdir(f"/proc/{pid}/fd"))
            for pid in (r.executors(0)[0], r.c.agents[0].process.pid)
        ]

    before = open_files()
    for _ in range(300):
        Exec(out[0]).sock.close()
    r.c.wait_for("no process has more descriptors than before", lambda: open_files() <= before)
    end(out, ex)
