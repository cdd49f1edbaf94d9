"""Sums of sparse tables: each worker has some rows of a table, and all workers get their sum.

The workers first find the *union*, the rows that at least one worker has. Then they sum these rows
as dense memory, in which each worker writes its rows at their places, and zeros for the other rows.
A worker abstains from the pieces of this memory in which it has no row. So the result equals the
sum of the dense tables bit by bit (with ``deterministic``), and no worker receives a row twice.

A sum has three rounds, however many tables it has:

1. The workers compare their calls. Each worker sends how many rows it has of each table.
2. Each worker sends which rows it has: a bitmap (BOR) or indices (gathered). Which of the two
   follows from the sizes of the first round.
3. The rows are summed.

The number of the workers in an average is the number of workers in round 1. In a job that may
shrink, a worker may be lost later. Then rows that only this worker has remain in the result, with
zeros. In a job with backup machines, a worker that is late for round 1 or 2 adds only those of its
rows that the other workers know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bps._dtypes import at_address
from bps._library import AVG, BOR, DTYPES, SUM, size_of
from bps._operation import Operation, Slot
from bps._runtime import PRIORITY_MOST, Runtime

# Largest piece of the rows. Smaller pieces let workers abstain more often, larger pieces have less
# overhead.
PIECE_BYTES = 1 << 20
# A bitmap is sent if it has at most this fraction of the bytes of all workers' rows.
BITMAP_SHARE = 1 / 4
FLOATS = ("f16", "bf16", "f32", "f64")


class Table(NamedTuple):
    """A table, and which of its rows this worker has.

    Attributes:
        n_rows (int, optional): number of rows of the table; None: unknown, at all workers.
        row (int): number of values of a row.
        kind (str): element type in which the values are sent, one of bps.DTYPES without blocks.
        indices (array, optional): indices of this worker's rows: i64, sorted, each index once.
            None: this worker adds nothing. If all workers pass None, the table has no result.
    """

    n_rows: int | None
    row: int
    kind: str
    indices: np.ndarray | None

    @property
    def item(self) -> np.dtype:
        """Type of integers of the size of a value, as which values are copied."""
        return np.dtype(f"u{size_of(self.kind, 1)}")

    def check(self) -> None:
        """Check the indices.

        Raises:
            IndexError: the table has no row of such an index.
        """
        if self.indices is None or not self.indices.size:
            return
        least, most = int(self.indices[0]), int(self.indices[-1])
        if least < 0 or (self.n_rows is not None and most >= self.n_rows):
            wrong = least if least < 0 else most
            size = "unknown many" if self.n_rows is None else self.n_rows
            raise IndexError(f"a sparse tensor has row {wrong}, but its table has {size} rows")


class Sum(NamedTuple):
    """A sum of tables in flight.

    Attributes:
        n_workers (int): number of workers that take part.
        indices (list): for each table, the sorted indices of the rows that at least one worker has;
            None: no worker has passed indices.
        values (list): for each table, the rows' sums as integers (:attr:`Table.item`), of the shape
            (rows, :attr:`Table.row`). They are there when the operations are finished.
        operations (list[Operation]): the operations.
    """

    n_workers: int
    indices: list[np.ndarray | None]
    values: list[np.ndarray]
    operations: list[Operation]

    def finish(self) -> None:
        """Wait for the values."""
        for operation in self.operations:
            operation.finish(is_interruptible=True)


def merge(indices: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows by their indices, and add rows of the same index.

    Args:
        indices: index of each row.
        rows: array of the shape (rows, values). Halves are added in f32.

    Example:
        >>> indices, rows = merge(np.array([5, 2, 5]), np.array([[1.0], [2.0], [3.0]]))
        >>> indices.tolist(), rows.tolist()
        ([2, 5], [[2.0], [4.0]])
    """
    indices = indices.astype(np.int64)
    if (indices[1:] > indices[:-1]).all():
        return indices, rows
    order = np.argsort(indices, kind="stable")
    indices, rows = indices[order], rows[order]
    starts = np.flatnonzero(np.r_[True, indices[1:] != indices[:-1]])
    if starts.size == indices.size:
        return indices, rows
    wide = rows.astype(np.float32) if rows.dtype.name in ("float16", "bfloat16") else rows
    return indices[starts], np.add.reduceat(wide, starts, axis=0).astype(rows.dtype, copy=False)


