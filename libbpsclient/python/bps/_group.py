"""Groups: NumPy arrays that are reduced together.

A group places its arrays one after the other in buckets, which are declared tensors of limited
size. While one bucket is sent, the next bucket is filled. A caller that passes no outputs gets
views of one piece of memory. The memory is used again when no view of it exists any more.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from bps import _compare
from bps._compression import RANDOMK, RAW, Coding, check_machines
from bps._dtypes import NAMES, at_address, copy_scaled, wire_type
from bps._library import BLOCKS, CODES, OPS, PRIORITY_AUTO, SUM, Error
from bps._operation import IN_FLIGHT, Slot
from bps._picks import positions, put, range_of, take
from bps._residuals import residual_of
from bps._runtime import Runtime

BUCKET_BYTES = 16 << 20
# Alignment of memory that TensorFlow and XLA use without a copy.
ALIGN_BYTES = 64
MEMORIES_KEPT = 2
Kind = tuple[np.dtype, tuple[int, ...]]  # type and shape of an array


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
        self.dtype, self.kind = dtype, NAMES[dtype.name]
        self.most, self.align = BUCKET_BYTES // dtype.itemsize, ALIGN_BYTES // dtype.itemsize
        self.spans: list[_Span] = []
        self.n_values = 0

    def attach(self, slot: Slot) -> None:
        self.slot = slot
        whole = at_address(slot.tensor.input_address, self.dtype, self.n_values)
        for span in self.spans:
            span.input = whole[span.start : span.start + span.last - span.first]

    def fill(self, arrays: Sequence[np.ndarray], factor: float, user: str) -> None:
        self.slot.tensor.job.check_mapped()
        for span in self.spans:
            copy_scaled(span.input, arrays[span.i][span.first : span.last], factor)

    def collect(self, outputs: Sequence[np.ndarray], factor: float) -> None:
        address = self.slot.tensor.result_address
        views = self.slot.views.get(address)
        if views is None:
            whole = at_address(address, self.dtype, self.n_values)
            views = [whole[s.start : s.start + s.last - s.first] for s in self.spans]
            self.slot.views[address] = views
        for span, view in zip(self.spans, views):
            copy_scaled(outputs[span.i][span.first : span.last], view, factor)


class _BlockBucket:
    """A declared tensor of a block type, and the parts of arrays that it holds. Each part begins
    with a block.

    Args:
        rt (Runtime): the workers that take part.
        kind (str): block type.
        has_residual (bool): see :class:`bps._compression.Coding`.
    """

    def __init__(self, rt: Runtime, kind: str, has_residual: bool) -> None:
        self._runtime, self.kind, self._has_residual = rt, kind, has_residual
        self.align = BLOCKS[kind][0]
        self.most = BUCKET_BYTES // 4 // self.align * self.align
        self.spans: list[_Span] = []
        self.n_values = 0

    def attach(self, slot: Slot) -> None:
        self.slot = slot

    def fill(self, arrays: Sequence[np.ndarray], factor: float, user: str) -> None:
        tensor, residual = self.slot.tensor, None
        if self._has_residual:
            residual = residual_of(self._runtime.residual_name(tensor.name + user), self.n_values)
        for s in self.spans:
            source = np.ascontiguousarray(arrays[s.i][s.first : s.last], np.float32)
            at = None if residual is None else residual.ctypes.data + 4 * s.start
            tensor.fill_memory(s.start, source.ctypes.data, source.size, factor, at)

    def collect(self, outputs: Sequence[np.ndarray], factor: float) -> None:
        for s in self.spans:
            target = outputs[s.i][s.first : s.last]
            values = target if target.dtype == np.float32 else np.empty(target.size, np.float32)
            self.slot.tensor.read_values(s.start, values.ctypes.data, values.size, factor)
            if values is not target:
                target[:] = values


class _PickBucket:
    """A declared tensor of some values of arrays (:mod:`bps._picks`). A span counts the values that
    are sent.

    Args:
        rt (Runtime): the workers that take part.
        coding (Coding): how many values are sent.
    """

    kind, align, most = "f32", ALIGN_BYTES // 4, BUCKET_BYTES // 4

    def __init__(self, rt: Runtime, coding: Coding) -> None:
        self._runtime, self._coding = rt, coding
        self.spans: list[_Span] = []
        self.n_values = 0
        self._n_steps = 0
        self._at: list[tuple[slice, np.ndarray]] = []  # of the last fill(), for each span

    def attach(self, slot: Slot) -> None:
        self.slot = slot

    def fill(self, arrays: Sequence[np.ndarray], factor: float, user: str) -> None:
        tensor, coding = self.slot.tensor, self._coding
        step = self._n_steps
        self._n_steps += 1
        target = at_address(tensor.input_address, np.dtype(np.float32), self.n_values)
        self._at.clear()
        for s in self.spans:
            n = arrays[s.i].size
            k = coding.n_sent(n)
            where = range_of(n, k, s.first, s.last)
            name = f"{tensor.name}/{s.i}"
            at = positions(coding.seed, name, step, n, k, s.first, s.last) - where.start
            residual = None
            if coding.has_residual:
                name = f"{name}.{s.first}{user}"
                residual = residual_of(self._runtime.residual_name(name), where.stop - where.start)
            part = target[s.start : s.start + s.last - s.first]
            take(part, arrays[s.i][where], factor, at, residual)
            self._at.append((where, at))

    def collect(self, outputs: Sequence[np.ndarray], factor: float) -> None:
        address = self.slot.tensor.result_address
        result = at_address(address, np.dtype(np.float32), self.n_values)
        for s, (where, at) in zip(self.spans, self._at):
            sent = result[s.start : s.start + s.last - s.first]
            put(outputs[s.i][where], sent, factor, at)


_AnyBucket: TypeAlias = _Bucket | _BlockBucket | _PickBucket


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
        self._list = list_of_kinds(kinds, str(coding))
        self._coding = coding
        self._is_compared = False
        self._is_declared = False
        self._kinds = [(dtype, math.prod(shape)) for dtype, shape in kinds]
        self._failure: BaseException | None = None
        self._is_interrupted = False  # True after a KeyboardInterrupt has ended a wait
        self._lock = threading.Lock()
        self._memories: list[np.ndarray] = []
        self._buckets: list[_AnyBucket] = []
        last: dict[np.dtype | str, _AnyBucket] = {}
        for i, (dtype, n) in enumerate(self._kinds):
            block = coding.block_of(dtype.name, n * dtype.itemsize)
            if block is None:
                wire = wire_type(dtype, coding, n)
                self._lay_out(last, i, n, wire, functools.partial(_Bucket, wire))
            elif block == RANDOMK:
                picks = functools.partial(_PickBucket, rt, coding)
                self._lay_out(last, i, coding.n_sent(n), block, picks)
            else:
                bucket = functools.partial(_BlockBucket, rt, block, coding.has_residual)
                self._lay_out(last, i, n, block, bucket)

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
            (f"{rt.prefix}{self._path}.{i}", bucket.kind, bucket.n_values)
            for i, bucket in enumerate(self._buckets)
        ]
        with rt.lock:
            slots = [Slot(t) for t in rt.job.declare_group(decls)] if decls else []
        for bucket, slot in zip(self._buckets, slots):
            bucket.attach(slot)
        self._is_declared = True

    def _lay_out(
        self,
        last: dict[np.dtype | str, _AnyBucket],
        i: int,
        n: int,
        wire: np.dtype | str,
        new: Callable[[], _AnyBucket],
    ) -> None:
        """Assign parts of buckets to array i. The result depends only on the arrays' types, order
        and sizes, so it is the same at all workers.

        Args:
            last (dict): the bucket that is not full yet of each type.
            n (int): number of values of the array that are sent.
            wire: type in which the array is sent.
            new (callable): returns an empty bucket of this type.
        """
        at = 0
        while at < n:
            bucket = last.get(wire)
            if bucket is None or bucket.n_values >= bucket.most:
                bucket = last[wire] = new()
                self._buckets.append(bucket)
            step = min(n - at, bucket.most - bucket.n_values)
            bucket.spans.append(_Span(i, at, at + step, bucket.n_values))
            bucket.n_values += -(-step // bucket.align) * bucket.align
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
            labels (sequence of str, optional): names of the arrays for the text of an error. Arrays
                of other labels have other residuals.
            is_mean (bool): divide the results by the number of workers whose values they have.

        Raises:
            Error: the reduction has failed, or the workers' arrays differ. The group cannot be used
                any more.
            Timeout: other workers have not made their first call. Another call continues the
                comparison.
            ValueError: see :func:`bps._compression.check_machines`.
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
            if not self._is_declared and any(isinstance(b, _BlockBucket) for b in self._buckets):
                check_machines(self._runtime, self._coding, self._path)
            try:
                if not self._is_declared:
                    self._declare()
                self._submit(arrays, op, prescale, priority, _user_of(labels))
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
        self, arrays: Sequence[np.ndarray], op: int, prescale: float, priority: int, user: str
    ) -> None:
        if self._is_interrupted:
            # The other workers complete the interrupted round and do not repeat it. So finish this
            # round here before the next round begins.
            for bucket in self._buckets:
                bucket.slot.tensor.finish(is_interruptible=True)
            self._is_interrupted = False
        for bucket in self._buckets:
            bucket.fill(arrays, prescale, user)
            bucket.slot.tensor.push_pull(op, priority)

    def _new_outputs(self) -> list[np.ndarray]:
        """Return arrays for the results. All these arrays lie in one piece of memory. If no array
        refers any more to the memory of an earlier call, that memory is used again."""
        sizes = [-(-n * dtype.itemsize // ALIGN_BYTES) * ALIGN_BYTES for dtype, n in self._kinds]
        # Unused memory has three references: the list, the loop variable and the argument of
        # getrefcount. Each array in the memory adds one reference.
        memory = next((m for m in self._memories if sys.getrefcount(m) <= 3), None)
        if memory is None:
            memory = np.empty(sum(sizes) + ALIGN_BYTES, np.uint8)
            if len(self._memories) < MEMORIES_KEPT:
                self._memories.append(memory)
        at, outputs = -memory.ctypes.data % ALIGN_BYTES, []
        for (dtype, n), n_bytes in zip(self._kinds, sizes):
            outputs.append(np.ndarray(n, dtype, memory, at))
            at += n_bytes
        return outputs


def _user_of(labels: Sequence[str] | None) -> str:
    """Return text for the name of a residual. Several optimizers may use one group, and each has
    its own residuals. Their names differ by the labels of the arrays."""
    return f"@{zlib.crc32(repr([*labels]).encode()):08x}" if labels else ""


def list_of_kinds(kinds: Sequence[Kind], options: str) -> _compare.List:
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
