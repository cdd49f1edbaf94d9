"""The process of an agent dies or is replaced while its trainers run.

The trainers notice only a pause.
"""

import os
import re
import signal
import statistics
import time

import pytest
from keeper import Job, kept_cluster


def wound(jobs, agents, sig, times):
    """Kill each agent, and wait until it has been restarted. Do this `times` times.

    For each repetition, return (longest pause of the jobs, seconds until agents[0] runs again).
    """
    pauses = []
    for _ in range(times):
        begun = time.monotonic()
        back = [a.die(sig) for a in agents][0]
        for job in jobs:
            job.goes_on()
        pauses.append((max(job.longest_since(begun) for job in jobs), back))
    return pauses


def check_pauses(pauses):
    """Check that the jobs' pauses are short.

    The median must be below 1 s. Each pause must be below 1 s or, after a slow restart of the
    agent, less than 0.5 s longer than the restart. On a machine under load nothing is checked.
    """
    print("pauses", [f"{p:.2f} ({b:.2f} of it without agent)" for p, b in pauses])
    if os.getloadavg()[0] < 2 * os.cpu_count():
        assert statistics.median(p for p, _ in pauses) < 1.0
        assert all(pause < max(1.0, back + 0.5) for pause, back in pauses)


def two_jobs(c):
    """Start two jobs one after the other, so that the first job has the smaller id."""
    jobs = []
    for workers in (4, 2):
        jobs.append(Job(c, workers))
        jobs[-1].goes_on()
    return jobs


def rounds_shown(c):
    found = re.search(r"^job\d+ .*$", c.bpsctl("jobs").stdout, re.M)
    return (
        max((int(n.replace(",", "")) for n in re.findall(r"\s([\d,]+)(?=\s)", found[0])), default=0)
        if found
        else 0
    )


def must_fail(c, job):
    c.wait_for(
        "all workers of the job have ended",
        lambda: all(w.process.poll() is not None for w in job.workers),
    )
    assert all(w.process.returncode != 0 for w in job.workers)


def losses(agents):
    return [
        line
        for a in agents
        for line in a.log.read_text().splitlines()
        if line.startswith(("<3>", "<4>")) and "injected" not in line
    ]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_agent_that_dies_repeatedly_only_pauses_its_jobs(cluster, sig):
    c = kept_cluster(cluster)
    job = Job(c, 4)
    job.goes_on()
    pauses = wound([job], c.agents[:1], sig, 6)
    c.wait_for(
        "the status has the rounds of all agent processes",
        lambda: rounds_shown(c) >= job.rounds() - 10,
    )
    job.finish()
    check_pauses(pauses)
    assert not losses(c.agents)
    c.wait_for(
        "the manager keeps no descriptor of a job",
        lambda: c.agents[0].names() == ["cluster", "listen"],
    )


def test_all_agents_die_at_once_and_two_jobs_go_on(cluster):
    c = kept_cluster(cluster)
    jobs = [Job(c, 2), Job(c, 4, sizes=[50_000, 3])]
    for job in jobs:
        job.goes_on()
    for _ in range(3):
        begun = time.monotonic()
        n = [a.restarts for a in c.agents]
        for a in c.agents:
            a.process.send_signal(signal.SIGKILL)
        for a, before in zip(c.agents, n):
            c.wait_for("the agent runs again", lambda a=a, before=before: a.restarts > before)
        for job in jobs:
            job.goes_on()
            assert job.longest_since(begun) < 10
    for job in jobs:
        job.finish()
    assert not losses(c.agents)


def test_deterministic_sums_are_those_of_an_undisturbed_run(cluster):
    c = kept_cluster(cluster)
    args = {"n_rounds": 60, "deterministic": True}
    quiet = Job(c, 4, args=args)
    want = c.finish(quiet.workers)
    job = Job(c, 4, args=args)
    job.goes_on()
    for a in (0, 1, 0, 1):
        c.agents[a].die()
        if job.rounds() > 50:
            break
        job.goes_on(1)
    assert c.finish(job.workers) == want


def test_restarts_while_tensors_are_declared(cluster):
    c = kept_cluster(cluster)
    job = Job(c, 4, sizes=[1000], args={"declare_each": 1, "n_rounds": 100})
    job.goes_on()
    kills = 0
    while job.rounds() < 95 and kills < 8:
        c.agents[kills % 2].die()
        kills += 1
    c.finish(job.workers)
    assert kills > 1


