"""Data parallelism for PyTorch: the module wrapper of BytePS, and a communication hook for
PyTorch's own DistributedDataParallel (DDP)."""

import collections
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

import bps
from bps import _compare, _core
from bps._compression import RAW, Compression, Compressor, check_machines
from bps._library import Error
from bps._operation import IN_FLIGHT
from bps._residuals import forget_residual
from bps._values import refuse
from bps.torch._channels import Channel, EncodedChannel, check_gradient, open_channels
from bps.torch._compression import gradient_coding
from bps.torch._memory import described_type, has_storage_of, wire_dtype
from bps.torch._optimizer import broadcast_parameters
from bps.torch._reducer import BUCKET_BYTES, Reducer

# Shape of a bucket: type, number of elements, whether the bucket is the last one.
Shape = tuple[torch.dtype, int, bool]
AnyChannel: TypeAlias = Channel | EncodedChannel
Averages: TypeAlias = torch.futures.Future[torch.Tensor]


def _at_end_of_backward(call: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)


class DistributedDataParallel(torch.nn.Module):
    """Average a module's gradients over all workers during backward().

    At the start the parameters and buffers of rank 0 are broadcast to all workers. The module can
    be copied and pickled. A copy averages the gradients of its own parameters, from its first
    backward pass on.

    Args:
        module (Module): the model.
        device_ids (list, optional): at most one device, on which the module is. It has no effect,
            because the gradients are taken from where they are.
        broadcast_buffers (bool): broadcast the buffers of rank 0 before each forward pass of
            training.
        compression (Compressor): type in which the tensors are sent.
        bucket_bytes (int): size of the groups in which gradients are sent.

    Example::

        >>> model = bps.torch.DistributedDataParallel(model)
        >>> model(x).sum().backward()   # from here on gradients are averages
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
        refuse("DistributedDataParallel")
        super().__init__()
        self.module, self.device_ids, self.broadcast_buffers = module, device_ids, broadcast_buffers
        broadcast_parameters(module.state_dict(), 0)
        named = list(module.named_parameters())
        if not any(p.requires_grad for _, p in named):
            raise ValueError(
                "no parameter of the module needs a gradient: use the module without "
                "DistributedDataParallel"
            )
        self._options: dict[str, Any] = {
            "coding": gradient_coding(compression),
            "bucket_bytes": bucket_bytes,
        }
        self._is_paused = False
        self._reducer: Reducer | None = None
        # Hooks of a copy, which has no reducer yet, by the ids of their parameters.
        self._watched: dict[int, Any] = {}
        self._connect()

    def _connect(self) -> Reducer:
        """Return the reducer. The first call creates it."""
        if self._reducer is None:
            self._reducer = Reducer(list(self.module.named_parameters()), **self._options)
            self._reducer.is_paused = self._is_paused
            self._reducer.on_begin = self._on_backward
        return self._reducer

    def _on_backward(self) -> None:
        _at_end_of_backward(self._connect().finish)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reducer": None, "_is_paused": False, "_watched": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the first gradient create the reducer, because workers may copy a module without the
        other workers."""
        super().__setstate__(state)
        self._watch()

    def _watch(self) -> None:
        """Let the first gradient of each parameter that needs one now create the reducer."""
        ref = weakref.ref(self)

        def on_first(_: torch.Tensor) -> None:
            wrapper = ref()
            if wrapper is None or wrapper._is_paused or wrapper._reducer is not None:
                return
            for hook in wrapper._watched.values():
                hook.remove()
            wrapper._watched.clear()
            wrapper._connect().begun = True
            wrapper._on_backward()

        for param in self.module.parameters():
            if param.requires_grad and id(param) not in self._watched:
                hook = param.register_post_accumulate_grad_hook(on_first)
                self._watched[id(param)] = hook

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with these arguments."""
        if self._reducer is not None:
            self._reducer.take_in()
        else:
            self._watch()
        if not self._is_paused:
            # buckets are still in flight if the previous backward pass raised an error
            self.synchronize()
        if self.broadcast_buffers and self.module.training and not self._is_paused:
            buffers = list(self.module.buffers())
            with contextlib.ExitStack() as stack:
                # Two forward passes may precede a backward pass, as in PyTorch's own wrapper:
                # autograd must not count the broadcast as a change of the buffers.
                for buffer in buffers:
                    stack.enter_context(torch.autograd._unsafe_preserve_version_counter(buffer))
                if buffers:  # a module without buffers costs no comparison
                    broadcast_parameters(buffers, 0)
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up the gradients of backward passes in this context, without sending them. The first
        backward pass after the context sends the sums.

        Example::

            >>> with model.no_sync():
            ...     model(a).sum().backward()
            >>> model(b).sum().backward()   # gradients of both are sent
        """
        was_paused = self._is_paused
        try:
            self._pause(True)
            yield
        finally:
            self._pause(was_paused)

    def _pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if self._reducer is not None:
            self._reducer.is_paused = is_paused

    def synchronize(self) -> None:
        """Wait until the gradients are reduced. A call after a backward pass does nothing, because
        backward() has already waited."""
        if self._reducer is not None and self._reducer.begun:
            self._reducer.finish()


