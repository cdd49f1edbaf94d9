"""Programs under small limits, such as those of a container: processors, threads, open files,
locked memory, and /dev/shm.

Each refusal names the limit and how to raise it.
"""

import contextlib
import os
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


def test_job_without_threads_left_ends_with_the_limit():
    """libuv would abort the agent at the first trainer."""
    with group("pids", max=16) as procs:
        r = bench(enter(procs))
    text = r.stdout + r.stderr
    assert r.returncode != 0, text
    assert "Aborted" not in text, text
    assert "the control group allows 16 processes and threads: raise pids.max" in text, text
    assert "TasksMax=" in text and "--pids-limit" in text, text


def test_bpsrun_that_cannot_fork_names_the_limit():
    with group("pids", max=1) as procs:
        r = bench(enter(procs))
    words = "cannot start a process: fork: the control group allows 1 processes and threads"
    assert r.returncode == 125 and words in r.stderr, r
