"""Jobs whose members change: machines leave and join, and the sums stay exact."""

import os
import re
import signal
import subprocess
import sys

import bps
from cluster import BUILD, ROOT
from elastic import WINDOW, agreed, lost


def test_job_goes_on_without_a_machine_whose_worker_is_killed(cluster):
    c = cluster(agents=3, servers=2)
    args = {"n_elems": 60000, "n_rounds": 12, "victim": 1, "at": 6, "on_agent_loss": "shrink"}
    started = c.start_job("elastic", 3, args)
    results = c.finish([started[0], started[2]])
    masks = agreed(results)
    assert masks[4] == [0b111] and masks[-1] == [0b101]
    assert all(m in ([0b111], [0b101], [0b101, 0b111]) for m in masks)
    for r in results:
        assert list(lost(r)) == [1] and "rank 1 (host agent-host1" in lost(r)[1]
        assert r["missing"] == [1]
    assert "goes on without agent a1" in c.scheduler.log.read_text()
    assert "goes on without agent a1" in c.bpsctl("events").stdout


def test_job_goes_on_without_a_machine_that_is_lost_with_its_agent(cluster):
    c = cluster(agents=3, servers=2, scheduler_args=WINDOW)
    args = {"n_elems": 40000, "n_rounds": 40, "on_agent_loss": "shrink", "pause": 0.02}
    started, _ = c.start_running("elastic", 6, args)
    for w in started[4:]:
        w.process.kill()
    c.agents[2].kill()
    results = c.finish(started[:4])
    masks = agreed(results)
    assert masks[0] == [0b111111] and masks[-1] == [0b001111]
    assert sorted(lost(results[0])) == [4, 5]


def test_removed_machine_gets_an_error(cluster):
    c = cluster(agents=3, servers=1, scheduler_args=WINDOW)
    args = {"n_elems": 30000, "n_rounds": 150, "on_agent_loss": "shrink", "pause": 0.02}
    started, _ = c.start_running("elastic", 3, args)
    c.agents[1].kill(signal.SIGSTOP)
    c.wait_for(
        "the job goes on without agent a1",
        lambda: "goes on without agent a1" in c.scheduler.log.read_text(),
    )
    c.agents[1].kill(signal.SIGCONT)
    results = c.finish(started)
    masks = agreed([results[0], results[2]])
    assert masks[-1] == [0b101]
    assert results[1]["code"] == bps.EEVICTED
    assert "no longer in job" in results[1]["text"], results[1]["text"]
    # The removed machine must have the same results as the other machines, except for its last
    # round.
    assert results[1]["rounds"][:-1] == results[0]["rounds"][: len(results[1]["rounds"]) - 1]


def test_machine_and_server_are_lost_at_once_and_sums_stay_exact(cluster):
    c = cluster(agents=3, servers=2, scheduler_args=WINDOW)
    args = {"n_elems": 40000, "n_rounds": 40, "on_agent_loss": "shrink", "pause": 0.02}
    started, _ = c.start_running("elastic", 3, args)
    c.agents[0].process.kill()
    started[0].process.kill()
    c.servers[1].kill()
    c.agents[0].process.wait(30)
    assert agreed(c.finish(started[1:]))[-1] == [0b110]


def test_deterministic_sums_skip_a_lost_machine(cluster):
    c = cluster(agents=3, servers=2)
    args = {
        "n_elems": 50000,
        "n_rounds": 10,
        "victim": 0,
        "at": 3,
        "on_agent_loss": "shrink",
        "deterministic": 1,
    }
    started = c.start_job("elastic", 3, args)
    assert agreed(c.finish(started[1:]))[-1] == [0b110]


def test_workers_that_disagree_about_losses_are_refused(cluster):
    c = cluster(agents=2, servers=1)
    args = {"what": "nothing", "open": {"open_timeout": 10}}
    shrinks = {"what": "nothing", "open": {"open_timeout": 10, "on_agent_loss": "shrink"}}
    workers = [
        c.add_worker(0, "error", args, 0, 2, "mixed"),
        c.add_worker(1, "error", shrinks, 1, 2, "mixed"),
    ]
    texts = [r["text"] for r in c.finish(workers)]
    # The option flags of the two workers differ. The scheduler refuses the worker that joined
    # after the other.
    assert any("option flags" in text for text in texts), texts