class HookState:
    """State of :func:`ddp_hook`: the memory for DDP's buckets of gradients.

    After the first step, DDP assigns gradients to other buckets. Each new shape of a bucket needs a
    new tensor. The tensor for the n-th shape of a bucket is named ``ddp/STATE.BUCKET#n`` at each
    worker. STATE is the id of this HookState, and BUCKET is the index of the bucket. The workers
    compare each new shape, how it is sent, and whether the bucket is the last one. If two workers
    differ, all workers get an error.

    Args:
        wire (torch.dtype, optional): type in which gradients are sent; None: their own type.
        compression (Compressor): chooses the type, as for :class:`DistributedDataParallel`. With a
            block type, parameters of one bucket may share blocks, because DDP lays out the bucket.

    Raises:
        ValueError: `wire` and `compression` are both given.
    """

    def __init__(
        self,
        wire: torch.dtype | None = None,
        compression: type[Compressor] = Compression.none,
    ) -> None:
        refuse("ddp_hook")
        self.wire, self._coding = wire, gradient_coding(compression)
        if wire is not None and self._coding != RAW:
            raise ValueError("HookState takes wire or compression, not both")
        self.number = _core.runtime().next_set()
        self.channels: dict[int, tuple[Shape, AnyChannel]] = {}  # key: index of the bucket
        self.n_shapes: collections.Counter[int] = collections.Counter()
        self._agreed: dict[int, tuple[Shape, str]] = {}  # what the workers have compared last
        self.pending: list[tuple[AnyChannel, torch.Tensor, bool, Averages]] = []
        _core.runtime().reopened.add(self)

    def reopen(self) -> None:
        """Forget all channels, because their memory belonged to the previous job. :meth:`channel`
        opens new channels."""
        self.channels.clear()
        self.n_shapes.clear()
        self._agreed.clear()
        self.pending.clear()

    def channel(self, bucket: Any) -> AnyChannel:
        """Return the channel for a bucket. If the bucket has a new shape, compare it with those of
        the other workers, and declare a tensor for it."""
        buffer, index = bucket.buffer(), bucket.index()
        shape = (buffer.dtype, buffer.numel(), bucket.is_last())
        known, channel = self.channels.get(index, (None, None))
        if channel is None or known != shape:
            check_gradient(buffer)
            rt, coding, n_bytes = _core.runtime(), self._coding, buffer.numel() * buffer.itemsize
            block = coding.block_of(described_type(buffer.dtype), n_bytes)
            wire = block or self.wire or wire_dtype(buffer.dtype, coding, n_bytes)
            name = self._agree(index, shape)
            if block:
                check_machines(rt, coding, name)
            if channel is not None:
                number = self.n_shapes[index] - 1
                forget_residual(rt.residual_name(f"ddp/{self.number}.{index}#{number}"))
            (channel,) = open_channels(rt, [(name, wire, buffer.numel(), buffer.device)], coding)
            self.channels[index] = (shape, channel)
        return channel

    def _agree(self, index: int, shape: Shape) -> str:
        """Compare the new shape of a bucket at all workers, and return the name of its tensor. If
        the wait ends early, here or in check_machines(), another call continues it."""
        agreed, name = self._agreed.get(index, (None, ""))
        if agreed == shape:
            return name
        dtype, n, is_last = shape
        described = _compare.described(described_type(dtype), [n])
        sent = str(self._coding) or (f" sent as {described_type(self.wire)}" if self.wire else "")
        place = "the last bucket" if is_last else "more buckets follow"
        mine = _compare.List(_compare.unnamed([f"{described}{sent}, {place}"]))
        name = f"ddp/{self.number}.{index}#{self.n_shapes[index] + 1}"
        try:
            _core.runtime().compare_lists(name, "gradients", mine, [f"bucket {index}"])
        except Error as error:
            if error.code not in IN_FLIGHT:
                self.n_shapes[index] += 1
            raise
        self.n_shapes[index] += 1
        self._agreed[index] = (shape, name)
        return name

    def finish(self) -> None:
        """Wait for all buckets of this backward pass, and complete their futures with the averages.

        After a failure, immediately set the same error for the remaining buckets, because their
        sums may never arrive.
        """
        pending, self.pending = self.pending, []
        failure: Exception | None = None
        for channel, buffer, has_views, future in pending:
            try:
                if failure is None:
                    channel.finish()
                    future.set_result(_average(channel, buffer, has_views))
                    continue
            except Exception as error:  # DDP waits for the future and raises the error
                failure = error
            future.set_exception(failure)


