"""Calls of Python functions on TensorFlow tensors, in eager mode and in graphs.

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

from bps._compression import cast
from bps._sets import ProcessSet
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
