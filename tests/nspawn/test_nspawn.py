"""The packages on machines with systemd: operators' actions, and how they affect jobs."""

import base64
import contextlib
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from machine import Failed, Machine, wait_for

SCHEDULER = "10.78.0.1"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DROP_IN = "bps-agent.service.d/bps-agent-cuda.conf"
WORKER = "/usr/local/bin/gpu-rounds"
EXECUTOR = "/usr/sbin/bps-agent-cuda"  # of the package bps-agent-cuda
DAEMONS = ("bps-scheduler", "bps-server", "bps-agent")


class Site:
    """A scheduler, two servers and two training machines, with keys (docs/guides/install.md)."""

    def __init__(self):
        self.machines = []
        start = time.monotonic()
        try:
            self.scheduler = self.machine("sched", SCHEDULER)
            self.servers = [self.machine(f"sum{i}", f"10.78.0.{20 + i}") for i in range(2)]
            self.agents = [self.machine(f"gpu{i}", f"10.78.0.{10 + i}") for i in range(2)]
            self.boot_s = time.monotonic() - start
            self.configure()
            self.ready_s = time.monotonic() - start
        except BaseException:
            self.stop()
            raise

    def machine(self, name, address):
        m = Machine(name, address)
        self.machines.append(m)
        return m

    def configure(self):
        s = self.scheduler
        s.install("bps-common", "bpsctl", "bps-scheduler")
        s.sh("umask 077 && bpsctl key new >/etc/bps/cluster.key")
        s.write("/etc/bps/scheduler.conf.d/site.conf", f"listen = {SCHEDULER}\n")
        for m, role in [(m, "server") for m in self.servers] + [(m, "agent") for m in self.agents]:
            tools = ["libbpsclient0", "bps-tools"] if role == "agent" else []
            m.install("bps-common", f"bps-{role}", *tools)
            m.write(f"/etc/bps/{role}.key", s.sh(f"bpsctl key derive {role}:{m.name}"), mode="600")
            m.write(
                f"/etc/bps/{role}.conf.d/site.conf",
                f"scheduler = {SCHEDULER}\nlisten = {m.address}\n",
            )
        s.run("systemctl", "restart", "bps-scheduler")
        for m in self.servers:
            m.run("systemctl", "restart", "bps-server")
        for m in self.agents:
            m.run("systemctl", "restart", "bps-agent")
            m.run("useradd", "--create-home", "--groups", "bps", "trainer")
        self.wait_healthy()

    def bpsctl(self, *args):
        return self.scheduler.run("bpsctl", *args, check=False)

    def wait_healthy(self):
        wait_for(
            "the cluster is healthy and complete",
            lambda: self.bpsctl("status").returncode == 0 and self.members() == (2, 2),
            explain=self.explain,
        )

    def explain(self):
        units = [(m, "bps-server") for m in self.servers] + [(m, "bps-agent") for m in self.agents]
        lines = [
            f"{m.name}: {m.show(u, 'ActiveState', 'StatusText')} {m.journal(u)[-800:]}"
            for m, u in units
        ]
        return "\n".join(
            [self.bpsctl("status").stdout, self.scheduler.journal("bps-scheduler")[-2000:], *lines]
        )

    def members(self):
        out = self.bpsctl("status").stdout
        return tuple(
            int(re.search(rf"{w} (\d+)/", out)[1]) if re.search(rf"{w} (\d+)/", out) else 0
            for w in ("servers", "agents")
        )

    def start_job(self, name, *command):
        """Start two workers on each training machine.

        The workers run as an ordinary user in the group bps.
        """
        return [
            m.start(
                "runuser",
                "-u",
                "trainer",
                "--",
                "bpsrun",
                "-n",
                "2",
                "--nnodes",
                "2",
                "--node-rank",
                str(i),
                "--job",
                name,
                "--no-prefix",
                "--timeout",
                "100s",
                "--",
                *command,
            )
            for i, m in enumerate(self.agents)
        ]

    def start_load(self, name, seconds=12):
        """Start a job that checks every sum.

        When this method returns, the job is running rounds. The job continues for some seconds.
        """
        calibrated = (
            time.monotonic() + seconds / 4
        )  # Until this time, bps-bench chooses its round count, and a fault would shorten the run.
        job = self.start_job(
            name, "bps-bench", "--bytes", "1MiB", "--seconds", str(seconds), "--check"
        )
        wait_for(
            "the job makes rounds", lambda: self.rounds(name) > 20 and time.monotonic() > calibrated
        )
        return job

    def rounds(self, name):
        found = re.search(rf"^{name} .*$", self.bpsctl("jobs").stdout, re.M)
        numbers = (
            [int(n.replace(",", "")) for n in re.findall(r"\s([\d,]+)(?=\s)", found[0])]
            if found
            else []
        )
        return max(numbers, default=0)

    def stop(self):
        for m in self.machines:
            m.stop()


