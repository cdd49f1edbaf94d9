"""Servers are drained, undrained, and added while jobs run. No round fails, all sums are exact."""

import json
import re
import signal

import bps
from keeper import KeptDaemon

N_TENSORS = 24


def start_rounds(c, workers, name="drained", n_tensors=N_TENSORS):
    """Start a job with many partitions, which runs until its stop file appears."""
    stop = c.dir / f"stop-{name}"
    args = {"n_elems": 8000, "n_tensors": n_tensors, "stop": str(stop)}
    return *c.start_running("rounds_while", workers, args, job=name), stop


def finish(c, started, stop):
    stop.touch()
    results = c.finish(started)
    assert len({r["rounds"] for r in results}) == 1, results
    return results


def test_server_is_drained_and_undrained_under_load(cluster):
    c = cluster(agents=3, servers=3)
    started, progress, stop = start_rounds(c, 3)
    assert all(c.member(f"s{i}")["partitions"] for i in range(3))
    n = c.member("s1")["partitions"]
    p = c.steer("drain", "s1", "--dry-run")
    assert f"would move {n} partitions, " in p.stdout and "to 2 other servers" in p.stdout, p
    p = c.steer("drain", "s1", "--dry-run", "--wait")
    assert p.returncode == 64 and "without --wait and --reason" in p.stderr, p
    p = c.steer("drain", "a0", "--dry-run")
    assert "its 1 running job would go on" in p.stdout and not c.member("a0")["is_drained"], p
    assert not c.member("s1")["is_drained"]
    p = c.steer("drain", "s1", "--reason", "new disk")
    assert p.returncode == 0 and "move to 2 other servers" in p.stdout, p
    c.wait_for("s1 is empty", lambda: not c.member("s1")["partitions"])
    progress.goes_on()
    text = c.bpsctl("servers").stdout
    assert "drained" in text and "drained: new disk, by " in text, text
    p = c.bpsctl("status")
    assert p.returncode == 0 and "drained" in p.stdout, p.stdout
    p = c.steer("drain", "s1", "--wait")
    assert p.returncode == 0 and "has no partitions any more" in p.stdout, p
    assert c.steer("drain", "s0").returncode == 0
    for words in (["drain", "s2", "--dry-run"], ["drain", "s2"]):
        p = c.steer(*words)
        assert p.returncode == 2 and "'s2' is the last server that accepts" in p.stderr, p
    c.wait_for("s2 has all", lambda: not c.member("s0")["partitions"])
    text = c.bpsctl("servers").stdout
    assert "drained: by " in text and "drained: new disk, by " in text, text
    assert c.steer("undrain", "s0").returncode == 0
    assert c.steer("undrain", "s1").returncode == 0
    c.wait_for(
        "each server has partitions",
        lambda: all(c.member(f"s{i}")["partitions"] > N_TENSORS // 4 for i in range(3)),
    )
    progress.goes_on()
    told = c.events()
    assert any(k == "steer" and "drain s1: server s1 is being drained" in t for k, t in told), told
    assert any(k == "partitions" and "move away" in t for k, t in told), told
    finish(c, started, stop)


def test_wait_for_a_drain_shows_what_is_left(cluster):
    c = cluster(agents=2, servers=2, scheduler_args=("--agent-dead", "60s"))
    started, _, stop = start_rounds(c, 2, n_tensors=100)
    c.agents[1].kill(signal.SIGSTOP)  # which must apply the first moves before the next ones
    p = c.steer("drain", "s1", "--wait", "--timeout", "2500ms")
    c.agents[1].kill(signal.SIGCONT)
    left = [int(n) for n in re.findall(r"(?m)^(\d+) partitions? left$", p.stdout)]
    assert p.returncode == 1 and left and left == sorted(left, reverse=True), p
    assert f"s1 still has {left[-1]} partition" in p.stderr, p
    c.wait_for("s1 is empty", lambda: not c.member("s1")["partitions"])
    finish(c, started, stop)


def test_drain_outlives_a_restart_of_server_and_scheduler(cluster):
    c = cluster(agents=2, servers=2)
    assert c.steer("drain", "server:s1").returncode == 0
    c.servers[1].kill()
    c.scheduler.pin()
    restart(c.scheduler)
    c.servers[1].start()
    c.wait_for("all members are up", lambda: all_up(c))
    assert c.member("s1")["is_drained"]
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5, "n_tensors": N_TENSORS})
    assert c.servers[1].status()["rounds"] == 0 and c.servers[0].status()["rounds"] > 0


