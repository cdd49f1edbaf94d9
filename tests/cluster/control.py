"""Send messages of the control channel (docs/reference/protocol.md) as a peer without a key."""

import re
import socket
import struct

from cluster import DEADLINE_S, ROOT

HELLO, REFUSE, STEER = 1, 3, 19
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
