"""Collective operations on MXNet arrays, with the names and arguments of BytePS and Horovod.

MXNet's engine runs operations in the background. So an operation of this module first waits until
the engine has completed its work on the array. Then the operation reads and writes the array's
memory directly, and returns when the result is complete.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from bps import _arrays, _dtypes
from bps._compression import Compression, coding_of, through
from bps._library import PRIORITY_AUTO
from bps._ops import Average, check_op, declare, group_names, share
from bps._sets import ProcessSet, global_process_set


def view(tensor: mx.nd.NDArray) -> np.ndarray:
    """Wait until the engine has completed its work on the tensor, and return the tensor's memory as
    an array.

    Raises:
        NotImplementedError: the tensor is sparse, or not in host memory.
    """
    if tensor.stype != "default":
        raise NotImplementedError(
            f"a tensor of storage type {tensor.stype} is not supported: make it dense with "
            ".tostype('default') first"
        )
    if tensor.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
        raise NotImplementedError(
            f"a tensor must be in host memory, not on {tensor.context}: copy it with "
            ".as_in_context(mx.cpu()) first"
        )
    dtype = np.dtype(tensor.dtype)
    if tensor.size == 0:
        return np.empty(tensor.shape, dtype)
    check_call(_LIB.MXNDArrayWaitToWrite(tensor.handle))
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    assert address.value, "the tensor is not empty"
    return _dtypes.at_address(address.value, dtype, tensor.size).reshape(tensor.shape)


def as_tensor(array: np.ndarray, like: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a new tensor with the values of the array, and the device and type of `like`."""
    return mx.nd.array(array, ctx=like.context, dtype=like.dtype)


