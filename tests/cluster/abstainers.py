"""Worker functions for jobs whose workers abstain from some rounds (test_abstain.py)."""

import os
import time

import bps
import numpy as np

SIZES = (1, 100, 70_000, 300_000)  # within a message; offered; in several partitions
TYPES = (("i64", bps.SUM), ("f32", bps.AVG), ("f16", bps.AVG), ("i32", bps.AVG), ("q8", bps.SUM))


def gives(rank, tensor, n):
    """Return whether a worker gives values to round n of a tensor. About one worker of five gives
    values, so all workers of a machine or of the job often abstain."""
    return rank * 7919 + tensor * 104729 + n * 15485863 * (rank + 3) & 0xFFFF < 0x10000 // 5


def value(rank, tensor, n):
    """Return the worker's value, a small whole number."""
    return (rank + 1) * 3 + tensor + n % 5


def expected(job, tensor, op, n):
    """Return the result of a round, and the number of workers that gave values."""
    given = [value(r, tensor, n) for r in range(job.size) if gives(r, tensor, n)]
    total = sum(given)
    return (total / len(given) if op == bps.AVG and given else total), len(given)


def check(job, i, t, op, n):
    """Check the result of round n of tensor number i."""
    want, n_given = expected(job, i, op, n)
    if t.dtype in ("f32", "f16"):
        np.testing.assert_allclose(t.output.astype(float), want, rtol=2e-3, err_msg=f"round {n}")
    elif t.dtype == "q8":
        np.testing.assert_allclose(t.read(), want, rtol=2e-2, err_msg=f"round {n}")
    else:
        assert (t.output == want // 1).all(), f"round {n} of {t.name}: {t.output[:3]}, not {want}"
    assert t.contributors == n_given, f"round {n} of {t.name}"
    assert t.info.is_mine_missing == (not gives(job.rank, i, n)), f"round {n} of {t.name}"


def abstaining(sizes=SIZES, n_rounds=None, stop=None, trace=os.devnull, **options):
    """Run rounds from which each worker abstains in most cases, and check each result.

    The rounds end after n_rounds, or when the file `stop` appears. Rank 0 writes the start and end
    of each round to the file `trace`. Return the number of rounds.
    """
    n, over = 0, False
    with (
        bps.open(**options) as job,
        open(trace if job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f,
    ):
        kinds = [(size, dtype, op) for size in sizes for dtype, op in TYPES]
        tensors = job.declare_group(
            [(f"{dtype}.{size}.{op}", dtype, size) for size, dtype, op in kinds]
        )
        vote = job.declare("vote", "i64", 1)
        while not over and n != n_rounds:
            n += 1
            start = time.monotonic()
            for i, (t, (_, _, op)) in enumerate(zip(tensors, kinds)):
                # Write values even if the worker abstains: they must not be in the sum.
                mine = np.full(t.n_values, value(job.rank, i, n))
                if t.dtype in bps.BLOCKS:
                    t.fill(mine.astype(np.float32))
                else:
                    t.input[:] = mine
                t.push_pull(op) if gives(job.rank, i, n) else t.abstain(op)
            vote.input[:] = job.rank == 0 and n_rounds is None and os.path.exists(stop)
            vote.push_pull()
            for i, (t, (_, _, op)) in enumerate(zip(tensors, kinds)):
                t.finish()
                check(job, i, t, op, n)
            vote.finish()
            f.write(f"{start} {time.monotonic()}\n")
            over = vote.output[0] > 0
    return [n]


def moved_bytes(n_bytes):
    """Return the bytes that this machine's agent sends and receives for a broadcast, and for an
    all-gather whose result has n_bytes bytes."""
    moved = []
    with bps.open() as job:
        mine = np.full(n_bytes // job.size, job.rank, np.uint8)
        whole = np.full(n_bytes, job.rank + 1, np.uint8)
        job.broadcast(whole, root=0)  # declares the tensors
        for what in ("broadcast", "allgather"):
            job.barrier()
            before = job.traffic()
            if what == "broadcast":
                whole[:] = job.rank + 1
                job.broadcast(whole, root=1)
                assert (whole == 2).all()
            else:
                parts = job.allgather(mine)
                assert (parts == np.arange(job.size)[:, None]).all()
            after = job.traffic()
            moved.append(
                [
                    after.sent_bytes - before.sent_bytes,
                    after.received_bytes - before.received_bytes,
                ]
            )
        job.barrier()
    return moved


def abstain_with_another_op():
    """Abstain at rank 1 with MAX while rank 0 submits values for SUM. Return the error."""
    job = bps.open()
    t = job.declare("t", "f32", 10)
    try:
        t.push_pull(bps.SUM) if job.rank == 0 else t.abstain(bps.MAX)
        t.finish(20)
    except bps.Error as error:
        return error.code, str(error)
    return 0, ""