def factors(kind: str, op: int, factor: float, n_workers: int) -> tuple[float, float, int]:
    """Return the factor before the sum, and the factor and the divisor after the sum. Averages of
    f16 are divided before the sum, because f16 may not hold the sum."""
    if op != AVG:
        return 1.0, factor, 1
    return (factor / n_workers, 1.0, 1) if kind == "f16" else (1.0, factor, n_workers)


def _reduce(
    rt: Runtime, kind: str, op: int, memory: np.ndarray, agreement: Operation | None = None
) -> list[Operation]:
    """Submit memory for reduction, in place. Abstain from the pieces that are zeros."""
    operations, at = [], 0
    while at < memory.size:
        slot = rt.slots.piece(kind, op, memory.size - at)
        part = memory[at : at + slot.tensor.n_values]
        at += part.size
        if part.any():
            at_address(slot.tensor.input_address, memory.dtype, part.size)[:] = part
            slot.tensor.push_pull(op, PRIORITY_MOST)
        else:
            slot.tensor.abstain(op, PRIORITY_MOST)

        def collect(slot: Slot = slot, part: np.ndarray = part) -> None:
            part[:] = at_address(slot.tensor.result_address, part.dtype, part.size)

        operations.append(Operation(slot, collect, agreement))
    return operations


def _finish(operations: Sequence[Operation], timeout: float | None) -> None:
    """Wait for operations, and raise the first error. Settle all before, so that no slot keeps an
    operation whose error refers to the caller's tensors."""
    for operation in operations:
        operation.settle(timeout, is_interruptible=True)
    for operation in operations:
        operation.check()


def _count(
    rt: Runtime, text: str, tables: Sequence[Table], timeout: float | None
) -> tuple[int, np.ndarray]:
    """Compare the calls, and exchange the numbers of rows.

    Returns:
        tuple: number of workers, and an array of the number of rows of each worker and table. The
        number is -1 where a worker adds nothing.
    """
    # A worker that is lost has zeros in the sum. So each number is sent plus 1, behind a 1.
    counts = np.zeros((rt.job.size, 1 + len(tables)), np.int64)
    counts[rt.job.rank] = [1, *(0 if t.indices is None else 1 + t.indices.size for t in tables)]
    agreement = rt.agree("all_reduce", text)
    _finish([agreement, *_reduce(rt, "i64", SUM, counts.reshape(-1), agreement)], timeout)
    return int(counts[:, 0].sum()), counts[:, 1:] - 1


def _has_bitmap(table: Table, n_rows: int) -> bool:
    """Return whether the workers send bitmaps of a table, not indices.

    Args:
        n_rows (int): number of rows of all workers together.
    """
    if table.n_rows is None:
        return False
    return table.n_rows / 8 <= BITMAP_SHARE * n_rows * size_of(table.kind, table.row)


