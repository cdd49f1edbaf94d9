"""Gradients in buckets: a gradient's hook copies it into its bucket, and a full bucket is sent.

A bucket is the input of one bps tensor. Its result is copied once, into a buffer that lasts, of
which the parameters' ``.grad`` are views: the memory that autograd made for the gradient is free
again at once. No thread is started: the caller of :meth:`Reducer.finish` waits for the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

import bps
from bps._core import Slot
from bps.torch._memory import NAMES, check_device, input_view, output_view, wire_dtype
from bps.torch._sets import ProcessSet, global_process_set

BUCKET_BYTES = 16 << 20


class _Place:
    """Where one parameter's gradient goes."""

    __slots__ = ("bucket", "input", "is_filled", "n_passes", "name", "param", "result")

    def __init__(self, name: str, param: torch.Tensor, bucket: _Bucket) -> None:
        self.name, self.param, self.bucket = name, param, bucket
        self.n_passes = 0  # backward passes since the last finish
        self.is_filled = False  # its gradient is in the bucket


class _Bucket:
    """Gradients of one type that travel together."""

    __slots__ = ("n_ready", "places", "result", "slot")

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.n_ready = 0

    def attach(self, slot: Slot) -> None:
        self.slot = slot
        total = sum(p.param.numel() for p in self.places)
        flat, self.result = input_view(slot), self.places[0].param.new_zeros(total)
        at = 0
        for place in self.places:
            n = place.param.numel()
            place.input = _shaped(flat[at : at + n], place.param)
            place.result = _shaped(self.result[at : at + n], place.param)
            at += n


def _shaped(flat: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """A view of flat memory with the parameter's shape, and its strides where it has no gaps
    (channels_last)."""
    if param.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(param):
        return flat.view(param.shape)
    return flat.as_strided(param.shape, param.stride())


# The reducer of each parameter, so that a second one takes the first one's place.
_reducers: WeakIdKeyDictionary = WeakIdKeyDictionary()


class Reducer:
    """Reduces the gradients of named parameters over all workers.

    Args:
        named: (name, parameter) in an order that is the same at all workers.
        op (int): Average or Sum.
        passes (int): backward passes whose gradients are added before they are sent.
        prescale, postscale (float): factors before and after the sum.
        wire (torch.dtype, optional): the type on the wire; None: the parameter's own.
        sparse_as_dense (bool): make sparse gradients dense, instead of refusing them.
        bucket_bytes (int): gradients of so many bytes travel together.
        process_set (ProcessSet): the workers that take part.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        op: int = bps.AVG,
        passes: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wire: torch.dtype | None = None,
        sparse_as_dense: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._op, self.passes, self._prescale, self._postscale = op, passes, prescale, postscale
        self._sparse_as_dense = sparse_as_dense
        self._buckets = self._cut(named, bucket_bytes)
        self._in_flight: list[_Bucket] = []
        self.begun = False  # a gradient has arrived since the last finish
        self.is_paused = False  # gradients only add up
        self.on_begin: Callable[[], None] | None = None  # called with the first gradient of a step
        rt = process_set.runtime()
        number = rt.next_set()
        decls = []
        for i, bucket in enumerate(self._buckets):
            dtype = bucket.places[0].param.dtype
            kind = NAMES[
                wire if wire is not None and dtype.is_floating_point else wire_dtype(dtype)
            ]
            decls.append(
                (f"{rt.prefix}grad/{number}.{i}", kind, sum(p.param.numel() for p in bucket.places))
            )
        with rt.lock:
            slots = [Slot(t) for t in rt.job.declare_group(decls)]
        for bucket, slot in zip(self._buckets, slots):
            bucket.attach(slot)
        self._places = [p for bucket in self._buckets for p in bucket.places]
        for place in self._places:
            other = _reducers.get(place.param)
            if other is not None:
                other.close()  # a gradient goes one way
            _reducers[place.param] = self
        self._hooks = [
            p.param.register_post_accumulate_grad_hook(self._hook(p)) for p in self._places
        ]

    @staticmethod
    def _cut(named: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int) -> list[_Bucket]:
        """Buckets by type, order and bytes alone: they are the same at all workers."""
        buckets: list[_Bucket] = []
        last: dict[torch.dtype, tuple[_Bucket, int]] = {}
        for name, param in named:
            check_device(param)
            if param.numel() == 0:
                continue
            n_bytes = param.numel() * param.element_size()
            bucket, used = last.get(param.dtype, (None, 0))
            if bucket is None or used + n_bytes > bucket_bytes:
                bucket, used = _Bucket(), 0
                buckets.append(bucket)
            bucket.places.append(_Place(name, param, bucket))
            last[param.dtype] = (bucket, used + n_bytes)
        return buckets

    def _hook(self, place: _Place) -> Callable[[torch.Tensor], None]:
        def on_gradient(param: torch.Tensor) -> None:
            if self.is_paused:
                return
            place.n_passes += 1
            if not self.begun:
                self.begun = True
                if self.on_begin is not None:
                    self.on_begin()
            if place.n_passes == self.passes:
                self._fill(place)
            elif place.n_passes > self.passes:
                raise AssertionError(
                    f"parameter '{place.name}' got a gradient more than "
                    f"backward_passes_per_step={self.passes} times "
                    "before step() or synchronize(): raise backward_passes_per_step to "
                    "accumulate gradients"
                )

        return on_gradient

    def _fill(self, place: _Place) -> None:
        """Copy a gradient into its bucket, and send the bucket when it is full. A missing gradient
        is zeros."""
        param, bucket = place.param, place.bucket
        grad = param.grad
        assert bucket.slot.tensor.handle  # or the job is closed, and its memory gone
        if grad is None:
            place.input.zero_()
        else:
            if grad.is_sparse:
                if not self._sparse_as_dense:
                    raise NotImplementedError(
                        f"parameter '{place.name}' has a sparse gradient: give "
                        "sparse_as_dense=True, or make its "
                        "embedding with sparse=False"
                    )
                grad = grad.to_dense()
            place.input.copy_(grad)
            if self._prescale != 1.0:
                place.input.mul_(self._prescale)
        param.grad = place.result
        place.is_filled = True
        bucket.n_ready += 1
        if bucket.n_ready == len(bucket.places):
            bucket.slot.tensor.push_pull(self._op)
            self._in_flight.append(bucket)

    def finish(self) -> None:
        """Send what is missing, wait for all sums and write them into the gradients.

        After a time-out the sums are still in flight: call it again.
        """
        for place in self._places:
            if not place.is_filled:
                self._fill(place)
        while self._in_flight:
            bucket = self._in_flight[0]
            bucket.slot.tensor.finish()
            self._in_flight.pop(0)
            bucket.result.copy_(output_view(bucket.slot))
            if self._postscale != 1.0:
                bucket.result.mul_(self._postscale)
        self.begun = False
        for bucket in self._buckets:
            bucket.n_ready = 0
        for place in self._places:
            place.n_passes, place.is_filled = 0, False

    def close(self) -> None:
        """Remove the hooks: gradients are the caller's own again."""
        for hook in self._hooks:
            hook.remove()
        for place in self._places:
            if _reducers.get(place.param) is self:
                del _reducers[place.param]
