"""Trainers that break the rules, or die in the wrong moment: they harm their own job at most."""

import fcntl
import os
import signal
import socket
import struct
import termios

import pytest

from rawclient import F32, WHY, Raw


def still_serves(c, agent=0):
    """The agent serves another job of its own, of one raw worker."""
    t = Raw(c.agents[agent]).open(f"probe{len(c.daemons)}", 0, 1)
    assert t.job()[0] == 0
    assert t.declare(("w", F32, 10))[0][0] == 0
    t.submit(0)
    assert t.wait_round(0, 1) == (0, 1)
    assert t.finish() == 0
    t.close()


def lingering_socket():
    """A TCP socket whose last close blocks: it lingers for data that its peer does not read."""
    listener = socket.create_server(("127.0.0.1", 0))
    s = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    listener.close()
    s.setblocking(False)
    try:
        while True:
            s.send(b"x" * 65536)
    except BlockingIOError:
        pass
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 15))
    return s, peer


@pytest.mark.parametrize("when", ["in the first frame", "in a frame that is not read", "too many"])
def test_descriptors_that_block_when_closed_do_not_stop_the_agent(cluster, when):
    c = cluster(agents=1, servers=0)
    s, peer = lingering_socket()
    t = Raw(c.agents[0])
    c.agents[0].kill(signal.SIGSTOP)  # it shall hold the last reference
    if when == "in a frame that is not read":
        t.sock.send(b"\xff" * 16)
    t.send(WHY, b"", fds=[s.fileno()] if when != "too many" else [0] * 4 + [s.fileno()])
    s.close()
    c.agents[0].kill(signal.SIGCONT)
    try:
        assert t.is_dropped()
        still_serves(c)
    finally:
        peer.close()
    t.close()


def test_blocking_eventfd_does_not_stop_the_agent(cluster):
    c = cluster(agents=1, servers=0)
    slow, t = (Raw(c.agents[0]).open("blocks", r, 2) for r in range(2))
    assert slow.job()[0] == t.job()[0] == 0
    os.set_blocking(t.efd, True)
    c.agents[0].kill(signal.SIGSTOP)  # it shall find both at once, and have work with the first
    slow.ask_declare(("big", F32, 16 << 20))
    t.wake()
    c.agents[0].kill(signal.SIGCONT)
    while fcntl.ioctl(slow.sock, termios.TIOCOUTQ, b"\0" * 4) != b"\0" * 4:
        pass
    os.set_blocking(t.efd, False)
    try:
        os.read(t.efd, 8)
    except BlockingIOError:
        pass
    os.set_blocking(t.efd, True)
    assert slow.declared()[0][0] == 0
    try:
        still_serves(c)
    finally:
        t.wake()
