"""The daemons' metrics, and the shipped rules and dashboard that use them."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from cluster import ROOT

SHIPPED = ROOT / "systemd" / "prometheus"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed")
EVERYWHERE = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "bps_thread_busy_seconds_total",
    "bps_thread_runqueue_seconds_total",
    "bps_build_info",
    "bps_fds",
    "bps_fds_limit",
    "bps_up_since_seconds",
    "bps_view",
    "bps_term",
    "bps_health",
}
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def samples(text):
    """Parse metrics. Return {name: [(labels, value)]}."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line).groups()
        found.setdefault(name, []).append(
            (dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")), float(value))
        )
    return found


def families(text):
    return dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))


def promtool(*args, text=None):
    p = subprocess.run(
        [PROMTOOL, *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=SHIPPED,
    )
    assert p.returncode == 0, p
    return p


@pytest.fixture
def busy(cluster):
    """Return a cluster whose daemons have every metric."""
    c = cluster(agents=2, servers=2)
    c.start_job("rounds", 2, {"n_elems": 30000, "n_rounds": 100000}, job='we"ird \\job')
    c.wait_for(
        "rounds are counted",
        lambda: all("last_arrival_total{" in s.get("/metrics") for s in c.servers),
    )
    # Wait for a round whose contributions came apart: in one batch, the round has waited 0 s.
    c.wait_for(
        "the waits of rounds are counted",
        lambda: all(
            samples(s.get("/metrics"))["bps_server_round_wait_seconds_sum"][0][1] for s in c.servers
        ),
    )
    c.wait_for(
        "the agents' pulls of sums are counted",
        lambda: all(
            samples(a.get("/metrics"))["bps_agent_pull_seconds_count"][0][1] for a in c.agents
        ),
    )
    return c


def names(files):
    text = "".join(f.read_text() for f in files)
    return {SUFFIX.sub("", n) for n in re.findall(r"\b(?:bps|process)_[a-z_]+\b", text)} - {
        "bps_job"
    }  # `le` is a label, not a metric


def test_every_daemon_has_the_common_metrics_and_its_own(busy):
    texts = {d.name: d.get("/metrics") for d in busy.daemons}
    for name, text in texts.items():
        assert EVERYWHERE <= set(families(text)), (name, text)
    s, a = samples(texts["s0"]), samples(texts["a0"])
    build = s["bps_build_info"][0][0]
    assert re.fullmatch(r"[0-9a-f]{12}|unknown", build["commit"]) and build["version"], build
    labels, rounds = s["bps_server_rounds_total"][0]
    assert labels["bps_job"] == 'we\\"ird \\\\job' and labels["id"] == "1" and rounds > 0
    last = s["bps_server_last_arrival_total"]
    assert {x["agent"] for x, _ in last} <= {"a0", "a1"} and 0 < sum(v for _, v in last) <= rounds
    for t, name in (
        (s, "bps_server_round_wait_seconds"),
        (a, "bps_agent_push_seconds"),
        (a, "bps_agent_pull_seconds"),
    ):
        buckets = [v for _, v in t[name + "_bucket"]]
        assert buckets == sorted(buckets) and buckets[-1] == t[name + "_count"][0][1] > 0
        assert t[name + "_bucket"][-1][0]["le"] == "+Inf" and t[name + "_sum"][0][1] > 0
    assert 5 < s["bps_fds"][0][1] < s["bps_fds_limit"][0][1]
    assert {x["code"]: v for x, v in s["bps_health"]} == {
        "SCHEDULER_UNREACHABLE": 0,
        "MEMBER_STUCK": 0,
    }
    assert s["bps_view"] == a["bps_view"] or abs(s["bps_view"][0][1] - a["bps_view"][0][1]) < 5


def test_jobs_have_metrics_at_the_scheduler(busy):
    def value(name):
        ((labels, v),) = samples(busy.scheduler.get("/metrics"))[name]
        assert labels == {"bps_job": 'we\\"ird \\\\job', "id": "1"}
        return v

    busy.wait_for(
        "rounds complete",
        lambda: value("bps_job_round") > 0 and value("bps_job_steps_per_second") > 0,
    )
    assert value("bps_job_workers") == 2
    busy.workers[0].process.send_signal(signal.SIGSTOP)
    busy.wait_for(
        "bps_job_stalled_seconds is above 3", lambda: value("bps_job_stalled_seconds") > 3
    )
    busy.workers[0].process.send_signal(signal.SIGCONT)
    busy.wait_for(
        "bps_job_stalled_seconds is below 3", lambda: value("bps_job_stalled_seconds") < 3
    )


def test_no_label_has_a_name_that_prometheus_uses(busy):
    for d in busy.daemons:
        for name, values in samples(d.get("/metrics")).items():
            assert not {"job", "instance"} & {label for labels, _ in values for label in labels}, (
                d.name,
                name,
            )


def test_time_and_memory_of_a_process_are_those_of_the_kernel(busy):
    for d in busy.daemons:
        before = samples(d.get("/metrics"))
        ticks = (
            open(f"/proc/{d.process.pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
        )
        used = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
        after = samples(d.get("/metrics"))
        name = "process_cpu_seconds_total"
        assert before[name][0][1] - 0.1 <= used <= after[name][0][1] + 0.1, d.name
        threads = {x["thread"]: (x["kind"], v) for x, v in after["bps_thread_busy_seconds_total"]}
        assert threads["main"][0] == "main" and threads["main"][1] > 0
        assert len(threads) == len(after["bps_thread_runqueue_seconds_total"])
        if d is not busy.scheduler:
            assert threads["data0"][0] == "data" and threads["data0"][1] > 0
        assert sum(v for _, v in threads.values()) <= samples(d.get("/metrics"))[name][0][1] + 0.1
        assert 1 << 20 < after["process_resident_memory_bytes"][0][1] < 4 << 30


def test_member_without_a_scheduler_says_so(busy):
    busy.scheduler.kill()
    busy.wait_for(
        "the agent reports SCHEDULER_UNREACHABLE",
        lambda: 'bps_health{code="SCHEDULER_UNREACHABLE"} 1' in busy.agents[0].get("/metrics"),
    )
    assert 'bps_health{code="MEMBER_STUCK"} 0' in busy.agents[0].get("/metrics")


def test_restarts_of_an_agent_are_counted(cluster):
    c = cluster(agents=1, servers=0)
    assert "bps_agent_restarts_total 0" in c.agents[0].get("/metrics")
    c.agents[0].kill()
    c.agents[0].start()
    c.wait_for(
        "the agent reports one restart",
        lambda: "bps_agent_restarts_total 1" in c.agents[0].get("/metrics"),
    )


def test_labels_are_bounded_whatever_people_call_their_jobs(cluster):
    c = cluster(agents=2, servers=1)
    for i in range(18):
        c.start_job(
            "rounds", 2, {"n_elems": 100, "n_rounds": 100000, "pause": 0.05}, job=f"job-{i}"
        )
    s = c.servers[0]
    c.wait_for(
        "many jobs run",
        lambda: len(samples(s.get("/metrics")).get("bps_server_rounds_total", [])) >= 16,
    )
    c.wait_for(
        "all jobs run",
        lambda: sum(j["state"] == "running" for j in c.scheduler.status()["jobs"]) == 18,
    )
    assert len(samples(s.get("/metrics"))["bps_server_rounds_total"]) == 16
    assert len(samples(s.get("/metrics"))["bps_server_last_arrival_total"]) <= 16 * 8


def test_names_in_rules_dashboard_and_manual_are_those_of_real_daemons(busy):
    real = set()
    for d in busy.daemons:
        real |= set(families(d.get("/metrics")))
    used = names(
        [
            SHIPPED / "bps-alerts.yml",
            SHIPPED / "bps-alerts.test.yml",
            SHIPPED / "bps-dashboard.json",
        ]
    )
    assert used and used <= real, used - real
    manual = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    told = {n for n in re.findall(r"`((?:bps|process)_[a-z_]+)", manual)} - {"bps_job"}
    assert told == real, (told - real, real - told)


def test_dashboard_is_what_grafana_reads():
    d = json.loads((SHIPPED / "bps-dashboard.json").read_text())
    ids = [p["id"] for p in d["panels"]]
    assert len(set(ids)) == len(ids) > 15 and d["uid"] == "bps"
    for p in d["panels"]:
        g = p["gridPos"]
        assert (
            p["type"] == "row"
            or p["targets"]
            and all(t["expr"] for t in p["targets"])
            and g["x"] + g["w"] <= 24
        ), p["title"]
    cells = [
        (g["x"] + x, g["y"] + y)
        for g in (p["gridPos"] for p in d["panels"])
        for x in range(g["w"])
        for y in range(g["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"


@needs_promtool
def test_metrics_are_clean_for_promtool(busy):
    for d in busy.daemons:
        p = promtool("check", "metrics", text=d.get("/metrics"))
        assert not p.stdout and not p.stderr, (d.name, p)


@needs_promtool
def test_rules_and_scrape_configuration_are_right():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "bps-alerts.yml")
    promtool("test", "rules", "bps-alerts.test.yml")


@needs_promtool
def test_expressions_of_the_dashboard_parse(tmp_path):
    d = json.loads((SHIPPED / "bps-dashboard.json").read_text())
    rules = [
        {"record": f"x{i}", "expr": e}
        for i, e in enumerate(t["expr"] for p in d["panels"] for t in p.get("targets", []))
    ]
    (tmp_path / "r.yml").write_text(
        json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    )  # JSON is also YAML
    promtool("check", "rules", str(tmp_path / "r.yml"))
