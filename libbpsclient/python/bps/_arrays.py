"""Collectives on NumPy arrays: what the front-ends share whose tensors NumPy can see.

Arrays that are reduced together make a :class:`Group`. A group lays them out one behind the other,
and cuts that memory into buckets of declared tensors. A bucket travels while the next one is
filled. A caller that gives no outputs gets views of one block of memory, which is used again when
no view of it exists.

A single array without a name travels in pieces, and from its second use in a slot of its own.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from bps._core import Operation, Runtime, Slot
from bps._library import AVG, PRIORITY_AUTO, SUM
from bps._ops import split_table
from bps._sets import ProcessSet

BUCKET_BYTES = 16 << 20
# TensorFlow and XLA use memory as it is when it begins at a multiple of this.
ALIGN_BYTES = 64
BLOCKS_KEPT = 2

# Types that servers sum, and those that travel as another type.
NAMES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
}
CARRIERS = {"bool": "uint8", "int16": "int32", "uint16": "int32", "uint32": "int64"}
FLOATS = ("float16", "bfloat16", "float32", "float64")


@functools.lru_cache
def numpy_type(name: str) -> np.dtype:
    """Return NumPy's type of this name.

    Raises:
        TypeError: the type is bfloat16, and package ml_dtypes is missing.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)


def wire_type(dtype: np.dtype, compress: str | None = None) -> np.dtype:
    """Return the type in which an array travels.

    Args:
        dtype (dtype): of the array.
        compress (str, optional): type on the wire of floating-point arrays.

    Raises:
        TypeError: no type carries it.
    """
    if compress is not None and dtype.name in FLOATS:
        return numpy_type(compress)
    name = CARRIERS.get(dtype.name, dtype.name)
    if name not in NAMES:
        raise TypeError(
            f"{dtype.name} cannot be summed; these types can: {', '.join((*NAMES, *CARRIERS))}"
        )
    return dtype if name == dtype.name else np.dtype(name)


