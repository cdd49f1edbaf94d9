"""Collectives in graphs that a session of TensorFlow 1 runs.

A session runs the operations of a graph in any order, and each worker in another one. Control
dependencies between all collectives would fix the order. But then a session that runs one
collective would also run all earlier ones, with their placeholders and iterators. Instead, the
workers choose the order when the graph runs:

1. An operation has a key, which is the same at all workers. First the workers wait for each other
   under this key. So only operations that every worker has begun get a turn.
2. Rank 0 gives the operation the next turn, and sends the turn to all workers under the same key.
3. Each worker makes the calls in the order of the turns.

Threads: an operation blocks its thread during these steps. A session has few threads, and with all
of them blocked it could not begin the operations for which the other workers wait. Therefore an
operation is a dataset of one element. TensorFlow computes such an element in a thread of its own.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bps import _arrays, _core
from bps._library import SUM
from bps._runtime import Runtime
from bps._sets import ProcessSet


class Turns:
    """The order in which the workers of a job make the calls of session graphs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0  # turn of the next call
        self._n_given = 0  # number of turns that rank 0 has given
        self._failure: BaseException | None = None

    @contextlib.contextmanager
    def turn(self, rt: Runtime, key: str) -> Iterator[None]:
        """Wait until all workers have begun the operation of this key and it is the operation's
        turn. Then run the body of the with statement.

        Raises:
            Error: a worker has not begun the operation before the time-out, or the job has failed.
            RuntimeError: an earlier operation got no turn, so this worker does not know the order.
        """
        mine = self._agree(rt, key)
        with self._changed:
            # All workers have begun the operations with earlier turns, and each of these operations
            # ends with its result or an error. So the wait ends.
            self._changed.wait_for(lambda: self._next == mine or self._failure is not None)
            if self._failure is not None:
                raise RuntimeError(
                    "an earlier operation of a session failed, so this worker is out of step with "
                    "the others: start the job again"
                ) from self._failure
        try:
            yield
        finally:
            with self._changed:
                self._next += 1
                self._changed.notify_all()

    def _agree(self, rt: Runtime, key: str) -> int:
        """Wait until all workers have called this method with the key, and return the turn that
        rank 0 gives."""
        _sum(rt, key, 0)
        try:
            mine = 0
            if rt.job.rank == 0:
                with self._changed:
                    mine, self._n_given = self._n_given, self._n_given + 1
            return _sum(rt, key, mine)
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            raise


def _sum(rt: Runtime, key: str, value: int) -> int:
    """Return the sum of the workers' values. The operations that use a name are matched by this
    name, in any order."""
    array = np.array([value], np.int64)
    return int(_arrays.reduce(rt, [array], None, f"session/{key}", SUM)[0][0])


# Number of graphs in which each process set has operations. Workers outside a set have no such
# operations in their graphs.
_n_graphs: collections.Counter[int | None] = collections.Counter()
# For each graph and process set: number of the graph, and of the operations of each name.
_graphs: weakref.WeakKeyDictionary[Any, dict[int | None, tuple[int, collections.Counter[str]]]] = (
    weakref.WeakKeyDictionary()
)


def _key(graph: Any, process_set: ProcessSet, name: str | None) -> str:
    """Return a key for the next operation of the graph. All workers of the process set create their
    graphs in the same order. In a graph, they create operations of the same name in the same
    order."""
    one = process_set.process_set_id
    known = _graphs.setdefault(graph, {})
    if one not in known:
        known[one] = (_n_graphs[one], collections.Counter())
        _n_graphs[one] += 1
    number, names = known[one]
    names[name or ""] += 1
    return f"{number}/{name or ''}#{names[name or '']}"


def _line(rt: Runtime) -> Turns:
    """Return the turns of the runtime's job. A process set of all workers uses the process's
    job."""
    whole = _core.runtime()
    owner = whole if rt.job is whole.job else rt
    with owner.lock:
        if owner.turns is None:
            owner.turns = Turns()
        return owner.turns


def needs_turns(graph: Any) -> bool:
    """Return whether TensorFlow runs the operations of the graph in any order.

    Inside tf.function, TensorFlow keeps them in the order of the program.

    Raises:
        NotImplementedError: the graph is a function inside a graph that a session runs. Two calls
            of the function would use the same keys.
    """
    if not graph.building_function:
        return True
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise NotImplementedError(
            "bps cannot run inside a function, tf.cond or tf.while_loop of a graph that a session "
            "runs: call tf.compat.v1.disable_control_flow_v2() first, or use tf.function without "
            "a session"
        )
    # The graph of tf.compat.v1.wrap_function has no control dependencies either.
    return not getattr(graph, "_add_control_dependencies", True)


def call_in_turn(
    function: Callable[..., Sequence[np.ndarray]],
    tensors: Sequence[tf.Tensor],
    types: Sequence[tf.DType],
    process_set: ProcessSet,
    name: str | None,
) -> list[tf.Tensor]:
    """Add an operation to the default graph. Whenever a session runs the operation, all workers
    call the function in the same order.

    Args:
        function (callable): its arguments are arrays, one for each tensor. It returns arrays.
        tensors: arguments of the function.
        types: types of its results.
        process_set (ProcessSet): the workers that take part.
        name (str, optional): name of the operation, the same at all workers.
    """
    graph = tf.compat.v1.get_default_graph()
    key = _key(graph, process_set, name)

    def in_turn(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        rt = process_set.runtime()
        with _line(rt).turn(rt, key):
            return function(*arrays)

    def element(*values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.numpy_function(in_turn, list(values), list(types)))

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    made = tf.function(element, autograph=False).get_concrete_function(*specs)
    dataset = tf.raw_ops.TensorDataset(
        components=list(tensors), output_shapes=[t.shape for t in tensors]
    )
    shapes = [tf.TensorShape(None)] * len(types)
    dataset = tf.raw_ops.MapDataset(
        input_dataset=dataset,
        other_arguments=[],
        f=made,
        output_types=list(types),
        output_shapes=shapes,
        use_inter_op_parallelism=False,  # run the function in the dataset's own thread
    )
    return list(
        tf.raw_ops.DatasetToSingleElement(
            dataset=dataset, output_types=list(types), output_shapes=shapes
        )
    )
