"""Fault matrix, column T: trainers."""

import json
import os
import signal
import socket
import time

import pytest

import bps
from lab import clock_env, memory_cgroup, wait_until
from rawclient import F32, HELLO, RING, SQ_TAIL, Raw, frame

STAY = 20  # number of rounds that each job without the fault must still complete


def memory_of(agent):
    """Return the agent's counts of descriptors, mappings of memory files, and threads."""
    with open(f"/proc/{agent.pid}/maps", encoding="utf-8") as f:
        maps = sum("memfd:" in line for line in f)
    return (
        len(os.listdir(f"/proc/{agent.pid}/fd")),
        maps,
        len(os.listdir(f"/proc/{agent.pid}/task")),
    )


@pytest.mark.quick
def test_killed_trainer_is_named_at_the_others(faulty, cell):
    """FM-T-kill9: a trainer is killed. Calls of the other trainers of its job fail.

    The text of the error contains the rank and the pid of the killed trainer. Other jobs go on.
    """
    c = faulty()
    job, beside = c.steady(3, placement=[0, 1, 1]).wait_rounds(), c.steady(2).wait_rounds()
    at = time.monotonic()
    job.workers[2].process.kill()
    for r in job.errors([0, 1]):
        assert r["code"] == bps.EWORKER_LOST and "rank 2" in r["text"], r
        assert str(job.workers[2].process.pid) in r["text"], r
        cell.within("error at the others", r["failed_at"] - at, 0.2)
    beside.wait_rounds(STAY).stop()


@pytest.mark.quick
@pytest.mark.parametrize("how", ["stopped", "hung"])
def test_trainer_that_does_not_submit_is_named_within_the_time_out(faulty, cell, how):
    """FM-T-stop: a trainer is stopped or hangs. A worker that waits for the trainer times out.

    The text of the error contains the trainer's rank, host and pid.
    """
    c = faulty()
    beside = c.steady(2)
    faults = {"1": "client.submit.before-publish=hang,after=30"} if how == "hung" else None
    job = c.steady(2, timeout=2, faults=faults).wait_rounds()
    victim = job.workers[1].process
    if how == "stopped":
        victim.send_signal(signal.SIGSTOP)
    (r,) = job.errors([0])
    assert r["code"] == bps.ETIMEDOUT, r
    for word in ("rank 1", "agent-host1", f"pid {victim.pid}"):
        assert word in r["text"], r
    cell.within("call", r["call_s"], 2 + 1)
    if how == "stopped":
        victim.send_signal(signal.SIGCONT)
        assert job.errors([1])[0]["code"] in (bps.EWORKER_LOST, bps.EJOB_FAILED)
    else:
        victim.kill()
    beside.wait_rounds(STAY).stop()


def test_trainer_that_stands_still_is_named_while_others_wait(faulty, cell):
    """FM-T-stalled: a trainer is stopped while the other trainers wait for it.

    After 10 s, bpsctl job, bpsctl status, the agent's log and the events name the trainer.
    """
    c = faulty()
    job = c.steady(2, timeout=18).wait_rounds()
    victim = job.workers[1].process
    at = time.monotonic()
    victim.send_signal(signal.SIGSTOP)
    told = f"rank 1 (host agent-host1, pid {victim.pid})"

    def is_named(*words):
        problems = json.loads(c.bpsctl("--json", *words).stdout)["problems"]
        return any(p["code"] == "TRAINER_STALLED" and told in p["what"] for p in problems)

    c.wait_for("bpsctl job names the stalled trainer", lambda: is_named("job", "job1"))
    cell.within("named", time.monotonic() - at, 10 + 1.5)
    c.wait_for("bpsctl status names the trainer", lambda: is_named("status"))
    cell.within("in the status", time.monotonic() - at, 10 + 5 + 1.5)
    job.errors([0])
    assert f"{told} has stalled" in " ".join(c.bpsctl("events").stdout.split())
    assert (
        f"a trainer makes no progress while others wait for it: job=job1 rank=1 pid={victim.pid}"
        in c.agents[1].log.read_text()
    )
    victim.send_signal(signal.SIGCONT)
    job.errors([1])


def test_trainer_without_memory_is_lost_alone(faulty, cell):
    """FM-T-oom: the kernel kills a trainer.

    The agent survives. The other trainers get the same error as after kill -9.
    """
    cgroup = memory_cgroup(f"bps-{os.getpid()}", 1 << 30)
    if not cgroup:
        pytest.skip("no memory cgroup here")
    c = faulty()
    with cgroup as (put, squeeze):
        job, beside = c.steady(2, hungry_rank=1).wait_rounds(), c.steady(2).wait_rounds()
        victim = job.workers[1].process
        put(victim.pid)
        squeeze()
        (c.dir / f"{job.stop_file.name}.eat").touch()
        assert victim.wait(30) == -signal.SIGKILL
        at = time.monotonic()
        (r,) = job.errors([0])
        assert r["code"] == bps.EWORKER_LOST and f"{victim.pid}" in r["text"], r
        cell.within("error at the others", r["failed_at"] - at, 0.2)
        beside.wait_rounds(STAY).stop()


def test_job_of_the_same_name_runs_again_at_once(faulty, cell):
    """FM-T-restart: a job can be started again as soon as it has lost a trainer."""
    c = faulty()
    first = c.start_job(
        "steady", 2, {"stop": str(c.dir / "s1"), "progress": str(c.dir / "p1")}, job="same"
    )
    c.wait_for("rounds", lambda: (c.dir / "p1-0").exists())
    first[1].process.kill()
    c.finish(first[:1])
    at = time.monotonic()
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3}, job="same")
    cell.within("second run of 3 rounds, Python's start included", time.monotonic() - at, 5)


