"""Worker functions for jobs that sum sparse tables (test_sparse.py)."""

import hashlib
import os
import signal
import time
from unittest import mock

import bps
import numpy as np
from bps import _arrays, _compression, _core, _union

HALVES = _compression.Coding("float16")


def zipf(rng, n_rows, n_draws):
    """Return indices by Zipf's law (exponent 1). The frequent rows are at random places."""
    weights = np.cumsum(1 / np.arange(1, n_rows + 1))
    draws = np.searchsorted(weights, rng.random(n_draws) * weights[-1])
    return np.random.default_rng(0).permutation(n_rows)[draws]


def draw(rt, step, n_rows, row, n_draws):
    """Return this worker's indices, some of them twice or more, and its rows. In one step of four
    no worker has rows, in another one only half of the workers."""
    rng, rank = np.random.default_rng([step, rt.job.rank]), rt.job.rank
    n = 0 if step % 4 == 3 or (step % 4 == 1 and rank % 2) else n_draws
    values = rng.standard_normal((n, row), np.float32)
    values[rng.random((n, row)) < 0.1] = -0.0
    return zipf(rng, n_rows, n), values


def same_at_all(rt, *arrays):
    """Check that all workers have the same bytes."""
    digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).digest()
    given = rt.allgather_bytes(digest)
    assert {*given} <= {digest, b""}, "the workers have different results"


def equals_dense(rt, step, n_rows, row, n_draws):
    """Sum a table as rows and as a dense array. Compare the two bit by bit. Return how many rows
    the sum has."""
    index, values = draw(rt, step, n_rows, row, n_draws)
    rows, found = _arrays.sum_rows(rt, values, index, n_rows, bps.SUM)
    mine = np.zeros((n_rows, row), np.float32)
    own, merged = _union.merge(index, values)
    mine[own] = merged
    (want,) = _arrays.reduce(rt, [mine], op=bps.SUM)
    assert (np.diff(found) > 0).all()
    total = np.zeros_like(mine)
    total[found] = rows
    assert total.tobytes() == want.tobytes(), f"step {step}"
    same_at_all(rt, rows, found)
    return len(found)


def sparse_equals_dense(shapes, n_steps=4):
    """Compare sums of tables for each (rows, values of a row, draws). Return for each of these the
    largest number of rows, and how often the workers sent bitmaps and indices."""
    _core.init(deterministic=True)
    rt, most = _core.runtime(), []
    for shape in shapes:
        with (
            mock.patch.object(_union, "_rows_in", wraps=_union._rows_in) as maps,
            mock.patch.object(_union, "_listed_in", wraps=_union._listed_in) as lists,
        ):
            n = max(equals_dense(rt, step, *shape) for step in range(n_steps))
            most.append([n, maps.call_count, lists.call_count])
    _core.shutdown()
    return most


