"""Reductions of PyTorch tensors of which each worker gets some rows."""

from __future__ import annotations

from typing import Any

import torch

from bps._compression import CODED, Compression, Compressor, coding_of
from bps._ops import Average, Sum, check_op, share
from bps._sets import ProcessSet, global_process_set
from bps.torch._allreduce import allreduce, allreduce_async
from bps.torch._gather import Gather
from bps.torch._handle import Handle, Mapped


def _check_rows(tensor: torch.Tensor) -> None:
    if tensor.dim() == 0:
        raise ValueError("reducescatter needs a tensor of at least one dimension")


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, options: dict[str, Any]
    ) -> torch.Tensor:
        ctx.options = options
        return reducescatter_async(tensor, name, **options).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        op = ctx.options["op"]
        if op not in (Average, Sum):
            raise NotImplementedError("only Average and Sum have gradients")
        factor = ctx.options["prescale_factor"] * ctx.options["postscale_factor"]
        if op == Average:
            factor /= ctx.options["process_set"].size()
        return Gather(ctx.options["process_set"].runtime(), grad).wait() * factor, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all workers and return this worker's rows of the result. The function
    is differentiable.

    Args:
        tensor (Tensor): a tensor of at least one dimension. The rows are split over the workers. If
            the number of rows is not a multiple of the number of workers, the first ranks get one
            row more.

    ``name``, ``compression``, ``op``, ``process_set``, ``prescale_factor`` and ``postscale_factor``
    are those of ``allreduce``.
    """
    _check_rows(tensor)
    options: dict[str, Any] = {
        "op": check_op(None, op),
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    if coding_of(compression).wire in CODED:
        first, n = share(tensor.shape[0], process_set)
        name = None if name is None else f"{name}.rows"  # an all-reduce may have the same name
        out = allreduce(tensor, None, name, compression, **options)
        return out[first : first + n].clone()
    small, context = compression.compress(tensor)
    return compression.decompress(_Reducescatter.apply(small, name, options), context)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Do the same as :func:`reducescatter`, but return a handle at once. The result has no
    gradient."""
    _check_rows(tensor)
    first, n = share(tensor.shape[0], process_set)
    pre, post = prescale_factor, postscale_factor
    name = None if name is None else f"{name}.rows"  # an all-reduce may have the same name
    handle = allreduce_async(tensor, None, name, op, pre, post, process_set)
    return Mapped(handle, lambda out: out[first : first + n].clone())
