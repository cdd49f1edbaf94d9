"""Collective operations on PyTorch tensors, with the names and arguments of BytePS and Horovod."""

from __future__ import annotations

import errno
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

import bps
from bps import _compare, _core
from bps._compression import RAW, Coding, Compression, Compressor
from bps._library import OPS
from bps._operation import Operation, Slot
from bps._ops import Average, Sum, check_op, group_names, priority_of, share, split_table
from bps._runtime import Runtime
from bps._sets import ProcessSet, global_process_set
from bps.torch._gather import Gather
from bps.torch._handle import Handle, Mapped, Named, NameUse, Several
from bps.torch._memory import (
    NAMES,
    check_device,
    described,
    described_type,
    flatten,
    input_view,
    output_view,
    read_output,
    torch_type,
    wire_dtype,
    write_input,
)
from bps.torch._parts import MOVE, as_bytes, consecutive, length, sum_parts


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


def _copied(handle: Handle, flat: torch.Tensor, output: torch.Tensor) -> Handle:
    """Return a handle that copies the result in `flat` to an output that is not contiguous or not
    in host memory."""

    def copy(_: Any) -> torch.Tensor:
        with torch.no_grad():
            return output.copy_(flat.view(output.shape))

    return Mapped(handle, copy)


# Uses of names by operations, by the kind of the operation and the name.
_named: weakref.WeakKeyDictionary[Runtime, dict[tuple[str, str], NameUse]] = (
    weakref.WeakKeyDictionary()
)


def _check_name(kind: str, name: str | None, process_set: ProcessSet) -> None:
    """Check that no operation of this kind with this name is in flight.

    Raises:
        ValueError: the caller has not waited for such an operation yet.
    """
    if name is not None:
        use = _named.get(process_set.runtime(), {}).get((kind, name))
        if use is not None and not use.is_free():
            raise ValueError(
                f"tensor '{name}' is in flight already: synchronize the first operation, or use "
                "another name"
            )