@contextlib.contextmanager
def setting(machine, text):
    """Write a drop-in file of bps-server, and remove it at the end."""
    path = "/etc/bps/server.conf.d/z-test.conf"
    machine.write(path, text)
    try:
        yield path
    finally:
        machine.run("rm", path)
        machine.run("systemctl", "restart", "bps-server")


def finish(job):
    return "".join(part.finish() for part in job)


@pytest.fixture(scope="module")
def site():
    s = Site()
    print(f"\n5 machines booted in {s.boot_s:.1f} s, cluster ready after {s.ready_s:.1f} s")
    yield s
    s.stop()


@pytest.fixture
def solo():
    m = Machine("solo", "10.78.0.50")
    yield m
    m.stop()


ALL = (
    "bps-common",
    "bps-scheduler",
    "bps-server",
    "bps-agent",
    "bpsctl",
    "libbpsclient0",
    "bps-tools",
)


def test_fresh_installation_is_a_cluster_and_purge_leaves_nothing(solo):
    before = solo.sh("find /etc /var/lib /usr /run/bps -xdev -name '*bps*' 2>/dev/null | sort")
    solo.install(*ALL)
    wait_for(
        "the cluster is well", lambda: solo.run("bpsctl", "status", check=False).returncode == 0
    )
    for test in ("loopback-job", "private-job"):  # the autopkgtest tests of the packages
        assert "test accuracy" in solo.sh(f"/packages/bps-*/debian/tests/{test}", timeout=120)
    pids = [solo.show(d, "MainPID") for d in DAEMONS]
    solo.run(
        "apt-get",
        "install",
        "-y",
        "--reinstall",
        "--no-install-recommends",
        *solo.files(*ALL),
        timeout=120,
    )
    for d in DAEMONS:
        solo.wait_active(d)
    after = [solo.show(d, "MainPID") for d in DAEMONS]
    assert after[0] != pids[0] and after[1] != pids[1], "the upgrade did not restart"
    assert after[2] == pids[2], "the upgrade ended the agent, and its jobs"
    solo.sh(
        "touch /etc/bps/server.key /etc/bps/agent.key /etc/bps/cluster.key; mkdir "
        "/etc/bps/server.conf.d"
    )
    solo.run("apt-get", "purge", "-y", *ALL)
    assert (
        solo.sh("find /etc /var/lib /usr /run/bps -xdev -name '*bps*' 2>/dev/null | sort") == before
    )
    assert "bps" not in solo.sh("ps -eo comm")


def test_job_on_two_machines_reaches_its_accuracy_and_units_say_what_they_do(site):
    out = finish(site.start_job("digits", "bps-digits", "--epochs", "20"))
    accuracy = float(re.search(r"workers 4, .*test accuracy ([\d.]+) %", out)[1])
    assert accuracy > 90
    status = site.bpsctl("status")
    assert status.returncode == 0 and "HEALTH_OK" in status.stdout, status.stdout
    wait_for(
        "the scheduler's status counts all members",
        lambda: (
            'Status: "servers 2 of 2, agents 2 of 2, jobs 0 running'
            in site.scheduler.run("systemctl", "status", "--no-pager", "bps-scheduler").stdout
        ),
    )
    for m, unit, says in (
        (
            site.servers[0],
            "bps-server",
            r"summing: \d+ connections, 0 partitions, .* [1-9]\d* rounds",
        ),
        (
            site.agents[0],
            "bps-agent",
            r"accepting trainers: 0 connected, 0 jobs, .* [1-9]\d* rounds",
        ),
    ):
        wait_for(
            f"the status of {unit} counts its rounds",
            lambda: re.match(says, m.show(unit, "StatusText")),
            explain=site.explain,
        )
    assert "joined the cluster" in site.servers[0].journal("bps-server")
    # MESSAGE_ID of the log line "started" (docs/reference/logs.md)
    started = "b096ad5a5e794e7c8b0c08bdba811ecc"
    lines = (
        site.agents[0]
        .run("journalctl", "-u", "bps-agent", "-o", "json", f"MESSAGE_ID={started}")
        .stdout.splitlines()
    )
    entry = json.loads(lines[-1])
    assert (entry["PRIORITY"], entry["BPS_PROGRAM"]) == ("6", "bps-agent"), entry
    assert site.scheduler.run("journalctl", "BPS_JOB=digits", "-o", "cat").stdout


