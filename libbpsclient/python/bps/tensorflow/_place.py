"""Place of this worker in the job, as TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bps import _core
from bps._sets import ProcessSet, global_process_set, process_sets
from bps.tensorflow._call import call


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
