"""Collectives whose results are rows of all workers: gathers, exchanges, parts of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bps import _arrays
from bps._compression import Compression, coding_of, through
from bps._ops import Average, Sum, check_devices, check_op, group_names, share
from bps._sets import ProcessSet, global_process_set
from bps.tensorflow._allreduce import reduce_tensors
from bps.tensorflow._call import Tensor, call, scoped
from bps.tensorflow._place import set_size


def _gather(
    tensor: tf.Tensor, process_set: ProcessSet, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the rows of all workers, and the number of rows of each worker."""

    def gather(array: np.ndarray) -> list[np.ndarray]:
        what = _arrays.titled("allgather", name)
        all_, rows, _ = _arrays.gather(process_set.runtime(), array, what)
        return [all_, np.array(rows, np.int64)]

    shapes = [[None, *tensor.shape[1:]] if tensor.shape.rank else None, [None]]
    all_, rows = call(gather, [tensor], [tensor.dtype, tf.int64], shapes, process_set, name)
    return all_, rows


def allgather(
    tensor: Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenate all workers' tensors along the first dimension, ordered by rank.

    The function is differentiable. The gradient is the average over the workers.

    Args:
        tensor (Tensor): a tensor whose first dimension may differ between workers. All other
            dimensions must be equal.
        name (str, optional): name of the operation, the same at all workers.
        ignore_name_scope (bool): in a graph, do not add the name scopes around the call to `name`.
        process_set (ProcessSet): the workers that take part.
    """
    name = scoped(name, ignore_name_scope)

    @tf.custom_gradient
    def gathered(value: tf.Tensor) -> Any:
        output, rows = _gather(value, process_set, name)

        def gradient(grad: tf.Tensor) -> tf.Tensor:
            (total,) = reduce_tensors([tf.convert_to_tensor(grad)], process_set=process_set)
            me = process_set.rank()
            first = tf.reduce_sum(rows[:me])
            return total[first : first + rows[me]]

        return output, gradient

    return gathered(tf.convert_to_tensor(tensor))


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Apply :func:`allgather` to each tensor."""
    names = group_names(name, len(tensors))
    return [allgather(t, n, ignore_name_scope, process_set) for t, n in zip(tensors, names)]


def _exchange(
    tensor: tf.Tensor,
    splits: tf.Tensor | None,
    process_set: ProcessSet,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    def exchange(array: np.ndarray, *table: np.ndarray) -> list[np.ndarray]:
        given = table[0] if table else None
        rows, received = _arrays.exchange(process_set, array, given, name)
        return [rows, np.array(received, np.int32)]

    given = [tensor] if splits is None else [tensor, splits]
    shapes = [[None, *tensor.shape[1:]] if tensor.shape.rank else None, [None]]
    rows, received = call(exchange, given, [tensor.dtype, tf.int32], shapes, process_set, name)
    return rows, received


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of a tensor to each worker, and return the rows that all workers have sent to this
    worker. The function is differentiable.

    Internally each worker receives all rows of all workers, so use this function only for small
    tensors.

    Args:
        tensor (Tensor): a tensor of at least one dimension. All dimensions except the first are the
            same at all workers.
        splits (Tensor or list of int, optional): number of rows for each worker, by rank; None:
            equal numbers.
        name (str, optional): name of the operation, the same at all workers.
        ignore_name_scope (bool): in a graph, do not add the name scopes around the call to `name`.
        process_set (ProcessSet): the workers that take part.

    Returns:
        Tensor: the rows received, ordered by the rank of the sender. With `splits`, a pair: these
            rows, and the number of rows from each worker.
    """
    table = None if splits is None else tf.convert_to_tensor(splits, tf.int32)
    name = scoped(name, ignore_name_scope)

    @tf.custom_gradient
    def exchanged(value: tf.Tensor) -> Any:
        rows, received = _exchange(value, table, process_set, name)

        def gradient(grad: tf.Tensor, _: Any = None) -> tf.Tensor:
            return _exchange(tf.convert_to_tensor(grad), received, process_set)[0]

        return (rows, received), gradient

    rows, received = exchanged(tf.convert_to_tensor(tensor))
    return rows if splits is None else (rows, tf.stop_gradient(received))


def reducescatter(
    tensor: Tensor,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    has_horovods_gradient: bool = False,
) -> tf.Tensor:
    """Reduce a tensor over all workers and return this worker's rows of the result. The function is
    differentiable.

    Args:
        tensor (Tensor): a tensor of at least one dimension. The rows are split over the workers; if
            that leaves a remainder, the first ranks get one row more.
        has_horovods_gradient (bool): multiply the gradient by the number of workers, as Horovod
            does.

    The other arguments are those of ``allreduce``: ``device_dense``, ``compression``, ``op``,
    ``name``, ``process_set``, ``ignore_name_scope``, ``prescale_factor`` and ``postscale_factor``.
    """
    op = check_op(None, op)
    check_devices(device_dense)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ValueError("reducescatter needs a tensor of at least one dimension")
    coding, name = coding_of(compression), scoped(name, ignore_name_scope)

    def part(array: np.ndarray) -> list[np.ndarray]:
        rt = process_set.runtime()
        given = (name, op, prescale_factor, postscale_factor, coding)
        (total,) = _arrays.reduce(rt, [array], None, *given)
        first, n = share(len(total), process_set)
        return [total[first : first + n]]

    @tf.custom_gradient
    def scattered(value: tf.Tensor) -> Any:
        def gradient(grad: tf.Tensor) -> tf.Tensor:
            if op not in (Average, Sum):
                raise NotImplementedError("only Average and Sum have gradients")
            factor = tf.cast(prescale_factor * postscale_factor, grad.dtype)
            if op == Sum and has_horovods_gradient:
                factor *= tf.cast(set_size(process_set), grad.dtype)
            if op == Average and not has_horovods_gradient:
                factor /= tf.cast(set_size(process_set), grad.dtype)
            return _gather(tf.convert_to_tensor(grad), process_set)[0] * factor

        shape = [None, *value.shape[1:]]
        (output,) = call(part, [value], [value.dtype], [shape], process_set, name)
        return output, gradient

    return through(compression, [tensor], lambda given: [scattered(given[0])])[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    has_horovods_gradient: bool = False,
) -> list[tf.Tensor]:
    """Apply :func:`reducescatter` to each of the ``tensors``."""
    options: dict[str, Any] = {
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "has_horovods_gradient": has_horovods_gradient,
    }
    return [
        reducescatter(tensor, device_dense, compression, op, one, process_set, **options)
        for tensor, one in zip(tensors, group_names(name, len(tensors)))
    ]