def test_barriers_are_passed_once_when_agents_restart(cluster):
    """Kill agents before and after barriers. Each barrier is passed exactly once."""
    c = kept_cluster(cluster)
    job = Job(c, 4, sizes=[100], args={"barrier_each": 1})
    job.goes_on()
    for kill in range(8):
        c.agents[kill % 2].die(signal.SIGKILL if kill % 3 else signal.SIGTERM)
        job.goes_on(1 + kill % 3)
    job.finish()
    assert not losses(c.agents)


def test_barrier_message_is_handled_once_when_the_agent_dies_meanwhile(cluster):
    """Kill the agent at each barrier, before it has recorded that it handled the message.

    The next process finds the message in the socket again. By then, the trainer may have passed
    the barrier and submitted its next round.
    """
    c = kept_cluster(cluster)
    job = Job(c, 4, sizes=[100], args={"barrier_each": 1})
    job.goes_on()
    victim = c.agents[1]
    victim.start_faults = "agent.trainer.barrier=crash,after=1"
    victim.die()
    c.wait_for("the agent has died 30 times", lambda: victim.restarts > 30)
    victim.start_faults = ""
    job.goes_on()
    job.finish()
    about_faults = ("faults will be injected", "a fault is injected")
    assert all(any(words in line for words in about_faults) for line in losses(c.agents))


def test_restarts_while_a_machine_joins_cost_no_worker(cluster):
    """Kill each agent, including the newcomer's, while the newcomer joins.

    After the newcomer has been admitted, kill the newcomer's agent again.
    """
    c = kept_cluster(cluster, agents=3)
    go = c.dir / "go"
    args = {
        "n_elems": 5000,
        "n_rounds": 20,
        "every": 25,
        "elastic": 1,
        "max_size": 3,
        "pause": 0.02,
        "go": str(go),
    }
    started, progress = c.start_running("growing", 2, args, job="grow", placement=[0, 1])
    new = c.add_worker(2, "growing", args, 2, 2, "grow")
    for a in (2, 0, 2, 1, 2):
        c.agents[a].die()
    c.wait_for("rank 2 is admitted", lambda: "admits rank 2" in c.scheduler.log.read_text())
    c.agents[2].die()
    progress.goes_on()
    go.touch()
    results = c.finish([*started, new])
    assert [r["code"] for r in results] == [0, 0, 0], results
    assert len({r["weights"] for r in results}) == 1
    assert results[0]["masks"][list(results[0]["masks"])[-1]] == [0b111]


def test_newcomer_whose_agent_dies_before_it_is_told_joins_at_the_right_barrier(cluster):
    """Kill the agent of a newcomer after it has recorded the job and before it sends JOB."""
    c = kept_cluster(cluster, agents=3)
    go = c.dir / "go"
    args = {
        "n_elems": 5000,
        "n_rounds": 20,
        "every": 4,
        "elastic": 1,
        "max_size": 3,
        "pause": 0.02,
        "go": str(go),
    }
    started, progress = c.start_running("growing", 2, args, job="grow", placement=[0, 1])
    c.agents[2].start_faults = "agent.job.welcome=crash"
    c.agents[2].die()
    c.agents[2].start_faults = ""
    n = c.agents[2].restarts
    new = c.add_worker(2, "growing", args, 2, 2, "grow")
    c.wait_for("the newcomer's agent has died", lambda: c.agents[2].restarts > n)
    progress.goes_on()
    go.touch()
    results = c.finish([*started, new])
    assert [r["code"] for r in results] == [0, 0, 0], results
    assert len({r["weights"] for r in results}) == 1
    assert results[0]["masks"][list(results[0]["masks"])[-1]] == [0b111]


def test_jobs_begin_and_end_while_their_agents_die(cluster):
    c = kept_cluster(cluster)
    jobs, kills = [], 0
    while kills < 7:
        jobs.append(Job(c, 4, sizes=[500], args={"n_rounds": 3}))
        c.agents[kills % 2].die()
        kills += 1
    for job in jobs:
        c.finish(job.workers)
    c.wait_for(
        "the managers keep no descriptor of a job",
        lambda: all(a.names() == ["cluster", "listen"] for a in c.agents),
    )


@pytest.mark.parametrize("local", [False, True], ids=["two machines", "one machine"])
def test_trainer_that_comes_while_the_agent_is_away_waits(cluster, local):
    c = kept_cluster(cluster, agents=1 if local else 2)
    a = c.agents[0]
    a.restart_s = 2
    n = a.restarts
    a.process.send_signal(signal.SIGKILL)
    a.process.wait(20)
    job = Job(c, 2, args={"n_rounds": 5})
    assert a.restarts == n
    c.finish(job.workers)
    assert a.restarts == n + 1


