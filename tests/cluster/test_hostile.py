"""Trainers that break the protocol, or die at any moment, harm at most their own job."""

import fcntl
import mmap
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import termios
import threading
import time

import pytest

import bps
from keeper import kept_cluster
from rawclient import (
    ANY_RANK,
    DEADLINE_S,
    DISTRIBUTED,
    F32,
    F64,
    FINISH,
    FINISHED,
    MAX,
    Q8,
    RING,
    SQ_TAIL,
    SUM,
    U8,
    WHY,
    Raw,
    frame,
)

ALICE, BOB = 1, 2
FORCED = {"BPS_FORCE_DISTRIBUTED": "1"}


def still_serves(c, agent=0):
    """Check that the agent still serves another job. The job has one raw worker."""
    t = Raw(c.agents[agent]).open(f"probe{len(c.daemons)}", 0, 1)
    assert t.job()[0] == 0
    assert t.declare(("w", F32, 10))[0][0] == 0
    t.submit(0)
    assert t.wait_round(0, 1) == (0, 1)
    assert t.finish() == 0
    t.close()


def wait_taken(t):
    """Wait until the agent has received all messages of t."""
    end = time.monotonic() + DEADLINE_S
    while fcntl.ioctl(t.sock, termios.TIOCOUTQ, b"\0" * 4) != b"\0" * 4:
        assert time.monotonic() < end, "the agent does not read"


def lingering_socket():
    """Return a TCP socket and its peer. The last close(2) of the socket blocks.

    The socket has SO_LINGER and unsent data that the peer does not read.
    """
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
    # While the agent is stopped, this process sends the socket and closes its own descriptor. The
    # agent then has the last descriptor of the socket, so that close(2) blocks in the agent.
    c.agents[0].kill(signal.SIGSTOP)
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


@pytest.mark.parametrize("when", ["in the first frame", "in a frame that is not read"])
def test_many_descriptors_that_block_when_closed_keep_nothing_open(cluster, when):
    c = cluster(agents=1, servers=0)
    still_serves(c)
    c.wait_for("the agent has no trainers", lambda: c.agents[0].status()["trainers"] == 0)
    before = footprint(c.agents[0])
    # The agent closes sockets on a pool of threads. The number of these sockets exceeds the number
    # of threads in the pool.
    pairs = [lingering_socket() for _ in range(8)]
    t = Raw(c.agents[0])
    c.agents[0].kill(signal.SIGSTOP)
    if when == "in a frame that is not read":
        t.sock.send(b"\xff" * 16)
    t.send(WHY, b"", fds=[s.fileno() for s, _ in pairs])
    for s, _ in pairs:
        s.close()
    c.agents[0].kill(signal.SIGCONT)
    assert t.is_dropped()
    for _ in range(50):
        Raw(c.agents[0]).close()
    c.wait_for(
        "the agent has no more resources than before",
        lambda: all(x <= y for x, y in zip(footprint(c.agents[0]), before)),
    )
    assert c.agents[0].stop() == 0
    for _, peer in pairs:
        peer.close()


def test_blocking_eventfd_does_not_stop_the_agent(cluster):
    c = cluster(agents=1, servers=0)
    slow, t = (Raw(c.agents[0]).open("blocks", r, 2) for r in range(2))
    assert slow.job()[0] == t.job()[0] == 0
    os.set_blocking(t.efd, True)
    # Stop the agent until the declaration and the wake-up have both arrived. While the agent
    # handles the declaration, the test empties the eventfd. If the agent then read the eventfd,
    # the read would block.
    c.agents[0].kill(signal.SIGSTOP)
    slow.ask_declare(("big", F32, 16 << 20))
    t.wake()
    c.agents[0].kill(signal.SIGCONT)
    wait_taken(slow)
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


def test_refused_declarations_take_nothing_from_other_users(cluster):
    """Two trainers declare tensors that the agent refuses, and then the same names with new shapes.

    The servers must get no refused tensor.
    """
    c = cluster(
        agents=1,
        servers=1,
        server_args=["--sums-memory", "64MiB"],
        agent_args=["--user-memory", "48MiB"],
    )
    c.open_to_all()
    bad = [Raw(c.agents[0], BOB) for _ in range(2)]
    for rank, t in enumerate(bad):
        t.say_hello("greedy", rank, 2, flags=DISTRIBUTED)
        assert t.welcome()[0] == 0
    assert [t.job()[0] for t in bad] == [0, 0]
    shapes = [
        (F64, 1 << 38),
        (U8, 1 << 33),
        (F32, 1 << 62),
        (U8, 1 << 26),
        (F64, 1),
        (F64, 1 << 38),
        (U8, 1 << 33),
    ]
    for round_ in range(5):
        for dtype, n_elems in shapes:
            for t in bad:
                t.declare((f"d{round_}", dtype, n_elems))
        c.run(
            "rounds",
            2,
            {"n_elems": 100000, "n_rounds": 2},
            job=f"small{round_}",
            uid=ALICE,
            env=FORCED,
        )
    [row] = [u for u in c.scheduler.status()["users"] if u["uid"] == BOB]
    assert row["server_bytes"]["used"] <= 5 * 8, row
    for t in bad:
        t.close()


