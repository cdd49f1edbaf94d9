"""Fault matrix, column H: the scheduler. Running jobs do not notice faults of the scheduler."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time

import pytest

from cluster import BUILD
from lab import all_are_back, clock_env, memory_cgroup, wait_until

STAY = 20
UNNOTICED_S = 0.5  # a round that takes longer than this, in seconds, counts as delayed


@pytest.mark.quick
@pytest.mark.parametrize("by", ["kill9", "term"])
def test_restarted_scheduler_is_not_noticed(faulty, cell, by):
    """FM-H-restart: the scheduler is killed or stopped, and restarted.

    Rounds go on, and the term grows.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    term = c.scheduler.metric("bps_term")
    at = time.monotonic()
    c.scheduler.kill(signal.SIGKILL if by == "kill9" else signal.SIGTERM)
    job.wait_rounds(STAY)
    again = time.monotonic()
    c.scheduler.start_again()
    c.wait_for("all members are up", lambda: all_are_back(c))
    cell.within("members are back", time.monotonic() - again, 2)
    assert c.scheduler.metric("bps_term") == term + 1
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})


@pytest.mark.parametrize("how", ["stopped", "hung"])
def test_scheduler_that_hangs_is_not_noticed(faulty, cell, how):
    """FM-H-stop: the scheduler is stopped, or hangs at a heartbeat, for longer than all limits.

    Rounds go on.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    if how == "stopped":
        c.scheduler.kill(signal.SIGSTOP)
    else:
        c.scheduler.faults("scheduler.beat.received=sleep:7s,count=1")
    wait_until(at + 7)
    if how == "stopped":
        c.scheduler.kill(signal.SIGCONT)
    c.wait_for("all members are up", lambda: all_are_back(c))
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), UNNOTICED_S)
    assert "-> down" not in c.scheduler.log.read_text()


def test_scheduler_without_memory_is_not_noticed(faulty, cell):
    """FM-H-oom: the kernel kills the scheduler, which exceeds its memory limit.

    The scheduler enters a memory cgroup. The test then reduces the cgroup's limit to 2 MiB. Memory
    that the scheduler allocated before it entered the cgroup is not counted. The tensors that are
    declared afterwards exceed the limit.
    """
    cgroup = memory_cgroup(f"bps-{os.getpid()}", 1 << 30)
    if not cgroup:
        pytest.skip("no memory cgroup here")
    c = faulty()
    c.scheduler.may_end_with.add(-signal.SIGKILL)
    with cgroup as (put, squeeze):
        job = c.steady(2).wait_rounds()
        at = time.monotonic()
        put(c.scheduler.pid)
        squeeze(2 << 20)
        held = [
            c.start_job(
                "hold",
                1,
                {"n": 20000, "what": f"tensor-of-a-long-name-{i}."},
                job=f"hold{i}",
                env={"BPS_FORCE_DISTRIBUTED": "1"},
            )[0]
            for i in range(3)
        ]
        assert c.scheduler.process.wait(60) == -signal.SIGKILL
        for w in held:
            w.process.kill()
        job.wait_rounds(STAY)
        c.scheduler.start_again()
        cell.within("stall", job.wait_rounds(STAY).stall(at), 2)


def test_slow_scheduler_declares_no_member_dead(faulty, cell):
    """FM-H-slow: each heartbeat takes 60 ms of the scheduler's time. No member is declared dead."""
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.scheduler.faults("scheduler.beat.received=sleep:60ms")
    wait_until(at + 5)
    c.scheduler.faults("")
    c.wait_for("all members are up", lambda: all_are_back(c))
    assert "-> down" not in c.scheduler.log.read_text()
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)


@pytest.mark.parametrize("how", ["down", "both", "in", "out"])
def test_scheduler_that_is_cut_off_is_not_noticed(faulty, cell, lab, how):
    """FM-H-cut: the scheduler's link is down, or drops packets in one or both directions.

    The fault lasts more than twice the time of --agent-dead.
    """
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    host = c.scheduler.host
    at = time.monotonic()
    lab.cut_off(host, how)
    wait_until(at + 10)
    job.wait_rounds(STAY)
    mended = time.monotonic()
    lab.mend(host)
    c.wait_for("all members are up", lambda: all_are_back(c))
    cell.within("members are back", time.monotonic() - mended, 4)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), UNNOTICED_S)


