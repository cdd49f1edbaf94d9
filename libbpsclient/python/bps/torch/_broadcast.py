"""Broadcasts of PyTorch tensors."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import torch

import bps
from bps import _compare, _core
from bps._operation import Operation
from bps._ops import Average, Sum
from bps._runtime import Runtime
from bps._sets import ProcessSet, global_process_set
from bps.torch._allreduce import allreduce_async, copied
from bps.torch._handle import Handle
from bps.torch._memory import check_device, described, flatten
from bps.torch._names import check_name, with_name
from bps.torch._parts import MOVE, as_bytes, consecutive, length, sum_parts


def _place(root_rank: int, process_set: ProcessSet) -> int:
    """Return the root's rank in the process set.

    Raises:
        Error: the root is not in the process set.
    """
    root, size = process_set.place(root_rank), process_set.runtime().job.size
    if not 0 <= root < size:
        raise bps.Error(
            -errno.EINVAL, f"broadcast: root {root} is not in the job of {size} workers"
        )
    return root


def _broadcast(
    rt: Runtime, flats: Sequence[torch.Tensor], root: int, agreement: Operation | None
) -> list[Operation]:
    """Submit flat tensors. Call this in :meth:`Runtime.submission`. The tensors of the worker
    `root` overwrite those of the other workers."""
    values = consecutive([as_bytes(flat) for flat in flats])
    given, taken = (values, []) if rt.job.rank == root else ([], values)
    n_bytes = length(values)
    options = {"owners": [(root, 0, n_bytes)], **MOVE}
    rt.n_received += rt.job.rank != root
    return sum_parts(rt, torch.uint8, Sum, given, taken, n_bytes, agreement, **options)


def broadcast_all_(
    named: Sequence[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet
) -> None:
    """Overwrite tensors, in place, with the tensors of the worker with rank ``root_rank``. All
    tensors are sent in one broadcast.

    Args:
        named: names and tensors. All workers must have the same names, shapes and types. Their
            orders may differ.
        root_rank (int): rank of the worker whose values all workers get. This is the rank in the
            job, not in the process set.
        process_set (ProcessSet): the workers that take part.

    Raises:
        Error: EMISMATCH at all workers if their tensors differ. The text names a tensor, two
            workers, and the shape and type that each of them has.
    """
    for _, tensor in named:
        check_device(tensor)
    rt, root = process_set.runtime(), _place(root_rank, process_set)
    entries = [(name, described(tensor)) for name, tensor in named]
    mine = _compare.List(entries, f" root {root_rank}")
    with rt.submission():  # one thread at a time, so that comparison and values have one order
        order = rt.agree_on_list("grouped_broadcast", mine)
        with rt.submission(is_compared=True):
            tensors = [named[i][1] for i in order]
            flats = [flatten(tensor.detach().cpu().contiguous()) for tensor in tensors]
            operations = _broadcast(rt, flats, root, None)
    Handle(None, operations).wait()
    if rt.job.rank == root:
        return
    with torch.no_grad():
        for tensor, flat in zip(tensors, flats):
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view(tensor.shape))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Overwrite a tensor, in place, with the tensor of the worker with rank ``root_rank``. Return
    at once.

    Args:
        tensor (Tensor): the same shape and type at all workers.
        root_rank (int): rank of the worker whose values all workers get. This is the rank in the
            job, not in the process set.
        name (str, optional): name of the operation, the same at all workers. Only one operation of
            a kind may have a name at a time.
        process_set (ProcessSet): the workers that take part.

    Returns:
        Handle: for :func:`synchronize` and :func:`poll`.

    Raises:
        ValueError: an operation with this name is in flight.
        Error: EMISMATCH at all workers if their names, shapes, types or roots differ.
    """
    check_device(tensor)
    check_name("broadcast", name, process_set)
    rt, root = process_set.runtime(), _place(root_rank, process_set)
    flat = flatten(tensor.detach().cpu().contiguous())
    title = "" if name is None else f"'{name}' of "
    text = f"{title}{described(tensor)}, root {root_rank}"
    with rt.submission():
        agreement = rt.agree("broadcast", text)
        operations = [agreement, *_broadcast(rt, [flat], root, agreement)]
    is_root = rt.job.rank == root
    handle = Handle(tensor, operations)
    is_direct = is_root or flat.data_ptr() == tensor.data_ptr()
    handle = handle if is_direct else copied(handle, flat, tensor)
    return with_name("broadcast", name, process_set, handle)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Do the same as :func:`broadcast_async_`, and wait. Return the tensor."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root, ctx.process_set = root, process_set
        return broadcast_async(tensor, root, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        total = allreduce_async(grad, op=Average, process_set=ctx.process_set).wait()
        return (total if _core.rank() == ctx.root else torch.zeros_like(total)), None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return, at every worker, the tensor of the worker with rank ``root_rank``. The function is
    differentiable: the gradient at the root is the average of the gradients over the workers. The
    arguments are those of :func:`broadcast_`."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Do the same as :func:`broadcast_async_`, but write the result to a new tensor."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return broadcast_async_(copy, root_rank, name, process_set)