def test_declarations_that_fill_the_servers_leave_room_for_others(cluster):
    """Two trainers declare tensors that together exceed the memory of the server.

    Each declaration is valid: the agent has memory for it, and the user's quota allows it.
    """
    c = cluster(agents=1, servers=1, server_args=["--sums-memory", "64MiB"])
    c.open_to_all()
    greedy = [Raw(c.agents[0], BOB) for _ in range(2)]
    for rank, t in enumerate(greedy):
        t.say_hello("greedy", rank, 2, flags=DISTRIBUTED)
        assert t.welcome()[0] == 0
    assert [t.job()[0] for t in greedy] == [0, 0]
    for i in range(80):
        for t in greedy:
            t.declare((f"d{i}", U8, 1 << 20))
    c.wait_for("the rest is refused", lambda: refused(c, "small-user-reserve") > 0)
    for n in range(4):
        c.run(
            "rounds",
            2,
            {"n_elems": 50000, "n_rounds": 2},
            job=f"small{n}",
            uid=ALICE,
            env=FORCED,
        )
    for t in greedy:
        t.close()


def refused(c, quota):
    text = c.scheduler.get("/metrics")
    return int(re.search(rf'(?m)^bps_quota_refused_total{{quota="{quota}"}} (\d+)$', text)[1])


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
    assert "cannot change from" not in c.agents[0].log.read_text()


def test_worker_that_dies_before_it_has_joined_ends_the_job_everywhere(cluster):
    c = cluster(agents=2, servers=0)
    far = Raw(c.agents[1]).open("j", 2, 3)
    c.wait_for("the first trainer has joined", lambda: c.scheduler.status()["jobs"])
    c.scheduler.kill(signal.SIGSTOP)
    near = [Raw(c.agents[0]).open("j", r, 3) for r in range(2)]
    near[1].close()
    c.wait_for("one trainer is left", lambda: c.agents[0].status()["trainers"] == 1)
    c.scheduler.kill(signal.SIGCONT)
    while True:
        code, text, *_ = far.job()
        if code:
            break
    assert code == -bps.EWORKER_LOST and "rank 1" in text, (code, text)
    code, text, *_ = near[0].job()
    assert code == -bps.EWORKER_LOST and "rank 1" in text, (code, text)


def test_rank_that_one_process_opens_twice_is_refused_the_second_time(cluster):
    c = cluster(agents=1, servers=0)
    first = Raw(c.agents[0]).open("j", 0, 2)
    c.wait_for("the first trainer has joined", lambda: c.scheduler.status()["jobs"])
    second = Raw(c.agents[0]).open("j", 0, 2)
    code, text, *_ = second.job()
    assert code == -bps.EDUP and "rank 0 of job 'j' is already taken" in text, (code, text)
    other = Raw(c.agents[0]).open("j", 1, 2)
    assert first.job()[0] == other.job()[0] == 0


def rounds_while(t, is_over):
    """Run rounds of one small tensor until is_over()."""
    assert t.declare(("small", F32, 10))[0][0] == 0
    n = 0
    while not is_over():
        n += 1
        t.submit(0, n)
        assert t.wait_round(0, n) == (0, 1)
    return n


def test_large_memory_that_is_being_made_does_not_stop_other_jobs(cluster):
    c = cluster(agents=1, servers=0)
    large, small = Raw(c.agents[0]).open("large", 0, 1), Raw(c.agents[0]).open("small", 0, 1)
    assert large.job()[0] == small.job()[0] == 0
    large.ask_declare(
        ("w", F32, 64 << 20), ("x", F32, 1 << 20), ("nothing", F32, 0)
    )  # the tensors need at least 768 MiB, so the agent needs some time to make the memory
    assert rounds_while(small, lambda: select.select([large.sock], [], [], 0)[0]) > 5
    slots = large.declared()
    assert [s[0] for s in slots] == [0, 0, 22]
    for i in range(2):
        large.submit(i)
        assert large.wait_round(i, 1) == (0, 1)
    assert large.declare(("y", F32, 1000))[0][0] == 0
    assert large.finish() == 0