def test_daemons_run_as_users_of_their_own_and_are_confined(site):
    limits = {"bps-scheduler": 13, "bps-server": 20, "bps-agent": 23}
    for m, unit in (
        (site.scheduler, "bps-scheduler"),
        (site.servers[0], "bps-server"),
        (site.agents[0], "bps-agent"),
    ):
        m.run("systemd-analyze", "security", f"--threshold={limits[unit]}", "--no-pager", unit)
        pid = m.show(unit, "MainPID")
        assert int(m.sh(f"stat -c %u /proc/{pid}")) > 60000, "not a dynamic user"
        assert m.sh(f"grep CapBnd /proc/{pid}/status").split()[1] == "0" * 16


def test_stranger_cannot_reach_the_trainers_socket(site):
    m = site.agents[0]
    m.run("useradd", "stranger")
    assert m.sh("stat -c '%a %U %G' /run/bps/agent.sock").split() == ["660", "root", "bps"]
    refused = m.run(
        "runuser",
        "-u",
        "stranger",
        "--",
        "sh",
        "-c",
        "BPS_RANK=0 BPS_SIZE=2 BPS_JOB=x "
        "BPS_AGENT_SOCKET=/run/bps/agent.sock bps-digits --epochs 1",
        check=False,
    )
    assert refused.returncode != 0 and "Permission denied" in refused.stderr, refused.stderr


def test_watchdog_restarts_a_server_that_hangs_and_the_job_goes_on(site):
    m = site.servers[0]
    job = site.start_load("hang")
    before = int(m.show("bps-server", "NRestarts"))
    m.run("systemctl", "kill", "--signal=STOP", "--kill-who=main", "bps-server")
    wait_for("the server is back", lambda: int(m.show("bps-server", "NRestarts")) == before + 1)
    assert all(part.is_running() for part in job)
    finish(job)
    assert "Watchdog timeout" in m.run("journalctl", "--no-pager", "-u", "bps-server").stdout
    site.wait_healthy()


def test_loss_of_the_scheduler_fails_no_round(site):
    job = site.start_load("orphan")
    m = site.scheduler
    before = m.show("bps-scheduler", "MainPID")
    m.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "bps-scheduler")
    wait_for(
        "the scheduler is back", lambda: m.show("bps-scheduler", "MainPID") not in ("0", before)
    )
    assert all(part.is_running() for part in job)
    finish(job)
    site.wait_healthy()


def test_restart_and_upgrade_of_a_server_fail_no_round(site):
    job = site.start_load("restart")
    for m in site.servers:
        m.run("systemctl", "restart", "bps-server")
        site.wait_healthy()
    site.servers[0].run(
        "apt-get", "install", "-y", "--reinstall", *site.servers[0].files("bps-server")
    )
    site.wait_healthy()
    assert all(part.is_running() for part in job)
    finish(job)


def test_rolling_restart_of_all_daemons_under_load_fails_no_round(site):
    job = site.start_load("rolling", seconds=45)
    for m, role in [
        (site.scheduler, "scheduler"),
        *((m, "server") for m in site.servers),
        *((m, "agent") for m in site.agents),
    ]:
        before = m.show(f"bps-{role}", "MainPID")
        m.run("systemctl", "restart", f"bps-{role}")
        site.wait_healthy()
        assert m.show(f"bps-{role}", "MainPID") != before
        if role == "server":
            assert "ending the server: no partition is left" in m.journal("bps-server"), m.journal(
                "bps-server"
            )[-2000:]
        made = site.rounds("rolling")
        wait_for(
            "rounds go on", lambda made=made: site.rounds("rolling") > made, explain=site.explain
        )
    assert all(part.is_running() for part in job)
    finish(job)


