"""Where the time of a step goes: the lines of `bpsctl job` and the metric of the agents."""

import fcntl
import json
import re
import socket
import struct
import termios

import pytest
from rawclient import ASK_TRACE, TRACE, Raw
from screens import WAITS, document
from slices import assert_nested, slices

pytestmark = pytest.mark.alone  # the tests compare times

PHASES = ("local_s", "queue_s", "push_s", "wait_s", "sum_s", "pull_s")


def steps_of(c, workers, args):
    """Run a job. Return its steps, those of each machine, what its workers measured, and what
    bpsctl says and advises."""
    stop = c.dir / "stop"
    started, _ = c.start_running("stepping", workers, dict(args, stop=str(stop)), after=23)
    answer = c.bpsctl("--json", "job", "job1")
    text = c.bpsctl("job", "job1").stdout
    advice = c.bpsctl("--json", "advise", "job1").stdout
    stop.touch()
    measured = c.finish(started)
    doc = json.loads(answer.stdout)
    print(text, advice, measured)
    agents = {a["name"]: a["steps"] for a in doc["agents"]}
    return doc["steps"], agents, measured, (text, json.loads(advice)["findings"])


def adds_up(steps):
    total = steps["computing_s"] + sum(steps[p] for p in PHASES)
    return 0.99 < total / steps["length_s"] < 1.01


def test_the_machine_that_computes_longer_is_named(cluster):
    c = cluster(agents=3, servers=2)
    job, agents, measured, (text, findings) = steps_of(c, 3, {"sleeper": 2})
    assert adds_up(job) and all(map(adds_up, agents.values()))
    slow, fast = agents["a2"], agents["a0"]
    assert fast["n"] == 10
    for rank, steps in enumerate(agents.values()):
        length, waited = measured[rank]
        assert abs(steps["length_s"] - length) < 0.03 * length
        assert abs(steps["exposed_s"] - waited) < 0.03 * length
    # The first machine waits for the sleeper, which waits for no machine. Sleeps take longer on a
    # busy machine, so compare with the wait that the worker measured.
    assert 0.8 < fast["wait_s"] / measured[0][1] <= 1.01, (fast, measured)
    assert slow["wait_s"] < 0.003, slow
    assert fast["last"]["agent"] == job["last"]["agent"] == "a2" and fast["n_last"] >= 8
    assert job["worst"]["agent"] == "a2" and "computes longest" in text
    assert findings[0]["code"] == "LATE_MACHINE" and "agent-host2 comes last" in findings[0]["text"]
    _, _, faster, _ = steps_of(cluster(agents=3, servers=2), 3, {})
    # The gain lies within 15 % of the truth on a quiet machine.
    assert 0.6 < findings[0]["gain_s"] / (measured[0][0] - faster[0][0]) < 1.6


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_server_is_named(cluster, slow):
    c = cluster(agents=2, servers=0)
    for i in (0, 1, 2):
        c.add_server(i, *(("--faults", "server.sum.start=sleep:20ms") if i == slow else ()))
    job, _, _, (_, findings) = steps_of(c, 2, {"n_elems": 300_000})
    assert adds_up(job) and job["sum_s"] > 0.015, job
    assert findings[0]["code"] == "SLOW_SERVER" and f"server s{slow}" in findings[0]["text"]


@pytest.mark.parametrize("sleeper", [0, 1])
def test_a_worker_that_is_late_on_its_own_machine_is_local(cluster, sleeper):
    c = cluster(agents=1, servers=0)
    job, _, _, _ = steps_of(c, 2, {"sleeper": sleeper})
    assert adds_up(job)
    # one of two workers waits for 30 ms, so the mean is 15 ms
    assert 0.8 < job["local_s"] / 0.015 < 1.2, job
    assert job["wait_s"] == 0 and job["last"] is None


def test_steps_of_a_second_model_are_counted_from_their_beginning(cluster):
    c = cluster(agents=2, servers=1)
    job, _, measured, _ = steps_of(c, 2, {"n_before": 1000})
    assert adds_up(job) and job["n"] == 20, job
    assert 0.9 < job["length_s"] / measured[0][0] < 1.1, (job, measured)