def test_tensor_that_is_declared_again_keeps_its_place_and_brings_its_memory(cluster):
    c = cluster(agents=1, servers=0, agent_args=["--max-tensors", "16"])
    t = Raw(c.agents[0]).open("j", 0, 1)
    assert t.job()[0] == 0
    tensors = [("a", F32, 1 << 20), *((f"b{i}", F32, 10) for i in range(15))]
    slots = t.declare(*tensors)
    assert {s[0] for s in slots} == {0}
    n = len(t.fds)
    assert t.declare(*tensors) == slots

    def files(fds):
        return {os.fstat(fd).st_ino for fd in fds}

    # the first two descriptors are those of WELCOME
    assert files(t.fds[n:]) == files(t.fds[2:n]) and len(t.fds) - n == n - 2 == 4
    assert t.declare(("a", F32, 20))[0][0] == -bps.EMISMATCH
    assert t.declare(("c", F32, 10))[0][0] == -bps.EQUOTA
    for i in range(2):
        t.submit(i)
        assert t.wait_round(i, 1) == (0, 1)
    assert t.finish() == 0


def test_declarations_that_are_repeated_unread_keep_few_descriptors_in_flight(cluster):
    """The kernel limits how many descriptors the agent has sent that no trainer has received."""
    c = cluster(agents=1, servers=0)
    t = Raw(c.agents[0]).open("j", 0, 1)
    assert t.job()[0] == 0
    tensors = [("a", F32, 10), ("b", F32, 1 << 21)]
    assert {s[0] for s in t.declare(*tensors)} == {0}
    n = len(t.fds)
    for _ in range(8):
        t.ask_declare(*tensors * 50)
    wait_taken(t)
    slots = [t.declared() for _ in range(8)]
    assert all(s == slots[0] for s in slots)
    assert len(t.fds) - n == 4  # an input and an output of each tensor
    assert t.finish() == 0


def test_mismatch_with_one_who_waits_for_memory_names_both_and_outlives_the_agent(cluster):
    c = kept_cluster(
        cluster, agents=1, servers=0, args=["--faults", "agent.memory.make=sleep:300ms"]
    )
    a, b = trainers = [Raw(c.agents[0]) for _ in range(2)]
    for r, t in enumerate(trainers):
        t.say_hello("j", r, 2)
        assert t.welcome()[0] == 0
    for t in trainers:
        assert t.job()[0] == 0
    a.ask_declare(("w", F32, 1000))
    b.ask_declare(("w", F32, 2000))
    (code, text, *_), (other_code, other_text, *_) = a.declared()[0], b.declared()[0]
    assert sorted((code, other_code)) == [0, -bps.EMISMATCH]
    assert "rank 0" in text + other_text and "rank 1" in text + other_text
    c.agents[0].die()
    winner = a if code == 0 else b
    winner.submit(0)
    assert winner.wait_round(0, 1)[0] == bps.EMISMATCH


def test_workers_of_one_job_declare_large_tensors_at_the_same_time(cluster):
    c = cluster(agents=1, servers=1)
    trainers = [Raw(c.agents[0]) for _ in range(3)]
    for r, t in enumerate(trainers):
        # With the flag DISTRIBUTED, the agent also needs memory for the sum of the machine.
        t.say_hello("j", r, 3, flags=2)
        assert t.welcome()[0] == 0
    for t in trainers:
        assert t.job()[0] == 0
    for t in trainers:
        t.ask_declare(("a", F32, 1 << 20), ("b", F32, 3 << 20), ("c", F32, 2 << 20))
    for t in trainers:
        assert [s[:2] for s in t.declared()] == [(0, "")] * 3
    for t in trainers:
        for i in range(3):
            t.push(i)
        t.wake()
    for t in trainers:
        for i in range(3):
            assert t.wait_round(i, 1) == (0, 3)


def test_trainers_that_vanish_while_their_memory_is_made_leave_nothing_behind(cluster):
    c = cluster(agents=1, servers=0)
    still_serves(c)
    gone = lambda: c.agents[0].status()["trainers"] == c.agents[0].status()["jobs"] == 0
    c.wait_for("the agent has no trainers and jobs", gone)
    before = footprint(c.agents[0])
    for n in range(10):
        t = Raw(c.agents[0]).open(f"j{n}", 0, 1)
        assert t.job()[0] == 0
        t.ask_declare(("w", F32, 16 << 20))
        wait_taken(t)
        t.close()
    c.wait_for("the agent has no trainers and jobs", gone)
    c.wait_for(
        "the agent has no more resources than before",
        lambda: all(x <= y for x, y in zip(footprint(c.agents[0]), before)),
    )
    t = Raw(c.agents[0]).open("last", 0, 1)
    assert t.job()[0] == 0
    t.ask_declare(("w", F32, 64 << 20))
    wait_taken(t)
    assert c.agents[0].stop() == 0  # stop the agent while it allocates the memory