def test_without_the_option_a_lost_machine_ends_the_job_and_is_named(cluster):
    c = cluster(agents=2, servers=1, scheduler_args=WINDOW)
    args = {"n_elems": 40000, "n_rounds": 4000, "pause": 0.01}
    started, _ = c.start_running("elastic", 2, args)
    started[1].process.kill()
    c.agents[1].process.kill()
    c.agents[1].process.wait(30)
    (r,) = c.finish(started[:1])
    assert r["code"] in (bps.EAGENT_LOST, bps.EWORKER_LOST)
    assert "agent-host1" in r["text"], r["text"]


def test_backup_machine_is_not_waited_for_and_gets_what_the_others_got(cluster):
    c = cluster(agents=3, servers=2)
    slow = {"rank": 2, "first": 4, "last": 4, "seconds": 4}
    args = {"n_elems": 40000, "n_rounds": 6, "backup": 1, "backup_grace": 0.5, "slow": slow}
    masks = agreed(c.run("elastic", 3, args))
    assert masks[3] == [0b011], masks
    assert all(set(m) <= {0b011, 0b101, 0b110, 0b111} for m in masks), masks
    metrics = "".join(s.get("/metrics") for s in c.servers)
    assert sum(int(n) for n in re.findall(r"^bps_server_late_total (\d+)", metrics, re.M)) > 0


def test_backup_machine_of_a_slow_server_pair_survives_their_loss(cluster):
    c = cluster(agents=3, servers=2)
    slow = {"rank": 1, "first": 3, "last": 25, "seconds": 0.05}
    args = {"n_elems": 40000, "n_rounds": 30, "backup": 1, "backup_grace": 0.01, "slow": slow}
    started, _ = c.start_running("elastic", 3, args, after=4)
    c.servers[0].kill()
    masks = agreed(c.finish(started))
    assert all(set(m) <= {0b011, 0b101, 0b110, 0b111} for m in masks), masks


def test_broadcast_waits_for_its_root_also_when_it_is_late(cluster):
    c = cluster(agents=3, servers=1)
    assert c.run("late_root", 3, {"backup": 1, "late_s": 0.5}) == [[10]] * 3


def test_broadcast_of_a_root_that_is_lost_is_an_error_and_no_zeros(cluster):
    c = cluster(agents=3, servers=1)
    started = c.start_job("root_lost", 3, {"n_bytes": 300_000})
    assert c.finish(started[1:]) == [[bps.EWORKER_LOST, [11]]] * 2


def test_deterministic_sums_and_backup_machines_exclude_each_other(cluster):
    c = cluster(agents=2, servers=1)
    options = {"backup": 1, "deterministic": 1, "open_timeout": 5}
    for r in c.run("error", 2, {"what": "nothing", "open": options}):
        assert r["code"] == -22 and "set only one of" in r["text"], r


def test_machine_joins_a_running_job_and_has_the_weights_of_the_others(cluster):
    c = cluster(agents=3, servers=2)
    go = c.dir / "go"
    args = {
        "n_elems": 20000,
        "n_rounds": 20,
        "every": 2,
        "elastic": 1,
        "max_size": 3,
        "pause": 0.02,
        "go": str(go),
    }
    started, progress = c.start_running("growing", 2, args, job="grow", placement=[0, 1])
    new = c.add_worker(2, "growing", args, 2, 2, "grow")
    c.wait_for("rank 2 is admitted", lambda: "admits rank 2" in c.scheduler.log.read_text())
    progress.goes_on()
    go.touch()
    results = c.finish([*started, new])
    assert len({r["weights"] for r in results}) == 1
    first = results[2]["first"]
    assert first > 0 and results[0]["first"] == 0
    for step, masks in results[0]["masks"].items():
        assert masks == ([0b011] if int(step) <= first else [0b111]), (step, masks, first)
    assert results[2]["masks"] == {s: m for s, m in results[0]["masks"].items() if int(s) > first}
    assert [w["is_new"] for w in results[0]["people"]] == [False, False, True]


