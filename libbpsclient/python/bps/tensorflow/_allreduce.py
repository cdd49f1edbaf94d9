"""Sums, averages and other reductions of TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bps import _arrays, _dtypes
from bps._compression import Compression, coding_of, through
from bps._ops import Average, Sum, check_devices, check_op
from bps._sets import ProcessSet, global_process_set
from bps.tensorflow._call import Tensor, as_tensors, call, scoped


def reduce_tensors(
    tensors: Sequence[tf.Tensor],
    name: str | None = None,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
    labels: Sequence[str] | None = None,
) -> list[tf.Tensor]:
    """Reduce dense tensors over all workers in one call. Not differentiable. `labels`: names of the
    tensors for the text of an error."""
    if not tensors:
        return []
    coding = coding_of(compression)

    def reduce(*arrays: np.ndarray) -> list[np.ndarray]:
        rt = process_set.runtime()
        options = (name, op, prescale, postscale, coding)
        return _arrays.reduce(rt, arrays, None, *options, labels=labels)

    def send(given: list[tf.Tensor]) -> list[tf.Tensor]:
        for tensor in given:
            _dtypes.wire_type(np.dtype(tensor.dtype.as_numpy_dtype), coding)
        types, shapes = [t.dtype for t in given], [t.shape for t in given]
        return call(reduce, given, types, shapes, process_set, name)

    return through(compression, tensors, send)


def _reduce_with_gradients(
    tensors: Sequence[tf.Tensor], name: str | None, op: int, *options: Any
) -> list[tf.Tensor]:
    if not any(t.dtype.is_floating for t in tensors):
        return reduce_tensors(tensors, name, op, *options)

    @tf.custom_gradient
    def reduced(*inputs: tf.Tensor) -> Any:
        def gradient(*grads: tf.Tensor) -> list[tf.Tensor]:
            if op not in (Average, Sum):
                raise NotImplementedError("only Average and Sum have gradients")
            back = None if name is None else f"{name}.gradient"
            return reduce_tensors(as_tensors(grads), back, op, *options)

        return reduce_tensors(inputs, name, op, *options), gradient

    outputs = reduced(*tensors)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def sum_slices(
    slices: tf.IndexedSlices,
    op: int,
    factor: float = 1.0,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> tf.IndexedSlices:
    """Sum or average sparse gradients over all workers. Compressors of the user are for dense
    tensors, so they do not change the rows.

    Returns:
        IndexedSlices: the rows that at least one worker has, each once, sorted by index.
    """
    if op not in (Average, Sum):
        raise ValueError("op must be Average or Sum for sparse tensors")
    coding = coding_of(compression)

    def reduce(
        values: np.ndarray, indices: np.ndarray, shape: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        n_rows = None if shape is None else int(shape[0])
        rt = process_set.runtime()
        return _arrays.sum_rows(rt, values, indices, n_rows, op, factor, coding)

    tensors = [slices.values, slices.indices]
    types, shapes = [t.dtype for t in tensors], [[None, *slices.values.shape[1:]], [None]]
    if slices.dense_shape is not None:
        tensors.append(slices.dense_shape)
    values, indices = call(reduce, tensors, types, shapes, process_set)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce tensors over all workers in one call. The function is differentiable.

    The arguments are those of :func:`allreduce` and apply to all tensors.
    """
    op = check_op(average, op)
    check_devices(device_dense, device_sparse)
    options = (prescale_factor, postscale_factor, compression, process_set)
    outputs: list[Any] = list(tensors)
    dense = [i for i, t in enumerate(tensors) if not isinstance(t, tf.IndexedSlices)]
    values = as_tensors([tensors[i] for i in dense])
    totals = _reduce_with_gradients(values, scoped(name, ignore_name_scope), op, *options)
    for i, total in zip(dense, totals):
        outputs[i] = total
    for i, one in enumerate(tensors):
        if isinstance(one, tf.IndexedSlices):
            factor = prescale_factor * postscale_factor
            outputs[i] = sum_slices(one, op, factor, compression, process_set)
    return outputs


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all workers and return the result. The function is differentiable.

    Args:
        tensor (Tensor or IndexedSlices): a tensor of any shape. The shape is the same at all
            workers. Of IndexedSlices, only the rows that a worker has are summed.
        average (bool, optional): older form of `op`: True is Average, False is Sum.
        device_dense, device_sparse (str): must be empty or a CPU, because bps exchanges values in
            host memory.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(tensor)`` and ``decompress(tensor, context)``.
        op (int, optional): Average (default), Sum, Min, Max or Product.
        prescale_factor, postscale_factor (float): factors for the tensor before the reduction and
            for the result after it. Integers are multiplied in f64, and rounded towards zero.
        name (str, optional): name of the operation, the same at all workers. A tensor that is
            reduced repeatedly should have a name.
        process_set (ProcessSet): the workers that take part.
        ignore_name_scope (bool): in a graph, do not add the name scopes around the call to `name`.

    Raises:
        ValueError: `average` and `op` are both given.
        NotImplementedError: XLA compiles this code.

    Example::

        >>> bps.tensorflow.init()
        >>> bps.tensorflow.allreduce(tf.constant([1.0, 2.0]), op=bps.tensorflow.Sum)
    """
    return grouped_allreduce(
        [tensor],
        average,
        device_dense,
        device_sparse,
        compression,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        ignore_name_scope,
        name,
    )[0]


def push_pull(
    tensor: Tensor,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    enable_async: bool = False,
    name: str | None = None,
) -> Any:
    """Do :func:`allreduce` with BytePS's arguments.

    Args:
        scope (str): beginning of the name of the operation. The name is not part of other scopes.
        enable_async (bool): must be False, because only a DistributedOptimizer trains
            asynchronously.
    """
    if enable_async:
        raise NotImplementedError(
            "push_pull: bps does not support enable_async=True: let a DistributedOptimizer train "
            "asynchronously"
        )
    full = f"{scope}{name or ''}" or None
    options: dict[str, Any] = {"name": full, "ignore_name_scope": bool(scope)}
    return allreduce(tensor, average, device_dense, device_sparse, compression, op, **options)


def labels_of(variables: Sequence[Any]) -> list[str]:
    """Return the names of variables of TensorFlow or Keras, for the text of an error."""
    return [str(getattr(v, "path", getattr(v, "name", "?"))) for v in variables]