def test_rank_of_a_worker_that_died_before_it_had_joined_is_free_again(cluster):
    c = cluster(agents=1, servers=0)
    c.scheduler.kill(signal.SIGSTOP)
    t = Raw(c.agents[0]).open("j", 0, 2)
    t.close()
    c.wait_for("the trainer has left", lambda: c.agents[0].status()["trainers"] == 0)
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
    c.scheduler.kill(signal.SIGSTOP)  # a stopped scheduler cannot end the job
    trainers[0].submit(0)
    trainers[0].submit(1)
    c.wait_for("the agent has read the submissions", lambda: trainers[0].u32(128) == 2)
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
    assert "violated the protocol" not in c.agents[0].log.read_text()


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


def test_thousands_of_tensors_declared_at_once_all_get_their_place(cluster):
    c = cluster(agents=2, servers=1)
    trainers = [Raw(a).open("many", r, 2) for r, a in enumerate(c.agents)]
    for t in trainers:
        assert t.job()[0] == 0
    n = 6000
    threads = [threading.Thread(target=declare_many, args=(t, n)) for t in trainers]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    for first in range(0, n, 3000):
        for t in trainers:
            for i in range(first, first + 3000):
                t.push(i)
            t.wake()
        for t in trainers:
            for i in range(first, first + 3000):
                assert t.wait_round(i, 1) == (0, 2)


def footprint(daemon):
    """Return how many descriptors, mapped files and threads an agent has.

    Descriptors of connections to servers do not count.
    """
    pid = daemon.process.pid
    with open(f"/proc/{pid}/maps", encoding="ascii") as f:
        maps = sum("memfd:" in line for line in f)
    fds = (
        len(os.listdir(f"/proc/{pid}/fd")) - 2 * daemon.status()["connections"]
    )  # the provider "sockets" uses two descriptors for each connection
    return fds, maps, len(os.listdir(f"/proc/{pid}/task"))


STEPS = [
    "connected",
    "said hello",
    "joined",
    "declared",
    "submitted",
    "in a round",
    "finishing",
    "asking",
]


def crash(agent, n, step, peer):
    """Start one or two trainers that stop at `step`. Return them; the caller closes them."""
    size = 1 if step in ("in a round", "finishing") else 2
    t = Raw(agent)
    trainers = [t]
    if step == "connected":
        return trainers
    t.say_hello(f"crash{n}", 0, size)
    if step == "said hello":
        return trainers
    assert t.welcome()[0] == 0
    if step == "asking":
        t.send(WHY, struct.pack("<IQ", 0xFFFFFFFF, 0))
        return trainers
    if size == 2:
        trainers.append(Raw(peer).open(f"crash{n}", 1, 2))
    for x in trainers:
        assert x.job()[0] == 0
    if step == "joined":
        return trainers
    for i, x in enumerate(trainers):
        x.declare(("w", F32, 1 << 18), *(() if i else (("x", F32, 10),)))
    if step == "declared":
        return trainers
    t.submit(0)
    if step == "in a round":
        return trainers
    if size == 2:
        trainers[1].submit(0)
    if step == "finishing":
        t.wait_round(0, 1)
        t.send(FINISH, b"\0")
    return trainers


def test_hundreds_of_trainers_that_vanish_leave_nothing_behind(cluster):
    c = cluster(agents=2, servers=1)
    still_serves(c)
    idle = lambda: all(a.status()["trainers"] == a.status()["jobs"] == 0 for a in c.agents)
    before = None
    for n in range(25):
        for i, step in enumerate(STEPS):
            peer = c.agents[n % 2]
            for t in crash(c.agents[0], f"{n}.{i}", step, peer):
                t.close()
        if n == 1:
            c.wait_for("both agents are idle", idle)
            before = [footprint(a) for a in c.agents]
    c.wait_for("both agents are idle", idle)
    for a, was in zip(c.agents, before):
        c.wait_for(
            "the agent has no more resources than before",
            lambda a=a, was=was: all(x <= y for x, y in zip(footprint(a), was)),
        )
    still_serves(c)


