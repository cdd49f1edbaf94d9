"""Each health problem is reported in all places with the same code.

The test causes each problem of `bpsctl explain` with real daemons. The problem's code must then be
in the status, /healthz, the metrics, the events and the alerts.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

import control
import pytest
from cluster import BUILD, DEADLINE_S, ROOT
from keys import derived, new_key
from machines import Machine
from screens import waiting_job
from test_hangs import frozen_thread

SHIPPED = ROOT / "systemd" / "prometheus"
PROMTOOL = shutil.which("promtool")
# Longest time from the cause to the report: a third of DEADLINE_S. DEADLINE_S is 30 s by default,
# or 60 s with a sanitizer. The environment variable BPS_TEST_DEADLINE_S overrides both defaults.
WITHIN_S = DEADLINE_S / 3
CRITICAL = {"STATE_NOT_DURABLE", "NO_SERVER"}
OF_MEMBERS = {
    "SCHEDULER_UNREACHABLE",
    "ISOLATED",
}  # A member (server or agent) that does not reach the scheduler reports these problems itself.


def healthz(daemon):
    """Return the status code and the text of /healthz."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http}/healthz", timeout=5) as f:
            return f.status, f.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def problems(daemon):
    return {p["code"]: p for p in daemon.status()["problems"]}


def series(daemon, code):
    """Return the metric bps_health with this code as (series, value), or None."""
    found = re.search(rf'(?m)^(bps_health{{code="{code}"}}) (\d)$', daemon.get("/metrics"))
    return found and found.groups()