def _with_name(kind: str, name: str | None, process_set: ProcessSet, handle: Handle) -> Handle:
    """Remember that an operation with this name is in flight. Return a handle for the caller."""
    if name is None:
        return handle
    use = _named.setdefault(process_set.runtime(), {})[kind, name] = NameUse(handle)
    return Named(handle, use)


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
    if name is not None and (use := _named.get(rt, {}).get(("allreduce", name))) is not None:
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
                step = min(n - at, slot.tensor.n_elems)
                part, to = flat[at : at + step], out[at : at + step]
                scale = (op, pre, post, priority)
                parts.append(_submit(slot, part, to, *scale, agreement, is_mean))
                at += step
    handle = Handle(output, parts)
    handle = handle if is_direct else _copied(handle, out, output)
    return _with_name("allreduce", name, process_set, handle)


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
    priority: int = bps.PRIORITY_AUTO,
) -> torch.Tensor:
    """Reduce a tensor over all workers and return the result. The function is differentiable.

    The function takes the arguments of :func:`allreduce_async_`. The additional argument
    `compression` chooses the type in which the tensor is sent.

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
    ``push_pull_async``."""
    return allreduce_async(tensor, average, name, priority=priority or bps.PRIORITY_AUTO)


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """Do the same as :func:`allreduce_`, but with the parameters of BytePS's function
    ``push_pull_inplace``."""
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
    The function is differentiable."""
    priority = priority or bps.PRIORITY_AUTO
    return allreduce(tensor, average, name, compression, priority=priority)


def poll(handle: Handle) -> bool:
    """Return True if :func:`synchronize` can return without blocking."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its output."""
    return handle.wait()


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
    options = {"needed": [root], **MOVE}
    return sum_parts(rt, torch.uint8, Sum, given, taken, length(values), agreement, **options)


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
    _check_name("broadcast", name, process_set)
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
    handle = handle if is_direct else _copied(handle, flat, tensor)
    return _with_name("broadcast", name, process_set, handle)


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
    differentiable: the gradient at the root is the average of the gradients over the workers."""
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
    _check_name("allgather", name, process_set)
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
    _check_name("allgather", name, process_set)
    gather = Gather(process_set.runtime(), tensor, is_async=True, name=name)
    return _with_name("allgather", name, process_set, gather)


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
    return torch.cat(parts), torch.tensor([len(part) for part in parts], dtype=torch.int32)


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
    _check_name("alltoall", name, process_set)
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
    _check_name("alltoall", name, process_set)
    table = split_table(tensor.shape[0] if tensor.dim() else 0, splits, process_set.n_ranks())
    rt = process_set.runtime()
    gather = Gather(rt, tensor, "alltoall", table, is_async=True, name=name)
    me = process_set.rank()

    def own(_: Any) -> Any:
        output, received = _own_rows(gather, me)
        return output if splits is None else (output, received)

    return _with_name("alltoall", name, process_set, Mapped(gather, own))


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
    """
    _check_rows(tensor)
    options = {
        "op": check_op(None, op),
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
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


def make_grouped(
    name: str, call: Callable[..., Any], collect: Callable[[list[Any]], Any]
) -> Callable[..., Any]:
    """Return a function that applies a collective to each tensor of a sequence.

    The returned function has the arguments of the collective, with the sequence in place of the
    tensor.

    Args:
        name (str): name of the returned function.
        call (callable): the collective.
        collect (callable): makes the returned function's result from the list of the collective's
            results, one for each tensor.
    """
    signature = inspect.signature(call)

    def grouped(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> Any:
        bound = signature.bind(tensors, *args, **options)
        names = group_names(bound.arguments.get("name"), len(tensors))
        results = []
        for tensor, one in zip(tensors, names):
            bound.arguments.update(tensor=tensor, name=one)
            results.append(call(*bound.args, **bound.kwargs))
        return collect(results)

    what = "return one handle for all tensors" if collect is Several else "return the results"
    grouped.__doc__ = f"Apply :func:`{call.__name__}` to each tensor, and {what}."
    grouped.__name__ = grouped.__qualname__ = name
    first, *others = signature.parameters.values()
    first = first.replace(name="tensors", annotation="Sequence[torch.Tensor]")
    kind = "Handle" if collect is Several else "list[torch.Tensor]"
    grouped.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[first, *others], return_annotation=kind
    )
    return grouped


def _wait(handles: list[Handle]) -> list[torch.Tensor]:
    return Several(handles).wait()


grouped_allreduce = make_grouped("grouped_allreduce", allreduce, list)
grouped_allreduce_ = make_grouped("grouped_allreduce_", allreduce_async_, _wait)
grouped_allreduce_async = make_grouped("grouped_allreduce_async", allreduce_async, Several)
grouped_allreduce_async_ = make_grouped("grouped_allreduce_async_", allreduce_async_, Several)
grouped_allgather = make_grouped("grouped_allgather", allgather, list)
grouped_allgather_async = make_grouped("grouped_allgather_async", allgather_async, Several)
grouped_reducescatter = make_grouped("grouped_reducescatter", reducescatter, list)
grouped_reducescatter_async = make_grouped(
    "grouped_reducescatter_async", reducescatter_async, Several
)


def gather_sparse(
    rt: Runtime,
    tensors: Sequence[torch.Tensor | None],
    op: int,
    factor: float = 1.0,
    coding: Coding = RAW,
    what: str = "sparse tensors",
) -> list[torch.Tensor | None]:
    """Sum sparse tensors over the workers of a runtime, by gathering their elements.

    Args:
        rt (Runtime): the workers that take part.
        tensors: tensors of this worker, or None for each tensor to which this worker adds nothing.
            A dense tensor adds all its rows.
        op (int): Average or Sum.
        factor (float): factor for the results.
        coding (Coding): how values are sent.
        what (str): says what is sent. The workers compare it.
    """
    mine: list[tuple[torch.Tensor, torch.Tensor, torch.Size] | None] = []
    for tensor in tensors:
        if tensor is None:
            mine.append(None)
            continue
        one = (tensor if tensor.is_sparse else tensor.to_sparse(1)).detach().coalesce().cpu()
        wire = torch_type(coding.type_of(described_type(one.dtype)))
        mine.append((one.indices(), one.values().to(wire), one.shape))
    totals: list[torch.Tensor | None] = []
    given = rt.allgather_present(mine, what)
    if op == Average:
        factor /= len(given)
    for parts, tensor in zip(zip(*given), tensors):
        there = [part for part in parts if part is not None]
        if not there:
            totals.append(None)
            continue
        shapes = {tuple(shape) for _, _, shape in there}
        if len(shapes) > 1:
            text = f"sparse tensors differ in shape: {', '.join(map(str, sorted(shapes)))}"
            raise bps.Error(bps.CODES["EMISMATCH"], text)
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
        Handle: for :func:`synchronize`. Its operation is already complete, because this function
            waits for the result.
    """
    if op not in (Average, Sum):
        raise ValueError("op must be Average or Sum for sparse tensors")
    if not tensor.is_sparse:
        raise ValueError("the tensor is dense: use allreduce_async")
    _check_name("allgather", name, process_set)
    what = "a sparse tensor" if name is None else f"sparse tensor '{name}'"
    return Handle(gather_sparse(process_set.runtime(), [tensor], op, what=what)[0])
