"""Data parallelism for PyTorch: BytePS's module wrapper, and a communication hook for PyTorch's
own."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

import bps
from bps import _core
from bps.torch._channels import Channel, check_gradient, open_channels
from bps.torch._compression import Compression, Compressor
from bps.torch._memory import wire_dtype
from bps.torch._optimizer import broadcast_parameters
from bps.torch._reducer import BUCKET_BYTES, Reducer


def _at_end_of_backward(call: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)


class DistributedDataParallel(torch.nn.Module):
    """Average a module's gradients over all workers during backward().

    Parameters and buffers are rank 0's from the start.

    Args:
        module (Module): the model.
        device_ids (list, optional): accepted for BytePS's scripts.
        broadcast_buffers (bool): give all workers rank 0's buffers before each forward in training.
        compression (Compressor): the type on the wire.
        bucket_bytes (int): gradients of this many bytes travel together.

    Example::

        >>> model = bps.torch.DistributedDataParallel(model)
        >>> model(x).sum().backward()   # gradients are the averages now
        >>> optimizer.step()
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: list[int] | None = None,
        broadcast_buffers: bool = True,
        compression: type[Compressor] = Compression.none,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        super().__init__()
        self.module, self.device_ids, self.broadcast_buffers = module, device_ids, broadcast_buffers
        broadcast_parameters(module.state_dict(), 0)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError(
                "no parameter of the module needs a gradient: the module needs no "
                "DistributedDataParallel"
            )
        self._reducer = Reducer(named, wire=compression.wire, bucket_bytes=bucket_bytes)
        self._reducer.on_begin = self._on_backward

    def _on_backward(self) -> None:
        _at_end_of_backward(self._reducer.finish)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if not self._reducer.is_paused:
            self.synchronize()  # a backward pass that raised left its buckets in flight
        if self.broadcast_buffers and self.module.training and not self._reducer.is_paused:
            broadcast_parameters(list(self.module.buffers()), 0)
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of backward passes in this context add up; the first pass after it sends
        the sums.

        Example::

            >>> with model.no_sync():
            ...     model(a).sum().backward()
            >>> model(b).sum().backward()   # gradients of both are sent
        """
        self._reducer.is_paused, was_paused = True, self._reducer.is_paused
        try:
            yield
        finally:
            self._reducer.is_paused = was_paused

    def synchronize(self) -> None:
        """Wait until the gradients are reduced. backward() has waited already, so this does nothing
        then."""
        if self._reducer.begun:
            self._reducer.finish()


class HookState:
    """Channels of :func:`ddp_hook`, one for each of DDP's buckets and sizes.

    Args:
        wire (torch.dtype, optional): the type on the wire; None: the gradients' own.
    """

    def __init__(self, wire: torch.dtype | None = None) -> None:
        self.wire = wire
        self.number = _core.runtime().next_set()
        self.channels: dict[tuple[int, torch.dtype, int], Channel] = {}
        self.pending: list[tuple[Channel, torch.dtype, torch.futures.Future[torch.Tensor]]] = []
        _core.runtime().reopened.add(self)

    def reopen(self) -> None:
        """Open the channels again at their next use, because a resume has moved their memory."""
        self.channels.clear()
        self.pending.clear()

    def channel(self, bucket: Any) -> Channel:
        """Return the channel of a bucket, which is declared at its first use."""
        buffer = bucket.buffer()
        key = (bucket.index(), buffer.dtype, buffer.numel())
        if key not in self.channels:
            check_gradient(buffer)
            wire = self.wire or wire_dtype(buffer.dtype)
            kind = str(wire).removeprefix("torch.")
            name = f"ddp/{self.number}.{key[0]}.{key[2]}.{kind}"
            decl = (name, wire, key[2], buffer.device)
            (self.channels[key],) = open_channels(_core.runtime(), [decl])
        return self.channels[key]

    def finish(self) -> None:
        """Wait for all buckets of this backward pass and hand out their averages."""
        pending, self.pending = self.pending, []
        for channel, dtype, future in pending:
            try:
                channel.finish()
                future.set_result(channel.output.to(dtype))
            except Exception as error:  # it reaches the trainer through the future
                future.set_exception(error)


# DDP compares the annotations of its hook, so this file does not postpone them.
def ddp_hook(
    state: HookState | None, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average DDP's buckets over all workers, as its communication hook.

    Args:
        state (HookState): ``HookState()``, one for each DDP module.
        bucket (GradBucket): DDP's.

    Returns:
        Future: the averaged bucket, complete at the end of this backward pass.

    Example::

        >>> bps.torch.init()
        >>> torch.distributed.init_process_group("gloo")   # start-up and buffers
        >>> model = torch.nn.parallel.DistributedDataParallel(model)
        >>> model.register_comm_hook(bps.torch.HookState(), bps.torch.ddp_hook)
    """
    if state is None:
        raise ValueError(
            "ddp_hook needs a state: model.register_comm_hook(bps.torch.HookState(), "
            "bps.torch.ddp_hook)"
        )
    channel, buffer = state.channel(bucket), bucket.buffer()
    if bucket.index() == 0:  # DDP sends its buckets in order
        state.finish()  # a backward pass that raised left its buckets in flight
        _at_end_of_backward(state.finish)  # before DDP's own callback, which uses the results
    if not channel.poll():
        raise RuntimeError(
            f"bucket {bucket.index()} is still in flight after a time-out: the job cannot continue"
        )
    channel.input.copy_(buffer)
    channel.push(bps.AVG)
    devices = [] if buffer.device.type == "cpu" else [buffer.device]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    state.pending.append((channel, buffer.dtype, future))
    return future