def test_trainer_that_dies_while_the_agent_is_away_ends_its_job_and_no_other(cluster):
    c = kept_cluster(cluster)
    jobs = [Job(c, 4), Job(c, 2)]
    for job in jobs:
        job.goes_on()
    a = c.agents[0]
    a.restart_s = 1
    n = a.restarts
    a.process.send_signal(signal.SIGKILL)
    a.process.wait(20)
    jobs[0].workers[0].process.kill()
    jobs[0].workers[0].process.wait()
    assert a.restarts == n
    for w in jobs[0].workers[1:]:
        w.process.wait(20)
        assert "BPS_EWORKER_LOST" in w.text() or "rank 0" in w.text(), w.text()
    jobs[1].goes_on()
    jobs[1].finish()


def test_scheduler_and_server_that_die_with_the_agent_cost_no_more(cluster):
    c = kept_cluster(cluster, servers=3)
    c.scheduler.args[c.scheduler.args.index("--listen") + 1] = f"127.0.0.1:{c.scheduler.port}"
    job = Job(c, 4)
    job.goes_on()
    for other in (c.servers[0], c.scheduler):
        other.kill()
        c.agents[0].process.send_signal(signal.SIGKILL)
        n = c.agents[0].restarts
        other.start()
        c.wait_for("agent a0 runs again", lambda n=n: c.agents[0].restarts > n)
        c.agents[1].die()
        c.agents[1].die()  # kill the agent again while it still reconnects
        job.goes_on()
    job.finish()


def scheduler_stays(c):
    c.scheduler.args[c.scheduler.args.index("--listen") + 1] = f"127.0.0.1:{c.scheduler.port}"


def test_drained_agent_that_is_stopped_is_not_waited_for(cluster):
    c = kept_cluster(cluster)
    job = Job(c, 4)
    job.goes_on()
    a = c.agents[0]
    a.restart_s = 60  # the agent is not restarted during this test
    p = c.bpsctl("--scheduler", f"127.0.0.1:{c.scheduler.port}", "drain", "a0")
    assert p.returncode == 0, p
    job.goes_on()
    at = time.monotonic()
    a.is_stopping = True
    a.process.send_signal(signal.SIGTERM)
    c.wait_for(
        "the scheduler declares agent a0 down",
        lambda: "a0: suspect -> down, drained, and stopped" in c.scheduler.log.read_text(),
    )
    # The scheduler waits 30 s (--agent-window) for an agent to restart. A drained agent must be
    # down earlier.
    assert time.monotonic() - at < 10
    for w in job.workers[2:]:
        w.process.wait(20)
        assert re.search("agent 'a0'.*is lost", w.text()), w.text()


def test_agent_that_restarts_without_scheduler_goes_on_without_servers(cluster):
    """Kill an agent while the scheduler is down.

    The agent's job without servers continues at once. The job with servers continues after the
    scheduler has started again and has notified the servers of the agent's restart.
    """
    c = kept_cluster(cluster)
    scheduler_stays(c)
    here, both = Job(c, 2, placement=[0, 0]), Job(c, 4)
    for job in (here, both):
        job.goes_on()
    c.scheduler.kill()
    for sig in (signal.SIGKILL, signal.SIGTERM):
        c.agents[0].die(sig)
        here.goes_on()
    c.scheduler.start()
    both.goes_on()
    both.finish()
    here.finish()
    c.agents[0].die()  # kill the agent once more, now that it has no jobs


def test_restarted_agent_takes_no_other_scheduler(cluster):
    """A restarted agent that has jobs accepts only the scheduler of these jobs (rule C8)."""
    other = kept_cluster(cluster, agents=0, servers=1)
    c = kept_cluster(cluster)
    scheduler_stays(c)
    job = Job(c, 4)
    job.goes_on()
    other.scheduler.kill()
    at = other.scheduler.args.index("--listen") + 1
    other.scheduler.args[at] = f"127.0.0.1:{c.scheduler.port}"
    c.scheduler.kill()
    other.scheduler.start()
    c.agents[0].die()
    lives = c.agents[0].log.read_text().count("rejected a scheduler")
    c.wait_for(
        "the agent rejects the other scheduler",
        lambda: c.agents[0].log.read_text().count("rejected a scheduler") > lives,
    )
    other.scheduler.kill()
    c.scheduler.start()
    job.goes_on()
    job.finish()


def test_agent_that_stays_away_for_too_long_is_lost(cluster):
    c = kept_cluster(cluster, scheduler_args=["--agent-window", "1s", "--agent-dead", "2s"])
    job = Job(c, 4)
    job.goes_on()
    c.agents[0].restart_s = 4
    c.agents[0].die()
    for w in job.workers:
        w.process.wait(20)
        assert w.process.returncode != 0
        assert re.search("agent 'a0'.*is lost", w.text()), w.text()