@pytest.mark.quick
def test_connections_of_the_scheduler_that_are_reset_are_opened_again(faulty, cell, lab):
    """FM-H-rst: every control connection is reset, repeatedly. No member is declared dead.

    Each reset happens when all members have been connected for over a second (STABLE_MS in
    common/control/ctlclient.c). After a connection of this duration, a member reconnects without a
    pause.
    """
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    for i in range(4):
        wait_until(at + 1.3 * i)
        lab.kill_connections(c.scheduler.host)
        job.wait_rounds(3)
    assert "-> down" not in c.scheduler.log.read_text()
    cell.within("stall", job.stall(at), UNNOTICED_S)


def test_half_open_control_connections_are_noticed(faulty, cell, lab):
    """FM-H-halfopen: the scheduler's sockets vanish without a message to the members."""
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.half_open(c.scheduler.host)
    c.wait_for("all members are up", lambda: all_are_back(c))
    cell.within("members are back", time.monotonic() - at, 6)
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)


@pytest.mark.parametrize(
    "fault", ["scheduler.log.write=error:ENOSPC", "scheduler.log.fsync=error:EIO"]
)
def test_state_that_cannot_be_written_stops_no_running_job(faulty, cell, fault):
    """FM-H-disk: the state cannot be written.

    New jobs fail with an error that names the reason. Running jobs go on.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    view = c.scheduler.metric("bps_view")
    at = time.monotonic()
    c.scheduler.faults(fault)
    refused = c.start_job(
        "error",
        1,
        {"what": "nothing", "open": {"open_timeout": 3}},
        env={"BPS_FORCE_DISTRIBUTED": "1"},
    )
    c.wait_for(
        "bpsctl status reports STATE_NOT_DURABLE",
        lambda: "STATE_NOT_DURABLE" in c.bpsctl("status").stdout,
    )
    cell.within("said", time.monotonic() - at, 2)
    (r,) = c.finish(refused)
    assert r["code"] < 0 and "cannot write its state" in r["text"], r
    assert c.scheduler.metric("bps_view") == view
    job.wait_rounds(STAY)
    c.scheduler.faults("")
    c.wait_for(
        "the state is durable again",
        lambda: "the state is durable again" in c.scheduler.log.read_text(),
    )
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})


@pytest.mark.quick
@pytest.mark.parametrize(
    "point",
    [
        "scheduler.log.write",
        "scheduler.log.fsync",
        "scheduler.commit.before-send",
        "scheduler.commit.sent",
    ],
)
def test_crash_while_a_view_is_made_loses_nothing(faulty, cell, point):
    """FM-H-commit: the scheduler dies before or after it writes, syncs or sends a view.

    The view is made because a server was lost. The scheduler replaces the server after its own
    restart. The sums are exact.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    c.scheduler.faults(f"{point}=crash")
    c.servers[0].kill()
    assert c.scheduler.process.wait(10) == -signal.SIGKILL
    at = time.monotonic()
    c.scheduler.conf.write_text("")
    c.scheduler.start_again()
    c.servers[0].start_again()
    job.wait_rounds(STAY)
    cell.within("rounds go on", time.monotonic() - at, 3)
    job.stop()


def test_clock_of_the_scheduler_does_not_matter(faulty, cell, tmp_path):
    """FM-H-clock: the scheduler's clock jumps by an hour and back. No member is declared dead."""
    jump = tmp_path / "jump"
    c = faulty(daemon_env=clock_env(jump))
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    for seconds in (3600, -3600):
        jump.write_text(str(seconds))
        wait_until(time.monotonic() + 1)
        assert c.bpsctl("status").returncode in (0, 1)
    assert "-> down" not in c.scheduler.log.read_text()
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)