def _bitmap(table: Table) -> np.ndarray:
    """Return a bitmap of this worker's rows."""
    bits = np.zeros(((table.n_rows or 0) + 7) // 8, np.uint8)
    if table.indices is not None and table.indices.size:
        at, bit = table.indices >> 3, np.left_shift(1, table.indices & 7).astype(np.uint8)
        starts = np.flatnonzero(np.diff(at, prepend=-1))
        bits[at[starts]] = np.bitwise_or.reduceat(bit, starts)
    return bits


def _rows_in(bits: np.ndarray) -> np.ndarray:
    """Return the indices of the rows in a bitmap."""
    at = np.flatnonzero(bits)
    found = np.flatnonzero(np.unpackbits(bits[at], bitorder="little"))
    return at[found >> 3] * 8 + (found & 7)


def _list(table: Table, counts: np.ndarray, rank: int) -> tuple[str, np.ndarray]:
    """Return memory for the indices of all workers, with those of this worker, and its type."""
    kind = "i32" if table.n_rows is not None and table.n_rows < 1 << 31 else "i64"
    numbers = np.zeros(int(counts.sum()), DTYPES[kind][1])
    if table.indices is not None:
        first = int(counts[:rank].sum())
        # A worker that is lost has zeros in the sum. So each index is sent plus 1.
        numbers[first : first + table.indices.size] = table.indices + 1
    return kind, numbers


def _listed_in(numbers: np.ndarray) -> np.ndarray:
    """Return the indices in the memory of :func:`_list`, sorted, each once."""
    return np.unique(numbers[numbers > 0]).astype(np.int64) - 1


def _find(
    rt: Runtime, tables: Sequence[Table], counts: np.ndarray, timeout: float | None
) -> list[np.ndarray]:
    """Return for each table the sorted indices of the rows that at least one worker has. `counts`
    is that of :func:`_count`."""
    operations: list[Operation] = []
    finders: list[Callable[[], np.ndarray]] = []
    for table, given in zip(tables, np.maximum(counts, 0).T):
        if _has_bitmap(table, int(given.sum())):
            bits = _bitmap(table)
            operations += _reduce(rt, "u8", BOR, bits)
            finders.append(functools.partial(_rows_in, bits))
        else:
            kind, numbers = _list(table, given, rt.job.rank)
            operations += _reduce(rt, kind, SUM, numbers)
            finders.append(functools.partial(_listed_in, numbers))
    _finish(operations, timeout)
    return [find() for find in finders]


def _blocks(n_rows: int, row: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Cut rows into blocks of at most `most` values. A block has whole rows, or a part of a row."""
    step, width = max(most // row, 1), min(row, most)
    for first in range(0, n_rows, step):
        for at in range(0, row, width):
            yield slice(first, min(first + step, n_rows)), slice(at, min(at + width, row))


def _sum(
    rt: Runtime, table: Table, union: np.ndarray, rows: np.ndarray | None, n_workers: int
) -> tuple[np.ndarray, list[Operation]]:
    """Submit the rows of the union. Return memory for their sums, and the operations."""
    total = np.empty((union.size, table.row), table.item)
    places = np.empty(0, np.int64)
    if rows is not None and table.indices is not None:
        places = np.searchsorted(union, table.indices)
        # A late machine may have rows that the others do not know.
        is_known = places < union.size
        is_known[is_known] = union[places[is_known]] == table.indices[is_known]
        rows = rows.view(table.item).reshape(table.indices.size, table.row)
        if not is_known.all():
            places, rows = places[is_known], rows[is_known]
    operations = []
    for where, part in _blocks(union.size, table.row, PIECE_BYTES // table.item.itemsize):
        out = total[where, part]
        slot = rt.slots.piece(table.kind, SUM, out.size)
        first, end = np.searchsorted(places, [where.start, where.stop])
        if rows is None or first == end:
            slot.tensor.abstain(SUM, PRIORITY_MOST)
        else:
            source = at_address(slot.tensor.input_address, table.item, out.size).reshape(out.shape)
            source[:] = 0
            source[places[first:end] - where.start] = rows[first:end, part]
            slot.tensor.push_pull(SUM, PRIORITY_MOST)
        operations.append(Operation(slot, _collector(slot, table, out, n_workers)))
    return total, operations


def _collector(slot: Slot, table: Table, out: np.ndarray, n_workers: int) -> Callable[[], None]:
    """Return a function that copies the result of a slot to `out`."""

    def collect() -> None:
        address = slot.tensor.result_address
        out[:] = at_address(address, table.item, out.size).reshape(out.shape)
        if table.kind in FLOATS and slot.tensor.contributors < n_workers:
            # In a sum of the dense tables, the other workers add 0.0, which turns -0.0 into 0.0.
            np.putmask(out, out == 1 << 8 * table.item.itemsize - 1, 0)

    return collect


def begin(
    rt: Runtime,
    text: str,
    tables: Sequence[Table],
    rows: Callable[[int], Sequence[np.ndarray | None]],
    timeout: float | None = None,
) -> Sum:
    """Begin a sum of tables over all workers. Wait for its first two rounds.

    Args:
        rt (Runtime): the workers that take part.
        text (str): types and shapes of the tables, and all else that must be equal at all workers.
        tables: the tables, in the same order at all workers.
        rows (callable): called once with the number of workers. Returns this worker's rows of each
            table, in the order of :attr:`Table.indices`, as contiguous arrays of :attr:`Table.row`
            values of :attr:`Table.kind` (bf16: of any type of two bytes); None: no rows.
        timeout (float, optional): longest wait for each of the two rounds, in seconds; None: the
            job's time-out.

    Raises:
        Error: EMISMATCH if the workers' calls differ.
        IndexError: see :meth:`Table.check`.
    """
    for table in tables:
        table.check()
    with rt.submission():
        n_workers, counts = _count(rt, text, tables, timeout)
        unions = _find(rt, tables, counts, timeout)
        found = [
            _sum(rt, table, union, mine, n_workers)
            for table, union, mine in zip(tables, unions, rows(n_workers))
        ]
    is_given = (counts >= 0).any(0)
    return Sum(
        n_workers,
        [union if given else None for union, given in zip(unions, is_given)],
        [values for values, _ in found],
        [operation for _, operations in found for operation in operations],
    )
