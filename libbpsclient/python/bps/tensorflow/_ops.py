"""Collective operations on TensorFlow tensors, with the names and arguments of BytePS and Horovod.

Every operation is one Python call that returns when the result is complete. Inside ``tf.function``,
automatic control dependencies keep these calls in the order of the program. In graphs that a
session runs, the workers agree on the order (see :mod:`bps.tensorflow._session`). XLA cannot
compile a Python call, so operations raise an error inside a function that XLA compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bps import _arrays, _core, _dtypes, _ops
from bps._compression import Compression, cast, coding_of, through
from bps._ops import Average, Sum, check_devices, check_op, group_names, share
from bps._sets import ProcessSet, global_process_set, process_sets
from bps.tensorflow import _session

try:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
except ImportError:
    # The function is private in TensorFlow and may be missing. Without the function, call() does
    # not detect that XLA compiles the code. Then XLA itself reports an error.
    GraphOrParentsInXlaContext = None

for _class in (tf.Tensor, tf.Variable):
    cast.register(_class, tf.cast)

# Argument of an operation: a tensor, or a variable of TensorFlow or Keras.
Tensor = Any


def call(
    function: Callable[..., Sequence[np.ndarray]],
    tensors: Sequence[tf.Tensor],
    types: Sequence[tf.DType],
    shapes: Sequence[Any],
    process_set: ProcessSet | None,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Call a function with arrays that have the tensors' values. In eager mode, the function is
    called now. In a graph, the function is called each time that the graph runs.

    Args:
        function (callable): its arguments are arrays, one for each tensor. It returns arrays.
        tensors: arguments of the function.
        types, shapes: types and shapes of its results.
        process_set (ProcessSet, optional): the workers whose functions call each other; None: the
            function calls no other worker.
        name (str, optional): name of the operation, the same at all workers.

    Raises:
        NotImplementedError: XLA compiles this code.
    """
    if tf.executing_eagerly():
        results = function(*[np.asarray(t) for t in tensors])
        return [tf.convert_to_tensor(r, dtype) for r, dtype in zip(results, types)]
    graph = tf.compat.v1.get_default_graph()
    if GraphOrParentsInXlaContext is not None and GraphOrParentsInXlaContext(graph):
        raise NotImplementedError(
            "bps cannot run inside a function that XLA compiles: use jit_compile=False in "
            "tf.function and in model.compile()"
        )
    if process_set is not None and _session.needs_turns(graph):
        results = _session.call_in_turn(function, tensors, types, process_set, name)
    else:
        results = tf.numpy_function(function, list(tensors), list(types))
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    return list(results)


def as_tensors(values: Sequence[Tensor]) -> list[tf.Tensor]:
    """Return the values of tensors, variables and numbers as tensors."""
    return [tf.convert_to_tensor(value) for value in values]