@pytest.mark.quick
def test_state_of_a_newer_release_is_refused(faulty, cell):
    """FM-H-version: the scheduler refuses the state of a newer release.

    The error names the formats of the file and of the scheduler. The file does not change.
    """
    c = faulty()
    c.scheduler.kill()
    log = c.dir / "state" / "state.log"
    data = bytearray(log.read_bytes())
    struct.pack_into("<I", data, 8, 99)
    log.write_bytes(data)
    at = time.monotonic()
    p = subprocess.run(
        [
            str(BUILD / "bps-scheduler" / "bps-scheduler"),
            "--state-dir",
            str(c.dir / "state"),
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        timeout=10,
        env=c.env,
        check=False,
    )
    cell.within("refusal", time.monotonic() - at, 1)
    assert p.returncode == 78 and "has format 99, but this release reads" in p.stderr, p
    assert log.read_bytes() == bytes(data)


def test_second_scheduler_gets_no_members(faulty, cell):
    """FM-H-duplicate: a second scheduler with the same state does not start.

    A second scheduler starts if its state differs from the state of the first scheduler. But
    members refuse the second scheduler.
    """
    other = faulty(agents=0, servers=1)
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    p = subprocess.run(
        [
            str(BUILD / "bps-scheduler" / "bps-scheduler"),
            "--state-dir",
            str(c.dir / "state"),
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        timeout=10,
        env=c.env,
        check=False,
    )
    assert p.returncode == 75 and "another bps-scheduler uses" in p.stderr, p
    other.scheduler.kill()
    other.scheduler.port = c.scheduler.port
    c.scheduler.kill()
    other.scheduler.start_again()
    c.wait_for(
        "members refuse it",
        lambda: all("rejected a scheduler" in d.log.read_text() for d in (*c.servers, *c.agents)),
    )
    job.wait_rounds(STAY)
    other.scheduler.kill()
    c.scheduler.start_again()
    c.wait_for("all members are up", lambda: all_are_back(c))
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)


def test_garbage_and_silence_on_its_ports_disturb_no_member(faulty, cell):
    """FM-H-hostile: sixty hostile peers use the scheduler's ports.

    The scheduler still receives heartbeats and accepts new jobs.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    held = []
    for i in range(30):
        for port in (c.scheduler.port, c.scheduler.http):
            s = socket.create_connection(("127.0.0.1", port), timeout=5)
            s.sendall(
                [b"", b"\xff" * 4096, b"GET / HTTP/1.0\r\n", struct.pack("<IH", 1 << 19, 1)][i % 4]
            )
            held.append(s)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
    wait_until(at + 2)
    assert "-> down" not in c.scheduler.log.read_text()
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)
    for s in held:
        s.close()


def test_full_disk_stops_no_running_job(faulty, cell):
    """FM-H-full: the file system of the state is full. New jobs are refused until there is room."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    c = faulty(state_bytes=1 << 20)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    filler = f"/proc/{c.scheduler.pid}/root{c.dir}/state/filler"
    with open(filler, "wb", buffering=0) as f, contextlib.suppress(OSError):
        while f.write(b"x" * 512):
            pass
    alone = {"BPS_FORCE_DISTRIBUTED": "1"}
    large = c.start_job(
        "many", 1, {"n_tensors": 2000, "chunk": 500}, env=alone
    )  # the job's records are larger than the free bytes of the state log's last page
    c.wait_for(
        "the scheduler reports the full disk",
        lambda: "cannot write the state: No space left" in c.scheduler.log.read_text(),
    )
    (r,) = c.finish(
        c.start_job("error", 1, {"what": "nothing", "open": {"open_timeout": 3}}, env=alone)
    )
    assert r["code"] < 0 and "cannot write its state" in r["text"], r
    job.wait_rounds(STAY)
    os.unlink(filler)
    c.wait_for(
        "the state is durable again",
        lambda: "the state is durable again" in c.scheduler.log.read_text(),
    )
    c.finish(large)
    cell.within("stall", job.wait_rounds(STAY).stall(at), UNNOTICED_S)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