def test_lost_machine_is_replaced_by_another_that_joins(cluster):
    c = cluster(agents=3, servers=2)
    go = c.dir / "go"
    args = {
        "n_elems": 20000,
        "n_rounds": 20,
        "every": 3,
        "elastic": 1,
        "max_size": 2,
        "pause": 0.02,
        "go": str(go),
    }
    started = c.start_job("growing", 2, dict(args, victim=1, at=4), job="heal", placement=[0, 1])
    c.wait_for(
        "the job goes on without agent a1",
        lambda: "goes on without agent a1" in c.scheduler.log.read_text(),
    )
    new = c.add_worker(2, "growing", args, 1, 2, "heal")
    c.wait_for("rank 1 is admitted", lambda: "admits rank 1" in c.scheduler.log.read_text())
    (r,) = c.finish([c.add_worker(1, "growing", args, 0, 2, "heal")])
    assert r["code"] == bps.EDUP and "has all its 2 workers" in r["text"], r
    go.touch()
    results = c.finish([started[0], new])
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["masks"][list(results[0]["masks"])[-1]] == [0b11]


def test_removed_machine_joins_again(cluster):
    c = cluster(agents=2, servers=1)
    go = c.dir / "go"
    args = {
        "n_elems": 5000,
        "n_rounds": 20,
        "every": 2,
        "elastic": 1,
        "max_size": 2,
        "pause": 0.02,
        "go": str(go),
    }
    started, progress = c.start_running(
        "growing", 2, dict(args, victim=1, at=4), after=0, job="back", placement=[0, 1]
    )
    c.wait_for(
        "the job goes on without agent a1",
        lambda: "goes on without agent a1" in c.scheduler.log.read_text(),
    )
    new = c.add_worker(1, "growing", args, 1, 2, "back")
    c.wait_for("rank 1 is admitted", lambda: "admits rank 1" in c.scheduler.log.read_text())
    progress.goes_on(3)
    c.servers[0].kill()
    c.servers[0].start()
    go.touch()
    results = c.finish([started[0], new])
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["masks"][list(results[0]["masks"])[-1]] == [0b11]


def test_barrier_names_missing_workers_and_is_passed_when_they_come(cluster):
    c = cluster(agents=3, servers=1)
    results = c.run("barrier_late", 3, {"late_rank": 1, "timeout": 1.0})
    for r in (results[0], results[2]):
        assert "waiting for rank 1 (host agent-host1" in r["text"] and "barrier" in r["text"], r
        assert "is at a barrier" in r["busy"], r


def test_no_worker_joins_a_running_job_that_is_not_elastic(cluster):
    c = cluster(agents=2, servers=1)
    args = {"n_elems": 100, "n_rounds": 300, "pause": 0.01}
    started, _ = c.start_running(
        "elastic", 1, args, job="closed", placement=[0], env={"BPS_FORCE_DISTRIBUTED": "1"}
    )
    env = {"BPS_FORCE_DISTRIBUTED": "1"}
    late = c.start_job(
        "error",
        1,
        {"what": "nothing", "open": {"open_timeout": 5}},
        job="closed",
        placement=[1],
        env=env,
    )
    (r,) = c.finish(late)
    assert r["code"] == bps.EDUP, r
    for w in started:
        w.process.kill()


def test_job_is_resumed_with_more_and_with_fewer_workers_and_other_servers(cluster):
    c = cluster(agents=3, servers=2)
    ready, wait = c.dir / "ready", c.dir / "wait"
    args = {"sizes": [2, 3, 1], "n_elems": 200000, "ready": str(ready), "wait": str(wait)}
    started = [c.add_worker(a, "resized", args, a, 2, "resize") for a in (0, 1)]
    c.wait_for("the first phase", (c.dir / "ready.0").exists)
    c.add_server(2)
    late = c.add_worker(2, "resized", dict(args, first_phase=1), 2, 3, "resize")
    (c.dir / "wait.0").touch()
    c.wait_for("the second phase", (c.dir / "ready.1").exists)
    c.servers[0].kill()
    (c.dir / "wait.1").touch()
    results = c.finish([*started, late])
    assert [len(r) for r in results] == [3, 2, 1], results


def test_suspend_that_timed_out_is_called_again(cluster):
    c = cluster(agents=2, servers=1)
    assert c.run("suspended_in_vain", 2, {"late": str(c.dir / "late")}) == [3, 3]