def test_new_server_takes_its_share_of_a_running_job(cluster):
    c = cluster(agents=2, servers=1)
    started, progress, stop = start_rounds(c, 2)
    c.add_server(1)
    c.wait_for("s1 has its half", lambda: c.member("s1")["partitions"] == N_TENSORS // 2)
    progress.goes_on()
    views = c.scheduler.status()["view"]
    progress.goes_on(50)
    assert c.scheduler.status()["view"] == views
    finish(c, started, stop)


def test_drained_agent_takes_no_new_job_and_says_why(cluster):
    c = cluster(agents=2, servers=1)
    started, progress, stop = start_rounds(c, 2)
    assert c.steer("drain", "a1", "--reason", "card is hot").returncode == 0
    for told in c.run("error", 2, {"what": "nothing"}, job="new", placement=[1, 1]):
        assert told["code"] == bps.EDRAINED and "card is hot" in told["text"], told
    assert c.run("rounds", 2, {"n_elems": 10, "n_rounds": 1}, job="elsewhere", placement=[0, 0])
    progress.goes_on()
    assert (
        json.loads(c.bpsctl("--json", "agents").stdout)["members"][1]["drain_reason"]
        == "card is hot"
    )
    finish(c, started, stop)


def restart(daemon):
    """Restart a daemon as systemd does: send SIGTERM, wait for its end, start it again."""
    daemon.kill(signal.SIGTERM)
    assert daemon.process.returncode == 0, daemon.log.read_text()[-2000:]
    daemon.start()


def all_up(c):
    return {m["state"] for m in c.scheduler.status()["members"]} == {"up"}


def test_rolling_restart_of_all_daemons_costs_no_round(cluster):
    c = cluster(agents=0, servers=3)
    for i in range(3):
        c.add_agent(i, kind=KeptDaemon)
    started, progress, stop = start_rounds(c, 3)
    c.scheduler.pin()
    restart(c.scheduler)
    c.wait_for("all members are up", lambda: all_up(c))
    progress.goes_on()
    for s in c.servers:
        restart(s)
        log = s.log.read_text()
        assert "ending the server: no partition is left" in log, log[-2000:]
        c.wait_for(
            "the server has its share of partitions again",
            lambda s=s: c.member(s.name)["partitions"] > N_TENSORS // 4,
        )
        progress.goes_on()
    texts = [text for kind, text in c.events() if kind == "partitions"]
    assert not [t for t in texts if "start again on" in t or "moved from server" in t], texts
    for a in c.agents:
        a.die(signal.SIGTERM)
        progress.goes_on()
    finish(c, started, stop)  # the workers have compared every sum
    assert [m["restarts"] for m in c.scheduler.status()["members"]] == [1] * 6


def test_last_server_ends_at_once_and_its_next_process_goes_on(cluster):
    c = cluster(agents=2, servers=1)
    started, progress, stop = start_rounds(c, 2)
    restart(c.servers[0])
    assert "no other server accepts partitions" in c.servers[0].log.read_text()
    progress.goes_on()
    finish(c, started, stop)


def test_server_without_a_scheduler_ends_in_bounded_time(cluster):
    c = cluster(agents=2, servers=2)
    started, progress, stop = start_rounds(c, 2)
    c.scheduler.kill()
    c.servers[0].kill(signal.SIGTERM)
    log = c.servers[0].log.read_text()
    assert "ending the server: the scheduler cannot be reached" in log, log
    c.scheduler.pin()
    c.scheduler.start()
    c.servers[0].start()
    progress.goes_on()
    finish(c, started, stop)


def test_second_signal_ends_a_server_at_once(cluster):
    c = cluster(agents=2, servers=2)
    started, progress, stop = start_rounds(c, 2)
    c.scheduler.kill(signal.SIGSTOP)
    s = c.servers[0]
    s.process.terminate()
    c.wait_for(
        "the server waits for the scheduler",
        lambda: "stopping the server: idle -> asked" in s.log.read_text(),
    )
    assert s.process.poll() is None
    s.kill(signal.SIGTERM)
    assert "ending the server:" not in s.log.read_text()
    c.scheduler.kill(signal.SIGCONT)
    s.start()
    progress.goes_on()
    finish(c, started, stop)
