"""Collective operations on PyTorch tensors, with the names and arguments of BytePS and Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import bps
from bps import _core
from bps._core import Operation, Runtime, Slot
from bps._ops import (
    Average,
    Sum,
    check_op,
    group_names,
    share,
    split_table,
)
from bps._sets import ProcessSet, global_process_set
from bps.torch._compression import Compression, Compressor
from bps.torch._memory import CARRIERS, NAMES, check_device, input_view, output_view, wire_dtype


class Handle:
    """An operation in flight. :func:`synchronize` waits for it and returns its output."""

    def __init__(self, output: Any = None) -> None:
        self._output = output
        self._parts: list[Operation] = []

    def _add(
        self,
        slot: Slot,
        flat: torch.Tensor,
        out: torch.Tensor,
        op: int,
        pre: float,
        post: float,
        prio: int,
        agreement: Operation | None = None,
    ) -> None:
        """Submit the values of `flat` in a slot (a declared tensor). :meth:`wait` writes the result
        to `out`."""
        target = input_view(slot)[: flat.numel()]
        if pre == 1.0:
            target.copy_(flat)
        else:
            torch.mul(flat.to(target.dtype), pre, out=target)
        slot.tensor.push_pull(op, prio)

        def collect() -> None:
            out.copy_(output_view(slot)[: out.numel()])
            if post != 1.0:
                out.mul_(post)

        self._parts.append(Operation(slot, collect, agreement))

    def poll(self) -> bool:
        """Return True if :meth:`wait` can return without blocking."""
        return all(part.poll() for part in self._parts)

    def wait(self) -> Any:
        """Wait for the operation and return its output."""
        for part in self._parts:
            part.finish(is_interruptible=True)
        return self._output


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
    """Submit a tensor for reduction. The result is written to `output`, which may be the tensor."""
    rt = process_set.runtime()
    check_device(tensor)
    if (pre, post) != (1.0, 1.0) and not tensor.dtype.is_floating_point:
        raise ValueError(
            f"a {tensor.dtype} tensor cannot be scaled: convert it to a floating-point type first"
        )
    wire = wire_dtype(tensor.dtype)
    n = tensor.numel()
    handle = Handle(output)
    is_direct = output.is_contiguous()
    flat = tensor.detach().contiguous().view(-1)
    out = output.detach().view(-1) if is_direct else torch.empty_like(flat)
    with rt.submission():
        if name is not None and n:
            slot = rt.named(name, NAMES[wire], n)
            handle._add(slot, flat, out, op, pre, post, priority)
        else:
            agreement = rt.agree("all_reduce", NAMES[wire], n, op)
            handle._parts.append(agreement)
            at = 0
            while at < n:
                slot = rt.piece(NAMES[wire], op, n - at)
                step = min(n - at, slot.tensor.n_elems)
                part, to = flat[at : at + step], out[at : at + step]
                handle._add(slot, part, to, op, pre, post, priority, agreement)
                at += step
    return handle if is_direct else _Scattered(handle, out, output)


class _Scattered(Handle):
    """An operation whose output is not contiguous: :meth:`wait` copies the result to the output."""

    def __init__(self, inner: Handle, flat: torch.Tensor, output: torch.Tensor) -> None:
        super().__init__(output)
        self._inner, self._flat = inner, flat

    def poll(self) -> bool:
        return self._inner.poll()

    def wait(self) -> torch.Tensor:
        self._inner.wait()
        with torch.no_grad():
            self._output.copy_(self._flat.view(self._output.shape))
        return self._output


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
        priority (int): tensors with a larger priority are sent first.

    Returns:
        Handle: for :func:`synchronize` and :func:`poll`.

    Raises:
        ValueError: `average` and `op` are both given, or an operation with this name is in flight.
    """
    op = check_op(average, op)
    pre, post = prescale_factor, postscale_factor
    return _reduce(tensor, tensor, name, op, pre, post, priority, process_set)