def test_agents_that_are_killed_hang_and_are_restarted_and_upgraded_fail_no_round(site):
    job = site.start_load("agents", seconds=60)
    a, b = site.agents

    def goes_on():
        before = site.rounds("agents")
        wait_for(
            "the job makes rounds", lambda: site.rounds("agents") > before + 5, explain=site.explain
        )

    def back(m, command):
        """Run a command that ends the agent.

        Wait until the agent's next process is active and the job has completed more rounds.
        """
        pid = m.show("bps-agent", "MainPID")
        m.sh(command)
        wait_for(
            "the next process of the agent runs",
            lambda: m.show("bps-agent", "MainPID") not in ("0", pid),
            explain=site.explain,
        )
        m.wait_active("bps-agent")
        goes_on()

    for m in (a, b):
        back(m, "systemctl kill --signal=KILL --kill-who=main bps-agent")
    back(b, "systemctl restart bps-agent")
    # the watchdog ends the stopped process
    back(a, "systemctl kill --signal=STOP --kill-who=main bps-agent")
    b.run("apt-get", "install", "-y", "--reinstall", *b.files("bps-agent"))
    back(b, "systemctl restart bps-agent")
    for m in site.agents:
        m.sh("systemctl kill --signal=KILL --kill-who=main bps-agent")
    for m in site.agents:
        m.wait_active("bps-agent")
    goes_on()
    assert all(part.is_running() for part in job)
    finish(job)
    for m in site.agents:
        assert "continuing a job of the previous process" in m.journal("bps-agent")
        # The only descriptor that systemd still keeps is the record of the cluster's identity (K5).
        wait_for(
            "systemd keeps no descriptor of a job",
            lambda m=m: int(m.show("bps-agent", "NFileDescriptorStore")) == 1,
            explain=site.explain,
        )
    site.wait_healthy()


@pytest.fixture
def gpu_site(site, tmp_path):
    """Yield agents with the drop-in of bps-agent-cuda, and a worker for them.

    In place of bps-agent-cuda is an executor that emulates GPUs in plain memory.
    """
    program = tmp_path / "gpu-rounds"
    (release,) = Path(os.environ["BPS_NSPAWN_DEBS"]).glob("bps-*/build/release")
    library, executor = release / "libbpsclient.so.0", release / "tests" / "bps-agent-host"
    subprocess.run(
        ["gcc", "-O2", f"-I{ROOT}/libbpsclient", "-o", program, HERE / "gpu-rounds.c", library],
        check=True,
    )
    for m in site.agents:
        m.write("/etc/bps/agent.conf.d/z-gpu.conf", "gpu = cuda\n")
        m.write(
            f"/etc/systemd/system/{DROP_IN}", (ROOT / "systemd" / Path(DROP_IN).name).read_text()
        )
        for path, source in ((WORKER, program), (EXECUTOR, executor)):
            m.run(
                "sh",
                "-c",
                f"base64 -d >{path} && chmod 755 {path}",
                text=base64.b64encode(source.read_bytes()).decode(),
            )
        m.run("systemctl", "daemon-reload")
        m.run("systemctl", "restart", "bps-agent")
    site.wait_healthy()
    yield site
    made = [
        "/etc/bps/agent.conf.d/z-gpu.conf",
        f"/etc/systemd/system/{DROP_IN}",
        WORKER,
        EXECUTOR,
        "/tmp/stop",
    ]
    for m in site.agents:
        m.run("rm", "-f", *made)
        m.run("systemctl", "daemon-reload")
        m.run("systemctl", "restart", "bps-agent")
    site.wait_healthy()


def executors(m):
    return m.run("pgrep", "-x", "bps-agent-cuda", check=False).stdout.split()