def scoped(name: str | None, ignore_name_scope: bool) -> str | None:
    """Return the name of an operation: in a graph, the name scopes around the call, then the name
    that the caller gave."""
    if name is None or ignore_name_scope or tf.executing_eagerly():
        return name
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    return f"{scope}/{name}" if scope else name


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
    """Sum or average sparse gradients over all workers, by gathering their rows. Compressors of the
    user are for dense tensors, so they do not change the rows."""
    if op not in (Average, Sum):
        raise ValueError("op must be Average or Sum for sparse tensors")
    coding = coding_of(compression)

    def gather(values: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _arrays.sum_rows(process_set.runtime(), values, indices, op, factor, coding)

    tensors = [slices.values, slices.indices]
    shapes = [[None, *slices.values.shape[1:]], [None]]
    values, indices = call(gather, tensors, [t.dtype for t in tensors], shapes, process_set)
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
            workers. The rows of IndexedSlices are gathered.
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
        enable_async (bool): must be False, because bps has no asynchronous training.
    """
    if enable_async:
        raise NotImplementedError("push_pull: bps does not support enable_async=True")
    full = f"{scope}{name or ''}" or None
    options: dict[str, Any] = {"name": full, "ignore_name_scope": bool(scope)}
    return allreduce(tensor, average, device_dense, device_sparse, compression, op, **options)


def labels_of(variables: Sequence[Any]) -> list[str]:
    """Return the names of variables of TensorFlow or Keras, for the text of an error."""
    return [str(getattr(v, "path", getattr(v, "name", "?"))) for v in variables]


def _broadcast_tensors(
    tensors: Sequence[tf.Tensor],
    root_rank: int,
    process_set: ProcessSet,
    name: str | None,
    labels: Sequence[str] | None = None,
) -> list[tf.Tensor]:
    names: list[Any] = [name] if len(tensors) == 1 else group_names(name, len(tensors))

    def send(*arrays: np.ndarray) -> list[np.ndarray]:
        root = process_set.place(root_rank)
        compared = None if name is None else names
        return _arrays.broadcast(process_set.runtime(), arrays, root, compared, labels)

    types, shapes = [t.dtype for t in tensors], [t.shape for t in tensors]
    return call(send, tensors, types, shapes, process_set, name)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the tensor of the worker ``root_rank``, at every worker. The function is
    differentiable. At the worker ``root_rank``, the gradient is the average over the workers.

    Args:
        tensor (Tensor): the same shape and type at all workers.
        root_rank (int): rank of the worker that provides the tensor. This is the rank in the job,
            not in the process set.
        name (str, optional): name of the operation, the same at all workers.
        ignore_name_scope (bool): in a graph, do not add the name scopes around the call to `name`.
        process_set (ProcessSet): the workers that take part.
    """
    name = scoped(name, ignore_name_scope)

    @tf.custom_gradient
    def sent(value: tf.Tensor) -> Any:
        def gradient(grad: tf.Tensor) -> tf.Tensor:
            (total,) = reduce_tensors([tf.convert_to_tensor(grad)], process_set=process_set)
            return total if _core.rank() == root_rank else tf.zeros_like(total)

        return _broadcast_tensors([value], root_rank, process_set, name)[0], gradient

    return sent(tf.convert_to_tensor(tensor))


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables with the values of rank ``root_rank``, in place.

    Args:
        variables: variables of TensorFlow or Keras.
        root_rank (int): rank of the worker that provides the values.
        name (str, optional): name of the operation, the same at all workers.
        process_set (ProcessSet): the workers that take part.

    Returns:
        list: the variables. In a graph that a session runs, the assignments, for ``session.run``.
    """
    variables = list(variables)
    if not variables and not tf.executing_eagerly():
        return variables
    given, labels = as_tensors(variables), labels_of(variables)
    values = _broadcast_tensors(given, root_rank, process_set, name, labels)
    assigned = [variable.assign(value) for variable, value in zip(variables, values)]
    return variables if tf.compat.v1.executing_eagerly_outside_functions() else assigned


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite the variables of a model or an optimizer with the values of rank ``root_rank``.

    Args:
        variables: variables of TensorFlow or Keras, in the same order at all workers.
        root_rank (int): rank of the worker that provides the values.
        process_set (ProcessSet): the workers that take part.
        inplace (bool): True: send one variable after the other, so that memory for a copy of one
            variable suffices. False: send all variables in one call, which is faster.

    Returns:
        Operation: in a graph that a session runs, the operation for ``session.run``; else None.

    Example::

        >>> bps.tensorflow.broadcast_variables(model.variables, root_rank=0)
        >>> bps.tensorflow.broadcast_variables(optimizer.variables, root_rank=0)
    """
    parts = [[variable] for variable in variables] if inplace else []
    parts = parts or [list(variables)]  # workers also compare an empty list with other lists
    assigned = [
        one for part in parts for one in broadcast_(part, root_rank, process_set=process_set)
    ]
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*assigned)