def sparse_rounds(sizes, stop, trace):
    """Compare sums with dense ones until the file `stop` appears. Rank 0 writes a line to the file
    `trace` after each round."""
    _core.init(deterministic=True)
    rt, n, over = _core.runtime(), 0, False
    with open(trace if rt.job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f:
        while not over:
            start = time.monotonic()
            for shape in sizes:
                equals_dense(rt, n, *shape)
            n += 1
            f.write(f"{start} {time.monotonic()}\n")
            over = any(rt.allgather_bytes(b"1" if os.path.exists(stop) else b""))
    _core.shutdown()
    return n


def sparse_types():
    """Sum and average tables of each type, and compare them with NumPy. Only rank 0 has row 3."""
    _core.init()
    rt = _core.runtime()
    rank, size = rt.job.rank, rt.job.size
    index = np.array([rank + 4, 9, 3, 9] if rank == 0 else [rank + 4, 9], "i4")
    for kind in ("f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8"):
        for op, coding, factor in (
            (bps.SUM, _compression.RAW, 1.0),
            (bps.AVG, _compression.RAW, 1.0),
            (bps.AVG, _compression.RAW, 4.0),
            (bps.SUM, HALVES, 1.0),
            (bps.AVG, HALVES, 1.0),
        ):
            values = np.repeat((index + 1 + rank).astype(kind)[:, None], 5, axis=1)
            for n_rows in (20, None):
                rows, found = _arrays.sum_rows(rt, values, index, n_rows, op, factor, coding)
                want = np.zeros(20)
                for r in range(size):
                    want[[r + 4, 9]] += [r + 5 + r, 10 + r]
                want[[3, 9]] += [4, 10]
                want *= factor / (size if op == bps.AVG else 1)
                if np.dtype(kind).kind != "f":
                    want = np.floor(want)
                assert found.tolist() == [3, *range(4, 4 + size), 9] and rows.dtype == kind
                np.testing.assert_allclose(rows, np.repeat(want[found][:, None], 5, 1), rtol=1e-3)
    large = np.full((1, 3), 40_000, np.float16)
    rows, _ = _arrays.sum_rows(rt, large, np.array([1]), 2, bps.AVG)
    np.testing.assert_allclose(rows, large, rtol=1e-3)  # the sum is more than f16 holds
    _core.shutdown()
    return size


def sparse_differences():
    """Pass tables and indices that are wrong, then a good one. Return the errors and the sum."""
    _core.init()
    rt, texts = _core.runtime(), []
    rank, ones = rt.job.rank, np.ones((1, 2), np.float32)
    for n_rows, values, op in (
        (5 + rank, ones, bps.SUM),
        (5, np.ones((1, 2 + rank), np.float32), bps.SUM),
        (5, ones.astype(np.float64) if rank else ones, bps.SUM),
        (5, ones, bps.SUM if rank else bps.AVG),
    ):
        try:
            _arrays.sum_rows(rt, values, np.array([0]), n_rows, op)
        except bps.Error as error:
            texts.append([error.code, str(error)])
    for wrong in (-1, 5):
        try:
            _arrays.sum_rows(rt, ones, np.array([wrong]), 5, bps.SUM)
        except IndexError as error:
            texts.append([0, str(error)])
    rows, _ = _arrays.sum_rows(rt, ones, np.array([4]), 5, bps.SUM)
    _core.leave(True)
    return texts, rows.tolist()


def sparse_with_a_loss(victim, when, n_steps):
    """Average a table in a job that may shrink. Each worker has its own row, and all have row 7.
    In step 2, the victim kills itself where it would call the function `when` of bps._union. Return
    for each step the values of the rows that are not zeros."""
    _core.init(on_agent_loss="shrink")
    rt, steps = _core.runtime(), []
    rank = rt.job.rank
    index, values = np.array([rank, 7]), np.full((2, 3), rank + 1.0, np.float32)
    for step in range(n_steps):
        if rank == victim and step == 2:
            setattr(_union, when, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        rows, found = _arrays.sum_rows(rt, values, index, 8, bps.AVG)
        same_at_all(rt, rows, found)
        steps.append({int(i): float(row[0]) for i, row in zip(found, rows) if row[0]})
    _core.shutdown()
    return steps


def wait_for(*paths):
    """Wait until all files exist."""
    end = time.monotonic() + 20
    while not all(map(os.path.exists, paths)):
        assert time.monotonic() < end, f"{paths} do not exist"
        time.sleep(0.005)


def sparse_with_a_late_machine(ahead, is_in_time):
    """Sum a table in a job with a backup machine. Rank 2 begins step 1 when the others know the
    union. They wait for its rows if `is_in_time`, else rank 2 waits for their sum. All have row 1,
    and each its own row. Return the rows of each step."""
    _core.init(backup=1, backup_grace=0.5 if is_in_time else 0.005)
    rt, steps = _core.runtime(), []
    rank = rt.job.rank
    own, files = (0, 3, 2)[rank], [f"{ahead}.{r}" for r in range(3)]
    index = np.array([own, 1])
    values = np.array([[2.0**rank], [10.0 * 2.0**rank]], np.float32)
    send = _union._sum

    def send_together(*args):
        open(files[rank], "w", encoding="ascii").close()
        wait_for(*files)
        return send(*args)

    for step in range(2):
        if step == 1:
            _union._sum = send_together if is_in_time else send
            if rank == 2:
                wait_for(*files[:2])
        rows, found = _arrays.sum_rows(rt, values, index, 8, bps.SUM)
        if step == 1:
            open(files[rank], "w", encoding="ascii").close()
        same_at_all(rt, rows, found)
        steps.append({int(i): float(row[0]) for i, row in zip(found, rows)})
    _core.shutdown()
    return steps