def test_workers_whose_results_differ_end_the_job_and_are_named(cluster):
    c = cluster(agents=2, servers=1)
    c.add_agent(2, "--faults", "agent.contrib.echo=drop,after=20")
    args = {"n_elems": 20000, "n_rounds": 200, "n_tensors": 1}
    for r in c.run("elastic", 3, args):
        assert r["code"] == bps.EDIVERGED, r
        assert "agent-host2" in r["text"] and "that differs from" in r["text"], r["text"]


def test_screens_show_workers_that_left_and_that_wait(cluster):
    c = cluster(agents=3, servers=1)
    go = c.dir / "go"
    args = {
        "n_elems": 100,
        "n_rounds": 5,
        "every": 1000,
        "elastic": 1,
        "max_size": 3,
        "pause": 0.02,
        "go": str(go),
    }
    started = c.start_job("growing", 2, dict(args, victim=1, at=4), job="screen", placement=[0, 1])
    c.wait_for(
        "the job goes on without agent a1",
        lambda: "goes on without agent a1" in c.scheduler.log.read_text(),
    )
    new = c.add_worker(2, "growing", args, 2, 2, "screen")
    c.wait_for("the newcomer waits", lambda: c.scheduler.status()["jobs"][0]["newcomers"] == 1)
    text = c.bpsctl("job", "screen").stdout
    assert (
        "goes on without host agent-host1 (1 worker)" in text
        and "1 worker waits for admission" in text
    ), text
    (job,) = c.scheduler.status()["jobs"]
    assert job["lost"][0]["agent"] == "a1" and job["agents"] == ["a0"] and job["max_size"] == 3
    go.touch()
    c.finish(started[:1])
    (r,) = c.finish([new])
    assert r["code"] == bps.ECLOSED, r


def test_newcomer_that_dies_while_it_waits_leaves_its_place_to_another(cluster):
    c = cluster(agents=3, servers=1)
    go = c.dir / "go"
    args = {
        "n_elems": 100,
        "n_rounds": 5,
        "every": 1000,
        "elastic": 1,
        "max_size": 3,
        "pause": 0.02,
        "go": str(go),
    }
    started, _ = c.start_running("growing", 2, args, after=1, job="wait", placement=[0, 1])
    for _ in range(2):
        new = c.add_worker(2, "growing", args, 2, 2, "wait")
        c.wait_for("the newcomer waits", lambda: c.scheduler.status()["jobs"][0]["newcomers"] == 1)
        new.process.kill()
        c.wait_for(
            "the newcomer's place is free",
            lambda: c.scheduler.status()["jobs"][0]["newcomers"] == 0,
        )
    assert "has left before its admission" in " ".join(c.bpsctl("events").stdout.split())
    new = c.add_worker(2, "growing", args, 2, 2, "wait")
    c.wait_for("the newcomer waits", lambda: c.scheduler.status()["jobs"][0]["newcomers"] == 1)
    go.touch()
    c.finish(started)
    (r,) = c.finish([new])
    assert r["code"] == bps.ECLOSED, r


def test_bpsrun_goes_on_without_a_worker_when_the_job_may_shrink():
    code = (
        "import bps, os\n"
        "with bps.open() as job:\n"
        "    t = job.declare('w', 'i64', 100)\n"
        "    for r in range(20):\n"
        "        t.input[:] = 1\n"
        "        t.push_pull()\n"
        "        if job.rank == 1 and r == 5: os.kill(os.getpid(), 9)\n"
        "        t.wait(30)\n"
        "    print('behind', t.output[0])\n"
    )
    env = dict(
        os.environ,
        PYTHONPATH=str(ROOT / "libbpsclient" / "python"),
        BPS_LIBRARY=str(BUILD / "libbpsclient.so.0"),
    )
    command = [str(BUILD / "bpsrun"), "-n", "3", "--agents", "3", "--timeout", "60s"]
    for how, want in (("shrink", 0), ("abort", 137)):
        r = subprocess.run(
            [*command, "--on-agent-loss", how, "--", sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=90,
            env=env,
            check=False,
        )
        assert r.returncode == want, (how, r.returncode, r.stdout, r.stderr)
        assert (r.stdout.count("behind 2") == 2) == (how == "shrink"), r.stdout