def test_the_log_of_a_failed_job_has_its_last_steps(cluster):
    c = cluster(agents=2, servers=1)
    started, _ = c.start_running("stepping", 2, {"sleeper": 1, "stop": "/never"}, after=23)
    started[1].process.kill()
    started[1].process.wait()
    log = c.agents[0].log
    c.wait_for("the job's last steps are logged", lambda: " steps=10 " in log.read_text())
    line = next(x for x in log.read_text().splitlines() if "last steps of the failed job" in x)
    figures = {k: float(v) for k, v in re.findall(r"(\w+)=([\d.]+)", line)}
    assert figures["step"] > 50 and figures["wait"] > 25, line


def test_a_trace_shows_steps_waits_and_rounds(cluster, tmp_path):
    c = cluster(agents=2, servers=1)
    stop, mine, whole = tmp_path / "stop", tmp_path / "mine.json", tmp_path / "whole.json"
    args = {"sleeper": 1, "trace": str(mine), "trace_from": 13, "stop": str(stop)}
    started, _ = c.start_running("stepping", 4, args, after=23)
    out = c.bpsctl("--agent-http", f"127.0.0.1:{c.agents[0].http}", "trace", "job1", str(whole))
    assert out.returncode == 0 and "wrote 72 rounds" in out.stdout, out
    assert [f.name for f in tmp_path.iterdir() if f.suffix == ".tmp"] == []
    out = c.bpsctl("--agent-http", f"127.0.0.1:{c.agents[0].http}", "trace", "job1", "/no/file")
    assert out.returncode != 0 and "cannot write the file '/no/file'" in out.stderr
    stop.touch()
    measured = c.finish(started)
    a, b = (json.loads(f.read_text()) for f in (whole, mine))
    assert b["bps"]["records"] == 33 and b["bps"]["lost"] == 0
    for trace, n_steps in ((a, 24), (b, 11)):
        assert_nested(trace)
        assert trace["bps"]["agent"] == "a0" and trace["bps"]["host"] == "agent-host0"
        steps, rounds = slices(trace, "step"), slices(trace, "round")
        assert [s["name"] for s in steps] == [f"step {i}" for i in range(25 - n_steps, 24)]
        assert len(rounds) == 3 * n_steps and {r["name"] for r in rounds} == {"t0", "t1", "t2"}
        assert {r["args"]["server"] for r in rounds} == {"s0"}
        assert {r["args"]["bytes"] for r in rounds} == {80_000}
    # The first machine has ranks 0 and 1. A wait of the trace is the longer one of the two.
    waits = [w for w in slices(b, "wait") if 14 <= w.get("args", {}).get("round", 0) <= 23]
    waited = sum(w["dur"] for w in waits) / 1e6 / 10
    assert 0.9 * measured[0][1] < waited < 1.1 * (measured[0][1] + measured[1][1])
    at_once = [w for w in waits if any(w is not v and v["ts"] == w["ts"] for v in waits)]
    assert not at_once, "two rounds ended the same wait"
    assert any(e["name"] == "local" for e in slices(b, "wait"))
    others = [e["args"] for e in slices(b, "wait") if e["name"] == "wait"]
    assert {"for": "agent-host0", "agent": "a0"} in others, others
    lengths = [s["dur"] / 1e6 for s in slices(b, "step")]
    assert abs(sum(lengths) / len(lengths) - measured[0][0]) < 0.05 * measured[0][0]
    out = c.bpsctl("--agent-http", f"127.0.0.1:{c.agents[0].http}", "trace", "none", str(whole))
    assert out.returncode != 0 and "no such job" in out.stderr
    out = c.bpsctl("--agent-http", f"127.0.0.1:{c.scheduler.http}", "trace", "job1", str(whole))
    assert out.returncode != 0 and "is not an agent" in out.stderr
    out = c.bpsctl("--agent-http", "127.0.0.1:9", "trace", "none", str(whole))
    assert out.returncode == 3 and "no agent answers at 127.0.0.1:9 (--agent-http" in out.stderr