def ring_nonsense(t, what, rng):
    """Write garbage into the ring. Return whether the agent must drop the trainer."""
    if what == "unknown tensor":
        t.push(7)
    elif what == "unknown operation":
        t.push(0, op=200)
    elif what == "the largest of blocks":
        t.push(1, op=MAX)
    elif what == "unknown flags":
        t.push(0, flags=2)
    elif what == "a round twice":
        t.push(0)
        t.push(0)
    elif what == "a later round":
        t.push(0, round_=1 << 63)
    elif what == "random entries":
        t.control[RING : RING + 4096 * 16] = rng.randbytes(4096 * 16)
        struct.pack_into("<I", t.control, SQ_TAIL, 4096)
    elif what == "a huge tail":
        struct.pack_into("<I", t.control, SQ_TAIL, 0x80000000)
    elif what == "a tail that goes back":
        struct.pack_into("<I", t.control, SQ_TAIL, 0xFFFFFFFF)
    elif what == "all zero, all ones":
        t.control[:] = b"\0" * len(t.control)
        t.wake()
        t.control[:] = b"\xff" * len(t.control)
    elif what == "after FINISH":
        t.send(FINISH, b"\0")
        wait_taken(t)
        t.push(0)
    t.wake()
    return what not in ("a huge tail", "a tail that goes back", "all zero, all ones")


NONSENSE = [
    "unknown tensor",
    "unknown operation",
    "the largest of blocks",
    "unknown flags",
    "a round twice",
    "a later round",
    "random entries",
    "a huge tail",
    "a tail that goes back",
    "all zero, all ones",
    "after FINISH",
]


def test_nonsense_in_the_ring_harms_its_own_job_only(cluster):
    c = cluster(agents=1, servers=0)
    rng = random.Random(1)
    for what in NONSENSE:
        pair = [Raw(c.agents[0]).open(what, r, 2) for r in range(2)]
        for t in pair:
            assert t.job()[0] == 0
            t.declare(("w", F32, 10), ("blocks", Q8, 10))
        if ring_nonsense(pair[0], what, rng):
            assert pair[0].is_dropped(), what
        pair[0].close()
        if what != "after FINISH":
            assert pair[1].job()[0] == -bps.EWORKER_LOST, what
        pair[1].close()
        still_serves(c)


def test_nonsense_on_the_socket_harms_its_author_only(cluster):
    c = cluster(agents=1, servers=0)
    rng = random.Random(2)
    for i in range(200):
        t = Raw(c.agents[0])
        if i % 2:
            t.open(f"j{i}", 0, 2)
        data = frame(rng.randrange(20), rng.randbytes(rng.randrange(300)))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(1) + data[at + 1 :]
        try:
            t.sock.send(data[: rng.randrange(1, len(data))] if i % 3 else data)
        except BrokenPipeError:
            pass
        t.close()
    still_serves(c)
    c.wait_for("the agent has no trainers", lambda: c.agents[0].status()["trainers"] == 0)


def test_trainer_that_asks_and_never_listens_is_dropped(cluster):
    c = cluster(agents=1, servers=0)
    t = Raw(c.agents[0]).open("deaf", 0, 2)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            t.send(WHY, struct.pack("<IQ", 0xFFFFFFFF, 0))
    t.close()
    still_serves(c)


def test_agent_stops_well_with_rounds_in_flight(cluster):
    c = cluster(agents=2, servers=1)
    trainers = [Raw(a).open("j", r, 2) for r, a in enumerate(c.agents)]
    for t in trainers:
        assert t.job()[0] == 0
        t.declare(*((f"t{i}", F32, 1 << 20) for i in range(8)))
    for t in trainers:
        for i in range(8):
            t.push(i)
        t.wake()
    trainers[0].wait_round(0, 1)
    assert c.agents[0].stop() == 0
    assert trainers[0].is_dropped()
    code, text, *_ = trainers[1].job()
    assert code in (-bps.EAGENT_LOST, -bps.EWORKER_LOST), text


def declare_many(t, n):
    for first in range(0, n, 100):
        slots = t.declare(*((f"t{i}", F32, 4) for i in range(first, first + 100)))
        assert all(s[0] == 0 for s in slots)


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_agent_without_descriptors_refuses_and_does_not_spin(cluster):
    c = cluster(agents=1, servers=0)
    a = c.agents[0]
    pid = a.process.pid
    used = len(os.listdir(f"/proc/{pid}/fd"))
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    for t in [Raw(a) for _ in range(2)]:
        assert t.is_dropped()
    before = cpu_seconds(pid)
    c.run("collectives", 1)  # takes some time, and does not use the agent
    assert cpu_seconds(pid) - before < 0.1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    still_serves(c)
