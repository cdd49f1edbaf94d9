"""Idle daemons use no processor time."""

import os
import time

import cluster as cl
import pytest

pytestmark = pytest.mark.alone


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(cl.IS_ASAN, reason="sanitizers cost CPU time")
def test_idle_daemons_and_trainers_use_no_measurable_cpu(cluster):
    seconds = float(os.environ.get("BPS_IDLE_SECONDS", "10"))
    c = cluster(agents=2, servers=2)
    ready = c.dir / "ready"
    started = c.start_job("idle", 2, {"seconds": seconds, "ready": str(ready)})
    c.wait_for("the idle job runs", ready.exists)
    before = {d.name: cpu_seconds(d.process.pid) for d in c.daemons}
    start = time.monotonic()
    c.wait_for("the time has passed", lambda: time.monotonic() - start > seconds - 0.5, 2 * seconds)
    used = {d.name: cpu_seconds(d.process.pid) - before[d.name] for d in c.daemons}
    trainers = c.finish(started)
    for d in c.daemons:
        share = used[d.name] / (seconds - 0.5)
        assert share < 0.005, f"{d.name} used {100 * share:.2f} % of a core"
    assert max(trainers) / seconds < 0.001, f"a connected idle trainer used {max(trainers)} s"
