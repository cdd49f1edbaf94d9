"""Programs under small limits, such as those of a container."""

import contextlib
import os
import time
from pathlib import Path

import pytest
from cluster import Daemon

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
