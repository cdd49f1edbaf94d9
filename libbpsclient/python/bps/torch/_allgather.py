"""Gathers of PyTorch tensors whose first dimensions may differ between workers."""

from __future__ import annotations

from typing import Any

import torch

from bps._ops import Average
from bps._sets import ProcessSet, global_process_set
from bps.torch._allreduce import allreduce_async
from bps.torch._gather import Gather
from bps.torch._handle import Handle
from bps.torch._names import check_name, with_name


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, process_set: ProcessSet, name: str | None
    ) -> torch.Tensor:
        gather = Gather(process_set.runtime(), tensor, name=name)
        out, me = gather.wait(), process_set.rank()
        ctx.at, ctx.rows = sum(gather.rows[:me]), gather.rows[me]
        ctx.process_set = process_set
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        total = allreduce_async(grad, op=Average, process_set=ctx.process_set).wait()
        return total[ctx.at : ctx.at + ctx.rows], None, None


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate all workers' tensors along the first dimension, ordered by rank.

    The function is differentiable. The gradient is the average over the workers.

    Args:
        tensor (Tensor): a tensor whose first dimension may differ between workers. All other
            dimensions must be equal.
        name (str, optional): name of the operation, the same at all workers. Only one operation of
            a kind may have a name at a time.
        process_set (ProcessSet): the workers that take part.

    Raises:
        ValueError: the tensor has no dimension, or an operation with this name is in flight.
        Error: EMISMATCH: a worker's operation has another name, or its tensor has another type, or
            another shape of its rows.
    """
    check_name("allgather", name, process_set)
    return _Allgather.apply(tensor, process_set, name)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Do the same as :func:`allgather`, but return at once. The result has no gradient.

    The tensor is copied, so it may change afterwards. The workers first exchange their numbers of
    rows. Then a thread of each worker starts the exchange of the rows. The first call starts this
    thread.

    Returns:
        Handle: for :func:`synchronize` and :func:`poll`.

    Example::

        >>> handles = [bps.torch.allgather_async(x) for x in tensors]
        >>> rows = [bps.torch.synchronize(handle) for handle in handles]
    """
    check_name("allgather", name, process_set)
    gather = Gather(process_set.runtime(), tensor, is_async=True, name=name)
    return with_name("allgather", name, process_set, gather)
