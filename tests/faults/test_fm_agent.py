"""Fault matrix, column A: agents. The loss of an agent's machine ends its jobs."""

import os
import signal
import time

import pytest

import bps
from control import PROTO, answer_to, hello
from lab import clock_env, memory_cgroup, wait_until

WINDOW_S = 5  # the setting --agent-window
MUST_SEE_S = 5  # 4.4 s (--agent-dead) and one heartbeat interval of 0.5 s, rounded up
STRANDED_S = 10  # the setting --stranded-after
STAY = 20


def lost_agent_is_named(cell, job, at, bound_s, host="agent-host1"):
    (r,) = job.errors([0])
    assert r["code"] == bps.EAGENT_LOST and host in r["text"], r
    cell.within("error at the others", r["failed_at"] - at, bound_s)


@pytest.mark.quick
@pytest.mark.parametrize("by", ["kill9", "term"])
def test_restarted_agent_costs_no_round(faulty, cell, by):
    """FM-A-restart: the agent is killed or stopped, and its service manager restarts it.

    The manager keeps the agent's descriptors. The agent's trainers notice only a pause.
    """
    c = faulty(is_kept=True)
    job = c.steady(2, n_elems=1000).wait_rounds()
    at = time.monotonic()
    c.agents[1].die(signal.SIGKILL if by == "kill9" else signal.SIGTERM)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 1)


def test_agent_that_does_not_come_back_is_named(faulty, cell):
    """FM-A-kill9: the agent is killed and not restarted.

    The agent's trainers fail at once. Trainers of other agents fail after the agent's window.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.agents[1].kill()
    # The trainer ends with an error, not with a signal, because its mapped memory still exists.
    (own,) = job.errors([1])
    assert own["code"] in (bps.ENOAGENT, bps.EAGENT_LOST), own
    cell.within("error at its own trainer", own["failed_at"] - at, 1)
    lost_agent_is_named(cell, job, at, WINDOW_S + 0.5)


def test_stopped_agent_is_given_up_and_learns_it(faulty, cell):
    """FM-A-stop: an agent sends nothing for 5 s. Its jobs end with an error that names the agent.

    The stopped agent's own trainers fail later.
    """
    c = faulty()
    job, beside = c.steady(2).wait_rounds(), c.steady(1, placement=[0])
    at = time.monotonic()
    c.agents[1].kill(signal.SIGSTOP)
    lost_agent_is_named(cell, job, at, MUST_SEE_S)
    beside.wait_rounds(STAY)
    at = time.monotonic()
    c.agents[1].kill(signal.SIGCONT)
    (r,) = job.errors([1])
    assert r["code"] in (bps.EAGENT_LOST, bps.EEVICTED, bps.EJOB_FAILED), r
    cell.within("error at its own trainer", r["failed_at"] - at, 3)
    beside.stop()
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})


def test_agent_whose_data_thread_hangs_ends_itself(faulty, cell):
    """FM-A-thread: the data thread hangs while the control thread works.

    The agent ends itself after 5 s.
    """
    c = faulty()
    c.agents[1].may_end_with.add(70)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.agents[1].faults("agent.thread.tick=hang")
    assert c.agents[1].process.wait(30) == 70
    cell.within("its end", time.monotonic() - at, 5.5)
    job.errors([1])
    lost_agent_is_named(cell, job, at, 5.5 + WINDOW_S + 0.5)


def test_agent_without_memory_is_lost_as_if_killed(faulty, cell):
    """FM-A-oom: the kernel kills the agent, which uses too much memory.

    The worker on the other agent gets the same error as after a crash of this agent.
    """
    cgroup = memory_cgroup(f"bps-{os.getpid()}", 1 << 30)
    if not cgroup:
        pytest.skip("no memory cgroup here")
    c = faulty()
    c.agents[1].may_end_with.add(-signal.SIGKILL)
    with cgroup as (put, squeeze):
        put(c.agents[1].pid)
        squeeze(96 << 20)
        job = c.steady(2, n_elems=8 << 20, n_tensors=1)
        assert c.agents[1].process.wait(60) == -signal.SIGKILL
        lost_agent_is_named(cell, job, time.monotonic(), WINDOW_S + 1)


def test_slow_agent_is_waited_for(faulty, cell):
    """FM-A-slow: the agent takes 20 ms longer for each contribution. It is not declared dead."""
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    c.agents[1].faults("agent.contrib.prepare=sleep:20ms")
    job.wait_rounds(10)
    c.agents[1].faults("")
    cell.within("stall", job.stall(at), 1)
    assert "-> suspect" not in c.scheduler.log.read_text()


@pytest.mark.parametrize("how", ["down", "both", "in", "out"])
def test_agent_that_is_cut_off_is_given_up(faulty, cell, lab, how):
    """FM-A-cut: the agent's link is down, or its packets are lost.

    The job's trainer on another agent fails within 5 s. The job's trainer on this agent fails when
    the agent is connected again.
    """
    c = faulty(lab=lab)
    job, beside = c.steady(2).wait_rounds(), c.steady(1, placement=[0])
    host = c.agents[1].host
    at = time.monotonic()
    lab.cut_off(host, how)
    lost_agent_is_named(cell, job, at, MUST_SEE_S)
    beside.wait_rounds(STAY).stop()
    at = time.monotonic()
    lab.mend(host)
    (r,) = job.errors([1])
    assert r["code"] in (bps.EAGENT_LOST, bps.EEVICTED, bps.EJOB_FAILED), r
    cell.within("error at its own trainer", r["failed_at"] - at, 10)


def test_agent_that_reaches_no_peer_fails_its_trainers_calls(faulty, cell, lab):
    """FM-A-isolated: the agent reaches no peer, but is not yet declared dead.

    After 10 s, calls of the agent's trainer fail, and the error states that the agent receives
    nothing. Then the network is repaired, and the job's other trainer must get an error too.
    """
    c = faulty(lab=lab, scheduler_args=["--agent-dead", "60s"])
    job = c.steady(2, timeout=60).wait_rounds()
    at = time.monotonic()
    lab.cut_off(c.agents[1].host, "both")
    (r,) = job.errors([1])
    assert r["code"] == bps.EISOLATED and "nothing from the scheduler or any server" in r["text"], r
    cell.within("error at its trainer", r["failed_at"] - at, STRANDED_S + 3.5)
    assert "calls fail now: this machine receives nothing" in c.agents[1].log.read_text()
    lab.mend(c.agents[1].host)
    job.errors([0])


@pytest.mark.quick
def test_short_cut_costs_no_round(faulty, cell, lab):
    """FM-A-blink: all packets to and from the agent are lost for a second."""
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.blink(c.agents[1].host, 1)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 1 + 2)


@pytest.mark.quick
def test_connections_that_are_reset_are_opened_again(faulty, cell, lab):
    """FM-A-rst: every connection of the agent is reset, ten times. No round is lost."""
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    for _ in range(10):
        lab.kill_connections(c.agents[1].host)
        job.wait_rounds(3)
    cell.within("stall", job.stall(at), 1.5)


def test_half_open_connections_are_noticed(faulty, cell, lab):
    """FM-A-halfopen: the agent's sockets vanish without a message to its peers."""
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.half_open(c.agents[1].host)
    job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 3.5)


