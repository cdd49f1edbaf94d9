"""Send messages of the control channel (docs/reference/protocol.md) as a peer without a key."""

import re
import socket
import struct

from cluster import DEADLINE_S, ROOT

HELLO, REFUSE, BEAT, STEER = 1, 3, 4, 19
SERVER, AGENT = 1, 2
PROTO = int(
    re.search(r"#define CTL_PROTO\s+(\d+)", (ROOT / "common" / "wire" / "ctlmsg.h").read_text())[1]
)


def text(s):
    return struct.pack("<I", len(s.encode())) + s.encode()


def frame(kind, *fields):
    body = b"".join(fields)
    return struct.pack("<IHI", 6 + len(body), kind, len(body)) + body


def hello(proto, version, name="old", host="host", role=AGENT):
    return frame(
        HELLO,
        struct.pack("<HBQ", proto, role, 1),
        text(name),
        text(host),
        text(version),
        struct.pack("<I", 1),
        text("127.0.0.1"),
        struct.pack("<HH", 1, 1),
    )


def beat(seq, threads=1, more_threads=0, busy_percent=0):
    """Return a heartbeat whose other fields are 0."""
    return frame(
        BEAT,
        struct.pack("<8Q", seq, *[0] * 7),
        struct.pack("<3I", 0, 0, 0),
        struct.pack("<I", 0),  # no jobs
        struct.pack("<BIQBQ", 0, 0, 0, 0, 0),
        struct.pack("<I", 0),  # no links
        struct.pack("<3B", threads, more_threads, busy_percent),
    )


def answer_to(port, message):
    """Send one message to the scheduler.

    Return all bytes that the scheduler sends until it closes the connection.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as s:
        s.sendall(message)
        answer = b""
        while chunk := s.recv(4096):
            answer += chunk
    return answer
