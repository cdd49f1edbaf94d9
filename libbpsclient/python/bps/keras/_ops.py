"""Operations on values and variables of Keras, outside of compiled code."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from bps import _arrays
from bps._compression import Compression, cast, coding_of, through
from bps._ops import Average, check_op, share
from bps._sets import ProcessSet, global_process_set

if keras.backend.backend() in ("tensorflow", "torch"):
    cast.register(importlib.import_module(keras.backend.backend()).Tensor, keras.ops.cast)


def _array(value: Any) -> np.ndarray:
    """Return a variable, a tensor or a number as a NumPy array."""
    return np.asarray(keras.ops.convert_to_numpy(value))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray:
    """Reduce a value over all workers and return the result as a NumPy array.

    Args:
        value: a tensor, a variable, an array or a number.
        name (str, optional): name of the operation, the same at all workers. A value that is
            reduced repeatedly should have a name.
        average (bool, optional): older form of `op`: True is Average, False is Sum.
        prescale_factor, postscale_factor (float): factors for the value before the reduction and
            for the result after it.
        op (int, optional): Average (default), Sum, Min, Max or Product.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(value)`` and ``decompress(value, context)``.
        process_set (ProcessSet): the workers that take part.
    """
    op, factors = check_op(average, op), (prescale_factor, postscale_factor)
    rt, coding = process_set.runtime(), coding_of(compression)

    def send(given: list[Any]) -> list[np.ndarray]:
        return _arrays.reduce(rt, [_array(given[0])], None, name, op, *factors, coding)

    return _array(through(compression, [value], send)[0])


def push_pull(value: Any, name: str | None = None, average: bool = True) -> np.ndarray:
    """Do :func:`allreduce` with BytePS's arguments."""
    return allreduce(value, name, average)


def broadcast(
    value: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray:
    """Return rank ``root_rank``'s value as a NumPy array. Every worker gets this value.

    Args:
        value: a tensor, a variable, an array or a number.
        root_rank (int): rank of the worker that provides the value.
        name (str, optional): name of the operation, the same at all workers.
        process_set (ProcessSet): the workers that take part.
    """
    root, names = process_set.place(root_rank), None if name is None else [name]
    return _arrays.broadcast(process_set.runtime(), [_array(value)], root, names)[0]


def allgather(
    value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> np.ndarray:
    """Concatenate all workers' values along the first dimension, ordered by rank.

    Args:
        value: a tensor, a variable, an array or a number.
        name (str, optional): name of the operation, the same at all workers.
        process_set (ProcessSet): the workers that take part.
    """
    what = _arrays.titled("allgather", name)
    return _arrays.gather(process_set.runtime(), _array(value), what)[0]


def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray:
    """Reduce a value over all workers and return this worker's rows of the result.

    Args:
        value: a tensor, a variable or an array of rows, which are split over the workers.
        name (str, optional): name of the operation, the same at all workers.
        op (int): Average, Sum or another operation, the same at all workers.
        process_set (ProcessSet): the workers that take part.
    """
    total = allreduce(value, name, op=op, process_set=process_set)
    if total.ndim == 0:
        raise ValueError("reducescatter needs a value of at least one dimension")
    first, n = share(len(total), process_set)
    return total[first : first + n]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite variables with the values of rank ``root_rank``, in one call.

    Args:
        variables: variables of a model or an optimizer, in the same order at all workers.
        root_rank (int): rank of the worker that provides the values.
        process_set (ProcessSet): the workers that take part.
    """
    # Leave out the states of random generators, because workers must draw different numbers.
    kept = [v for v in variables if "seed_generator_state" not in v.path.rsplit("/", 1)[-1]]
    root = process_set.place(root_rank)
    rt, labels = process_set.runtime(), [v.path for v in kept]
    values = _arrays.broadcast(rt, [_array(v) for v in kept], root, labels=labels)
    for variable, value in zip(kept, values):
        variable.assign(value)


def broadcast_global_variables(root_rank: int = 0) -> None:
    """Raise an error, because Keras 3 has no global variables. Older scripts of Horovod call this
    function, with a ``root_rank``.

    Raises:
        RuntimeError: always. The text says what to call instead.
    """
    raise RuntimeError(
        "broadcast_global_variables: Keras 3 has no global variables: use "
        "callbacks.BroadcastGlobalVariablesCallback or broadcast_variables(model.variables)"
    )