def test_slow_trainer_is_named(faulty, cell):
    """FM-T-slow: the status names the host that delays the job."""
    c = faulty(agents=3)
    job = c.steady(3, slow_rank=1, pause=0.01).wait_rounds()
    at = time.monotonic()
    c.wait_for(
        "bpsctl status names the slow host",
        lambda: "(host agent-host1) is last in" in c.bpsctl("status").stdout,
        90,
    )
    cell.within("named", time.monotonic() - at, 60)
    job.stop()


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_clock_of_a_trainer_does_not_matter(faulty, cell, seconds):
    """FM-T-clock: the trainer's wall clock jumps by an hour. The job does not notice it."""
    c = faulty()
    jump = c.dir / "jump"
    job = c.steady(2, env=clock_env(jump)).wait_rounds()
    at = time.monotonic()
    jump.write_text(str(seconds))
    cell.within("stall", job.wait_rounds(100).stall(at), 0.5)


@pytest.mark.quick
def test_library_of_another_version_gets_both_versions(faulty, cell):
    """FM-T-version: a library of another version is refused. The error states both versions."""
    c = faulty(agents=1)
    at = time.monotonic()
    t = Raw(c.agents[0])
    t.say_hello("j", 0, 1, abi=77)
    code, text = t.welcome()
    cell.within("refusal", time.monotonic() - at, 1)
    assert code == -bps.EVERSION and "77" in text and "one release" in text, (code, text)
    t.close()


@pytest.mark.quick
def test_second_trainer_of_a_rank_is_refused(faulty, cell):
    """FM-T-duplicate: a second trainer with the same rank is refused while the job forms.

    The first trainer keeps the rank. The error names the first trainer's host.
    """
    c = faulty()
    first = Raw(c.agents[0]).open("twice", 0, 2)
    c.wait_for("the scheduler knows job 'twice'", lambda: "twice" in c.bpsctl("status").stdout)
    second = Raw(c.agents[1])
    at = time.monotonic()
    second.say_hello("twice", 0, 2)
    code, text = second.welcome()
    if code == 0:
        code, text, *_ = second.job()
    cell.within("refusal", time.monotonic() - at, 1)
    assert code == -bps.EDUP and "agent-host0" in text, (code, text)
    for t in (first, second):
        t.close()


@pytest.mark.quick
def test_trainer_that_dies_with_its_rings_mapped_leaves_nothing(faulty, cell):
    """FM-T-mapped: trainers are killed in a round, repeatedly. The agent keeps no resources."""
    c = faulty(agents=1)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 2})
    c.wait_for("the agent has no shared memory", lambda: not c.agents[0].status()["shared_bytes"])
    before = memory_of(c.agents[0])
    for i in range(4):
        job = c.steady(2).wait_rounds(3 + i)
        for w in job.workers:
            w.process.kill()
    at = time.monotonic()
    c.wait_for(
        "the agent has no more resources than before",
        lambda: all(x <= y for x, y in zip(memory_of(c.agents[0]), before)),
    )
    cell.within("all is free", time.monotonic() - at, 1)


@pytest.mark.quick
def test_hostile_trainer_harms_only_its_own_job(faulty, cell):
    """FM-T-hostile: a trainer sends garbage to the socket and the ring, while another job sums."""
    c = faulty(agents=2)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    for i in range(10):
        t = Raw(c.agents[0])
        t.sock.send([b"\xff" * 64, b"\0", frame(HELLO, b"\xff" * 40), b"\1\0\0\0" * 64][i % 4])
        assert t.is_dropped()
        t.close()
    for i in range(3):
        t = Raw(c.agents[0]).open(f"bad{i}", 0, 1)
        t.job()
        t.declare(("w", F32, 1000))
        t.control[RING : RING + 4096] = b"\xa5" * 4096
        t.control[SQ_TAIL : SQ_TAIL + 4] = (77).to_bytes(4, "little")
        t.wake()
        assert t.is_dropped()
        t.close()
    cell.within("stall of another job", job.wait_rounds(STAY).stall(at), 0.5)


def test_silent_connections_to_the_socket_block_no_job(faulty, cell):
    """FM-T-silent: a hundred silent connections of another user must not block a job."""
    c = faulty(agents=1)
    c.open_to_all()
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
    os.seteuid(65534)
    try:
        for s in held:
            s.setblocking(False)
            s.connect_ex(str(c.agents[0].socket))
    finally:
        os.seteuid(0)
    at = time.monotonic()
    c.run("rounds", 1, {"n_elems": 1000, "n_rounds": 3}, env={"BPS_FORCE_DISTRIBUTED": "1"})
    cell.within("3 rounds, Python's start included", time.monotonic() - at, 5)
    for s in held:
        s.close()


def test_trainer_whose_machine_is_cut_off_gets_the_reason(faulty, cell, lab):
    """FM-T-isolated: the trainer's machine reaches neither the scheduler nor servers.

    The trainer's call times out, and the text of the error gives this reason.
    """
    c = faulty(lab=lab)
    job = c.steady(2, timeout=4).wait_rounds()
    at = time.monotonic()
    lab.cut(c.agents[1].host)
    (r,) = job.errors([1])
    assert r["code"] in (bps.ETIMEDOUT, bps.EAGENT_LOST) and "scheduler" in r["text"], r
    cell.within("error at the one that is cut off", r["failed_at"] - at, 4 + 1)
    wait_until(at + 6)
    lab.heal()
    job.errors([0])
