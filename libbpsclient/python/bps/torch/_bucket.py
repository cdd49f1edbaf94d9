"""Buckets: gradients that are sent together, in one bps tensor.

A bucket is the input of the tensor. When the sums are complete, each parameter's ``.grad`` becomes
a view of the tensor's result, which is mapped copy-on-write. So the sums are not copied. A script
may write to ``.grad``, for example to clip gradients. The kernel then copies the written pages,
which is slower than a copy of the whole bucket. So after the first write to a bucket's gradients,
the results are copied to a permanent buffer.
"""

from __future__ import annotations

import itertools

import torch

from bps._library import BLOCKS
from bps.torch._channels import Channel, EncodedChannel, HostChannel
from bps.torch._memory import COPIED_BYTES, Wire


class Place:
    """The place of one parameter's gradient in a bucket."""

    __slots__ = ("bucket", "input", "is_filled", "is_large", "n_passes", "name", "param", "start")

    input: torch.Tensor  # the gradient's part of the bucket's input; not in a bucket of blocks
    start: int  # number of the gradient's first value in a bucket of blocks

    def __init__(self, name: str, param: torch.Tensor) -> None:
        self.name, self.param = name, param
        self.bucket: Bucket | None = None  # None: not assigned yet, or the gradient is sparse
        self.n_passes = 0  # number of backward passes in this step
        self.is_filled = False  # whether the gradient has been copied into the bucket
        self.is_large = param.numel() * param.element_size() >= COPIED_BYTES


class Bucket:
    """Gradients of one type that are sent together, in one bps tensor.

    Args:
        wire (torch.dtype or str): type in which the gradients are sent. A str is one of
            :data:`bps._compression.CODED`. In a block type, each gradient begins with a block. With
            RANDOMK, the bucket has one gradient.
        factor (float): factor of the gradients before they are sent.
    """

    __slots__ = (
        "_align", "_copy", "_factor", "_inputs", "_mapped", "_small", "_views", "channel",
        "is_handed_over", "is_in_place", "n_ready", "places", "wire",
    )  # fmt: skip

    def __init__(self, wire: Wire, factor: float = 1.0) -> None:
        self.wire, self._factor = wire, factor
        self._align = BLOCKS[wire][0] if wire in BLOCKS else 1
        self.places: list[Place] = []
        self.n_ready = 0
        self.is_handed_over = False  # True from step() until CrossBarrier collects the bucket

    def n_values(self) -> int:
        """Return the number of values of all gradients in the bucket, with the gaps between
        them."""
        return sum(self._room(place) for place in self.places)

    def _room(self, place: Place) -> int:
        """Return the number of values of a gradient and of the gap after it."""
        return -(-place.param.numel() // self._align) * self._align

    def attach(self, channel: Channel | EncodedChannel, is_scaled: bool) -> None:
        """Use this channel's memory for the bucket. Assign a part of the memory to each gradient.

        Args:
            channel (Channel): memory of at least :meth:`n_values` elements.
            is_scaled (bool): the results are multiplied by a factor, so they must be copied.
        """
        self.channel = channel
        self._copy: torch.Tensor | None = None
        # key: address of the results; value: the gradients, which are views of these results
        self._views: dict[int, list[torch.Tensor]] = {}
        self._mapped: HostChannel | None = None
        self.is_in_place = False
        if isinstance(channel, EncodedChannel):
            start = 0
            for place in self.places:
                place.bucket, place.start = self, start
                start += self._room(place)
            return
        is_same = channel.input.dtype == self.places[0].param.dtype
        self.is_in_place = channel.is_in_place and is_same
        if isinstance(channel, HostChannel) and is_same and not is_scaled and channel.map():
            self._mapped = channel  # the results are mapped
        # Small gradients that are not copied yet, and their parts of the input. One call copies all
        # of them, because a call for each would take longer than the copies.
        self._small: list[torch.Tensor] = []
        self._inputs: list[torch.Tensor] = []
        for place, part in zip(self.places, self._parts(channel.input)):
            place.bucket, place.input = self, part

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return each gradient's part of ``flat``, in the shape of the gradient's parameter."""
        params = [place.param for place in self.places]
        starts = [0, *itertools.accumulate(map(self._room, self.places))]
        return [_shaped(flat[at : at + p.numel()], p) for p, at in zip(params, starts)]

    def fill(self, place: Place, grad: torch.Tensor | None) -> None:
        """Copy a gradient to its place, or let :meth:`pack` copy it. None stands for zeros."""
        if grad is not None and grad.requires_grad:  # true after backward(create_graph=True)
            grad = grad.detach()
        if isinstance(self.channel, EncodedChannel):
            if grad is None:
                grad = torch.zeros_like(place.param)
            self.channel.encode(place.start, flat_like(place.param, grad), self._factor)
        elif grad is None:
            place.input.zero_()
        elif grad.is_sparse:
            place.input.copy_(grad.to_dense())
        elif place.is_large:
            self.channel.write(place.input, grad)
        else:
            self._small.append(grad)
            self._inputs.append(place.input)

    def clear(self) -> None:
        """Fill the bucket with zeros."""
        if isinstance(self.channel, EncodedChannel):
            self.channel.clear(0, self.n_values())
        else:
            self.channel.input.zero_()

    def pack(self) -> None:
        """Copy the remaining gradients, and multiply all gradients by the factor."""
        if isinstance(self.channel, EncodedChannel):
            return
        if self._small:
            torch._foreach_copy_(self._inputs, self._small)
            self._small.clear()
            self._inputs.clear()
        if self._factor != 1.0:
            self.channel.input[: self.n_values()].mul_(self._factor)

    def deliver(self, factor: float) -> None:
        """Let the parameters' ``.grad`` be the complete results, multiplied by a factor."""
        if isinstance(self.channel, EncodedChannel):
            if self._copy is None:
                self._copy = self.places[0].param.new_empty(self.n_values())
            flat = self._copy
            self.channel.decode(flat, factor)
        else:
            flat = self._result(self.channel)
            if factor != 1.0:
                flat.mul_(factor)
        grads = self._views.get(flat.data_ptr())
        if grads is None:
            grads = self._views[flat.data_ptr()] = self._parts(flat)
        for place, grad in zip(self.places, grads):
            if place.param.requires_grad:  # an optimizer would decay a parameter that is frozen
                place.param.grad = grad

    def _result(self, channel: Channel) -> torch.Tensor:
        """Return the results, in memory that may be written to."""
        if self.is_in_place:
            return channel.input
        if self._mapped is not None:
            flat, was_written = self._mapped.last()
            if not was_written:
                return flat
            self._mapped = None
            self._views.clear()
        if self._copy is None:
            self._copy = self.places[0].param.new_empty(self.n_values())
        channel.read(self._copy)
        return self._copy


def flat_like(param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return the values of a gradient as a flat tensor without gaps, of which :func:`_shaped` is
    the gradient."""
    if grad.is_sparse:
        grad = grad.to_dense()
    if not torch.ops.aten.is_non_overlapping_and_dense(param):
        return grad.contiguous().view(-1)
    if grad.stride() != param.stride():
        grad = torch.empty_like(param).copy_(grad)
    return grad.as_strided((grad.numel(),), (1,))


def _shaped(flat: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """Return a view of flat memory. The view has the parameter's shape. It also has the parameter's
    strides if they leave no gaps, for example in the format channels_last."""
    if param.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(param):
        return flat.view(param.shape)
    return flat.as_strided(param.shape, param.stride())
