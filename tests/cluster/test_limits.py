"""Programs under small limits, such as those of a container: processors, threads, open files,
locked memory, and /dev/shm.

Each refusal names the limit and how to raise it.
"""

import contextlib
import os
import re
import resource
import subprocess
import time
from pathlib import Path

import pytest
from cluster import BUILD, Daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make control groups")

GROUPS = Path("/sys/fs/cgroup")
LIMIT_S = 60


@contextlib.contextmanager
def group(controller, **limits):
    """Make a control group with these limits. Yield the file that takes its processes."""
    is_v2 = (GROUPS / "cgroup.controllers").exists()
    folder = (GROUPS if is_v2 else GROUPS / controller) / f"bps-limits-{os.getpid()}"
    folder.mkdir()
    try:
        for name, value in limits.items():
            (folder / f"{controller}.{name}").write_text(str(value))
        yield folder / "cgroup.procs"
    finally:
        end = time.monotonic() + LIMIT_S
        while (folder / "cgroup.procs").read_text():
            assert time.monotonic() < end, "processes stay in the control group"
            time.sleep(0.01)
        folder.rmdir()


def quota(share):
    """Return the limits of a group that may use the fraction `share` of a processor."""
    us = int(100000 * share)
    if (GROUPS / "cgroup.controllers").exists():
        return {"max": f"{us} 100000"}
    return {"cfs_quota_us": us}


def run(command, before, env=None):
    """Run a command. before: function that the process calls before the command starts."""
    return subprocess.run(
        list(map(str, command)),
        env={k: v for k, v in os.environ.items() if not k.startswith("BPS_")} | (env or {}),
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def bench(before, workers=2, n_bytes="1MiB"):
    """Run a job with private daemons."""
    job = [BUILD / "bpsrun", "-n", workers, "--agents", "2", "--servers", "1", "--"]
    return run([*job, BUILD / "bps-bench", "--bytes", n_bytes, "--seconds", "0.1"], before)


def enter(procs):
    return lambda: procs.write_text(str(os.getpid()))


def limited(what, soft, hard):
    return lambda: resource.setrlimit(what, (soft, hard))


def test_server_counts_the_processors_of_its_control_group(cluster):
    c = cluster(agents=0, servers=0)
    with group("cpu", **quota(1)) as procs:

        class GroupDaemon(Daemon):
            prefix = ("sh", "-c", f'echo $$ >{procs} && exec "$@"', "sh")

        args = [
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--agent-socket",
            "/nonexistent",
        ]
        scheduler = f"127.0.0.1:{c.scheduler.port}"
        s = c.add("bps-server", "s0", *args, "--scheduler", scheduler, kind=GroupDaemon)
        text = s.log.read_text()
        words = "1 processor by the quota of the control group"
        assert f"started 1 data threads: why=no agent on this host, {words}" in text, text
        s.process.terminate()
        assert s.process.wait(LIMIT_S) == 0


# An agent tries 11 threads. The limit is lower than what one agent needs, so that the result does
# not depend on which daemon tries its threads first.
def test_job_without_threads_left_ends_with_the_limit():
    """libuv would abort the agent at the first trainer."""
    with group("pids", max=12) as procs:
        r = bench(enter(procs))
    text = r.stdout + r.stderr
    assert r.returncode != 0, text
    assert "Aborted" not in text, text
    assert "the control group allows 12 processes and threads: raise pids.max" in text, text
    assert "TasksMax=" in text and "--pids-limit" in text, text


@pytest.mark.parametrize("program", ["bps-server", "bps-agent"])
def test_daemon_without_threads_left_does_not_start(tmp_path, program):
    command = [BUILD / program / program, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    if program == "bps-agent":
        command += ["--socket", tmp_path / "agent.sock"]
    with group("pids", max=5) as procs:
        r = run(command, enter(procs))
    assert r.returncode == os.EX_TEMPFAIL, r
    words = r"cannot start \d+ threads: the control group allows 5 processes and threads"
    assert re.search(words, r.stderr), r


def test_agent_has_the_threads_that_it_has_tried(cluster, monkeypatch):
    """libuv reads the number of its threads from a variable, which a container may set."""
    monkeypatch.setenv("UV_THREADPOOL_SIZE", "64")
    c = cluster(agents=1, servers=1)
    c.run("rounds", 1, {"n_elems": 1000, "n_rounds": 1})
    n = len(os.listdir(f"/proc/{c.agents[0].process.pid}/task"))
    assert n <= 8, n


def test_bpsrun_that_cannot_fork_names_the_limit():
    with group("pids", max=1) as procs:
        r = bench(enter(procs))
    words = "cannot start a process: fork: the control group allows 1 processes and threads"
    assert r.returncode == 125 and words in r.stderr, r


@pytest.mark.parametrize("program", ["bps-scheduler", "bps-server", "bps-agent"])
def test_daemon_with_few_descriptors_does_not_start(tmp_path, program):
    command = [BUILD / program / program, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    if program == "bps-agent":
        command += ["--socket", tmp_path / "agent.sock"]
    if program == "bps-scheduler":
        command += ["--state-dir", tmp_path]
    r = run(command, limited(resource.RLIMIT_NOFILE, 32, 32))
    assert r.returncode == os.EX_TEMPFAIL, r
    assert "cannot start: the limit of open files is 32: raise it (LimitNOFILE=" in r.stderr, r
    assert "--ulimit nofile=" in r.stderr, r


def test_bpsrun_with_few_descriptors_names_the_limit():
    for n in (12, 24, 48):
        r = bench(limited(resource.RLIMIT_NOFILE, n, n), workers=4)
        text = r.stdout + r.stderr
        assert r.returncode != 0 and f"the limit of open files is {n}: raise it" in text, text


def test_bpsrun_raises_its_soft_limit_but_not_that_of_the_workers():
    """Each worker needs descriptors of bpsrun. A worker may use select(2)."""
    job = [BUILD / "bpsrun", "-n", "64", "--agent", "/nonexistent", "--"]
    r = run([*job, "sh", "-c", "ulimit -n"], limited(resource.RLIMIT_NOFILE, 64, 4096))
    assert r.returncode == 0, r
    assert set(re.findall(r"\] (\d+)", r.stdout)) == {"64"}, r


def test_daemons_raise_the_soft_limit_of_locked_memory(cluster):
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    low = 4096
    assert hard == resource.RLIM_INFINITY or hard > low, "no limit that could be raised"
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (low, hard))
    try:
        c = cluster(agents=1, servers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    for d in (c.servers[0], c.agents[0]):
        locked = resource.prlimit(d.process.pid, resource.RLIMIT_MEMLOCK)
        assert locked == (hard, hard), locked


def test_full_dev_shm_does_not_matter():
    """All shared memory is in memory files (memfd), which have no place in a file system."""
    shell = 'mount -t tmpfs -o size=4k none /dev/shm && echo full >/dev/shm/x && exec "$@"'
    job = [BUILD / "bpsrun", "-n", "2", "--agents", "2", "--servers", "1", "--"]
    job += [BUILD / "bps-bench", "--bytes", "64MiB", "--seconds", "0.1"]
    r = run(["unshare", "-m", "sh", "-c", shell, "sh", *job], None)
    assert r.returncode == 0 and "64 MiB" in r.stdout, r