def allreduce_async(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, **options: Any
) -> Handle:
    """Do the same as :func:`allreduce_async_`, but write the result to a new tensor."""
    op = check_op(average, options.pop("op", None))
    pre, post = options.pop("prescale_factor", 1.0), options.pop("postscale_factor", 1.0)
    priority = options.pop("priority", bps.PRIORITY_AUTO)
    process_set = options.pop("process_set", global_process_set)
    if options:
        raise TypeError(f"unknown arguments: {', '.join(options)}")
    check_device(tensor)
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    return _reduce(tensor, output, name, op, pre, post, priority, process_set)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, options: dict[str, Any]
    ) -> torch.Tensor:
        ctx.options = options
        return allreduce_async(tensor, name=name, **options).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.options["op"] not in (Average, Sum):
            raise NotImplementedError("only Average and Sum have gradients")
        return allreduce_async(grad, **ctx.options).wait(), None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all workers and return the result; differentiable.

    The arguments are those of :func:`allreduce_async_` and `compression`, which chooses the type in
    which the tensor is sent.

    Example::

        >>> bps.torch.init()
        >>> bps.torch.allreduce(torch.tensor([1.0, 2.0]), op=bps.torch.Sum)
    """
    options = {
        "op": check_op(average, op),
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    small, context = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(small, name, options), context)


def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, **options: Any
) -> torch.Tensor:
    """Do the same as :func:`allreduce`, but write the result to the given tensor."""
    return allreduce_async_(tensor, average, name, **options).wait()


class _Group(Handle):
    """Several operations that are returned as one operation."""

    def __init__(self, handles: list[Handle]) -> None:
        super().__init__()
        self._handles = handles

    def poll(self) -> bool:
        return all(h.poll() for h in self._handles)

    def wait(self) -> list[Any]:
        return [h.wait() for h in self._handles]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    **options: Any,
) -> Handle:
    """Apply :func:`allreduce_async` to each tensor, and return one handle for all tensors."""
    names = group_names(name, len(tensors))
    return _Group([allreduce_async(t, average, n, **options) for t, n in zip(tensors, names)])


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    **options: Any,
) -> Handle:
    """Apply :func:`allreduce_async_` to each tensor, and return one handle for all tensors."""
    names = group_names(name, len(tensors))
    return _Group([allreduce_async_(t, average, n, **options) for t, n in zip(tensors, names)])


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    **options: Any,
) -> list[torch.Tensor]:
    """Apply :func:`allreduce` to each tensor."""
    names = group_names(name, len(tensors))
    return [allreduce(t, average, n, compression, **options) for t, n in zip(tensors, names)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Apply :func:`allreduce_` to each tensor."""
    return grouped_allreduce_async_(tensors, average, name, **options).wait()


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Do :func:`allreduce_async_` with BytePS's arguments. `version` is ignored: bps counts the
    operations itself."""
    return allreduce_async_(tensor, average, name, priority=priority)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Do :func:`allreduce_async` with BytePS's arguments."""
    return allreduce_async(tensor, average, name, priority=priority)


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """Do :func:`allreduce_` with BytePS's arguments."""
    return push_pull_async_inplace(tensor, average, name, version, priority).wait()


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
) -> torch.Tensor:
    """Do :func:`allreduce` with BytePS's arguments; differentiable."""
    return allreduce(tensor, average, name, compression)


