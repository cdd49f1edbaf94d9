"""Sum of sparse tensors over a group of the back-end "bps"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import bps
from bps._library import Error
from bps.torch._c10d_work import GroupWork
from bps.torch._sparse import SparseSum, part_of

if TYPE_CHECKING:
    from bps.torch._c10d_collectives import Collectives


def sum_sparse(group: Collectives, tensor: torch.Tensor, opts: Any) -> GroupWork:
    """Sum a sparse tensor (COO) over the group, in place.

    The call waits until all workers have made it, because the workers first exchange which rows
    they have (:mod:`bps._union`).

    Args:
        group (Collectives): the group.
        tensor (Tensor): the sparse tensor.
        opts: options of torch.distributed.

    Returns:
        Work: the operation.
    """
    if opts.reduceOp != dist.ReduceOp.SUM:
        raise NotImplementedError(
            f"bps reduces sparse tensors with SUM, not with {opts.reduceOp}: convert the tensor "
            "with .to_dense() first"
        )
    work = group.new_work("all_reduce", [tensor], opts)
    parts, options = [part_of(tensor, tensor)], (bps.SUM, 1.0, "a sparse tensor", work.timeout)
    try:
        total = SparseSum(group.runtime, parts, [tensor], *options)
    except Error as error:
        raise work.failure(error) from error
    work._operations = total.operations
    work._last = [lambda: tensor.copy_(total.results()[0])]
    return group.submitted(work)