def test_executors_of_gpus_outlive_an_agent_and_end_when_the_unit_is_stopped(gpu_site):
    site = gpu_site
    job = site.start_job("gpus", WORKER, "/tmp/stop")
    wait_for("the job makes rounds", lambda: site.rounds("gpus") > 20, explain=site.explain)
    before = [executors(m) for m in site.agents]
    assert [len(e) for e in before] == [1, 1]
    for m in site.agents:
        for command in (
            "systemctl restart bps-agent",
            "systemctl kill --signal=KILL --kill-who=main bps-agent",
        ):
            pid, made = m.show("bps-agent", "MainPID"), site.rounds("gpus")
            m.sh(command)
            wait_for(
                "the next process of the agent runs",
                lambda m=m, pid=pid: m.show("bps-agent", "MainPID") not in ("0", pid),
                explain=site.explain,
            )
            m.wait_active("bps-agent")
            wait_for(
                "rounds go on",
                lambda made=made: site.rounds("gpus") > made + 5,
                explain=site.explain,
            )
    assert [executors(m) for m in site.agents] == before
    site.agents[0].run("touch", "/tmp/stop")
    assert len(re.findall(r"^\d+ rounds$", finish(job), re.M)) == 4
    for m in site.agents:
        wait_for(
            f"the executor on {m.name} has ended",
            lambda m=m: not executors(m),
            explain=site.explain,
        )
        wait_for(
            "systemd keeps no descriptor of a job",
            lambda m=m: int(m.show("bps-agent", "NFileDescriptorStore")) == 1,
            explain=site.explain,
        )
    site.agents[0].run("rm", "/tmp/stop")
    job = site.start_job("stopped", WORKER, "/tmp/stop")
    wait_for("the job makes rounds", lambda: site.rounds("stopped") > 20, explain=site.explain)
    site.agents[0].run("systemctl", "stop", "bps-agent")
    for part in job:
        with pytest.raises(Failed):
            part.finish()
    for m in site.agents:
        wait_for(
            f"the executor on {m.name} has ended",
            lambda m=m: not executors(m),
            explain=site.explain,
        )
    site.agents[0].run("systemctl", "start", "bps-agent")


def test_reload_takes_new_settings_and_refuses_wrong_ones(site):
    m = site.servers[1]
    pid = m.show("bps-server", "MainPID")
    with setting(m, "log-level = debug\n") as path:
        m.run("systemctl", "reload", "bps-server")
        wait_for(
            "the change is logged", lambda: "log-level: info -> debug" in m.journal("bps-server")
        )
        m.write(path, "log-level = loud\n")
        assert m.run("systemctl", "reload", "bps-server", check=False).returncode != 0
        assert "loud" in m.journal("bps-server")
        assert m.show("bps-server", "ActiveState", "MainPID") == ["active", pid]
    site.wait_healthy()


def test_trainer_that_comes_before_the_agent_waits_for_it(site):
    for m in site.agents:
        m.run("systemctl", "stop", "bps-agent")
    out = finish(site.start_job("early", "bps-digits", "--epochs", "2"))
    assert "test accuracy" in out
    for m in site.agents:
        assert m.show("bps-agent", "ActiveState") == "active"
    site.wait_healthy()


def test_wrong_setting_stops_the_unit_without_a_loop_of_restarts(site):
    m = site.servers[1]
    with setting(m, "theads = 2\n"):
        assert m.run("systemctl", "restart", "bps-server", check=False).returncode != 0
        state = m.show("bps-server", "ActiveState", "Result", "ExecMainStatus", "NRestarts")
        assert state == ["failed", "exit-code", "78", "0"]
        assert "threads" in m.journal("bps-server"), "the log does not suggest the right name"
    site.wait_healthy()


def test_daemon_waits_for_an_address_that_appears_late(site):
    m = site.servers[1]
    with setting(m, "listen = 10.78.0.99\n"):
        m.run("systemctl", "restart", "bps-server", check=False)
        wait_for(
            "systemd has restarted the server 4 times",
            lambda: int(m.show("bps-server", "NRestarts")) >= 4,
        )
        m.run("ip", "addr", "add", "10.78.0.99/24", "dev", "host0")
        m.wait_active("bps-server")
        site.wait_healthy()
    site.wait_healthy()


def test_unit_with_the_key_of_another_name_reports_it(site):
    """A key that was derived for another name must be refused."""
    m = site.servers[1]
    m.run("cp", "-p", "/etc/bps/server.key", "/etc/bps/server.key.right")
    m.write(
        "/etc/bps/server.key", site.scheduler.sh("bpsctl key derive server:another"), mode="600"
    )
    m.run("systemctl", "restart", "bps-server")
    try:
        wait_for(
            "the status of bps-server has the reason of the wait",
            lambda: re.match(
                "waiting for the scheduler for .*keys do not match",
                m.show("bps-server", "StatusText"),
            ),
        )
        assert site.bpsctl("status").returncode != 0
    finally:
        m.run("mv", "/etc/bps/server.key.right", "/etc/bps/server.key")
        m.run("systemctl", "restart", "bps-server")
    site.wait_healthy()
