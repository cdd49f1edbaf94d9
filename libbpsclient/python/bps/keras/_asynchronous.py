"""Updates of Keras's variables that are exchanged for values of the servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from bps._asynchronous import ArraySteps
from bps._values import Bound

Function = Callable[..., list[np.ndarray]]


def _call_tensorflow(function: Function, tensors: Sequence[Any], n: int) -> list[Any]:
    import tensorflow as tf

    from bps.tensorflow._call import call

    given = [tf.convert_to_tensor(t) for t in tensors]
    likes = given[:n]
    return call(function, given, [t.dtype for t in likes], [t.shape for t in likes], None)


def _call_jax(function: Function, tensors: Sequence[Any], n: int) -> list[Any]:
    import jax.numpy as jnp

    from bps.jax._ops import call, like

    given = [jnp.asarray(t) for t in tensors]
    return call(lambda arrays, _: function(*arrays), given, [like(t) for t in given[:n]])


def _call_torch(function: Function, tensors: Sequence[Any], n: int) -> list[Any]:
    import torch

    given = [torch.as_tensor(t).detach() for t in tensors]
    for tensor in given:
        if tensor.device.type != "cpu":
            raise NotImplementedError(
                f"a variable must be in host memory, not on {tensor.device}: keep the model on the "
                "CPU"
            )
        if tensor.dtype == torch.bfloat16:
            raise TypeError("asynchronous training of bfloat16 variables needs another back-end")
    answers = function(*[tensor.contiguous().numpy() for tensor in given])
    return [torch.from_numpy(answer) for answer in answers]


_CALLS = {"tensorflow": _call_tensorflow, "jax": _call_jax, "torch": _call_torch}


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


class VariableSteps:
    """Exchanges variables after each update of an optimizer.

    Args:
        bound (Bound): how far workers may be apart.

    Raises:
        NotImplementedError: Keras uses a back-end that bps does not support.
    """

    def __init__(self, bound: Bound) -> None:
        backend = keras.backend.backend()
        if backend not in _CALLS:
            raise NotImplementedError(
                f"Keras runs on {backend}: set KERAS_BACKEND to one of {', '.join(_CALLS)}"
            )
        self._call, self._arrays = _CALLS[backend], ArraySteps(bound)

    def reset(self) -> None:
        """Let the next update set the values to the variables of rank 0."""
        self._arrays.reset()

    @contextlib.contextmanager
    def step(self, optimizer: Any, variables: Sequence[Any]) -> Iterator[None]:
        """Return a context for an update of the variables. Its end exchanges them. If the optimizer
        only accumulates gradients, nothing is sent."""
        before = [_copy(v) for v in variables]
        steps = optimizer.gradient_accumulation_steps
        is_update: Any = True
        if steps and optimizer.built:
            is_update = (optimizer._iterations + 1) % steps == 0
        elif steps:
            is_update = steps == 1
        flag = keras.ops.cast(is_update, "int32")
        yield
        names, n = [_path(v) for v in variables], len(variables)

        def exchange(*given: np.ndarray) -> list[np.ndarray]:
            old, new, is_due = given[:n], given[n : 2 * n], given[2 * n]
            if not is_due:
                return list(new)
            return [answer.copy() for answer in self._arrays.exchange(names, old, new)]

        after = [keras.ops.convert_to_tensor(v) for v in variables]
        for variable, answer in zip(variables, self._call(exchange, [*before, *after, flag], n)):
            variable.assign(answer)

    def pull(self, variables: Sequence[Any]) -> None:
        """Wait until all workers have called this method, and assign the servers' values, which
        are then the same at all workers. Call it outside of compiled functions."""
        variables = list(variables)
        if not variables:  # the optimizer has updated nothing yet
            return
        names, n = [_path(v) for v in variables], len(variables)

        def pull(*given: np.ndarray) -> list[np.ndarray]:
            return [answer.copy() for answer in self._arrays.pull(names, given)]

        given = [keras.ops.convert_to_tensor(v) for v in variables]
        for variable, answer in zip(variables, self._call(pull, given, n)):
            variable.assign(answer)


def _copy(variable: Any) -> Any:
    """Return the value of a variable, which later assignments do not change."""
    value, backend = keras.ops.convert_to_tensor(variable), keras.backend.backend()
    if backend == "torch":
        return value.detach().clone()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.identity(value)  # the value may be the variable itself
    return value
