"""Collectives on NumPy arrays, for the front-ends whose tensors NumPy can access.

Arrays that are reduced together make a group (:mod:`bps._group`). A single array without a name is
sent in slots, the reusable tensors of :mod:`bps._slots`. The first array of a size is sent in
pieces of fixed sizes. Later arrays of this size can get a slot of their own size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bps import _compare, _union
from bps._compression import RAW, Coding, check_block_op
from bps._dtypes import FLOATS, NAMES, at_address, copy_scaled, wire_type
from bps._group import group, list_of_kinds
from bps._library import AVG, CODES, OPS, PRIORITY_AUTO, SUM, Error
from bps._operation import Operation, Slot
from bps._ops import priority_of, split_table
from bps._runtime import Runtime
from bps._sets import ProcessSet


def _described(array: np.ndarray) -> str:
    """Return type and shape of an array as text, which the workers compare."""
    return _compare.described(array.dtype.name, array.shape)


def reduce(
    rt: Runtime,
    arrays: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray] | None = None,
    name: str | None = None,
    op: int = AVG,
    prescale: float = 1.0,
    postscale: float = 1.0,
    coding: Coding = RAW,
    priority: int = PRIORITY_AUTO,
    labels: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Reduce arrays over all workers of a runtime.

    Args:
        rt (Runtime): the workers that take part.
        arrays: arrays of any shapes. All workers must pass the same shapes.
        outputs (sequence of array, optional): contiguous arrays for the results; None: new arrays.
        name (str, optional): name of the operation, the same at all workers. A single array needs
            no name, because it is sent in reusable tensors.
        op (int): one of SUM, PROD, MAX, MIN, AVG.
        prescale, postscale (float): factors before and after the reduction. Integers are multiplied
            in f64, and rounded towards zero.
        coding (Coding): how floating-point arrays are sent.
        priority (int): tensors with a larger priority are sent first. By default, tensors whose
            names were declared earlier (:func:`bps._ops.declare`) are sent first.
        labels (sequence of str, optional): names of the arrays for the text of an error.

    Returns:
        list of array: the outputs.

    Raises:
        Error: EMISMATCH if the workers' arrays differ in type or shape.
        ValueError: see :func:`bps._compression.check_block_op` and
            :func:`bps._compression.check_machines`; or a compression with a residual has no name.
    """
    is_mean = False
    if (prescale, postscale) != (1.0, 1.0):
        names = {a.dtype.name for a in arrays}
        if "bool" in names:
            raise ValueError("a tensor of bools cannot be scaled: convert it to another type first")
        if op == AVG and not names <= {*FLOATS}:
            if names & {*FLOATS}:
                raise ValueError(
                    "integers and floating-point numbers cannot be scaled in one average: reduce "
                    "them in two calls"
                )
            op, is_mean = SUM, True  # round the sum only once, after the division
    priority = priority_of(name, priority)
    has_blocks = any(coding.block_of(a.dtype.name, a.nbytes) for a in arrays)
    if has_blocks:
        check_block_op(op)
        if name is None and coding.has_residual:
            raise ValueError(
                "a compression with a residual needs the argument name, by which the residual is "
                "found at the next step"
            )
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    given = None if outputs is None else [o.reshape(-1) for o in outputs]
    if name is None and len(flat) == 1 and not has_blocks:
        wire = wire_type(flat[0].dtype, coding, flat[0].size)
        targets: Sequence[np.ndarray] = given or [np.empty_like(flat[0])]
        text = f"{_described(arrays[0])}{coding}, {OPS[op]}"
        factors = (prescale, postscale)
        _reduce_unnamed(rt, wire, flat[0], targets[0], op, factors, priority, text, is_mean)
    else:
        kinds = [(a.dtype, np.shape(a)) for a in arrays]
        if name is None:
            rt.agree_on_list(
                "grouped_all_reduce", list_of_kinds(kinds, f"{coding}, {OPS[op]}"), labels
            )
        one = group(rt, name or "group", kinds, coding)
        targets = one.reduce(
            flat, given, op, prescale, postscale, priority, labels=labels, is_mean=is_mean
        )
    if outputs is not None:
        return list(outputs)
    return [t.reshape(a.shape) for t, a in zip(targets, arrays)]


