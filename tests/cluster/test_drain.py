"""Servers that are drained, come back and come new while jobs run: no round fails, every sum is exact."""

import json
import signal

from keeper import KeptDaemon
from test_faults import rounds_done
from test_steer import bpsctl, events

N_TENSORS = 24


def member(c, name):
    return next(m for m in c.scheduler.status()["members"] if m["name"] == name)


def start_rounds(c, workers, name="drained"):
    """A job of many partitions that goes on until its stop file is there."""
    progress, stop = c.dir / f"progress-{name}", c.dir / f"stop-{name}"
    args = {"n_elems": 8000, "n_tensors": N_TENSORS, "progress": str(progress), "stop": str(stop)}
    started = c.start_job("rounds_while", workers, args, job=name)
    c.wait_for("5 rounds", lambda: rounds_done(progress) > 5)
    return started, progress, stop


def goes_on(c, progress, rounds=5):
    n = rounds_done(progress)
    c.wait_for("rounds go on", lambda: rounds_done(progress) > n + rounds)


def finish(c, started, stop):
    stop.touch()
    results = c.finish(started)
    assert len({r["rounds"] for r in results}) == 1, results
    return results


def test_server_is_drained_and_undrained_under_load(cluster):
    c = cluster(agents=3, servers=3)
    started, progress, stop = start_rounds(c, 3)
    assert all(member(c, f"s{i}")["partitions"] for i in range(3))
    p = bpsctl(c, "drain", "s1", "--reason", "new disk")
    assert p.returncode == 0 and "move to 2 other servers" in p.stdout, p
    c.wait_for("s1 is empty", lambda: not member(c, "s1")["partitions"])
    goes_on(c, progress)
    text = c.bpsctl("servers").stdout
    assert "drained" in text and "drained: new disk, by " in text, text
    p = c.bpsctl("status")
    assert p.returncode == 0 and "drained" in p.stdout, p.stdout
    p = bpsctl(c, "drain", "s1", "--wait")
    assert p.returncode == 0 and "has no partitions any more" in p.stdout, p
    assert bpsctl(c, "drain", "s0").returncode == 0
    p = bpsctl(c, "drain", "s2")
    assert p.returncode == 2 and "'s2' is the last server that takes partitions" in p.stderr, p
    c.wait_for("s2 has all", lambda: not member(c, "s0")["partitions"])
    text = c.bpsctl("servers").stdout
    assert "drained: by " in text and "drained: new disk, by " in text, text
    assert bpsctl(c, "undrain", "s0").returncode == 0
    assert bpsctl(c, "undrain", "s1").returncode == 0
    c.wait_for("all have some", lambda: all(member(c, f"s{i}")["partitions"] > N_TENSORS // 4 for i in range(3)))
    goes_on(c, progress)
    told = events(c)
    assert any(k == "steer" and "drain s1: server s1 is drained" in t for k, t in told), told
    assert any(k == "partitions" and "move away" in t for k, t in told), told
    finish(c, started, stop)


def test_drain_outlives_a_restart_of_server_and_scheduler(cluster):
    c = cluster(agents=2, servers=2)
    assert bpsctl(c, "drain", "server:s1").returncode == 0
    c.servers[1].kill()
    pin_scheduler(c)
    restart(c.scheduler)
    c.servers[1].start()
    c.wait_for("all are back", lambda: {m["state"] for m in c.scheduler.status()["members"]} == {"up"})
    assert member(c, "s1")["is_drained"]
    c.run("rounds", 2, {"n_elems": 100000, "n_rounds": 5, "n_tensors": N_TENSORS})
    assert c.servers[1].status()["rounds"] == 0 and c.servers[0].status()["rounds"] > 0


def test_new_server_takes_its_share_of_a_running_job(cluster):
    c = cluster(agents=2, servers=1)
    started, progress, stop = start_rounds(c, 2)
    c.add_server(1)
    c.wait_for("s1 has its half", lambda: member(c, "s1")["partitions"] == N_TENSORS // 2)
    goes_on(c, progress)
    views = c.scheduler.status()["view"]
    goes_on(c, progress, 50)
    assert c.scheduler.status()["view"] == views
    finish(c, started, stop)


def test_drained_agent_takes_no_new_job_and_says_why(cluster):
    c = cluster(agents=2, servers=1)
    started, progress, stop = start_rounds(c, 2)
    assert bpsctl(c, "drain", "a1", "--reason", "card is hot").returncode == 0
    for told in c.run("error", 2, {"what": "nothing"}, job="new", placement=[1, 1]):
        assert told["code"] == -10023 and "card is hot" in told["text"], told
    assert c.run("rounds", 2, {"n_elems": 10, "n_rounds": 1}, job="elsewhere", placement=[0, 0])
    goes_on(c, progress)
    assert json.loads(c.bpsctl("--json", "agents").stdout)["members"][1]["drain_reason"] == "card is hot"
    finish(c, started, stop)


def restart(daemon):
    """As systemd does it: SIGTERM, wait for the end, start again."""
    daemon.kill(signal.SIGTERM)
    assert daemon.process.returncode == 0, daemon.log.read_text()[-2000:]
    daemon.start()


def pin_scheduler(c):
    """Its next process is where this one is."""
    c.scheduler.http_at = f"127.0.0.1:{c.scheduler.http}"
    c.scheduler.args[c.scheduler.args.index("--listen") + 1] = f"127.0.0.1:{c.scheduler.port}"


def all_up(c):
    return {m["state"] for m in c.scheduler.status()["members"]} == {"up"}


def test_rolling_restart_of_all_daemons_costs_no_round(cluster):
    c = cluster(agents=0, servers=3)
    for i in range(3):
        c.add_agent(i, kind=KeptDaemon)
    started, progress, stop = start_rounds(c, 3)
    pin_scheduler(c)
    restart(c.scheduler)
    c.wait_for("all are back", lambda: all_up(c))
    goes_on(c, progress)
    for s in c.servers:
        restart(s)
        log = s.log.read_text()
        assert "ending: nothing is here any more" in log, log[-2000:]
        c.wait_for("it has its share again", lambda s=s: member(c, s.name)["partitions"] > N_TENSORS // 4)
        goes_on(c, progress)
    texts = [text for kind, text in events(c) if kind == "partitions"]
    assert not [t for t in texts if "begin anew" in t or "moved from server" in t], texts
    for a in c.agents:
        a.die(signal.SIGTERM)
        goes_on(c, progress)
    finish(c, started, stop)  # every sum was compared
    assert [m["restarts"] for m in c.scheduler.status()["members"]] == [1] * 6


def test_last_server_ends_at_once_and_its_next_process_goes_on(cluster):
    c = cluster(agents=2, servers=1)
    started, progress, stop = start_rounds(c, 2)
    restart(c.servers[0])
    assert "no other server takes partitions" in c.servers[0].log.read_text()
    goes_on(c, progress)
    finish(c, started, stop)


def test_server_without_a_scheduler_ends_in_bounded_time(cluster):
    c = cluster(agents=2, servers=2)
    started, progress, stop = start_rounds(c, 2)
    c.scheduler.kill()
    c.servers[0].kill(signal.SIGTERM)
    log = c.servers[0].log.read_text()
    assert "ending: the scheduler cannot be reached" in log, log
    pin_scheduler(c)
    c.scheduler.start()
    c.servers[0].start()
    goes_on(c, progress)
    finish(c, started, stop)


def test_second_signal_ends_a_server_at_once(cluster):
    c = cluster(agents=2, servers=2)
    started, progress, stop = start_rounds(c, 2)
    c.scheduler.kill(signal.SIGSTOP)
    s = c.servers[0]
    s.process.terminate()
    c.wait_for("it waits", lambda: "leaving: idle -> asked" in s.log.read_text())
    assert s.process.poll() is None
    s.kill(signal.SIGTERM)
    assert "ending:" not in s.log.read_text()
    c.scheduler.kill(signal.SIGCONT)
    s.start()
    goes_on(c, progress)
    finish(c, started, stop)