def test_manager_that_stops_reading_gets_kept_descriptors_later(cluster):
    c = kept_cluster(cluster)
    a = c.agents[0]
    a.stand_still(True)
    jobs = [Job(c, 4, sizes=[50_000, 3]), Job(c, 2)]
    c.wait_for(
        "the agent reports a slow service manager",
        lambda: "the service manager is slow" in a.log.read_text(),
    )
    for job in jobs:
        job.goes_on(10)
    assert "accepted all waiting descriptors" not in a.log.read_text()
    jobs[1].finish()  # the job ends while the manager reads no messages
    a.stand_still(False)
    c.wait_for(
        "the manager keeps all descriptors",
        lambda: "accepted all waiting descriptors" in a.log.read_text(),
    )
    a.die()
    jobs[0].goes_on(10)
    jobs[0].finish()
    c.wait_for(
        "the manager keeps no descriptor of a job", lambda: a.names() == ["cluster", "listen"]
    )


def test_descriptor_that_the_manager_lost_ends_its_job_with_a_clear_error(cluster):
    c = kept_cluster(cluster)
    jobs = two_jobs(c)
    a = c.agents[0]
    ledger = min(
        (name for name in a.names() if name.endswith(".l")), key=lambda name: int(name[1:-2])
    )
    a.lose(ledger.replace(".l", ".m"))
    a.die()
    must_fail(c, jobs[0])
    assert "cannot continue this job: the service manager has lost" in jobs[0].workers[0].text()
    jobs[1].goes_on()
    jobs[1].finish()


def test_damaged_ledger_ends_its_job_with_a_clear_error(cluster):
    c = kept_cluster(cluster)
    jobs = two_jobs(c)
    a = c.agents[0]
    ledger = min(
        (name for name in a.names() if name.endswith(".l")), key=lambda name: int(name[1:-2])
    )
    os.pwrite(dict(a.store)[ledger], b"\xff", 64 + 32 + 5)
    a.die()
    must_fail(c, jobs[0])
    assert "the ledger of the previous process is damaged" in a.log.read_text()
    jobs[1].goes_on()
    jobs[1].finish()


@pytest.mark.parametrize("is_lost", [False, True])
def test_no_trainer_gets_the_reason_of_another_job(cluster, is_lost):
    """Damage the ledgers of two jobs in two ways, or damage one and lose the other."""
    c = kept_cluster(cluster, agents=1)
    jobs = two_jobs(c)
    a = c.agents[0]
    first, second = sorted((n for n in a.names() if n.endswith(".l")), key=lambda n: int(n[1:-2]))
    os.pwrite(dict(a.store)[first], (77).to_bytes(4, "little"), 4)
    if is_lost:
        a.lose(second)
    else:
        os.pwrite(dict(a.store)[second], b"\xff", 64 + 32 + 5)
    a.die()
    for job in jobs:
        must_fail(c, job)
        for w in job.workers:
            assert "cannot continue this job: its records are lost or cannot be read" in w.text()
            assert "version 77" not in w.text()
    assert "has version 77" in a.log.read_text()


@pytest.mark.parametrize(
    "kept, words",
    [
        ("l", "ledger of the previous process has version 77, but this release .* version [0-9]+:"),
        ("c", "libbpsclient uses protocol version 77, but this bps-agent .* version [0-9]+:"),
    ],
)
def test_hand_over_of_another_version_ends_its_job_with_both_versions(cluster, kept, words):
    """Change the version in a job's ledger, or in the control page of one of its trainers."""
    c = kept_cluster(cluster, agents=1)
    jobs = two_jobs(c)
    a = c.agents[0]
    name = min((n for n in a.names() if n.endswith(f".{kept}")), key=lambda n: int(n[1:-2]))
    os.pwrite(dict(a.store)[name], (77).to_bytes(4, "little"), 4)
    a.die()
    must_fail(c, jobs[0])
    for w in jobs[0].workers:
        assert re.search(f"cannot continue this job: .*{words} start the job again", w.text())
    assert "cannot continue a job of the previous process" in a.log.read_text()
    jobs[1].goes_on()
    jobs[1].finish()


def test_agent_keeps_nothing_with_keep_trainers_no(cluster):
    c = kept_cluster(cluster, args=["--keep-trainers=no"])
    job = Job(c, 4)
    job.goes_on()
    assert c.agents[0].most_kept == 0
    c.agents[0].kill()
    for w in job.workers:
        w.process.wait(20)
        assert w.process.returncode != 0
