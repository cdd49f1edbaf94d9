"""Trainers that break the rules, or die in the wrong moment: they harm their own job at most."""

import fcntl
import mmap
import os
import signal
import socket
import struct
import termios

import pytest

import bps
from rawclient import ANY_RANK, F32, FINISH, FINISHED, MAX, SUM, WHY, Raw


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


def test_surplus_worker_does_not_keep_the_job_from_starting(cluster):
    c = cluster(agents=1, servers=0)
    c.scheduler.kill(signal.SIGSTOP)
    trainers = [Raw(c.agents[0]).open("full", ANY_RANK, 2) for _ in range(3)]
    c.scheduler.kill(signal.SIGCONT)
    assert [t.job()[0] for t in trainers] == [0, 0, -bps.EDUP]
    for t in trainers[:2]:
        assert t.declare(("w", F32, 10))[0][0] == 0
        t.submit(0)
    for t in trainers[:2]:
        assert t.wait_round(0, 1) == (0, 2)
        t.send(FINISH, b"\0")
    for t in trainers[:2]:
        assert struct.unpack_from("<I", t.expect(FINISHED))[0] == 0
    for t in trainers:
        t.close()
    assert "cannot go from" not in c.agents[0].log.read_text()


def test_worker_that_dies_before_it_has_joined_ends_the_job_everywhere(cluster):
    c = cluster(agents=2, servers=0)
    far = Raw(c.agents[1]).open("j", 2, 3)
    c.wait_for("it has joined", lambda: c.scheduler.status()["jobs"])
    c.scheduler.kill(signal.SIGSTOP)
    near = [Raw(c.agents[0]).open("j", r, 3) for r in range(2)]
    near[1].close()
    c.wait_for("it has left", lambda: c.agents[0].status()["trainers"] == 1)
    c.scheduler.kill(signal.SIGCONT)
    while True:
        code, text, *_ = far.job()
        if code:
            break
    assert code == -bps.EWORKER_LOST and "rank 1" in text, (code, text)
    code, text, *_ = near[0].job()
    assert code == -bps.EWORKER_LOST and "rank 1" in text, (code, text)


def test_rank_of_a_worker_that_died_before_it_had_joined_is_free_again(cluster):
    c = cluster(agents=1, servers=0)
    c.scheduler.kill(signal.SIGSTOP)
    t = Raw(c.agents[0]).open("j", 0, 2)
    t.close()
    c.wait_for("it has left", lambda: c.agents[0].status()["trainers"] == 0)
    c.scheduler.kill(signal.SIGCONT)
    c.wait_for("the job is forgotten", lambda: not c.scheduler.status()["jobs"])
    again = [Raw(c.agents[0]).open("j", r, 2) for r in range(2)]
    assert [t.job()[0] for t in again] == [0, 0]


def test_different_operations_are_found_before_the_last_worker_has_declared(cluster):
    c = cluster(agents=1, servers=0)
    trainers = [Raw(c.agents[0]).open("j", r, 3) for r in range(3)]
    for t in trainers:
        assert t.job()[0] == 0
    for t, op in zip(trainers[:2], (SUM, MAX)):
        assert t.declare(("w", F32, 10))[0][0] == 0
        t.submit(0, op=op)
    for t in trainers[:2]:
        c.wait_for("the submission is taken", lambda t=t: t.u32(128) == 1)
    trainers[2].declare(("w", F32, 10))
    for t in trainers[:2]:
        assert t.wait_round(0, 1)[0] == bps.EMISMATCH


def test_submission_into_a_failing_job_ends_with_its_code(cluster):
    c = cluster(agents=1, servers=0)
    trainers = [Raw(c.agents[0]).open("j", r, 2) for r in range(2)]
    for t in trainers:
        assert t.job()[0] == 0
        t.declare(("a", F32, 10), ("b", F32, 10))
    c.scheduler.kill(signal.SIGSTOP)  # so that the job does not end at once
    trainers[0].submit(0)
    trainers[0].submit(1)
    c.wait_for("they are taken", lambda: trainers[0].u32(128) == 2)
    trainers[1].push(0, op=MAX)
    trainers[1].push(1)
    trainers[1].wake()
    for t in trainers:
        assert t.wait_round(0, 1)[0] == bps.EMISMATCH
        assert t.wait_round(1, 1)[0] == bps.EMISMATCH
    trainers[0].declare(("c", F32, 10))
    trainers[0].submit(2)
    assert trainers[0].wait_round(2, 1)[0] == bps.EMISMATCH
    for t in trainers:
        t.send(WHY, struct.pack("<IQ", 0, 1))
        text = t.expect(8)
        assert b"op max" in text and b"op sum" in text, text
    c.scheduler.kill(signal.SIGCONT)
    for t in trainers:
        assert t.job()[0] == -bps.EMISMATCH
    assert "broke the rules" not in c.agents[0].log.read_text()


def test_output_memory_cannot_be_written_by_a_trainer(cluster):
    c = cluster(agents=1, servers=0)
    t = Raw(c.agents[0]).open("j", 0, 1)
    assert t.job()[0] == 0
    t.declare(("w", F32, 10))
    output = t.fds[-1]
    mmap.mmap(output, 4096, prot=mmap.PROT_READ).close()
    for fd in output, os.open(f"/proc/self/fd/{output}", os.O_RDWR):
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
