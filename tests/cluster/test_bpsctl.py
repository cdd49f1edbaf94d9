"""Output of bpsctl for real daemons, which are healthy or have a problem."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

import bps
from cluster import BUILD, DEADLINE_S, ROOT
from schema import validate
from screens import document, show, waiting_job, words

COMPLETION = ROOT / "systemd" / "completion" / "bpsctl"


def test_wrong_commands_are_answered_with_what_is_missing():
    for args, status, text in (
        ([], 64, "a command is missing; `bpsctl help`"),
        (["statu"], 64, "no such command: statu (did you mean 'status'?);"),
        (["key"], 64, "usage: bpsctl key new"),
        (["key", "make"], 64, "usage: bpsctl key derive ROLE:NAME"),
        (["--jso", "status"], 64, "unknown flag '--jso' (did you mean '--json'?)"),
        (["--config", "/nonexistent", "status"], 78, "cannot open '/nonexistent'"),
    ):
        p = subprocess.run(
            [str(BUILD / "bpsctl"), *args], capture_output=True, text=True, timeout=10, check=False
        )
        assert (
            (p.returncode, p.stdout) == (status, "")
            and p.stderr.startswith("bpsctl: ")
            and text in p.stderr
        ), p


def test_tables_show_all_members_and_jobs(cluster):
    c = cluster(agents=2, servers=2)
    assert "no job" in show(c, "jobs", status=0)
    waiting_job(c)
    assert all(s in show(c, "servers", status=0) for s in ("s0", "s1", "server-host1", "512 MiB"))
    assert all(s in show(c, "agents", status=0) for s in ("a0", "a1", "agent-host1"))
    row = next(line for line in show(c, "jobs").splitlines() if line.startswith("digits"))
    assert re.search(r"2/2 +1 +1 +1 \d+\.\d s +running", row), row
    assert [m["name"] for m in document(c, "servers")["members"]] == ["s0", "s1"]
    assert [m["name"] for m in document(c, "agents")["members"]] == ["a0", "a1"]
    assert document(c, "jobs")["ended"] == []
    job = document(c, "jobs")["jobs"][0]
    assert (job["name"], job["rounds"], job["calls_waiting"]) == ("digits", 1, 1)


def test_why_stuck_names_tensor_round_rank_host_and_pid(cluster):
    c = cluster(agents=2, servers=1)
    assert "nothing waits" in show(c, "why-stuck", status=0)
    started = waiting_job(c)
    for args in (("why-stuck",), ("why-stuck", "digits")):
        text = show(c, *args, status=1)
        assert "'w' round 2" in text, text
        assert f"rank 1 (host agent-host1, pid {started[1].process.pid}) is at round 1" in text, (
            text
        )
        assert f"waiting: rank 0 (host agent-host0, pid {started[0].process.pid})" in text, text
    wait = document(c, "why-stuck")["jobs"][0]["waits"][0]
    assert (wait["why"], wait["tensor"], wait["round"]) == ("submit", "w", 2)
    assert show(c, "why-stuck", "nobody", status=2) == ""


def test_bytes_of_a_job_are_shown_by_type(cluster):
    c = cluster(agents=2, servers=1)
    stop = c.dir / "stop"
    args = {"n_values": {"f32": [1000], "q8": [2560, 200]}, "stop": str(stop)}
    workers = c.start_job("types_until", 2, args, job="coded")
    job = lambda: document(c, "job", "coded").get("job", {})
    c.wait_for("all tensors are placed", lambda: job().get("tensors") == 3)
    # a block of q8 has 256 values and 260 bytes
    assert job()["bytes_by_type"] == {"f32": 4000, "q8": 11 * 260}
    assert "types f32 3.9 KiB, q8 2.8 KiB" in show(c, "job", "coded")
    stop.touch()
    assert all(worker.result(time.monotonic() + DEADLINE_S) for worker in workers)


def test_straggler_is_named_in_the_status(cluster):
    c = cluster(agents=2, servers=1)
    started = waiting_job(c)
    c.wait_for("the scheduler has probed", lambda: "STRAGGLER" in c.bpsctl("status").stdout)
    text = show(c, "status", status=1)
    assert "STRAGGLER" in text and "effect:" in text and "action:" in text, text
    assert f"rank 1 (host agent-host1, pid {started[1].process.pid})" in text, text
    assert "STRAGGLER" in [p["code"] for p in document(c, "status")["problems"]]
    assert "STRAGGLER" in show(c, "job", "digits", status=1)


def test_why_stuck_names_ranks_that_have_not_joined_and_tensors_not_declared(cluster):
    c = cluster(agents=2, servers=1)
    c.start_job("error", 1, {"what": "nothing"}, job="forming", env={"BPS_SIZE": "3"})
    c.start_job(
        "error",
        2,
        {"what": "undeclared", "args": {"missing_rank": 1, "timeout": 20}},
        job="undeclared",
    )
    c.wait_for(
        "both jobs wait",
        lambda: (
            "have not declared" in c.bpsctl("why-stuck").stdout
            and "have not joined" in c.bpsctl("why-stuck").stdout
        ),
    )
    text = show(c, "why-stuck", "forming", status=1)
    assert "rank 1\n" in text and "rank 2\n" in text, text
    text = show(c, "why-stuck", "undeclared", status=1)
    assert "'w'" in text and "rank 1 (host agent-host1" in text, text


def test_why_stuck_asks_the_local_agent_while_the_scheduler_is_silent(cluster):
    c = cluster(agents=2, servers=1, scheduler_args=["--agent-dead", "60s"])
    started = waiting_job(c)
    agents = [("--agent-http", f"127.0.0.1:{a.http}") for a in c.agents]
    who = f"rank 0 (host agent-host0, pid {started[0].process.pid})"
    c.scheduler.kill(signal.SIGSTOP)
    assert "'w' round 2: 1 worker waiting for" in show(c, *agents[0], "why-stuck", status=1)
    c.scheduler.kill()
    for args in (("why-stuck",), ("why-stuck", "digits")):
        text = show(c, *agents[0], *args, status=1)
        assert "agent a0 on agent-host0 reports what its own workers wait for" in text, text
        assert (
            "'w' round 2: 1 worker waiting for" in text
            and "all workers of this host have submitted it" in text
        ), text
        words = "was sent, and waits for other machines' parts at server s0"
        assert f"waiting: {who}" in text and words in " ".join(text.split()), text
    d = document(c, *agents[0], "why-stuck", "digits")
    validate(d, "why-stuck")
    assert d["role"] == "agent" and d["jobs"][0]["waits"][0]["why"] == "elsewhere", d
    assert "nothing waits" in show(c, *agents[1], "why-stuck", status=1)
    for args in ((*agents[0], "why-stuck", "nobody"), ("--agent-http", "127.0.0.1:1", "why-stuck")):
        assert show(c, *args, status=3) == ""
        validate(json.loads(c.bpsctl("--json", *args).stdout), "failure")


def test_local_agent_names_its_own_late_workers_and_those_that_join(cluster):
    c = cluster(agents=1, servers=1)
    started = waiting_job(c)
    c.start_job("error", 1, {"what": "nothing"}, job="forming", env={"BPS_SIZE": "3"})
    c.wait_for("the job forms", lambda: "forming" in c.bpsctl("why-stuck").stdout)
    c.scheduler.kill()
    text = show(c, "--agent-http", f"127.0.0.1:{c.agents[0].http}", "why-stuck", status=1)
    assert f"rank 1 (host agent-host0, pid {started[1].process.pid}) is at round 1" in text, text
    assert "these have not submitted it" in text and re.search(
        "bps_open: 1 worker waiting for", text
    ), text


def test_why_stuck_reports_that_there_is_no_server(cluster):
    c = cluster(agents=2, servers=0)
    c.start_job("error", 2, {"what": "wait_for_servers", "args": {"timeout": 20}}, job="poor")
    c.wait_for(
        "the job waits for a server",
        lambda: "no server is alive: start one" in c.bpsctl("why-stuck", "poor").stdout,
    )
    assert "NO_SERVER" in show(c, "status", status=2)


def test_hung_agent_is_named_within_the_bound(cluster):
    c = cluster(agents=2, servers=1, scheduler_args=["--agent-dead", "60s"])
    waiting_job(c)
    c.agents[1].kill(signal.SIGSTOP)
    c.wait_for("the scheduler has probed", lambda: "NO_ANSWER" in c.bpsctl("status").stdout)
    for args in (("status",), ("jobs",), ("why-stuck",), ("job", "digits")):
        text = show(c, *args, status=1)
        assert re.search("(no answer from|missing:) .*a1", text), (args, text)
    assert "NO_ANSWER" in show(c, "status", status=1)
    assert document(c, "status")["missing"] == ["a1"]
    assert document(c, "why-stuck", "digits")["jobs"][0]["waits"][0]["why"] == "unknown"
    assert show(c, "--host", f"127.0.0.1:{c.agents[1].http}", "status", status=3) == ""
    c.agents[1].kill(signal.SIGCONT)


def test_bpsctl_does_not_hang_with_the_scheduler(cluster):
    c = cluster(agents=0, servers=0)
    c.scheduler.kill(signal.SIGSTOP)
    for args in (("status",), ("servers",), ("jobs",), ("why-stuck",), ("events",), ("job", "x")):
        assert show(c, *args, status=3) == ""
    c.scheduler.kill(signal.SIGCONT)


def one_document(p):
    """Return the output, which must be a single JSON document."""
    o, end = json.JSONDecoder().raw_decode(p.stdout)
    assert not p.stdout[end:].strip() and o["schema"] == 1, p
    return o


def test_every_outcome_is_one_document_with_json(cluster, tmp_path):
    c = cluster(agents=0, servers=2)
    for args, status in (
        (["statu"], 64),
        ([], 64),
        (["key"], 64),
        (["job"], 64),
        (["explain", "nonsense"], 64),
        (["events", "--since", "soon"], 64),
        (["key", "derive", "nobody"], 64),
        (["key", "derive", "server:a", "--key-file", str(tmp_path / "none")], 2),
        (["--jso", "status"], 64),
        (["job", "x"], 2),
        (["agent", "nohost.invalid"], 3),
        (["agent", "host:99999"], 64),
        (["--host", "nohost.invalid:1", "status"], 3),
        (["--host", "127.0.0.1:1", "jobs"], 3),
        (["--host", "127.0.0.1:99999", "jobs"], 64),
        (["--scheduler", "nohost.invalid:1", "mute", "STRAGGLER"], 3),
        (["--config", "/nonexistent", "status"], 78),
    ):
        p = c.bpsctl("--json", *args)
        assert p.returncode == status, p
        assert f"bpsctl: {one_document(p)['error']}" in p.stderr or args == ["key"], p
    assert one_document(c.steer("--json", "drain", "nobody"))["error"]
    assert (
        "s1 has no partitions" in one_document(c.steer("--json", "drain", "s1", "--wait"))["text"]
    )
    c.scheduler.kill(signal.SIGSTOP)
    for p in (c.bpsctl("--json", "status"), c.steer("--json", "undrain", "s1")):
        assert p.returncode == 3 and one_document(p)["error"], p
    c.scheduler.kill(signal.SIGCONT)


def test_silent_member_is_a_problem_before_it_is_dead(cluster):
    c = cluster(
        agents=1, servers=1, scheduler_args=["--server-dead", "60s", "--server-window", "60s"]
    )
    c.servers[0].kill()
    c.wait_for(
        "the connection of server s0 is closed",
        lambda: "CONTROL_SILENT" in c.bpsctl("status").stdout,
    )
    text = show(c, "status", status=1)
    assert re.search(r"CONTROL_SILENT server s0 on server-host0: connection lost", text), text
    assert "suspect" in show(c, "servers", status=1)


def test_events_report_what_happened_in_order(cluster):
    c = cluster(agents=2, servers=2, scheduler_args=["--server-window", "200ms"])
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 2}, job="digits")
    c.servers[1].kill()
    c.wait_for(
        "s1 is down", lambda: "server s1 (host server-host1) is down" in c.bpsctl("events").stdout
    )
    text = show(c, "events", status=0)
    order = [
        "the scheduler has started",
        "server s1 (host server-host1) is up",
        "job 'digits' (2 workers",
        "has formed",
        "has ended: all workers have finished",
        "s1 (host server-host1) is suspect",
        "s1 (host server-host1) is down",
    ]
    flat = re.sub(r"\s+", " ", text)
    at = [flat.find(word) for word in order]
    assert -1 not in at and at == sorted(at), (at, text)
    d = document(c, "events")
    assert [e["seq"] for e in d["events"]] == list(range(1, d["last"] + 1))
    assert [e["seq"] for e in document(c, "events", "--since", str(d["last"] - 2))["events"]] == [
        d["last"] - 1,
        d["last"],
    ]
    assert document(c, "events", "--since", "1h")["events"] == d["events"]
    c.wait_for(
        "the last event is more than a second old",
        lambda: document(c, "events", "--since", "1s")["events"] == [],
    )
    assert c.bpsctl("events", "--since", "yesterday").returncode == 64


def test_events_outlive_the_scheduler_with_their_numbers_and_times(cluster):
    c = cluster(agents=0, servers=1)
    before = document(c, "events")
    c.scheduler.kill()
    c.scheduler.pin()
    c.scheduler.start()
    after = document(c, "events")
    assert after["restored"] >= before["last"] > 0
    assert after["events"][: before["last"]] == before["events"]
    text = re.sub(r"\s+", " ", show(c, "events", status=0))
    assert text.find("started, term 1") < text.find("started, term 2")


def follow(c, *args, **kw):
    command = [
        str(BUILD / "bpsctl"),
        "--scheduler-http",
        f"127.0.0.1:{c.scheduler.http}",
        "--interval",
        "100ms",
        *args,
    ]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=c.env, **kw)


def read_until(fd, pattern):
    text, end = "", time.monotonic() + DEADLINE_S
    while not re.search(pattern, text):
        assert select.select([fd], [], [], max(0, end - time.monotonic()))[0], (
            f"no {pattern} in {text}"
        )
        text += os.read(fd, 65536).decode()
    return text


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_followed_events_come_as_they_happen_until_a_signal(cluster, sig):
    c = cluster(agents=0, servers=0)
    p = follow(c, "--json", "events", "-f", stdout=subprocess.PIPE)
    read_until(p.stdout.fileno(), "has started")
    c.add_server(0)
    line = next(
        x for x in read_until(p.stdout.fileno(), r"s0 .*is up.*\n").splitlines() if "is up" in x
    )
    assert json.loads(line)["kind"] == "member"
    p.send_signal(sig)
    assert p.wait(DEADLINE_S) == 0
    p.stdout.close()


def test_followed_events_go_on_with_the_next_scheduler(cluster):
    c = cluster(agents=0, servers=0)
    p = follow(c, "events", "--follow", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    read_until(p.stdout.fileno(), "started, term 1")
    c.scheduler.kill()
    c.scheduler.pin()
    c.scheduler.start()
    text = read_until(p.stdout.fileno(), "started, term 2")
    assert "term 1" not in text, text
    p.send_signal(signal.SIGINT)
    assert p.wait(DEADLINE_S) == 0
    p.stdout.close()


def test_watched_status_is_one_object_per_line(cluster):
    c = cluster(agents=0, servers=1)
    p = follow(c, "--json", "--watch", "status", stdout=subprocess.PIPE)
    lines = read_until(p.stdout.fileno(), r"\n.*\n").splitlines()
    assert [json.loads(line)["role"] for line in lines[:2]] == ["scheduler", "scheduler"]
    p.send_signal(signal.SIGINT)
    assert p.wait(DEADLINE_S) == 0
    p.stdout.close()


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_top_redraws_a_terminal_in_place_and_a_plain_one_below(cluster, term):
    c = cluster(agents=0, servers=1)
    c.env["TERM"] = term
    ours, theirs = pty.openpty()
    p = follow(c, "top", stdout=theirs)
    os.close(theirs)
    text = read_until(ours, r"(?s)cluster bps.*cluster bps.*s0")
    assert ("\033[H" in text) == (term == "xterm"), repr(text)
    assert text.count("\033[2J") == (1 if term == "xterm" else 0), repr(text)
    p.send_signal(signal.SIGINT)
    assert p.wait(DEADLINE_S) == 0
    os.close(ours)


def test_single_daemon_shows_its_role_and_refuses_words_for_the_scheduler(cluster):
    c = cluster(agents=1, servers=1)
    for d, head in (
        (c.servers[0], "bps-server s0"),
        (c.agents[0], "bps-agent a0"),
        (c.scheduler, "cluster bps"),
    ):
        assert show(c, "--host", f"127.0.0.1:{d.http}", "status", status=0).startswith(head)
    for word in (["jobs"], ["servers"], ["events"], ["why-stuck"], ["job", "x"]):
        p = c.bpsctl("--host", f"127.0.0.1:{c.agents[0].http}", *word)
        assert p.returncode == 2 and "scheduler" in p.stderr, p


def test_explain_explains_every_code(cluster):
    c = cluster(agents=0, servers=0)
    assert "action:" in show(c, "explain", "server_down", status=0)
    assert document(c, "explain", "BPS_ETIMEDOUT")["number"] == bps.ETIMEDOUT
    assert "NO_SERVER" in show(c, "explain", status=0)
    assert c.bpsctl("explain", "nonsense").returncode == 64
    for code in ("-10001", "10001"):
        assert document(c, "explain", code)["code"] == "BPS_ETIMEDOUT"
    for code, meant in (
        ("server_donw", "SERVER_DOWN"),
        ("BPS_EQOTA", "BPS_EQUOTA"),
        ("eqota", "EQUOTA"),
    ):
        p = c.bpsctl("explain", code)
        assert p.returncode == 64 and f"(did you mean '{meant}'?)" in p.stderr, p
    p = c.steer("mute", "stragler")
    assert p.returncode == 64 and "(did you mean 'STRAGGLER'?)" in p.stderr, p


def test_every_word_is_completed_and_in_the_manual():
    manual = (ROOT / "docs" / "man" / "bpsctl.8").read_text()
    assert len(words()) >= 13
    for word in words():
        first, *second = word.split()
        assert completed("") >= {first}
        assert f".It Cm {word}" in manual, word
        if second:
            assert second[0] in completed("", first)
    assert completed("--js") == {"--json"}
    text = subprocess.run(
        [str(BUILD / "bpsctl"), "--help"], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    flags = set(re.findall(r"(?m)^  (--[a-z-]+)", text))
    assert len(flags) > 10 and flags <= completed("--"), flags - completed("--")
    assert all(f"Fl {f[1:]}" in manual for f in flags), [
        f for f in flags if f"Fl {f[1:]}" not in manual
    ]
    assert {"SERVER_DOWN", "STRAGGLER", "BPS_EQUOTA"} <= completed("", "mute") & completed(
        "", "explain"
    )
    assert completed("ser") == {"servers"}


def completed(start, *before):
    line = " ".join(["bpsctl", *before, start])
    script = f"""source '{COMPLETION}'; COMP_WORDS=({" ".join(["bpsctl", *before])} "{start}")
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE='{line}'; _bpsctl
        printf '%s\\n' "${{COMPREPLY[@]}}" """
    env = dict(os.environ, PATH=f"{BUILD}:{os.environ['PATH']}")
    out = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=10, env=env
    )
    return set(out.stdout.split())
