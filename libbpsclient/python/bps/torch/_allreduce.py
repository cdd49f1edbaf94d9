"""Sums, averages and other reductions of PyTorch tensors."""

from __future__ import annotations

from typing import Any

import torch

import bps
from bps import _arrays
from bps._compression import CODED, RAW, Coding, Compression, Compressor, coding_of
from bps._library import OPS
from bps._operation import Operation, Slot
from bps._ops import Average, Sum, check_op, priority_of
from bps._sets import ProcessSet, global_process_set
from bps.torch._handle import Handle, Mapped
from bps.torch._memory import (
    NAMES,
    check_device,
    described,
    described_type,
    input_view,
    output_view,
    read_output,
    wire_dtype,
    write_input,
)
from bps.torch._names import named_operations, with_name


def _submit(
    slot: Slot,
    flat: torch.Tensor,
    out: torch.Tensor,
    op: int,
    pre: float,
    post: float,
    prio: int,
    agreement: Operation | None = None,
    is_mean: bool = False,
) -> Operation:
    """Submit the values of `flat` in a slot (a declared tensor). The operation writes the result to
    `out`. Integers are multiplied by their factors as f64, and rounded toward zero. is_mean: divide
    the result by the number of workers whose values it has."""
    target = input_view(slot)[: flat.numel()]
    if pre == 1.0:
        write_input(slot, target, flat)
    elif flat.dtype.is_floating_point:
        torch.mul(flat.to(target.dtype), pre, out=target)
    else:
        target.copy_(flat.double() * pre)
    slot.tensor.push_pull(op, prio)

    def collect() -> None:
        read_output(slot, output_view(slot)[: out.numel()], out)
        factor = post / slot.tensor.contributors if is_mean else post
        if factor != 1.0:
            if out.is_floating_point():
                out.mul_(factor)
            else:
                out.copy_(out.double() * factor)

    return Operation(slot, collect, agreement)


def copied(handle: Handle, flat: torch.Tensor, output: torch.Tensor) -> Handle:
    """Return a handle that copies the result in `flat` to an output that is not contiguous or not
    in host memory."""

    def copy(_: Any) -> torch.Tensor:
        with torch.no_grad():
            return output.copy_(flat.view(output.shape))

    return Mapped(handle, copy)


def _reduce(
    tensor: torch.Tensor,
    output: torch.Tensor,
    name: str | None,
    op: int,
    pre: float,
    post: float,
    priority: int,
    process_set: ProcessSet,
) -> Handle:
    """Submit `tensor` for reduction. The result is written to `output`, which may be `tensor`."""
    rt = process_set.runtime()
    check_device(tensor)
    if (
        name is not None
        and (use := named_operations.get(rt, {}).get(("allreduce", name))) is not None
    ):
        use.release_if_lost()  # Runtime.named() checks whether the name is in flight
    is_mean = False
    if (pre, post) != (1.0, 1.0) and not tensor.dtype.is_floating_point:
        if tensor.dtype == torch.bool:
            raise ValueError("a tensor of bools cannot be scaled: convert it to another type first")
        if op == Average:  # round the sum only once, after the division
            op, is_mean = Sum, True
    wire = wire_dtype(tensor.dtype)
    n = tensor.numel()
    description = described(tensor)
    is_direct = output.is_contiguous()
    flat = tensor.detach().contiguous().view(-1)
    out = output.detach().view(-1) if is_direct else torch.empty_like(flat)
    with rt.submission():
        if name is not None:
            slot = rt.named(name, NAMES[wire], n, description)
            scale = (op, pre, post, priority)
            parts = [_submit(slot, flat, out, *scale, slot.agreement, is_mean)]
        else:
            agreement = rt.agree("all_reduce", f"{description}, {OPS[op]}")
            parts, at = [agreement], 0
            while at < n:
                slot = rt.slots.piece(NAMES[wire], op, n - at)
                step = min(n - at, slot.tensor.n_values)
                part, to = flat[at : at + step], out[at : at + step]
                scale = (op, pre, post, priority)
                parts.append(_submit(slot, part, to, *scale, agreement, is_mean))
                at += step
    handle = Handle(output, parts)
    handle = handle if is_direct else copied(handle, out, output)
    return with_name("allreduce", name, process_set, handle)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = bps.PRIORITY_AUTO,
) -> Handle:
    """Reduce a tensor over all workers, in place. Return at once.

    Args:
        tensor (Tensor): any shape, the same at all workers.
        average (bool, optional): older form of `op`: True is Average, False is Sum.
        name (str, optional): name of the operation, the same at all workers. A tensor that is
            reduced repeatedly should have a name.
        op (int, optional): Average (default), Sum, Min, Max or Product.
        prescale_factor, postscale_factor (float): factors for the tensor before the reduction and
            for the result after it.
        process_set (ProcessSet): the workers that take part.
        priority (int): tensors with a larger priority are sent first. By default, the order of
            :func:`declare` decides, then the order of the first uses.

    Returns:
        Handle: for :func:`synchronize` and :func:`poll`.

    Raises:
        ValueError: `average` and `op` are both given, or an operation with this name is in flight.
    """
    op, priority = check_op(average, op), priority_of(name, priority)
    pre, post = prescale_factor, postscale_factor
    return _reduce(tensor, tensor, name, op, pre, post, priority, process_set)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = bps.PRIORITY_AUTO,
) -> Handle:
    """Do the same as :func:`allreduce_async_`, but write the result to a new tensor."""
    op, priority = check_op(average, op), priority_of(name, priority)
    pre, post = prescale_factor, postscale_factor
    check_device(tensor)
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    return _reduce(tensor, output, name, op, pre, post, priority, process_set)