def check_alert(tmp_path, code, recorded):
    """Check that the shipped rules raise an alert for the recorded samples."""
    name = "BpsError" if code in CRITICAL else "BpsProblem"
    severity = "critical" if code in CRITICAL else "warning"
    label = recorded[0][0].replace("}", ', instance="x"}')
    samples = " ".join(value for _, value in recorded) + f" {recorded[-1][1]}x20"
    span = "" if code in CRITICAL else " for two minutes"
    expected = {
        "exp_labels": {"severity": severity, "instance": "x", "code": code},
        "exp_annotations": {
            "summary": f"{code}{span} (x)",
            "action": f"bpsctl status; bpsctl explain {code}",
        },
    }
    test = {
        "interval": "15s",
        "input_series": [{"series": label, "values": samples}],
        "alert_rule_test": [{"eval_time": "5m", "alertname": name, "exp_alerts": [expected]}],
    }
    shutil.copy(SHIPPED / "bps-alerts.yml", tmp_path)
    (tmp_path / "t.yml").write_text(
        json.dumps(
            {"rule_files": ["bps-alerts.yml"], "evaluation_interval": "15s", "tests": [test]}
        )
    )
    p = subprocess.run(
        [PROMTOOL, "test", "rules", "t.yml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert p.returncode == 0, p.stdout + p.stderr


# ---- causes: each context makes one problem and yields the daemon that reports it ----

LONG = ["--server-dead", "60s", "--agent-dead", "60s"]


@contextlib.contextmanager
def stopped(c, process, reporter):
    process.send_signal(signal.SIGSTOP)
    yield c, reporter
    process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def trainer_stalled(cluster):
    c = cluster(agents=2, servers=1, scheduler_args=["--stalled-after", "2s"])
    started, _ = c.start_running("rounds", 2, {"n_elems": 1000, "n_rounds": 1000000, "pause": 0.01})
    with stopped(c, started[1].process, c.scheduler) as cause:
        yield cause


@contextlib.contextmanager
def straggler(cluster):
    c = cluster(agents=2, servers=1)
    waiting_job(c)
    yield c, c.scheduler


@contextlib.contextmanager
def no_answer(cluster):
    c = cluster(agents=2, servers=1, scheduler_args=[*LONG, "--stalled-after", "2s"])
    c.start_running("rounds", 2, {"n_elems": 1000, "n_rounds": 1000000, "pause": 0.01})
    with stopped(c, c.agents[1].process, c.scheduler) as cause:
        yield cause


@contextlib.contextmanager
def state_not_durable(cluster):
    c = cluster(
        agents=1, servers=1, scheduler_args=["--faults", "scheduler.log.write=error:ENOSPC,after=4"]
    )
    c.start_job("error", 1, {"what": "nothing"}, env={"BPS_FORCE_DISTRIBUTED": "1"})
    yield c, c.scheduler


@contextlib.contextmanager
def state_behind(cluster):
    """Remove the last record of the state log while the scheduler is down."""
    c = cluster(agents=1, servers=1)
    c.start_job("error", 1, {"what": "nothing"}, env={"BPS_FORCE_DISTRIBUTED": "1"})
    c.scheduler.pin()
    c.scheduler.kill()
    log = c.dir / "state" / "state.log"
    os.truncate(log, log.stat().st_size - 3)
    c.scheduler.start()
    yield c, c.scheduler


@contextlib.contextmanager
def no_server(cluster):
    c = cluster(agents=2, servers=0)
    c.start_job("error", 2, {"what": "wait_for_servers", "args": {"timeout": 60}})
    yield c, c.scheduler


@contextlib.contextmanager
def server_down(cluster):
    c = cluster(agents=0, servers=2, scheduler_args=["--server-window", "100ms"])
    c.servers[1].kill()
    yield c, c.scheduler


@contextlib.contextmanager
def agent_down(cluster):
    c = cluster(agents=1, servers=0, scheduler_args=["--agent-window", "100ms"])
    c.agents[0].kill()
    yield c, c.scheduler


@contextlib.contextmanager
def control_silent(cluster):
    c = cluster(agents=0, servers=1, scheduler_args=["--server-window", "60s"])
    c.servers[0].kill()
    yield c, c.scheduler


@contextlib.contextmanager
def member_stuck(cluster):
    c = cluster(agents=0, servers=1, scheduler_args=LONG, server_args=["--thread-dead", "0"])
    with frozen_thread(c.servers[0], "data0"):
        yield c, c.scheduler


@contextlib.contextmanager
def job_forming_long(cluster):
    c = cluster(agents=1, servers=0, scheduler_args=["--forming-after", "1s"])
    c.start_job("error", 1, {"what": "nothing"}, env={"BPS_SIZE": "2"})
    yield c, c.scheduler


@contextlib.contextmanager
def server_slow(cluster):
    c = cluster(
        agents=2,
        servers=1,
        scheduler_args=["--server-slow", "5ms"],
        server_args=["--faults", "server.sum.start=sleep:20ms"],
    )
    c.start_job("rounds", 2, {"n_elems": 1000, "n_rounds": 1000000})
    yield c, c.scheduler


@contextlib.contextmanager
def connection_unstable(cluster):
    """Reset the agents' data connections, until one has been lost three times."""
    c = cluster(agents=2, servers=1)
    c.start_job("rounds", 2, {"n_elems": 1000, "n_rounds": 1000000, "pause": 0.01})
    reset = ["ss", "-K", "-t", f"dport = :{c.servers[0].port}"]

    def is_lost():
        subprocess.run(reset, capture_output=True, timeout=10, check=True)
        found = re.search(r"(?m)^bps_agent_reconnects_total (\d+)$", c.agents[0].get("/metrics"))
        # the agent has a connection to each of the server's two data threads
        return int(found[1]) > 2 * 2

    c.wait_for("connections are lost", is_lost)
    yield c, c.scheduler


@contextlib.contextmanager
def master_key(cluster):
    """Start a server with its own key, and a second server with the master key. The second server
    causes the health problem MASTER_KEY."""
    with tempfile.TemporaryDirectory() as folder:
        master = new_key(Path(folder) / "cluster.key", "key", "new")
        c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
        c.add_server(0, "--key-file", derived(master, "server:s0"))
        c.add_server(1, "--key-file", master)
        yield c, c.scheduler


@contextlib.contextmanager
def host_memory(cluster):
    """Start a server whose memory limit is larger than the memory of this machine."""
    c = cluster(agents=0, servers=1, server_args=["--sums-memory", "4096GiB"])
    yield c, c.scheduler


@contextlib.contextmanager
def host_duplicate(cluster):
    """Start an agent and a server on two machines with one host name."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    c = cluster(agents=0, servers=1)
    Machine(c, 21).agent()
    Machine(c, 22, "localhost").server()
    yield c, c.scheduler


@contextlib.contextmanager
def threads_few(cluster):
    """Be an agent that reports full threads, as one on a machine with many processors does."""
    c = cluster(agents=0, servers=1)
    with socket.create_connection(("127.0.0.1", c.scheduler.port), timeout=DEADLINE_S) as s:
        s.sendall(control.hello(control.PROTO, "0.1.0", name="full", host="full"))
        is_over = threading.Event()

        def send_beats():
            seq = 0
            while not is_over.wait(0.1):
                seq += 1
                s.sendall(control.beat(seq, threads=1, more_threads=4, busy_percent=97))

        sender = threading.Thread(target=send_beats)
        sender.start()
        try:
            yield c, c.scheduler
        finally:
            is_over.set()
            sender.join()


@contextlib.contextmanager
def scheduler_unreachable(cluster):
    c = cluster(agents=1, servers=0)
    c.scheduler.kill()
    yield c, c.agents[0]


@contextlib.contextmanager
def isolated(cluster):
    c = cluster(agents=2, servers=1, agent_args=["--stranded-after", "1s"])
    ready = c.dir / "ready"
    c.start_job(
        "idle", 2, {"seconds": 300, "ready": str(ready)}
    )  # idle workers make no calls; a call would fail, and the failure would end the job
    c.wait_for("the job runs", ready.exists)
    c.scheduler.kill()
    c.servers[0].kill()
    yield c, c.agents[0]


CAUSES = {
    f.__wrapped__.__name__.upper(): f
    for f in (
        trainer_stalled,
        straggler,
        no_answer,
        state_not_durable,
        state_behind,
        no_server,
        server_down,
        agent_down,
        control_silent,
        member_stuck,
        job_forming_long,
        server_slow,
        connection_unstable,
        master_key,
        host_duplicate,
        host_memory,
        threads_few,
        scheduler_unreachable,
        isolated,
    )
}


def test_each_problem_that_is_explained_has_a_cause_here():
    p = subprocess.run(
        [str(BUILD / "bpsctl"), "--json", "explain"],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert {c["code"] for c in json.loads(p.stdout)["codes"] if c["kind"] == "problem"} == set(
        CAUSES
    )


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed")
@pytest.mark.parametrize("code", sorted(CAUSES))
def test_problem_is_in_status_healthz_metrics_events_and_alerts(cluster, tmp_path, code):
    with CAUSES[code](cluster) as (c, reporter):
        recorded = [(f'bps_health{{code="{code}"}}', "0")] * 4
        c.wait_for(f"the status shows {code}", lambda: code in problems(reporter), WITHIN_S)
        recorded.append(series(reporter, code))
        assert recorded[-1] == (recorded[0][0], "1")
        problem = problems(reporter)[code]
        status, text = healthz(reporter)
        assert code in text, text
        assert (status == 200) == (
            reporter is c.scheduler
            and not any(p["severity"] == "ERR" for p in problems(reporter).values())
        )
        if reporter is c.scheduler:
            c.wait_for(
                "there is an event",
                lambda: any(k == "health" and t.startswith(code + ": ") for k, t in c.events()),
            )
            assert code in c.bpsctl("status").stdout
        else:
            assert code in OF_MEMBERS
            assert code in c.bpsctl("--daemon", f"127.0.0.1:{reporter.http}", "status").stdout
        assert problem["see"] == f"bpsctl explain {code}"
        check_alert(tmp_path, code, recorded)


def test_workers_that_all_compute_for_a_long_time_are_no_problem(cluster):
    """A recipe such as DiLoCo leaves long gaps between rounds. Neither a time-out nor the time
    after which a worker counts as stalled includes them."""
    c = cluster(agents=2, servers=1, scheduler_args=["--stalled-after", "1s"])
    args = {"n_rounds": 3, "gap": 4}
    started, found = c.start_job("gaps", 2, args, env={"BPS_TIMEOUT": "3s"}), set()

    def have_ended():
        found.update(problems(c.scheduler))
        return all(worker.process.poll() is not None for worker in started)

    c.wait_for("the rounds are complete", have_ended)
    c.finish(started)
    assert not found & {"TRAINER_STALLED", "STRAGGLER"}, found


def test_health_is_well_again_when_the_cause_is_gone(cluster):
    with trainer_stalled(cluster) as (c, scheduler):
        c.wait_for(
            "the scheduler reports TRAINER_STALLED",
            lambda: "TRAINER_STALLED" in problems(scheduler),
        )
        assert problems(scheduler)["TRAINER_STALLED"]["subject"] == "job job1 rank 1"
        c.wait_for(
            "TRAINER_STALLED has an event",
            lambda: any(text.startswith("TRAINER_STALLED") for _, text in c.events()),
        )
    c.wait_for("the scheduler reports no problem", lambda: not problems(scheduler))
    assert healthz(scheduler) == (200, "ok\n") and series(scheduler, "TRAINER_STALLED")[1] == "0"
    c.wait_for(
        "an event reports the end of TRAINER_STALLED",
        lambda: ("health", "TRAINER_STALLED is over: job job1 rank 1") in c.events(),
    )