def _average(channel: AnyChannel, buffer: torch.Tensor, has_views: bool) -> torch.Tensor:
    """Return the average of a bucket. DDP copies it to the gradients, unless it lies in their
    memory already.

    Args:
        channel (Channel): has the average.
        buffer (Tensor): memory of the bucket.
        has_views (bool): the gradients are views of this memory (gradient_as_bucket_view).
    """
    if isinstance(channel, EncodedChannel):
        average = buffer if has_views else torch.empty_like(buffer)
        channel.decode(average, 1.0)
        return average
    if has_views and buffer.device.type == "cpu":
        channel.read(buffer)
        return buffer
    return channel.output[: buffer.numel()].to(buffer.dtype)


# DDP checks the types in the hook's annotations. So this file has no `from __future__ import
# annotations`, which would turn annotations into strings.
def ddp_hook(
    state: HookState | None, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all workers. DDP calls this function as its communication hook.

    Args:
        state (HookState): a ``HookState()``. Each DDP module needs its own state.
        bucket (GradBucket): the bucket that DDP passes.

    Returns:
        Future: the averaged bucket, complete at the end of this backward pass.

    Example::

        >>> bps.torch.init()
        >>> torch.distributed.init_process_group("gloo")   # DDP's start-up and buffers use it
        >>> model = torch.nn.parallel.DistributedDataParallel(model)
        >>> model.register_comm_hook(bps.torch.HookState(), bps.torch.ddp_hook)
    """
    if state is None:
        raise ValueError(
            "ddp_hook needs a state: call model.register_comm_hook(bps.torch.HookState(), "
            "bps.torch.ddp_hook)"
        )
    channel, buffer = state.channel(bucket), bucket.buffer()
    if bucket.index() == 0:  # DDP calls the hook for bucket 0 first in each backward pass
        state.finish()  # buckets are still in flight if the previous pass raised an error
        # At the end of the pass, `finish` runs before DDP's own callback, which uses the results.
        _at_end_of_backward(state.finish)
    if not channel.poll():
        raise RuntimeError(
            f"bucket {bucket.index()} is still in flight after a time-out: the job cannot continue"
        )
    if isinstance(channel, EncodedChannel):
        channel.encode(0, buffer, 1.0)
    else:
        channel.write(channel.input[: buffer.numel()], buffer)
    channel.push(bps.AVG)
    devices = [] if buffer.device.type == "cpu" else [buffer.device]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    grad = bucket.parameters()[0].grad
    has_views = grad is not None and has_storage_of(grad, buffer)
    state.pending.append((channel, buffer, has_views, future))
    return future