def _views(slot: Slot, dtype: np.dtype) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Return the slot's input array, and a dict from addresses to the slot's output arrays."""
    # The property `handle` raises an error if the job is closed, because the memory is then
    # unmapped.
    assert slot.tensor.handle
    seen = slot.views.get(dtype)
    if seen is None:
        t = slot.tensor
        seen = slot.views[dtype] = (at_address(t.input_address, dtype, t.n_values), {})
    return seen


def _reduce_unnamed(
    rt: Runtime,
    wire: np.dtype,
    flat: np.ndarray,
    out: np.ndarray,
    op: int,
    factors: tuple[float, float],
    priority: int,
    text: str,
    is_mean: bool,
) -> None:
    n, at, kind = flat.size, 0, NAMES[wire.name]
    parts: list[Operation] = []

    def submit(slot: Slot, first: int, last: int) -> None:
        source, results = _views(slot, wire)
        copy_scaled(source[: last - first], flat[first:last], factors[0])
        slot.tensor.push_pull(op, priority)

        def collect() -> None:
            address = slot.tensor.result_address
            if address not in results:
                results[address] = at_address(address, wire, slot.tensor.n_values)
            n = slot.tensor.contributors if is_mean else 1
            copy_scaled(out[first:last], results[address][: last - first], factors[1] / n)

        parts.append(Operation(slot, collect, parts[0]))

    with rt.submission():
        parts.append(rt.agree("all_reduce", text))
        slot = rt.slots.own(kind, op, n)
        if slot is not None:
            submit(slot, 0, n)
            at = n
        while at < n:
            slot = rt.slots.piece(kind, op, n - at)
            step = min(n - at, slot.tensor.n_values)
            submit(slot, at, at + step)
            at += step
    try:
        for part in parts:
            part.finish(is_interruptible=True)
    except BaseException:  # after KeyboardInterrupt and time-outs the parts are still in flight
        for part in parts[1:]:
            part.drop_result()
        raise


def broadcast(
    rt: Runtime,
    arrays: Sequence[np.ndarray],
    root: int,
    names: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Return the arrays of rank ``root`` at every worker.

    Args:
        rt (Runtime): the workers that take part.
        arrays: arrays whose shapes and types are the same at all workers.
        root (int): rank of the worker whose values all workers get.
        names (sequence of str, optional): names of the arrays, which must be the same at all
            workers. The orders of the names may differ.
        labels (sequence of str, optional): names of the arrays for the text of an error, which may
            differ between the workers.

    Raises:
        Error: EMISMATCH if the workers' arrays differ in name, type or shape.
        TypeError: an array holds Python objects.
    """
    for a in arrays:
        _compare.check_values("broadcast", a)
    texts = [_described(a) for a in arrays]
    entries = _compare.unnamed(texts) if names is None else [*zip(names, texts)]
    with rt.submission():  # one thread at a time, so that comparison and values have one order
        order = [*range(len(arrays))]
        if len(arrays) == 1 and names is None and labels is None:
            rt.agree("broadcast", f"{texts[0]}, root {rt.shown(root)}").finish()
        else:
            mine = _compare.List(entries, f" root {rt.shown(root)}")
            order = rt.agree_on_list("grouped_broadcast", mine, labels)
        with rt.submission(is_compared=True):
            given = [
                np.ascontiguousarray(arrays[i], arrays[i].dtype.newbyteorder("=")) for i in order
            ]
            block = np.empty(sum(a.nbytes for a in given), np.uint8)
            at = 0
            for a in given:
                block[at : at + a.nbytes] = a.reshape(-1).view(np.uint8)
                at += a.nbytes
            if block.size:
                rt.job.broadcast_memory(block.ctypes.data, block.size, root)
            rt.n_received += rt.job.rank != root
    at, outputs = 0, [np.empty(0)] * len(arrays)
    for i, a in zip(order, given):
        # Copy, because the address in the block may lack the alignment of the type.
        values = block[at : at + a.nbytes].copy().view(a.dtype).reshape(arrays[i].shape)
        outputs[i] = values.astype(arrays[i].dtype, copy=False)
        at += a.nbytes
    return outputs


def gather(
    rt: Runtime, array: np.ndarray, what: str = "allgather", extra: Any = None
) -> tuple[np.ndarray, list[int], list[Any]]:
    """Collect the arrays of all workers.

    Args:
        rt (Runtime): the workers that take part.
        array: an array whose shape may differ between workers in the first dimension.
        what (str): name of the operation, for error messages.
        extra: an object that is sent to all workers together with the array.

    Returns:
        tuple: one array with the rows of all workers, the number of rows of each worker, and the
        extra object of each worker.

    Raises:
        ValueError: the array has no dimension.
        Error: EMISMATCH: the workers' arrays differ in the type or in a dimension other than the
            first.
    """
    _compare.check_values(what, array)
    if array.ndim == 0:
        raise ValueError(f"{what} needs a tensor of at least one dimension: reshape it to [1]")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    rest, kind = array.shape[1:], array.dtype.name
    with rt.submission():  # one thread at a time, so that comparison and values have one order
        given = rt.allgather_object((rest, kind, array.shape[0], extra), f"rows of {what}")
        for r, (other, name, _, _) in enumerate(given):
            if (other, name) != (rest, kind):
                raise Error(
                    CODES["EMISMATCH"],
                    f"{what}: rank {rt.shown(r)} has shape [?, {', '.join(map(str, other))}] and "
                    f"type {name}, but this worker has shape {list(array.shape)} and type {kind}",
                    rt.shown(r),
                )
        rows, extras = [n for _, _, n, _ in given], [extra for _, _, _, extra in given]
        most, row_bytes = max(rows), array.dtype.itemsize * math.prod(rest)
        if most * row_bytes == 0:
            return np.empty((sum(rows), *rest), array.dtype), rows, extras
        with rt.submission(is_compared=True):
            src = np.zeros((most, *rest), array.dtype)
            src[: array.shape[0]] = array
            dst = np.empty((len(rows), most, *rest), array.dtype)
            rt.job.allgather_memory(src.ctypes.data, most * row_bytes, dst.ctypes.data)
    return np.concatenate([dst[r, :n] for r, n in enumerate(rows)]), rows, extras


