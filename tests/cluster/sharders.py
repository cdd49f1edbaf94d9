"""Worker functions for tensors in shards: each worker gets its part of a sum (test_shards.py)."""

import os
import time

import bps
import numpy as np

# Types, and numbers of values of a shard: less than one partition, and several.
SIZES = (("f32", 3), ("i32", 70_000), ("f64", 1), ("bf16", 130_000), ("q8", 256), ("f32", 400_000))


def whole_numbers(dtype, n, rank, n_round):
    """Return the input of a rank: small whole numbers, so that every sum is exact."""
    values = (np.arange(n) * 7 + rank * 3 + n_round) % 5 - 2
    return values.astype("f4" if dtype in ("bf16", "q8") else bps.DTYPES[dtype][1])


def expected(dtype, n, size, n_round, part, op):
    total = sum(whole_numbers(dtype, n, r, n_round)[part].astype("f8") for r in range(size))
    return total / size if op == bps.AVG and dtype != "i32" else total


def is_right(t, want, op):
    """Return whether the output of a tensor is the shard `want`."""
    if t.dtype == "i32" and op == bps.AVG:
        return (t.output == np.floor(want / t.job.size)).all()
    if t.dtype in ("bf16", "q8"):
        return np.allclose(t.read(), want, rtol=1 / 64, atol=0.5 if t.dtype == "q8" else 0)
    return np.allclose(t.output, want, rtol=1e-6)


def scattering(n_rounds=None, stop=None, trace=os.devnull, sizes=SIZES, pause=0, **options):
    """Run rounds of tensors in shards, and check each shard.

    The rounds end after n_rounds, or when the file `stop` appears. Rank 0 writes the start and end
    of each round to the file `trace`. sizes: type, and number of values of a shard, of each tensor.
    pause: seconds to wait after each round. Return the number of rounds.
    """
    n = 0
    with (
        bps.open(**options) as job,
        open(trace if job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f,
    ):
        tensors = [
            job.declare(f"s{i}", dtype, k * job.size, sharded=True)
            for i, (dtype, k) in enumerate(sizes)
        ]
        vote = job.declare("vote", "i64", 1) if stop else None
        over = False
        while not over and n != n_rounds:
            n += 1
            op = bps.AVG if n % 3 == 0 else bps.SUM
            start = time.monotonic()
            for t in tensors:
                values = whole_numbers(t.dtype, t.n_values, job.rank, n)
                if t.dtype in ("bf16", "q8"):
                    t.fill(values)
                else:
                    t.input[:] = values
                t.push_pull(op)
            for t in tensors:
                t.wait()
                assert t.shard == slice(
                    t.n_values // job.size * job.rank, t.n_values // job.size * (job.rank + 1)
                )
                want = expected(t.dtype, t.n_values, job.size, n, t.shard, op)
                if op == bps.AVG and t.dtype == "i32":
                    want = expected(t.dtype, t.n_values, job.size, n, t.shard, bps.SUM)
                assert is_right(t, want, op), f"round {n} of {t.name} ({t.dtype})"
                assert t.contributors == job.size
                t.input[:] = 0  # a sum that is made again would have these zeros
            time.sleep(pause)
            if vote:
                vote.input[:] = job.rank == 0 and os.path.exists(stop)
                vote.push_pull()
                vote.wait()
                over = vote.output[0] > 0
            f.write(f"{start} {time.monotonic()}\n")
    return n


def scattered_bytes(shard_bytes, n_rounds, sharded=True):
    """Return the bytes that this worker's machine has sent and received in n_rounds rounds."""
    with bps.open() as job:
        t = job.declare("s", "u8", shard_bytes * job.size, sharded=sharded)
        t.push_pull()
        t.wait()
        job.barrier()
        before = job.traffic()
        for _ in range(n_rounds):
            t.push_pull()
            t.wait()
        job.barrier()
        after = job.traffic()
        return [after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes]


def refused_shards(what):
    """Try what a tensor in shards does not allow. Return the error's code and text."""
    options = {"backup": {"backup": 1}, "elastic": {"elastic": True},
               "shrink": {"on_agent_loss": "shrink"}}.get(what, {})  # fmt: skip
    with bps.open(**options) as job:
        n = 5 * job.size
        try:
            if what == "count":
                job.declare("s", "f32", n + 1, sharded=True)
            elif what == "blocks":
                job.declare("s", "q8", 255 * job.size, sharded=True)
            elif what == "value":
                job.declare("s", "f32", n, mode="value", sharded=True)
            else:
                t = job.declare("s", "f32", n, sharded=what != "mixed" or job.rank == 0)
                if what == "copy":
                    t.push_pull_copy(np.zeros(n, "f4"), np.zeros(n, "f4"))
                t.push_pull()
                t.wait()
                if what == "read":
                    other = (job.rank + 1) % job.size
                    t.read_values(5 * other, np.empty(5, "f4").ctypes.data, 5, 1.0)
        except bps.Error as error:
            if what == "mixed":
                job.abort()
            return [error.code, str(error)]
    return [0, ""]
