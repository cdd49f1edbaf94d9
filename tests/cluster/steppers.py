"""Worker function whose steps have known times (test_steps.py)."""

import os
import time
from pathlib import Path

import bps


def stepping(
    stop,
    progress,
    n_steps=24,
    computing=0.02,
    sleeper=None,
    extra=0.03,
    n_elems=20_000,
    trace=None,
    trace_from=0,
    n_before=0,
):
    """Run steps, then wait for the file `stop`. Rank `sleeper` computes longer in each step.

    n_before: number of steps of another tensor that come first, and compute nothing.
    trace: file to which rank 0 writes a trace of the steps from number `trace_from` on.

    Return the mean length of the last ten complete steps, and of the waits in them, in seconds.
    """
    starts, waits = [], []
    with bps.open() as job:
        other = job.declare("other", "f32", n_elems)
        for _ in range(n_before):
            other.push_pull()
            other.wait()
        tensors = [job.declare(f"t{i}", "f32", n_elems) for i in range(3)]
        for step in range(n_steps):
            if step == trace_from:
                since = time.monotonic()
            time.sleep(computing + (extra if job.rank == sleeper else 0))
            starts.append(time.monotonic())
            for t in tensors:
                t.push_pull()
            at = time.monotonic()
            for t in tensors:
                t.wait()
            waits.append(time.monotonic() - at)
            if job.rank == 0:
                Path(progress).write_text(str(step + 1), encoding="ascii")
        if trace and job.rank == 0:
            job.trace(trace, since)
        while not os.path.exists(stop):
            time.sleep(0.01)
    return [(starts[-1] - starts[-11]) / 10, sum(waits[-11:-1]) / 10]