def at_address(address: int, dtype: np.dtype, n_elems: int) -> np.ndarray:
    """A flat array over foreign memory, which must outlive it."""
    raw = (ctypes.c_char * (n_elems * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype)


def _copy(target: np.ndarray, source: np.ndarray, factor: float) -> None:
    if factor == 1.0:
        np.copyto(target, source, casting="unsafe")
    else:
        # In f32 at least: a factor can be out of the range of f16.
        kind = np.float64 if target.dtype == np.float64 else np.float32
        np.copyto(target, source.astype(kind) * kind(factor), casting="unsafe")


class _Span:
    """The part of one array that lies in one bucket."""

    __slots__ = ("first", "i", "input", "last", "start")

    def __init__(self, i: int, first: int, last: int, start: int) -> None:
        self.i, self.first, self.last, self.start = i, first, last, start
        self.input: np.ndarray | None = None


class _Bucket:
    """A declared tensor, and the spans in it."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.spans: list[_Span] = []
        self.n_elems = 0

    def attach(self, slot: Slot) -> None:
        self.slot = slot
        whole = at_address(slot.tensor.input_address, self.dtype, self.n_elems)
        for span in self.spans:
            span.input = whole[span.start : span.start + span.last - span.first]

    def fill(self, arrays: Sequence[np.ndarray], factor: float) -> None:
        assert self.slot.tensor.handle  # or the job is closed, and its memory gone
        for span in self.spans:
            _copy(span.input, arrays[span.i][span.first : span.last], factor)

    def collect(self, outputs: Sequence[np.ndarray], factor: float) -> None:
        address = self.slot.tensor.output_address
        assert address, "a round is complete"
        views = self.slot.views.get(address)
        if views is None:
            whole = at_address(address, self.dtype, self.n_elems)
            views = [whole[s.start : s.start + s.last - s.first] for s in self.spans]
            self.slot.views[address] = views
        for span, view in zip(self.spans, views):
            _copy(outputs[span.i][span.first : span.last], view, factor)


class Group:
    """Arrays of fixed types and sizes that are reduced in one call.

    Args:
        rt (Runtime): the workers that take part.
        name (str): begins the names of its tensors.
        kinds (sequence): type and number of elements of each array.
        compress (str, optional): type on the wire of floating-point arrays.
    """

    def __init__(
        self, rt: Runtime, name: str, kinds: Sequence[tuple[np.dtype, int]], compress: str | None
    ) -> None:
        self._kinds = list(kinds)
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._blocks: list[np.ndarray] = []
        self._buckets: list[_Bucket] = []
        last: dict[np.dtype, _Bucket] = {}
        for i, (dtype, n) in enumerate(self._kinds):
            self._lay_out(last, i, wire_type(dtype, compress), n)
        decls = [
            (f"{rt.prefix}u/{name}.{i}", NAMES[bucket.dtype.name], bucket.n_elems)
            for i, bucket in enumerate(self._buckets)
        ]
        with rt.lock:
            slots = [Slot(t) for t in rt.job.declare_group(decls)] if decls else []
        for bucket, slot in zip(self._buckets, slots):
            bucket.attach(slot)

    def _lay_out(self, last: dict[np.dtype, _Bucket], i: int, dtype: np.dtype, n: int) -> None:
        """Give an array its places. Types, order and sizes decide: all workers decide the same."""
        most, align = BUCKET_BYTES // dtype.itemsize, ALIGN_BYTES // dtype.itemsize
        at = 0
        while at < n:
            bucket = last.get(dtype)
            if bucket is None or bucket.n_elems >= most:
                bucket = last[dtype] = _Bucket(dtype)
                self._buckets.append(bucket)
            step = min(n - at, most - bucket.n_elems)
            bucket.spans.append(_Span(i, at, at + step, bucket.n_elems))
            bucket.n_elems += -(-step // align) * align
            at += step

    def reduce(
        self,
        arrays: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray] | None = None,
        op: int = SUM,
        prescale: float = 1.0,
        postscale: float = 1.0,
        priority: int = PRIORITY_AUTO,
    ) -> Sequence[np.ndarray]:
        """Reduce the arrays over all workers; returns when the results are there.

        Args:
            arrays: flat, of the group's types and sizes.
            outputs (sequence of array, optional): flat and writable; None: new ones.
            op (int): one of SUM, PROD, MAX, MIN, AVG.
            prescale, postscale (float): factors before and after the reduction.
            priority (int): larger goes first.

        Raises:
            Error: with the service's sentence. The group cannot be used any more.
        """
        with self._lock:
            if self._failure is not None:
                raise RuntimeError(
                    "an operation on these tensors failed before it was complete: this worker is "
                    "out of step with the others"
                ) from self._failure
            if outputs is None:
                outputs = self._new_outputs()
            try:
                for bucket in self._buckets:
                    bucket.fill(arrays, prescale)
                    bucket.slot.tensor.push_pull(op, priority)
                for bucket in self._buckets:
                    bucket.slot.tensor.finish()
                    bucket.collect(outputs, postscale)
            except BaseException as error:
                self._failure = error
                raise
            return outputs

    def _new_outputs(self) -> list[np.ndarray]:
        """Return arrays in one block of memory, an unused one if there is one."""
        sizes = [-(-n * dtype.itemsize // ALIGN_BYTES) * ALIGN_BYTES for dtype, n in self._kinds]
        # The list, the loop and the call hold a block, each view of it does, too.
        block = next((b for b in self._blocks if sys.getrefcount(b) <= 3), None)
        if block is None:
            block = np.empty(sum(sizes) + ALIGN_BYTES, np.uint8)
            if len(self._blocks) < BLOCKS_KEPT:
                self._blocks.append(block)
        at, outputs = -block.ctypes.data % ALIGN_BYTES, []
        for (dtype, n), n_bytes in zip(self._kinds, sizes):
            outputs.append(np.ndarray(n, dtype, block, at))
            at += n_bytes
        return outputs


def group(
    rt: Runtime, name: str, kinds: Sequence[tuple[np.dtype, int]], compress: str | None = None
) -> Group:
    """Return the group of a name, which is declared at its first use.

    The n-th list of types and sizes under one name is ``NAME#n``: lists that differ between
    workers meet there, and the mismatch is an error at all of them.
    """
    key = (tuple(kinds), compress)
    with rt.lock:
        known = rt.groups.setdefault(name, {})
        found = known.get(key)
        if found is None:
            suffix = f"#{len(known) + 1}" if known else ""
            found = known[key] = Group(rt, name + suffix, kinds, compress)
        return found


def check_scale(dtypes: Sequence[np.dtype], prescale: float, postscale: float) -> None:
    """Refuse factors for integers.

    Raises:
        ValueError: with what to do instead.
    """
    for dtype in dtypes:
        if (prescale, postscale) != (1.0, 1.0) and dtype.name not in FLOATS:
            raise ValueError(
                f"a tensor of {dtype.name} cannot be scaled: convert it to a floating-point type "
                "first"
            )


def reduce(
    rt: Runtime,
    arrays: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray] | None = None,
    name: str | None = None,
    op: int = AVG,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compress: str | None = None,
    priority: int = PRIORITY_AUTO,
) -> list[np.ndarray]:
    """Reduce arrays over all workers of a runtime.

    Args:
        rt (Runtime): the workers that take part.
        arrays: any shapes, the same at all workers.
        outputs (sequence of array, optional): contiguous, for the results; None: new ones.
        name (str, optional): the same at all workers. A single array without one is not declared
            at its first use.
        op (int): one of SUM, PROD, MAX, MIN, AVG.
        prescale, postscale (float): factors before and after the reduction.
        compress (str, optional): type on the wire of floating-point arrays.
        priority (int): larger goes first.

    Returns:
        list of array: the outputs.
    """
    check_scale([a.dtype for a in arrays], prescale, postscale)
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    targets = None if outputs is None else [o.reshape(-1) for o in outputs]
    if name is None and len(flat) == 1:
        wire = wire_type(flat[0].dtype, compress)
        if targets is None:
            targets = [np.empty_like(flat[0])]
        _reduce_unnamed(rt, wire, flat[0], targets[0], op, (prescale, postscale), priority)
    else:
        one = group(rt, name or "group", [(a.dtype, a.size) for a in flat], compress)
        targets = one.reduce(flat, targets, op, prescale, postscale, priority)
    if outputs is not None:
        return list(outputs)
    return [t.reshape(a.shape) for t, a in zip(targets, arrays)]


def _views(slot: Slot, dtype: np.dtype) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The slot's input, and its outputs by address."""
    assert slot.tensor.handle  # or the job is closed, and its memory gone
    seen = slot.views.get(dtype)
    if seen is None:
        t = slot.tensor
        seen = slot.views[dtype] = (at_address(t.input_address, dtype, t.n_elems), {})
    return seen


def _reduce_unnamed(
    rt: Runtime,
    wire: np.dtype,
    flat: np.ndarray,
    out: np.ndarray,
    op: int,
    factors: tuple[float, float],
    priority: int,
) -> None:
    n, at, kind = flat.size, 0, NAMES[wire.name]
    parts: list[Operation] = []

    def submit(slot: Slot, first: int, last: int) -> None:
        source, results = _views(slot, wire)
        _copy(source[: last - first], flat[first:last], factors[0])
        slot.tensor.push_pull(op, priority)

        def collect() -> None:
            address = slot.tensor.output_address
            if address not in results:
                results[address] = at_address(address, wire, slot.tensor.n_elems)
            _copy(out[first:last], results[address][: last - first], factors[1])

        parts.append(Operation(slot, collect, parts[0]))

    with rt.submission():
        parts.append(rt.agree("all_reduce", kind, n, op))
        slot = rt.own_slot(kind, op, n)
        if slot is not None:
            submit(slot, 0, n)
            at = n
        while at < n:
            slot = rt.piece(kind, op, n - at)
            step = min(n - at, slot.tensor.n_elems)
            submit(slot, at, at + step)
            at += step
    for part in parts:
        part.finish()


def broadcast(rt: Runtime, arrays: Sequence[np.ndarray], root: int) -> list[np.ndarray]:
    """Return root's arrays at every worker; shapes and types are the same at all of them.

    Args:
        rt (Runtime): the workers that take part.
        arrays: any shapes and types.
        root (int): whose values all get.
    """
    flat = [np.ascontiguousarray(a) for a in arrays]
    block = np.empty(sum(a.nbytes for a in flat), np.uint8)
    at = 0
    for a in flat:
        block[at : at + a.nbytes] = a.reshape(-1).view(np.uint8)
        at += a.nbytes
    with rt.submission():
        rt.agree("broadcast", "u8", block.size, root=root).finish()
        if block.size:
            rt.job.broadcast_memory(block.ctypes.data, block.size, root)
    at, outputs = 0, []
    for a in arrays:
        # A copy: the start may lack the alignment of the type.
        outputs.append(block[at : at + a.nbytes].copy().view(a.dtype).reshape(a.shape))
        at += a.nbytes
    return outputs


def gather(
    rt: Runtime, array: np.ndarray, what: str = "allgather", extra: Any = None
) -> tuple[np.ndarray, list[int], list[Any]]:
    """All workers' arrays along the first dimension, how many rows each has, and each one's extra
    object.

    Raises:
        ValueError: an array has no dimension, or another dimension or type differs.
    """
    if array.ndim == 0:
        raise ValueError(f"{what} needs a tensor of at least one dimension: reshape it to [1]")
    rest, kind = array.shape[1:], array.dtype.name
    given = rt.allgather_object((rest, kind, array.shape[0], extra))
    for r, (other, name, _, _) in enumerate(given):
        if (other, name) != (rest, kind):
            raise ValueError(
                f"{what}: rank {r} has shape [?, {', '.join(map(str, other))}] of {name}, "
                f"this one {list(array.shape)} of {kind}"
            )
    rows, extras = [n for _, _, n, _ in given], [extra for _, _, _, extra in given]
    most, row_bytes = max(rows), array.dtype.itemsize * math.prod(rest)
    if most * row_bytes == 0:
        return np.empty((sum(rows), *rest), array.dtype), rows, extras
    src = np.zeros((most, *rest), array.dtype)
    src[: array.shape[0]] = array
    dst = np.empty((len(rows), most, *rest), array.dtype)
    with rt.submission(is_compared=True):
        rt.job.allgather_memory(src.ctypes.data, most * row_bytes, dst.ctypes.data)
    return np.concatenate([dst[r, :n] for r, n in enumerate(rows)]), rows, extras


def exchange(
    process_set: ProcessSet, array: np.ndarray, splits: Sequence[int] | None
) -> tuple[np.ndarray, list[int]]:
    """Send rows to each worker; returns the rows that all sent here, and how many each sent.

    Args:
        process_set (ProcessSet): the workers that take part.
        array: at least one dimension.
        splits (sequence of int, optional): how many rows each worker gets; None: equally many.
    """
    rows = array.shape[0] if array.ndim else 0
    table = split_table(rows, splits, process_set.size())
    all_, counts, tables = gather(process_set.runtime(), array, "alltoall", table)
    me, at, parts = process_set.rank(), 0, []
    for n, other in zip(counts, tables):
        first = at + sum(other[:me])
        parts.append(all_[first : first + other[me]])
        at += n
    return np.concatenate(parts), [len(part) for part in parts]


def sum_rows(
    rt: Runtime, values: np.ndarray, indices: np.ndarray, op: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their indices of all workers; for AVG the rows are divided by their number."""
    all_values, counts, _ = gather(rt, values)
    all_indices, _, _ = gather(rt, indices)
    if op == AVG:
        all_values = (all_values / len(counts)).astype(values.dtype)
    elif op != SUM:
        raise ValueError("op is Average or Sum for sparse tensors")
    return all_values, all_indices
