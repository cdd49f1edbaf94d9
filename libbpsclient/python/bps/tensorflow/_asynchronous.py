"""Updates of TensorFlow 1's optimizers that are exchanged for values of the servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from bps._asynchronous import ArraySteps
from bps._values import Bound
from bps.tensorflow._call import call


def asynchronous_methods(base: Any, bound: Bound) -> dict[str, Any]:
    """Return methods for a subclass of an optimizer's class, which exchange the variables after
    each update.

    Args:
        base (type): the class, of ``tf.compat.v1.train``.
        bound (Bound): how far workers may be apart.
    """
    arrays = ArraySteps(bound)
    known: list[Any] = []  # variables of the first update

    def exchange_after(variables: list[Any], before: list[Any], applied: Any) -> Any:
        """Exchange the variables after the operation `applied`, and return the operation that
        assigns the answers."""
        names, n = [variable.name for variable in variables], len(variables)

        def exchange(*given: np.ndarray) -> list[np.ndarray]:
            return [one.copy() for one in arrays.exchange(names, given[:n], given[n:])]

        is_eager = tf.executing_eagerly()
        with tf.control_dependencies([] if is_eager else [applied]):
            after = [variable.read_value() for variable in variables]
        return _assigned(variables, _called(exchange, [*before, *after], n))

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = known[:] = [variable for _, variable in pairs]
        # An update may write to the memory of the value, so copy it.
        before = [tf.raw_ops.DeepCopy(x=variable.read_value()) for variable in variables]
        with tf.control_dependencies([] if tf.executing_eagerly() else before):
            applied = base.apply_gradients(self, pairs, *args, **kwargs)
        return exchange_after(variables, before, applied)

    def pull_values(self: Any) -> Any:
        """Wait until all workers have called this method, and assign the servers' values to the
        variables of the last update. In a graph, return the operation that does."""
        variables = list(known)
        if not variables:
            return None if tf.executing_eagerly() else tf.no_op()
        names = [variable.name for variable in variables]

        def pull(*given: np.ndarray) -> list[np.ndarray]:
            return [one.copy() for one in arrays.pull(names, given)]

        values = [variable.read_value() for variable in variables]
        return _assigned(variables, _called(pull, values, len(values)))

    return {
        "apply_gradients": apply_gradients,
        "pull_values": pull_values,
        "reset_values": lambda self: arrays.reset(),
    }


def _called(function: Any, tensors: list[Any], n: int) -> list[Any]:
    """Call a function on tensors. Its n results are like the first n tensors."""
    likes = tensors[:n]
    return call(function, tensors, [t.dtype for t in likes], [t.shape for t in likes], None)


def _assigned(variables: list[Any], values: list[Any]) -> Any:
    """Assign values to variables, and return the operation that does so in a graph."""
    assigned = [variable.assign(value) for variable, value in zip(variables, values)]
    return None if tf.executing_eagerly() else tf.group(*assigned)
