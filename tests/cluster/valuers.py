"""Worker functions for tensors whose value servers keep from round to round (test_values.py).

Element e of a tensor belongs to rank e modulo the size of the job. Only this rank adds to it, 1 in
each round. So an answer shows how many deltas of each rank are in it.
"""

import os
import time
from pathlib import Path

import bps
import numpy as np


def least_counts(t, size, me, n):
    """Return for each rank how many of its deltas all partitions of the answer have.

    A partition may have more of them than another, but those of this worker are `n` everywhere."""
    assert (t.output == t.output.astype(int)).all()
    assert (t.output[me::size] == n).all(), (n, np.unique(t.output[me::size]))
    return [int(t.output[rank::size].min()) for rank in range(size)]


def adding(
    stale, n_rounds=None, stop=None, trace=os.devnull, sizes=(64, 70_000), slow=None, **options
):
    """Run rounds of values and check each answer.

    The rounds end after n_rounds, or when the file `stop` appears. Rank 0 writes the start and end
    of each round to the file `trace`. slow: rank that is slower than the others.

    Return the number of rounds, and the largest lead of this worker over another one.
    """
    n, lead, before = 0, 0, {}
    with (
        bps.open(**options) as job,
        open(trace if job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f,
    ):
        tensors = [
            job.declare(f"v{n}", dtype, n, mode="value", stale=stale)
            for n, dtype in zip(sizes, ("f32", "f64"))
        ]
        vote = job.declare("vote", "i64", 1) if stop else None
        over = False
        while not over and n != n_rounds:
            n += 1
            start = time.monotonic()
            for t in tensors:
                t.input[:] = 0
                t.input[job.rank :: job.size] = 1
                t.push_pull()
            if slow == job.rank:
                time.sleep(0.01)
            for t in tensors:
                t.wait()
                found = least_counts(t, job.size, job.rank, n)
                others = [c for r, c in enumerate(found) if r != job.rank]
                if stale is not None and not options:
                    assert all(c >= n - stale for c in others), f"round {n}: {found}"
                assert all(c >= 1 for c in others), f"round {n}: {found}"
                assert (before.get(t.name, 0) <= t.output).all(), f"round {n}: a delta is gone"
                before[t.name] = t.output.copy()
                lead = max([lead, *(n - c for c in others)])
            if vote:
                vote.input[:] = job.rank == 0 and os.path.exists(stop)
                vote.push_pull()
                vote.wait()
                over = vote.output[0] > 0
            f.write(f"{start} {time.monotonic()}\n")
    return [n, lead]


def set_and_read(stale):
    """Set a value at rank 1, and read it without adding. Return the values that were read."""
    with bps.open() as job:
        t = job.declare("v", "f32", 1000, mode="value", stale=stale)
        t.input[:] = 7
        t.push_pull() if job.rank == 1 % job.size else t.abstain()
        t.wait()
        first = np.unique(t.output).tolist()
        t.abstain()
        t.wait()
        return [first, np.unique(t.output).tolist(), t.contributors]


def sums_and_value(n_rounds):
    """Return the digest of values with the bound 0, and of the sums of the same deltas."""
    rng = np.random.default_rng(int(os.environ["BPS_RANK"]))
    with bps.open() as job:
        value = job.declare("v", "f32", 5000, mode="value")
        total = job.declare("s", "f32", 5000)
        mine = np.zeros(5000, np.float32)
        for n in range(n_rounds):
            value.input[:] = total.input[:] = rng.integers(-1000, 1000, 5000)
            value.push_pull()
            total.push_pull()
            mine = mine + total.wait()
            assert np.array_equal(value.wait(), mine), f"round {n}"
    return mine.tobytes().hex()[:64]


def refused(what):
    """Declare or submit a value in a way that is not allowed. Return the error."""
    options = {
        "deterministic": {"deterministic": True},
        "backup": {"backup": 1},
        "elastic": {"elastic": True, "on_agent_loss": "shrink"},
    }.get(what, {})
    job = bps.open(**options)
    try:
        dtype = "i32" if what == "type" else "f32"
        stale = 1 + job.rank if what == "bounds" else 1
        t = job.declare("v", dtype, 10, mode="value", stale=stale)
        t.push_pull(bps.AVG if what == "average" else bps.SUM)
        t.wait(20)
    except bps.Error as error:
        return error.code, str(error)
    return 0, ""


def stalling(stale, n_rounds, step_s, seed=1):
    """Run steps of step_s seconds; one in ten takes four times as long. Return the seconds that all
    rounds took."""
    with bps.open() as job:
        rng = np.random.default_rng(seed * 100 + job.rank)
        t = job.declare("v", "f32", 1000, mode="value", stale=stale)
        job.barrier()
        begun = time.monotonic()
        for _ in range(n_rounds):
            time.sleep(step_s * (4 if rng.random() < 0.1 else 1))
            t.push_pull()
            t.wait()
        seconds = time.monotonic() - begun
        job.barrier()
    return seconds


def lagging():
    """Let rank 1 stop after 3 rounds, until the waits of the others have timed out. Return what the
    time-out says."""
    with bps.open() as job:
        t = job.declare("v", "f32", 1000, mode="value", stale=None)
        for _ in range(3):
            t.push_pull()
            t.wait()
        text = ""
        if job.rank != 1:
            t.push_pull()
            try:
                t.wait(timeout=4)
            except bps.Error as e:
                text = str(e)
        job.barrier()
        if job.rank == 1:
            t.push_pull()
        t.wait()
        job.barrier()
        return text


def beyond_the_bound(stale):
    """Let rank 1 stop after 3 rounds, until the others have been told whom they wait for. Return
    for each worker how many rounds it has submitted, and what the time-out says."""
    with bps.open() as job:
        t = job.declare("v", "f32", 1000, mode="value", stale=stale)
        n, text = 0, ""
        while not text and (job.rank != 1 or n < 3):
            t.push_pull()
            n += 1
            try:
                t.wait(timeout=4 if job.rank != 1 else None)
            except bps.Error as e:
                text = str(e)
        job.barrier()
        while job.rank == 1 and n < 3 + stale + 1:
            t.push_pull()
            t.wait()
            n += 1
        t.wait()
        job.barrier()
        return n, text


def leaving_values(stale, n_rounds):
    """Run as many rounds as n_rounds has for this rank, and leave. Return the number of rounds and
    the error, if any."""
    n = 0
    try:
        with bps.open() as job:
            t = job.declare("v", "f32", 1000, mode="value", stale=stale)
            for _ in range(n_rounds[job.rank]):
                t.push_pull()
                t.wait(timeout=20)
                n += 1
    except bps.Error as e:
        return n, e.code, str(e)
    return n, 0, ""


def strolling(stop, progress, stale=None):
    """Run rounds of a value until the file `stop` appears. Rank 1 takes longer than the others."""
    n = 0
    with bps.open() as job:
        t = job.declare("v", "f32", 70_000, mode="value", stale=stale)
        while not os.path.exists(stop):
            time.sleep(0.05 if job.rank == 1 else 0.01)
            t.push_pull()
            t.wait()
            n += 1
            if job.rank == 0:
                Path(progress).write_text(str(n), encoding="ascii")
    return n