def broadcast_global_variables(root_rank: int = 0) -> Any:
    """Return the operation that overwrites the global variables of a TensorFlow 1 graph with the
    values of rank ``root_rank``. Run it in a session after the variables are initialized.

    Raises:
        RuntimeError: in TensorFlow 2, which has no global variables.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        raise RuntimeError(
            "broadcast_global_variables: TensorFlow 2 has no global variables: use "
            "broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts the global variables of one worker to all workers when a
    ``tf.compat.v1.train.MonitoredTrainingSession`` creates its session.

    Args:
        root_rank (int): rank of the worker whose values are broadcast.
        device (str): must be empty or a CPU, because bps exchanges values in host memory.

    Example::

        >>> hooks = [bps.tensorflow.BroadcastGlobalVariablesHook(0)]
        >>> with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...     session.run(train_op)
    """

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        check_devices(device)
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph, before the session makes the graph read-only."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast in a new session."""
        session.run(self.bcast_op)


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
            does. The other arguments are those of :func:`allreduce`.
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
    """Apply :func:`reducescatter` to each tensor."""
    options: dict[str, Any] = {
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "has_horovods_gradient": has_horovods_gradient,
    }
    return [
        reducescatter(tensor, device_dense, compression, op, one, process_set, **options)
        for tensor, one in zip(tensors, group_names(name, len(tensors)))
    ]


def _number(value: Callable[[], int], name: str | None = None) -> tf.Tensor:
    """Return a number that is read each time that the graph runs."""
    number = call(lambda: [np.array(value(), np.int32)], [], [tf.int32], [[]], None)[0]
    return tf.identity(number, name)


def set_size(process_set: ProcessSet) -> tf.Tensor:
    """Return the number of workers in the set, read each time that the graph runs."""
    return _number(process_set.size)


def rank_op(name: str | None = None, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Return this worker's number in the process set, read each time that the graph runs.

    Args:
        name (str, optional): name of the operation in the graph.
        process_set (ProcessSet): the set of which this worker is a member.
    """
    return _number(process_set.rank, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return this worker's number among the workers on its machine, as :func:`rank_op` does."""
    return _number(_core.local_rank, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return the number of workers on this machine, as :func:`rank_op` does."""
    return _number(_core.local_size, name)


def _set_of(process_set_id: int) -> ProcessSet:
    known = process_sets()
    if process_set_id not in known:
        raise ValueError(
            f"there is no process set {process_set_id}: pass the process_set_id of a set that "
            "add_process_set has returned"
        )
    return known[process_set_id]


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of workers in a process set, read each time that the graph runs.

    Args:
        process_set_id (int): id of the set; 0: all workers.
        name (str, optional): name of the operation in the graph.
    """
    return _number(lambda: _set_of(process_set_id).size(), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return 1 if this worker is in the process set, else 0, read each time that the graph runs.

    Args:
        process_set_id (int): id of the set; 0: all workers.
        name (str, optional): name of the operation in the graph.
    """
    return _number(lambda: int(_set_of(process_set_id).included()), name)


def join() -> None:
    """Raise an error, because bps has no ``join``. Scripts of Horovod call this function.

    Raises:
        NotImplementedError: always. The text says what to do instead.
    """
    raise NotImplementedError(
        "bps has no join(): let all workers make the same number of steps, such as "
        "int(allreduce(n_batches, op=Min)), or repeat the dataset and take as many batches at all "
        "workers"
    )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of rank ``root_rank`` at every worker. The object is sent pickled.

    Args:
        obj: an object that can be pickled.
        root_rank (int): rank of the worker whose object all workers get.
        session (Session, optional): not needed, because no graph has a part in this call. Scripts
            of Horovod for TensorFlow 1 pass it.
        name (str, optional): name of the operation, which the workers compare.
        process_set (ProcessSet): the workers that take part.
    """
    return _ops.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that calls :func:`broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all workers, ordered by rank. The arguments are those of
    :func:`broadcast_object`."""
    return _ops.allgather_object(obj, name, process_set)