def reduce_in_place(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    compression: Any,
    process_set: ProcessSet,
    priority: int = PRIORITY_AUTO,
) -> None:
    """Reduce tensors over all workers in one call, in place."""
    coding = coding_of(compression)

    def send(given: list[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        arrays = [view(t) for t in given]
        rt = process_set.runtime()
        _arrays.reduce(rt, arrays, arrays, name, op, *factors, coding, priority)
        return given

    for tensor, result in zip(tensors, through(compression, tensors, send)):
        if result is not tensor:
            tensor[:] = result


def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> list[mx.nd.NDArray]:
    """Reduce tensors over all workers in one call, in place.

    The arguments are those of :func:`allreduce_` and apply to all tensors.
    """
    op, factors = check_op(average, op), (prescale_factor, postscale_factor)
    given = (compression, process_set, priority or PRIORITY_AUTO)
    reduce_in_place(tensors, name, op, factors, *given)
    return list(tensors)


def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> list[mx.nd.NDArray]:
    """Do :func:`grouped_allreduce_` on copies of the tensors, and return the copies."""
    factors, copies = (prescale_factor, postscale_factor), [t.copy() for t in tensors]
    options = (*factors, process_set, op, compression)
    return grouped_allreduce_(copies, average, name, priority, *options)


def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> mx.nd.NDArray:
    """Reduce a tensor over all workers, in place.

    Args:
        tensor (NDArray): any shape, the same at all workers.
        average (bool, optional): older form of `op`: True is Average, False is Sum.
        name (str, optional): name of the operation, the same at all workers. A tensor that is
            reduced repeatedly should have a name.
        priority (int): tensors with a larger priority are sent first. With 0, tensors that were
            declared earlier are sent first.
        prescale_factor, postscale_factor (float): factors for the tensor before the reduction and
            for the result after it. Integers are multiplied in f64, and rounded towards zero.
        process_set (ProcessSet): the workers that take part.
        op (int, optional): Average (default), Sum, Min, Max or Product.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(tensor)`` and ``decompress(tensor, context)``.

    Returns:
        NDArray: the tensor.

    Raises:
        ValueError: `average` and `op` are both given.

    Example::

        >>> bps.mxnet.init()
        >>> bps.mxnet.allreduce_(mx.nd.array([1.0, 2.0]), op=bps.mxnet.Sum)
    """
    options = (prescale_factor, postscale_factor, process_set, op, compression)
    return grouped_allreduce_([tensor], average, name, priority, *options)[0]


def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> mx.nd.NDArray:
    """Do :func:`allreduce_` on a copy of the tensor, and return the copy."""
    options = (prescale_factor, postscale_factor, process_set, op, compression)
    return allreduce_(tensor.copy(), average, name, priority, *options)


def _check_priority(call: str, priority: int) -> None:
    """Check the priority of a call whose operations run one after the other.

    Raises:
        NotImplementedError: the priority is not 0.
    """
    if priority != 0:
        raise NotImplementedError(
            f"{call}: omit priority={priority}: the call returns when it is complete, so it cannot "
            "overtake another call"
        )


def byteps_push_pull(
    tensor: mx.nd.NDArray,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
) -> mx.nd.NDArray:
    """Do :func:`allreduce_` with BytePS's arguments. bps counts the operations on a tensor itself,
    so it does not need the number `version`. ``is_average`` selects Average, otherwise Sum."""
    return allreduce_(tensor, is_average, name, priority)


def byteps_declare_tensor(name: str, **options: Any) -> None:
    """Give the next lower priority to the tensors with this name, as :func:`bps._ops.declare` does.

    Raises:
        NotImplementedError: the options choose a compression that bps does not have.
    """
    if options:
        raise NotImplementedError(
            f"byteps_declare_tensor: bps does not support {', '.join(options)}: use the argument "
            "compression of the other calls, or compression_params of DistributedTrainer"
        )
    declare(name)


def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Overwrite a tensor with the tensor of rank ``root_rank``, in place.

    Args:
        tensor (NDArray): the same shape and type at all workers.
        root_rank (int): rank of the worker whose values the workers of the process set get. It is
            the rank in the job, not the rank in the process set.
        name (str, optional): name of the operation, the same at all workers.
        priority (int): must be 0, because the call returns when it is complete.
        process_set (ProcessSet): the workers that take part.
    """
    _check_priority("broadcast", priority)
    target, names = view(tensor), None if name is None else [name]
    root = process_set.place(root_rank)
    np.copyto(target, _arrays.broadcast(process_set.runtime(), [target], root, names)[0])
    return tensor


def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Do :func:`broadcast_` on a copy of the tensor, and return the copy."""
    return broadcast_(tensor.copy(), root_rank, name, priority, process_set)


def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Concatenate all workers' tensors along the first dimension, ordered by rank.

    Args:
        tensor (NDArray): a tensor whose first dimension may differ between workers. All other
            dimensions must be equal.
        name (str, optional): name of the operation, the same at all workers.
        priority (int): must be 0, because the call returns when it is complete.
        process_set (ProcessSet): the workers that take part.
    """
    _check_priority("allgather", priority)
    what = _arrays.titled("allgather", name)
    return as_tensor(_arrays.gather(process_set.runtime(), view(tensor), what)[0], tensor)


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """Apply :func:`allgather` to each tensor."""
    names = group_names(name, len(tensors))
    return [allgather(t, n, priority, process_set) for t, n in zip(tensors, names)]


def alltoall(
    tensor: mx.nd.NDArray,
    splits: mx.nd.NDArray | Sequence[int] | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of a tensor to each worker, and return the rows that all workers have sent to this
    worker.

    Args:
        tensor (NDArray): a tensor of at least one dimension. All dimensions except the first are
            the same at all workers.
        splits (NDArray or list of int, optional): number of rows for each worker, by rank; None:
            equal numbers.
        name (str, optional): name of the operation, the same at all workers.
        priority (int): must be 0, because the call returns when it is complete.
        process_set (ProcessSet): the workers that take part.

    Returns:
        NDArray: the rows received, ordered by the rank of the sender. With `splits`, a pair: these
            rows, and the number of rows from each worker.
    """
    table = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    _check_priority("alltoall", priority)
    rows, received = _arrays.exchange(process_set, view(tensor), table, name)
    output = as_tensor(rows, tensor)
    if splits is None:
        return output
    return output, mx.nd.array(received, ctx=tensor.context, dtype="int32")


def reducescatter(
    tensor: mx.nd.NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Reduce a tensor over all workers and return this worker's rows of the result.

    Args:
        tensor (NDArray): a tensor of at least one dimension. The rows are split over the workers;
            if that leaves a remainder, the first ranks get one row more.

    The other arguments, from ``op`` on, are those of :func:`allreduce`.
    """
    if tensor.ndim == 0:
        raise ValueError("reducescatter needs a tensor of at least one dimension")
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    total = allreduce(tensor, None, name, priority, op=op, process_set=process_set, **factors)
    first, n = share(tensor.shape[0], process_set)
    return total[first : first + n].copy()


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """Apply :func:`reducescatter` to each of the ``tensors``."""
    options = (priority, prescale_factor, postscale_factor, process_set)
    names = group_names(name, len(tensors))
    return [reducescatter(t, op, n, *options) for t, n in zip(tensors, names)]


def sum_sparse(tensor: Any, op: int, compression: Any, process_set: ProcessSet) -> Any:
    """Return the sum or the average of a row_sparse tensor over all workers. Compressors of the
    user are for dense tensors, so they do not change the rows."""
    rows, indices = _arrays.sum_rows(
        process_set.runtime(),
        tensor.data.asnumpy(),
        tensor.indices.asnumpy(),
        tensor.shape[0],
        op,
        coding=coding_of(compression),
    )
    return mx.nd.sparse.row_sparse_array(
        (rows, indices), shape=tensor.shape, ctx=tensor.context, dtype=tensor.dtype
    )