def _reduce_blocks(
    tensor: torch.Tensor,
    name: str | None,
    coding: Coding,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    priority: int,
) -> torch.Tensor:
    """Reduce a large tensor in blocks, and return the result."""
    tensor = tensor.detach()
    on_host = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # unknown to NumPy
    array = on_host.cpu().contiguous().numpy()
    factors = (prescale_factor, postscale_factor)
    given = (name, op, *factors, coding, priority_of(name, priority))
    (out,) = _arrays.reduce(process_set.runtime(), [array], None, *given)
    return torch.from_numpy(out).to(tensor.device, tensor.dtype)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        options: dict[str, Any],
        coding: Coding = RAW,
    ) -> torch.Tensor:
        ctx.options = options
        n_bytes = tensor.numel() * tensor.element_size()
        if coding.block_of(described_type(tensor.dtype), n_bytes):
            check_device(tensor)
            return _reduce_blocks(tensor, name, coding, **options)
        return allreduce_async(tensor, name=name, **options).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        if ctx.options["op"] not in (Average, Sum):
            raise NotImplementedError("only Average and Sum have gradients")
        return allreduce_async(grad, **ctx.options).wait(), None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = bps.PRIORITY_AUTO,
) -> torch.Tensor:
    """Reduce a tensor over all workers and return the result. The function is differentiable.

    The function takes the arguments of :func:`allreduce_async_`. The additional argument
    `compression` chooses the type in which the tensor is sent. A compression with a residual needs
    a name. Gradients of the result are reduced in their own type.

    Example::

        >>> bps.torch.init()
        >>> bps.torch.allreduce(torch.tensor([1.0, 2.0]), op=bps.torch.Sum)
    """
    options = {
        "op": check_op(average, op),
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
        "priority": priority,
    }
    coding = coding_of(compression)
    if coding.wire in CODED:
        return _Allreduce.apply(tensor, name, options, coding)
    small, context = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(small, name, options), context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = bps.PRIORITY_AUTO,
) -> torch.Tensor:
    """Do the same as :func:`allreduce_async_`, and wait. Return the tensor."""
    pre, post = prescale_factor, postscale_factor
    return allreduce_async_(tensor, average, name, op, pre, post, process_set, priority).wait()


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Do the same as :func:`allreduce_async_`, but with the parameters of BytePS's function
    ``push_pull_async_inplace``. `version` has no effect, because bps counts the operations itself.
    The priority 0 is the default of :func:`allreduce_async_`."""
    priority = priority or bps.PRIORITY_AUTO
    return allreduce_async_(tensor, average, name, priority=priority)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Do the same as :func:`allreduce_async`, but with the parameters of BytePS's function
    ``push_pull_async``. ``version`` has no effect."""
    return allreduce_async(tensor, average, name, priority=priority or bps.PRIORITY_AUTO)


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """Do the same as :func:`allreduce_`, but with the parameters of BytePS's function
    ``push_pull_inplace``. ``version`` has no effect."""
    return push_pull_async_inplace(tensor, average, name, version, priority).wait()


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
) -> torch.Tensor:
    """Do the same as :func:`allreduce`, but with the parameters of BytePS's function ``push_pull``.
    ``version`` has no effect. The function is differentiable."""
    priority = priority or bps.PRIORITY_AUTO
    return allreduce(tensor, average, name, compression, priority=priority)
