"""A trainer without the library. It sends valid and invalid messages of common/local/local.h."""

import mmap
import os
import re
import select
import socket
import struct
import time

from cluster import ROOT

HELLO, WELCOME, JOB, DECLARE, DECLARED, ARENA, WHY, TEXT, FINISH, FINISHED = range(1, 11)
ASK_TRACE, TRACE = 19, 20
ANY_RANK = 0xFFFFFFFF
SUM, PROD, MAX = 0, 1, 2
U8, F32, F64, Q8 = 1, 7, 8, 32
ABI = int(re.search(r"#define LOCAL_ABI\s+(\d+)", (ROOT / "common/local/local.h").read_text())[1])
DISTRIBUTED = 2  # a flag of the message HELLO
DEADLINE_S = 30
# Byte offsets of fields in struct local_control.
SQ_TAIL, SQ_HEAD, AGENT_SLEEPS, RING = 64, 128, 132, 320


def text(b):
    b = b.encode() if isinstance(b, str) else b
    return struct.pack("<I", len(b)) + b


def body(b):
    return struct.pack("<I", len(b)) + b


def shape(dtype, n_values):
    """Encode the shape of a tensor (docs/reference/protocol.md)."""
    return body(struct.pack("<BBBIQQ", dtype, 0, 0, 0, n_values, 0))


def frame(kind, payload, seq=1, flags=0):
    return struct.pack("<HHI", kind, flags, seq) + body(payload)


def get_text(b, at):
    (n,) = struct.unpack_from("<I", b, at)
    return b[at + 4 : at + 4 + n].decode(errors="replace"), at + 4 + n


class Raw:
    def __init__(self, agent, uid=0):
        """Connect to the agent.

        uid: user id with which to connect; None: the user id of this process. If uid is not the
        user id of this process, call Cluster.open_to_all first.
        """
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(DEADLINE_S)
        if uid is None:
            self.sock.connect(str(agent.socket))
        else:
            os.seteuid(uid)
            try:
                self.sock.connect(str(agent.socket))
            finally:
                os.seteuid(0)
        self.control, self.efd, self.fds = None, -1, []

    def close(self):
        self.sock.close()
        if self.control:
            self.control.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def send(self, kind, payload, seq=1, fds=()):
        data = frame(kind, payload, seq)
        if fds:
            socket.send_fds(self.sock, [data], list(fds))
        else:
            self.sock.send(data)

    def recv(self):
        """Receive a message. Return (type, seq, body), or None at the end of file."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, 4)
        except ConnectionResetError:
            return None
        self.fds += fds
        if not data:
            return None
        kind, _, seq = struct.unpack_from("<HHI", data)
        return kind, seq, data[12:]

    def expect(self, kind):
        while True:
            m = self.recv()
            assert m, f"the agent closed the connection instead of sending type {kind}"
            if m[0] == kind:
                return m[2]

    def is_dropped(self):
        while True:
            if not self.recv():
                return True

    def say_hello(self, job, rank, size, flags=0, part_bytes=0, abi=ABI, token=b""):
        self.send(
            HELLO,
            struct.pack("<H", abi)
            + text("raw")
            + text(job)
            + struct.pack("<IIII", rank, size, flags, part_bytes)
            + text(token),
        )

    def welcome(self):
        b = self.expect(WELCOME)
        (code,) = struct.unpack_from("<I", b)
        if code == 0:
            self.control = mmap.mmap(self.fds[0], 0)
            self.efd = self.fds[1]
        return code, get_text(b, 4)[0]

    def job(self):
        b = self.expect(JOB)
        (code,) = struct.unpack_from("<I", b)
        sentence, at = get_text(b, 4)
        return (code, sentence, *struct.unpack_from("<IIII", b, at))

    def open(self, job, rank, size):
        self.say_hello(job, rank, size)
        assert self.welcome()[0] == 0
        return self

    def declare(self, *tensors):
        """Declare tensors, given as (name, dtype, n_elems). Return (code, text, index) of each."""
        self.ask_declare(*tensors)
        return self.declared()

    def ask_declare(self, *tensors):
        items = b"".join(body(text(n) + shape(d, e)) for n, d, e in tensors)
        self.send(DECLARE, struct.pack("<I", len(tensors)) + items)

    def declared(self):
        b = self.expect(DECLARED)
        (n,) = struct.unpack_from("<I", b)
        at, slots = 4, []
        for _ in range(n):
            (size,) = struct.unpack_from("<I", b, at)
            (code,) = struct.unpack_from("<I", b, at + 4)
            sentence, p = get_text(b, at + 8)
            slots.append((code, sentence, struct.unpack_from("<I", b, p)[0]))
            at += 4 + size
        return slots

    def push(self, tensor, round_=1, op=SUM, priority=0, flags=0):
        entries = self.u32(8)
        tail = self.u32(SQ_TAIL)
        struct.pack_into(
            "<IHBBQ",
            self.control,
            RING + 16 * (tail % entries),
            tensor,
            priority,
            op,
            flags,
            round_,
        )
        struct.pack_into("<I", self.control, SQ_TAIL, (tail + 1) & 0xFFFFFFFF)

    def wake(self):
        os.write(self.efd, struct.pack("<Q", 1))

    def submit(self, tensor, round_=1, op=SUM):
        self.push(tensor, round_, op)
        self.wake()

    def u32(self, at):
        return struct.unpack_from("<I", self.control, at)[0]

    def entry(self, tensor):
        """Return (done_round, status, workers) of a tensor's entry in the control page."""
        (at,) = struct.unpack_from("<Q", self.control, 24)
        return struct.unpack_from("<QiI", self.control, at + 64 * tensor)

    def wait_round(self, tensor, round_):
        end = time.monotonic() + DEADLINE_S
        while self.entry(tensor)[0] < round_:
            assert time.monotonic() < end, f"round {round_} of tensor {tensor} did not end"
            select.select([], [], [], 0.005)
        return self.entry(tensor)[1:]

    def finish(self):
        self.send(FINISH, b"\0", seq=77)
        return struct.unpack_from("<I", self.expect(FINISHED))[0]
