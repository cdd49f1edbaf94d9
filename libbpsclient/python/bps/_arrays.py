"""Collectives on NumPy arrays, for the front-ends whose tensors NumPy can access.

Arrays that are reduced together make a :class:`Group`. A group places its arrays one after the
other in buckets, which are declared tensors of limited size. While one bucket is sent, the next
bucket is filled. A caller that passes no outputs gets views of one block of memory. The block is
used again when no view of it exists any more.

A single array without a name is sent in slots, the reusable tensors of :mod:`bps._slots`. The
first array of a size is sent in pieces of fixed sizes. Later arrays of this size can get a slot of
their own size.
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

from bps import _compare
from bps._compression import RAW, Coding
from bps._library import AVG, CODES, OPS, PRIORITY_AUTO, SUM, Error
from bps._operation import IN_FLIGHT, Operation, Slot
from bps._ops import priority_of, split_table
from bps._runtime import Runtime
from bps._sets import ProcessSet

BUCKET_BYTES = 16 << 20
# Alignment of memory that TensorFlow and XLA use without a copy.
ALIGN_BYTES = 64
BLOCKS_KEPT = 2

# NAMES: NumPy types that servers can sum, each with the service's name for the type.
# CARRIERS: NumPy types that are converted to another type for the reduction.
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
Kind = tuple[np.dtype, tuple[int, ...]]  # type and shape of an array
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
        raise TypeError("bfloat16 needs the package ml_dtypes: run pip install ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)


def wire_type(dtype: np.dtype, coding: Coding = RAW, n_values: int | None = None) -> np.dtype:
    """Return the type in which an array is sent.

    Args:
        dtype (dtype): type of the array.
        coding (Coding): how floating-point arrays are sent.
        n_values (int, optional): size of the array, if it is known.

    Raises:
        TypeError: arrays of this type cannot be reduced.
    """
    wire = coding.type_of(dtype.name, None if n_values is None else n_values * dtype.itemsize)
    if wire != dtype.name:
        return numpy_type(wire)
    name = CARRIERS.get(dtype.name, dtype.name)
    if name not in NAMES:
        raise TypeError(
            f"{dtype.name} cannot be summed: use one of {', '.join((*NAMES, *CARRIERS))}"
        )
    return dtype.newbyteorder("=") if name == dtype.name else np.dtype(name)


def at_address(address: int, dtype: np.dtype, n_elems: int) -> np.ndarray:
    """Return a flat array of the memory at an address. The memory must outlive the array."""
    raw = (ctypes.c_char * (n_elems * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype)


def _copy(target: np.ndarray, source: np.ndarray, factor: float) -> None:
    if factor == 1.0:
        np.copyto(target, source, casting="unsafe")
    else:
        # Multiply in f32, because f16 may be unable to hold the factor. Multiply f64 and integers
        # in f64, and round the products of integers towards zero.
        is_small = target.dtype.name in FLOATS and target.dtype != np.float64
        kind = np.float32 if is_small else np.float64
        np.copyto(target, source.astype(kind) * kind(factor), casting="unsafe")


class _Span:
    """The part of one array that one bucket holds: elements ``first`` to ``last - 1`` of array
    ``i``. In the bucket they begin at element ``start``."""

    __slots__ = ("first", "i", "input", "last", "start")

    def __init__(self, i: int, first: int, last: int, start: int) -> None:
        self.i, self.first, self.last, self.start = i, first, last, start
        self.input: np.ndarray | None = None


class _Bucket:
    """A declared tensor and the parts of arrays (spans) that it holds."""

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
        self.slot.tensor.job.check_mapped()
        for span in self.spans:
            _copy(span.input, arrays[span.i][span.first : span.last], factor)

    def collect(self, outputs: Sequence[np.ndarray], factor: float) -> None:
        address = self.slot.tensor.result_address
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
        name (str): the user's name. The names of the buckets' tensors begin with its next path.
        kinds (sequence): type and shape of each array.
        coding (Coding): how floating-point arrays are sent.
    """

    def __init__(self, rt: Runtime, name: str, kinds: Sequence[Kind], coding: Coding) -> None:
        self._runtime, self._name, self._path = rt, name, rt.next_path(name)
        self._list = _list(kinds, str(coding))
        self._is_compared = False
        self._is_declared = False
        self._kinds = [(dtype, math.prod(shape)) for dtype, shape in kinds]
        self._failure: BaseException | None = None
        self._is_interrupted = False  # True after a KeyboardInterrupt has ended a wait
        self._lock = threading.Lock()
        self._blocks: list[np.ndarray] = []
        self._buckets: list[_Bucket] = []
        last: dict[np.dtype, _Bucket] = {}
        for i, (dtype, n) in enumerate(self._kinds):
            self._lay_out(last, i, wire_type(dtype, coding, n), n)

    @property
    def has_mismatch(self) -> bool:
        """Whether the workers' arrays differed, which is an error at all workers."""
        return isinstance(self._failure, Error) and self._failure.code == CODES["EMISMATCH"]

    def _compare(self, op: int, labels: Sequence[str] | None) -> None:
        """Compare the group with those of the other workers. If the wait ends early, another call
        continues it."""
        what = f"tensor '{self._name}'" if len(self._kinds) == 1 else f"'{self._name}'"
        mine = self._list._replace(options=f"{self._list.options}, {OPS[op]}")
        try:
            self._runtime.compare_lists(self._path, what, mine, labels)
        except Error as error:
            if error.code not in IN_FLIGHT:
                self._failure = error
            raise
        self._is_compared = True

    def _declare(self) -> None:
        """Declare the tensors of the buckets."""
        rt = self._runtime
        decls = [
            (f"{rt.prefix}{self._path}.{i}", NAMES[bucket.dtype.name], bucket.n_elems)
            for i, bucket in enumerate(self._buckets)
        ]
        with rt.lock:
            slots = [Slot(t) for t in rt.job.declare_group(decls)] if decls else []
        for bucket, slot in zip(self._buckets, slots):
            bucket.attach(slot)
        self._is_declared = True

    def _lay_out(self, last: dict[np.dtype, _Bucket], i: int, dtype: np.dtype, n: int) -> None:
        """Assign parts of buckets to array i. The result depends only on the arrays' types, order
        and sizes, so it is the same at all workers."""
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
        labels: Sequence[str] | None = None,
        is_mean: bool = False,
    ) -> Sequence[np.ndarray]:
        """Reduce the arrays over all workers, and wait for the results.

        The first call compares the types and shapes of the group's arrays at all workers.

        Args:
            arrays: flat arrays of the group's types and sizes.
            outputs (sequence of array, optional): flat writable arrays for the results; None: new
                arrays.
            op (int): one of SUM, PROD, MAX, MIN, AVG.
            prescale, postscale (float): factors before and after the reduction.
            priority (int): tensors with a larger priority are sent first.
            labels (sequence of str, optional): names of the arrays for the text of an error.
            is_mean (bool): divide the results by the number of workers whose values they have.

        Raises:
            Error: the reduction has failed, or the workers' arrays differ. The group cannot be used
                any more.
            Timeout: other workers have not made their first call. Another call continues the
                comparison.
            KeyboardInterrupt: the wait was interrupted. The group can be used again. The outputs
                are not defined.
        """
        with self._lock:
            if self._failure is not None:
                if self.has_mismatch:
                    raise self._failure  # at all workers
                raise RuntimeError(
                    "an earlier reduction of these tensors failed, so this worker is out of step "
                    "with the others: start the job again"
                ) from self._failure
            if outputs is None:
                outputs = self._new_outputs()
            if not self._is_compared:
                self._compare(op, labels)
            try:
                if not self._is_declared:
                    self._declare()
                self._submit(arrays, op, prescale, priority)
                # Set the flag first, because each of the next lines may raise a KeyboardInterrupt.
                self._is_interrupted = True
                for bucket in self._buckets:
                    bucket.slot.tensor.finish(is_interruptible=True)
                    n = bucket.slot.tensor.contributors if is_mean else 1
                    bucket.collect(outputs, postscale / n)
                self._is_interrupted = False
            except BaseException as error:
                if not (self._is_interrupted and isinstance(error, KeyboardInterrupt)):
                    self._failure = error
                raise
            return outputs

    def _submit(
        self, arrays: Sequence[np.ndarray], op: int, prescale: float, priority: int
    ) -> None:
        if self._is_interrupted:
            # The other workers complete the interrupted round and do not repeat it. So finish this
            # round here before the next round begins.
            for bucket in self._buckets:
                bucket.slot.tensor.finish(is_interruptible=True)
            self._is_interrupted = False
        for bucket in self._buckets:
            bucket.fill(arrays, prescale)
            bucket.slot.tensor.push_pull(op, priority)

    def _new_outputs(self) -> list[np.ndarray]:
        """Return arrays for the results. All these arrays lie in one block of memory. If no array
        refers any more to the block of an earlier call, that block is used again."""
        sizes = [-(-n * dtype.itemsize // ALIGN_BYTES) * ALIGN_BYTES for dtype, n in self._kinds]
        # An unused block has three references: the list, the loop variable and the argument of
        # getrefcount. Each array in the block adds one reference.
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


def _described(array: np.ndarray) -> str:
    """Return type and shape of an array as text, which the workers compare."""
    return _compare.described(array.dtype.name, array.shape)


def _list(kinds: Sequence[Kind], options: str) -> _compare.List:
    """Return arrays without names, for a comparison."""
    described = [_compare.described(dtype.name, shape) for dtype, shape in kinds]
    return _compare.List(_compare.unnamed(described), options)


def group(rt: Runtime, name: str, kinds: Sequence[Kind], coding: Coding = RAW) -> Group:
    """Return the group of this name, types and shapes. Create the group at the first call.

    Each worker counts the different lists of types and shapes that it uses under one name, see
    :meth:`Runtime.next_path`. So all workers declare their lists of the same number under the same
    name. If these lists differ, the mismatch is an error at all workers, and a list that is passed
    again gets a new number.
    """
    key = (tuple(kinds), coding)
    with rt.lock:
        known = rt.groups.setdefault(name, {})
        found = known.get(key)
        if found is None or found.has_mismatch:
            found = known[key] = Group(rt, name, kinds, coding)
        return found


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
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    given = None if outputs is None else [o.reshape(-1) for o in outputs]
    if name is None and len(flat) == 1:
        wire = wire_type(flat[0].dtype, coding, flat[0].size)
        targets: Sequence[np.ndarray] = given or [np.empty_like(flat[0])]
        text = f"{_described(arrays[0])}{coding}, {OPS[op]}"
        factors = (prescale, postscale)
        _reduce_unnamed(rt, wire, flat[0], targets[0], op, factors, priority, text, is_mean)
    else:
        kinds = [(a.dtype, np.shape(a)) for a in arrays]
        if name is None:
            rt.agree_on_list("grouped_all_reduce", _list(kinds, f"{coding}, {OPS[op]}"), labels)
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
    text: str,
    is_mean: bool,
) -> None:
    n, at, kind = flat.size, 0, NAMES[wire.name]
    parts: list[Operation] = []

    def submit(slot: Slot, first: int, last: int) -> None:
        source, results = _views(slot, wire)
        _copy(source[: last - first], flat[first:last], factors[0])
        slot.tensor.push_pull(op, priority)

        def collect() -> None:
            address = slot.tensor.result_address
            if address not in results:
                results[address] = at_address(address, wire, slot.tensor.n_elems)
            n = slot.tensor.contributors if is_mean else 1
            _copy(out[first:last], results[address][: last - first], factors[1] / n)

        parts.append(Operation(slot, collect, parts[0]))

    with rt.submission():
        parts.append(rt.agree("all_reduce", text))
        slot = rt.slots.own(kind, op, n)
        if slot is not None:
            submit(slot, 0, n)
            at = n
        while at < n:
            slot = rt.slots.piece(kind, op, n - at)
            step = min(n - at, slot.tensor.n_elems)
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


def sum_rows(
    rt: Runtime,
    values: np.ndarray,
    indices: np.ndarray,
    op: int,
    factor: float = 1.0,
    coding: Coding = RAW,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of all workers, with their indices. For AVG the rows are divided by the
    number of workers.

    Args:
        rt (Runtime): the workers that take part.
        values: rows of this worker.
        indices: index of each row.
        op (int): SUM or AVG.
        factor (float): factor of all rows.
        coding (Coding): how floating-point rows are sent.
    """
    if op not in (AVG, SUM):
        raise ValueError("op must be Average or Sum for sparse tensors")
    wire = coding.type_of(values.dtype.name)
    is_cast = wire != values.dtype.name
    rows, counts, _ = gather(rt, values.astype(numpy_type(wire)) if is_cast else values)
    all_indices, _, _ = gather(rt, indices)
    factor /= len(counts) if op == AVG else 1
    if factor != 1.0:
        rows = rows.astype(np.float64) * factor
    return rows.astype(values.dtype, copy=False), all_indices
