"""Sum of sparse tensors over a group of the back-end "bps"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import bps
from bps.torch._c10d_work import ManyWorks
from bps.torch._memory import described_type
from bps.torch._parts import consecutive

if TYPE_CHECKING:
    from bps.torch._c10d_collectives import Collectives


def sum_sparse(group: Collectives, rank: int, size: int, tensor: torch.Tensor, opts: Any) -> Any:
    """Sum a sparse tensor (COO) over the group, in place.

    Each worker gathers the elements of all workers and adds those of equal indices. All workers
    add in the same order. The call waits until all workers have made it, because the workers first
    exchange their numbers of elements.

    Args:
        group (Collectives): the group.
        rank (int): this worker's number in the group.
        size (int): number of workers in the group.
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
    mine = tensor.detach().coalesce()
    n_dims, shape, dtype = mine.sparse_dim(), tuple(mine.shape), mine.dtype
    counts = torch.zeros(size, dtype=torch.int64, device="cpu")
    text = f"a sparse tensor {list(shape)} of {described_type(dtype)}, {n_dims} sparse dimensions"
    given = [(rank, torch.tensor([mine._nnz()], device="cpu"))]
    group._submit(
        "all_reduce", torch.int64, bps.SUM, given, [(0, counts)], [], size, text, opts
    ).wait()
    # Each element has a row of indices and a row of values.
    total, at = int(counts.sum()), int(counts[:rank].sum())
    works, gathered = [], []
    for rows in (mine.indices().t().cpu().contiguous(), mine.values().cpu().contiguous()):
        row = rows.shape[1:].numel()
        room = torch.empty((total, *rows.shape[1:]), dtype=rows.dtype, device="cpu")
        gathered.append(room)
        given = [(at * row, rows.flatten())]
        works.append(
            group._move(
                "all_gather",
                given,
                consecutive([room.flatten()]),
                [tensor],
                total * row,
                rows.dtype,
                opts,
            )
        )

    def collect() -> None:
        indices, values = gathered
        whole = torch.sparse_coo_tensor(indices.t(), values, shape)
        tensor.copy_(whole.coalesce())

    works[-1]._last.append(collect)
    many = ManyWorks(works)
    many._output = [tensor]
    return many