def titled(what: str, name: str | None) -> str:
    """Return an operation with its name, for the texts of errors."""
    return what if name is None else f"{what} '{name}'"


def exchange(
    process_set: ProcessSet,
    array: np.ndarray,
    splits: Sequence[int] | None,
    name: str | None = None,
) -> tuple[np.ndarray, list[int]]:
    """Send a part of the array's rows to each worker (all-to-all).

    Args:
        process_set (ProcessSet): the workers that take part.
        array: an array of at least one dimension.
        splits (sequence of int, optional): number of rows for each worker; None: equal numbers.
        name (str, optional): name of the operation, for the texts of errors.

    Returns:
        tuple: the rows that all workers have sent to this worker, and the number of rows from each
        worker.
    """
    rows = array.shape[0] if array.ndim else 0
    table = split_table(rows, splits, process_set.n_ranks())
    all_, counts, tables = gather(process_set.runtime(), array, titled("alltoall", name), table)
    me, at, parts = process_set.rank(), 0, []
    for n, other in zip(counts, tables):
        first = at + sum(other[:me])
        parts.append(all_[first : first + other[me]])
        at += n
    return np.concatenate(parts), [len(part) for part in parts]


def _divided(sums: np.ndarray, dtype: np.dtype, factor: float, divisor: int) -> np.ndarray:
    """Return sums as another type, multiplied by a factor and divided. Averages of integers are
    rounded down, as those of servers are."""
    if factor == 1.0 and divisor == 1:
        return sums.astype(dtype, copy=False)
    if factor == 1.0:
        if dtype.name not in FLOATS:
            return (sums // divisor).astype(dtype)
        wide = np.float64 if dtype == np.float64 else np.float32
        return (sums.astype(wide) / wide(divisor)).astype(dtype)
    out = np.empty(sums.shape, dtype)
    copy_scaled(out, sums, factor / divisor)
    return out


def sum_rows(
    rt: Runtime,
    values: np.ndarray,
    indices: np.ndarray,
    n_rows: int | None,
    op: int,
    factor: float = 1.0,
    coding: Coding = RAW,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum rows of a table over all workers (:mod:`bps._union`).

    Args:
        rt (Runtime): the workers that take part.
        values: rows of this worker.
        indices: index of each row. Rows of the same index are added.
        n_rows (int, optional): number of rows of the table; None: unknown.
        op (int): SUM or AVG.
        factor (float): factor of all rows.
        coding (Coding): how floating-point rows are sent.

    Returns:
        tuple: the sums of the rows that at least one worker has, and their sorted indices.
    """
    if op not in (AVG, SUM):
        raise ValueError("op must be Average or Sum for sparse tensors")
    wire, row = wire_type(values.dtype, coding), math.prod(values.shape[1:])
    kind = NAMES[wire.name]
    index, rows = _union.merge(indices, values.reshape(len(values), row))
    table = _union.Table(n_rows, row, kind, index)

    def write(n_workers: int) -> list[np.ndarray]:
        before = _union.factors(kind, op, factor, n_workers)[0]
        if before == 1.0 and rows.dtype == wire:
            return [np.ascontiguousarray(rows)]
        sent = np.empty(rows.shape, wire)
        copy_scaled(sent, rows, before)
        return [sent]

    shape = ("?" if n_rows is None else n_rows, *values.shape[1:])
    text = f"a sparse tensor, {_compare.described(values.dtype.name, shape)}{coding}, {OPS[op]}"
    total = _union.begin(rt, text, [table], write)
    total.finish()
    after = _union.factors(kind, op, factor, total.n_workers)[1:]
    sums = _divided(total.values[0].view(wire), values.dtype, *after)
    found = total.indices[0]
    assert found is not None, "this worker has passed indices"
    return sums.reshape(-1, *values.shape[1:]), found.astype(indices.dtype, copy=False)
