"""Exchanges of rows of PyTorch tensors between all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bps._ops import split_table
from bps._sets import ProcessSet, global_process_set
from bps.torch._gather import Gather
from bps.torch._handle import Handle, Mapped
from bps.torch._names import check_name, with_name


def _own_rows(gather: Gather, me: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Wait for the gather of an all-to-all. Return the rows for this worker, and how many of these
    rows came from each worker.

    Args:
        gather (Gather): the rows of all workers. `gather.numbers` has a tuple for each sender,
            with the number of rows that the sender sends to each worker.
        me (int): rank of this worker.
    """
    rows, parts, at = gather.wait(), [], 0
    for n, table in zip(gather.rows, gather.numbers):
        first = at + sum(table[:me])
        parts.append(rows[first : first + table[me]])
        at += n
    lengths = [len(part) for part in parts]
    return torch.cat(parts), torch.tensor(lengths, dtype=torch.int32, device="cpu")


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: list[int],
        process_set: ProcessSet,
        name: str | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gather = Gather(process_set.runtime(), tensor, "alltoall", splits, name=name)
        output, received = _own_rows(gather, process_set.rank())
        ctx.received, ctx.process_set = received.tolist(), process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        back = _Alltoall.apply(grad, ctx.received, ctx.process_set, None)[0]
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of a tensor to each worker, and return the rows that all workers have sent to this
    worker. The function is differentiable.

    Internally each worker receives all rows of all workers, so use this function only for small
    tensors.

    Args:
        tensor (Tensor): a tensor of at least one dimension. All dimensions except the first are the
            same at all workers.
        splits (Tensor or list of int, optional): number of rows for each worker, by rank. With
            None, all workers get the same number of rows.
        name (str, optional): name of the operation, see :func:`allgather`.
        process_set (ProcessSet): the workers that take part.

    Returns:
        Tensor: the rows received, ordered by the rank of the sender. With `splits`, the result is
            a tuple: first these rows, then a tensor with the number of rows from each worker.

    Raises:
        ValueError: the rows cannot be split as `splits` requires, or `splits` is None and the rows
            cannot be split equally.

    Example::

        >>> x = torch.arange(3) + 10 * bps.torch.rank()
        >>> bps.torch.alltoall(x, splits=[1, 2])
    """
    check_name("alltoall", name, process_set)
    rows = tensor.shape[0] if tensor.dim() else 0
    table = split_table(rows, splits, process_set.n_ranks())
    output, received = _Alltoall.apply(tensor, table, process_set, name)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Do the same as :func:`alltoall`, but return a handle at once, as :func:`allgather_async`
    does."""
    check_name("alltoall", name, process_set)
    table = split_table(tensor.shape[0] if tensor.dim() else 0, splits, process_set.n_ranks())
    rt = process_set.runtime()
    gather = Gather(rt, tensor, "alltoall", table, is_async=True, name=name)
    me = process_set.rank()

    def own(_: Any) -> Any:
        output, received = _own_rows(gather, me)
        return output if splits is None else (output, received)

    return with_name("alltoall", name, process_set, Mapped(gather, own))
