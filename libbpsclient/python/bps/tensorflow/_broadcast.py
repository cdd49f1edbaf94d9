"""Broadcasts of TensorFlow tensors and variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bps import _arrays, _core
from bps._ops import check_devices, group_names
from bps._sets import ProcessSet, global_process_set
from bps.tensorflow._allreduce import labels_of, reduce_tensors
from bps.tensorflow._call import Tensor, as_tensors, call, scoped


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