def test_traces_of_two_agents_of_a_host_have_different_names(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    host = socket.gethostname().split(".")[0]
    c = cluster(agents=2, servers=1, agent_args=("--host", host))
    stop = tmp_path / "stop"
    started, _ = c.start_running("stepping", 2, {"sleeper": 1, "stop": str(stop)}, after=13)
    for agent in c.agents:
        out = c.bpsctl("--agent-http", f"127.0.0.1:{agent.http}", "trace", "job1")
        assert f" rounds to job1.{agent.name}.trace.json (" in out.stdout, out
        trace = json.loads((tmp_path / f"job1.{agent.name}.trace.json").read_text())
        assert trace["bps"]["agent"] == agent.name
    out = c.bpsctl("trace", "job1")
    assert out.returncode == 2 and "several agents of this host" in out.stderr, out
    assert all(f"127.0.0.1:{a.http} (agent {a.name})" in out.stderr for a in c.agents), out
    page, advice = c.bpsctl("job", "job1").stdout, c.bpsctl("advise", "job1").stdout
    assert re.search(r"(?m)^a0 .* a1 \(", page) and re.search(r"(?m)^a1 ", page), page
    assert f"LATE_MACHINE: {host} (agent a1) comes last" in advice, advice
    assert "BPS_BACKUP" not in advice and "by machine" in advice
    stop.touch()
    c.finish(started)
    c.wait_for("the job has ended", lambda: " ended" in c.bpsctl("job", "job1").stdout)
    out = c.bpsctl("--agent-http", f"127.0.0.1:{c.agents[0].http}", "trace", "job1")
    assert out.returncode == 2 and re.search(r"job job1 ended [\d.]+ s ago", out.stderr), out
    out = c.bpsctl("advise", "job1")
    assert re.search(r"ENDED: the job ended \d+ s ago without an error", out.stdout), out


def test_a_trace_has_the_steps_of_a_second_model(cluster, tmp_path):
    c = cluster(agents=1, servers=0)
    stop, file = tmp_path / "stop", tmp_path / "t.json"
    started, _ = c.start_running("stepping", 2, {"n_before": 1000, "stop": str(stop)}, after=23)
    c.bpsctl("--agent-http", f"127.0.0.1:{c.agents[0].http}", "trace", "job1", str(file))
    stop.touch()
    c.finish(started)
    steps = slices(json.loads(file.read_text()), "step")
    # the tensors of the second model set the pace from their eighth round on
    assert [s["name"] for s in steps[-16:]] == [f"step {i}" for i in range(8, 24)]
    assert steps[0]["name"] == "step 1" and len(steps) > 1000


def test_a_trace_comes_from_the_agent_of_this_host(cluster, tmp_path):
    c = cluster(agents=2, servers=1)
    c.agents[1].stop()
    c.add_agent(2, "--host", socket.gethostname().split(".")[0])
    stop, file = tmp_path / "stop", tmp_path / "t.json"
    args = {"stop": str(stop)}
    started, _ = c.start_running("stepping", 2, args, after=5, placement=[0, 2])
    out = c.bpsctl("trace", "job1", str(file))
    assert out.returncode == 0, out
    assert json.loads(file.read_text())["bps"]["agent"] == "a2"
    stop.touch()
    c.finish(started)


def test_advice_about_a_hang_names_the_command_that_explains_it(cluster):
    c = cluster(agents=2, servers=1)
    c.start_job("error", 2, WAITS, job="stuck")

    def is_told():
        text = c.bpsctl("advise", "stuck").stdout
        return "1. HANG: the job hangs: " in text and "`bpsctl why-stuck stuck`" in text

    c.wait_for("the advice is about the hang", is_told)
    for code in {f["code"] for f in document(c, "advise", "stuck")["findings"]}:
        assert c.bpsctl("explain", code).returncode == 0


def unread_bytes(sock):
    return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]


def test_a_trainer_that_reads_no_traces_gets_only_a_few(cluster):
    c = cluster(agents=1, servers=0)
    t = Raw(c.agents[0]).open("traced", 0, 1)
    assert t.job()[0] == 0
    all_rounds = struct.pack("<QQQ", 0, 0, 0)
    for seq in range(1, 41):
        t.send(ASK_TRACE, all_rounds, seq)
    c.wait_for("the agent has read all requests", lambda: not unread_bytes(t.sock))
    n_before = len(t.fds)
    answers = [t.expect(TRACE) for _ in range(40)]
    assert len(t.fds) - n_before == 4, "the memory of each unread trace stays in use"
    assert sum(struct.unpack_from("<I", a)[0] == 0 for a in answers) == 4
    t.send(ASK_TRACE, all_rounds, 41)
    assert struct.unpack_from("<I", t.expect(TRACE))[0] == 0
    t.close()