def test_agent_cut_off_only_from_the_scheduler_stays(faulty, cell, lab):
    """FM-A-scheduler: the agent is cut off only from the scheduler.

    The cut lasts more than twice the time of --agent-dead. The agent's job goes on, because servers
    still receive from the agent.
    """
    c = faulty(lab=lab)
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    lab.cut(c.agents[1].host, other=c.scheduler.host)
    wait_until(at + 2 * MUST_SEE_S)
    assert "but servers received data from it" in " ".join(c.bpsctl("status").stdout.split())
    lab.mend(c.agents[1].host)
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_clock_of_an_agent_does_not_matter(faulty, cell, seconds, tmp_path):
    """FM-A-clock: the wall clock of all daemons except the scheduler jumps by an hour."""
    jump = tmp_path / "jump"
    c = faulty(daemon_env=clock_env(jump))
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    jump.write_text(str(seconds))
    wait_until(at + 2)
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)
    assert "->" not in c.scheduler.log.read_text().split("serving:")[1].replace(
        "-> up", ""
    ).replace("-> running", "").replace("-> forming", "").replace("-> ended", "")


def test_agent_of_another_version_gets_both_versions(faulty, cell):
    """FM-A-version: the scheduler refuses an agent that uses another protocol version.

    The error names the versions of the agent and the scheduler.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    answer = answer_to(c.scheduler.port, hello(77, "0.0.9"))
    cell.within("refusal", time.monotonic() - at, 1)
    assert b"uses control protocol 77" in answer and b"the scheduler (release" in answer, answer
    job.wait_rounds(STAY).stop()


@pytest.mark.quick
def test_second_agent_of_a_name_is_refused(faulty, cell):
    """FM-A-duplicate: a second agent with the same name, on another host, is refused.

    The error names the first agent.
    """
    c = faulty()
    job = c.steady(2).wait_rounds()
    at = time.monotonic()
    answer = answer_to(c.scheduler.port, hello(PROTO, "9", name="a1", host="elsewhere"))
    cell.within("refusal", time.monotonic() - at, 1)
    assert b"agent-host1" in answer, answer
    cell.within("stall", job.wait_rounds(STAY).stall(at), 0.5)


@pytest.mark.parametrize("how", ["kill9", "stop"])
def test_job_that_may_shrink_goes_on_without_a_lost_machine(faulty, cell, how):
    """FM-A-shrink: a machine's agent and trainer are killed or stopped, in a job that may shrink.

    The workers on the other machines finish without an error, after a bounded stall.
    """
    c = faulty(agents=3)
    job = c.steady(3, lost_rank=2, options={"on_agent_loss": "shrink"}).wait_rounds()
    at = time.monotonic()
    sig = signal.SIGKILL if how == "kill9" else signal.SIGSTOP
    job.workers[2].process.send_signal(sig)
    c.agents[2].kill(sig)
    c.wait_for(
        "the job goes on without agent a2",
        lambda: "goes on without agent a2" in c.scheduler.log.read_text(),
    )
    job.wait_rounds(STAY)
    job.stop_file.touch()
    results = c.finish(job.workers[:2])
    assert [r["code"] for r in results] == [0, 0], results
    bound = (
        WINDOW_S + 0.5 if how == "kill9" else MUST_SEE_S
    )  # --agent-window: how long the scheduler waits for the return of a killed agent
    cell.within(
        "stall", max(r["longest"] for r in results if r["longest_at"] + r["longest"] > at), bound
    )
    if how == "stop":
        c.agents[2].kill(signal.SIGCONT)
        job.workers[2].process.send_signal(signal.SIGCONT)
        (r,) = job.errors([2])
        assert r["code"] == bps.EEVICTED, r