def poll(handle: Handle) -> bool:
    """Return True if :func:`synchronize` can return without blocking."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its output."""
    return handle.wait()


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite a tensor with the tensor of rank ``root_rank``, in place.

    Args:
        tensor (Tensor): the same shape and type at all workers.
        root_rank (int): rank in the job, not in the process set, of the worker whose values all
            workers get.
        process_set (ProcessSet): the workers that take part.
    """
    rt = process_set.runtime()
    root = process_set.place(root_rank)
    check_device(tensor)
    flat = tensor.detach().cpu().contiguous()
    kind = NAMES.get(CARRIERS.get(tensor.dtype, tensor.dtype), "u8")
    with rt.submission():
        rt.agree("broadcast", kind, flat.numel(), root=root).finish()
        rt.job.broadcast_memory(flat.data_ptr(), flat.numel() * flat.element_size(), root)
    if flat.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(flat)
    return tensor


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, process_set: ProcessSet) -> torch.Tensor:
        ctx.root, ctx.process_set = root, process_set
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return broadcast_(copy, root, process_set=process_set)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        total = allreduce_async(grad, op=Average, process_set=ctx.process_set).wait()
        return (total if _core.rank() == ctx.root else torch.zeros_like(total)), None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the tensor of rank ``root_rank`` at every worker; differentiable. The gradient at
    the root is the average over the workers."""
    return _Broadcast.apply(tensor, root_rank, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Same as :func:`broadcast`, but return a handle for :func:`synchronize`. The operation is
    complete when the function returns."""
    return Handle(broadcast(tensor, root_rank, name, process_set))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Same as :func:`broadcast_`, but return a handle for :func:`synchronize`. The operation is
    complete when the function returns."""
    return Handle(broadcast_(tensor, root_rank, name, process_set))


def _gather(
    tensor: torch.Tensor, process_set: ProcessSet, what: str = "allgather", extra: Any = None
) -> tuple[torch.Tensor, list[int], list[Any]]:
    """Return the rows of all workers' tensors in one tensor, the number of rows of each worker, and
    the object `extra` of each worker."""
    rt = process_set.runtime()
    check_device(tensor)
    if tensor.dim() == 0:
        raise ValueError(
            f"{what} needs a tensor of at least one dimension: use tensor.unsqueeze(0)"
        )
    shapes = rt.allgather_object((tuple(tensor.shape[1:]), tensor.dtype, tensor.shape[0], extra))
    for r, (rest, dtype, _, _) in enumerate(shapes):
        if (rest, dtype) != (tuple(tensor.shape[1:]), tensor.dtype):
            mine = f"{list(tensor.shape)} of {tensor.dtype}"
            raise ValueError(
                f"{what}: rank {r} has shape [?, {', '.join(map(str, rest))}] of {dtype}, "
                f"this worker has {mine}"
            )
    rows, extras = [n for _, _, n, _ in shapes], [extra for _, _, _, extra in shapes]
    most, size = max(rows), len(rows)
    row_bytes = tensor[0:0].element_size() * tensor.shape[1:].numel()
    if most * row_bytes == 0:
        return tensor.new_empty((sum(rows), *tensor.shape[1:])), rows, extras
    src = tensor.new_zeros((most, *tensor.shape[1:]), device="cpu")
    src[: tensor.shape[0]] = tensor.detach()
    dst = src.new_empty((size * most, *tensor.shape[1:]))
    with rt.submission(is_compared=True):
        rt.job.allgather_memory(src.data_ptr(), most * row_bytes, dst.data_ptr())
    all_rows = torch.cat([dst[r * most : r * most + n] for r, n in enumerate(rows)])
    return all_rows.to(tensor.device), rows, extras


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
        out, rows, _ = _gather(tensor, process_set)
        me = process_set.rank()
        ctx.at, ctx.rows, ctx.process_set = sum(rows[:me]), rows[me], process_set
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = allreduce_async(grad, op=Average, process_set=ctx.process_set).wait()
        return total[ctx.at : ctx.at + ctx.rows], None


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate all workers' tensors along the first dimension, ordered by rank; differentiable.

    The gradient is the average over the workers.

    Args:
        tensor (Tensor): a tensor whose first dimension may differ between workers. All other
            dimensions must be equal.
        process_set (ProcessSet): the workers that take part.
    """
    return _Allgather.apply(tensor, process_set)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Same as :func:`allgather`, but return a handle for :func:`synchronize`. The operation is
    complete when the function returns."""
    return Handle(allgather(tensor, name, process_set))


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Apply :func:`allgather` to each tensor."""
    return [allgather(t, process_set=process_set) for t in tensors]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Same as :func:`grouped_allgather`, but return a handle for :func:`synchronize`. The operation
    is complete when the function returns."""
    return Handle(grouped_allgather(tensors, name, process_set))


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: list[int], process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        all_, rows, tables = _gather(tensor, process_set, "alltoall", splits)
        me, parts, at = process_set.rank(), [], 0
        for n, table in zip(rows, tables):
            first = at + sum(table[:me])
            parts.append(all_[first : first + table[me]])
            at += n
        ctx.received, ctx.process_set = [len(part) for part in parts], process_set
        received = torch.tensor(ctx.received, dtype=torch.int32)
        ctx.mark_non_differentiable(received)
        return torch.cat(parts), received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _Alltoall.apply(grad, ctx.received, ctx.process_set)[0], None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of a tensor to each worker, and return the rows that all workers have sent to this
    worker; differentiable.

    Internally each worker receives all rows of all workers, so use this function only for small
    tensors.

    Args:
        tensor (Tensor): a tensor of at least one dimension. All dimensions except the first are the
            same at all workers.
        splits (Tensor or list of int, optional): number of rows for each worker, by rank; None:
            equal numbers.
        process_set (ProcessSet): the workers that take part.

    Returns:
        Tensor: the rows received, ordered by the rank of the sender. With `splits`, a pair: these
            rows, and the number of rows from each worker.

    Raises:
        ValueError: the rows cannot be split in this way.

    Example::

        >>> x = torch.arange(3) + 10 * bps.torch.rank()
        >>> bps.torch.alltoall(x, splits=[1, 2])
    """
    rows = tensor.shape[0] if tensor.dim() else 0
    table = split_table(rows, splits, process_set.size())
    output, received = _Alltoall.apply(tensor, table, process_set)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Same as :func:`alltoall`, but return a handle for :func:`synchronize`. The operation is
    complete when the function returns."""
    return Handle(alltoall(tensor, splits, name, process_set))


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, options: dict[str, Any]
    ) -> torch.Tensor:
        ctx.options = options
        first, n = share(tensor.shape[0], options["process_set"])
        return allreduce_async(tensor, name=name, **options).wait()[first : first + n].clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        op = ctx.options["op"]
        if op not in (Average, Sum):
            raise NotImplementedError("only Average and Sum have gradients")
        factor = ctx.options["prescale_factor"] * ctx.options["postscale_factor"]
        if op == Average:
            factor /= ctx.options["process_set"].size()
        return _gather(grad, ctx.options["process_set"])[0] * factor, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all workers and return this worker's rows of the result; differentiable.

    Args:
        tensor (Tensor): a tensor of at least one dimension. The rows are split over the workers; if
            that leaves a remainder, the first ranks get one row more.
    """
    if tensor.dim() == 0:
        raise ValueError("reducescatter needs a tensor of at least one dimension")
    options = {
        "op": check_op(None, op),
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    small, context = compression.compress(tensor)
    return compression.decompress(_Reducescatter.apply(small, name, options), context)


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, **options: Any) -> Handle:
    """Same as :func:`reducescatter`, but return a handle for :func:`synchronize`. The operation is
    complete when the function returns."""
    return Handle(reducescatter(tensor, name, **options))


def grouped_reducescatter(tensors: Sequence[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    """Apply :func:`reducescatter` to each tensor."""
    names = group_names(options.pop("name", None), len(tensors))
    return [reducescatter(t, n, **options) for t, n in zip(tensors, names)]


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], **options: Any) -> Handle:
    """Same as :func:`grouped_reducescatter`, but return a handle for :func:`synchronize`. The
    operation is complete when the function returns."""
    return Handle(grouped_reducescatter(tensors, **options))


def gather_sparse(
    rt: Runtime,
    tensors: Sequence[torch.Tensor | None],
    op: int,
    factor: float = 1.0,
    wire: torch.dtype | None = None,
) -> list[torch.Tensor | None]:
    """Sum sparse tensors over the workers of a runtime, by gathering their elements.

    Args:
        rt (Runtime): the workers that take part.
        tensors: tensors of this worker, or None for each tensor to which this worker adds nothing.
            A dense tensor adds all its rows.
        op (int): Average or Sum.
        factor (float): factor for the results.
        wire (torch.dtype, optional): type in which values are sent; None: their own type.
    """
    mine = []
    for tensor in tensors:
        if tensor is None:
            mine.append(None)
            continue
        one = (tensor if tensor.is_sparse else tensor.to_sparse(1)).detach().coalesce().cpu()
        values = one.values()
        mine.append((one.indices(), values if wire is None else values.to(wire), one.shape))
    totals: list[torch.Tensor | None] = []
    given = rt.allgather_present(mine)
    if op == Average:
        factor /= len(given)
    for parts, tensor in zip(zip(*given), tensors):
        there = [part for part in parts if part is not None]
        if not there:
            totals.append(None)
            continue
        shapes = {tuple(shape) for _, _, shape in there}
        if len(shapes) > 1:
            raise ValueError(f"sparse tensors differ in shape: {', '.join(map(str, shapes))}")
        kind = tensor.dtype if tensor is not None else there[0][1].dtype
        indices = torch.cat([indices for indices, _, _ in there], 1)
        values = torch.cat([values for _, values, _ in there]).to(kind) * factor
        total = torch.sparse_coo_tensor(indices, values, shapes.pop(), check_invariants=False)
        totals.append(total.coalesce() if tensor is None else total.to(tensor.device).coalesce())
    return totals


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Sum a sparse tensor over all workers, by gathering its elements.

    Args:
        tensor (Tensor): a tensor of layout torch.sparse_coo.
        op (int): Average or Sum.
        process_set (ProcessSet): the workers that take part.

    Returns:
        Handle: for :func:`synchronize`. The operation is complete when the function returns.
    """
    if op not in (Average, Sum):
        raise ValueError("op must be Average or Sum for sparse tensors")
    if not tensor.is_sparse:
        raise ValueError("the tensor is dense: use allreduce_async")
    return Handle(gather_sparse(process_set.runtime(), [tensor], op)[0])
