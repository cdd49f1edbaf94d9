"""Collective operations on trees of JAX arrays, inside and outside of ``jax.jit``.

All leaves (arrays) of a tree are reduced in one call, also inside jit (see :mod:`bps.jax._ffi`).
JAX keeps the calls in the order of the program. The program is the same at all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bps import _arrays, _core, _dtypes
from bps._compression import Compression, coding_of, through
from bps._ops import Average, Sum, check_op, share
from bps._sets import ProcessSet, global_process_set
from bps.jax import _ffi

# A tree (pytree) of JAX: arrays, numbers, and lists, tuples and dicts of these.
Tree = Any

# JAX returns from a call before XLA's threads have run the call. effects_barrier waits for these
# threads. Without this wait, a worker that does not use its last result would leave the job while
# the threads still call bps.
_core.before_leaving.append(jax.effects_barrier)
# The shapes in compiled functions depend on the number of workers, which may have changed. So JAX
# must compile the functions again.
_core.after_resuming.append(jax.clear_caches)


def call(
    function: Callable[..., Sequence[np.ndarray]],
    leaves: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
) -> list[jax.Array]:
    """Call a function on arrays.

    Outside of jit, call the function now. Inside jit, call the function each time that the compiled
    code runs.

    Args:
        function (callable): function of two arguments that returns the results. The first argument
            is a list of NumPy arrays, one for each leaf. The second argument is a list of flat
            arrays into which the function may write the results. Outside of jit, the second
            argument is None.
        leaves: arrays for the first argument of the function.
        results: shapes and types of the results of the function.

    Returns:
        list: the results. Outside of jit, a result that has the shape of its leaf is on the devices
            of this leaf.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        values = function([np.asarray(leaf) for leaf in leaves], None)
        if len(values) != len(leaves):
            return [jnp.asarray(value) for value in values]
        return [_placed(value, leaf) for value, leaf in zip(values, leaves)]
    shapes = [leaf.shape for leaf in leaves]

    def fill(arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        given = [a.reshape(shape) for a, shape in zip(arrays, shapes)]
        for output, value in zip(outputs, function(given, outputs)):
            if output is not value:
                np.copyto(output, value.reshape(-1))

    return _ffi.call(fill, leaves, results)


def _placed(value: np.ndarray, leaf: jax.Array) -> jax.Array:
    """Return the value as an array on the devices of the leaf. If their shapes differ, the leaf's
    sharding may not fit, so the default device is used."""
    array = jnp.asarray(value)
    if array.shape != leaf.shape or array.sharding == leaf.sharding:
        return array
    return jax.device_put(array, leaf.sharding)


def like(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape and type of an array."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def reduce_leaves(
    leaves: Sequence[jax.Array],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    compression: Any,
    process_set: ProcessSet,
    labels: Sequence[str] | None = None,
) -> list[jax.Array]:
    """Reduce arrays over all workers in one call. Not differentiable. `labels`: names of the
    arrays for the text of an error."""
    coding = coding_of(compression)

    def reduce(arrays: Sequence[np.ndarray], outputs: Any) -> Sequence[np.ndarray]:
        options = (name, op, *factors, coding)
        return _arrays.reduce(process_set.runtime(), arrays, outputs, *options, labels=labels)

    def send(given: list[jax.Array]) -> list[jax.Array]:
        for leaf in given:
            _dtypes.wire_type(np.dtype(leaf.dtype), coding)
        return call(reduce, given, [like(leaf) for leaf in given])

    return through(compression, leaves, send)


def place_names(tree: Tree) -> list[str]:
    """Return the places of a tree's leaves, for the text of an error."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def push_pull(
    tree: Tree,
    op: int | None = None,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Tree:
    """Reduce a tree over all workers in one call; differentiable.

    Args:
        tree: arrays of any shapes. Structure and shapes are the same at all workers.
        op (int, optional): Average (default), Sum, Min, Max or Product.
        name (str, optional): name of the operation, the same at all workers. A tree that is reduced
            repeatedly should have a name.
        average (bool, optional): older form of `op`: True is Average, False is Sum.
        prescale_factor, postscale_factor (float): factors for the arrays before the reduction and
            for the results after it. Integers are multiplied in f64, and rounded towards zero.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(array)`` and ``decompress(array, context)``.
        process_set (ProcessSet): the workers that take part.

    Raises:
        ValueError: `average` and `op` are both given.

    Example::

        >>> bps.jax.init()
        >>> step = jax.jit(lambda grads: bps.jax.push_pull(grads, name="grad"))
        >>> step({"w": jnp.ones((3, 4)), "b": jnp.zeros(4)})
    """
    op = check_op(average, op)
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    if not leaves:
        return tree
    options = (op, (prescale_factor, postscale_factor), compression, process_set, place_names(tree))

    @jax.custom_vjp
    def reduced(given: list[jax.Array]) -> list[jax.Array]:
        return reduce_leaves(given, name, *options)

    def forward(given: list[jax.Array]) -> tuple[list[jax.Array], None]:
        return reduced(given), None

    def backward(_: None, grads: list[jax.Array]) -> tuple[list[jax.Array]]:
        if op not in (Average, Sum):
            raise NotImplementedError("only Average and Sum have gradients")
        return (reduce_leaves(grads, None if name is None else f"{name}.gradient", *options),)

    reduced.defvjp(forward, backward)
    return jax.tree.unflatten(structure, reduced(leaves))


def allreduce(tree: Tree, average: bool | None = None, **options: Any) -> Tree:
    """Do :func:`push_pull`, under the name that Horovod uses. ``options`` are its arguments."""
    return push_pull(tree, average=average, **options)


def broadcast(tree: Tree, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Tree:
    """Return the tree of rank ``root_rank`` at every worker.

    Args:
        tree: arrays of the same shapes and types at all workers.
        root_rank (int): rank of the worker that provides the values. This is the rank in the job,
            not in the process set.
        process_set (ProcessSet): the workers that take part.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves, labels = [jnp.asarray(leaf) for leaf in leaves], place_names(tree)

    def send(arrays: Sequence[np.ndarray], _: Any) -> list[np.ndarray]:
        root = process_set.place(root_rank)
        return _arrays.broadcast(process_set.runtime(), arrays, root, labels=labels)

    return jax.tree.unflatten(structure, call(send, leaves, [like(leaf) for leaf in leaves]))


def _is_traced(array: Any) -> bool:
    return isinstance(array, jax.core.Tracer)


def allgather(array: Any, process_set: ProcessSet = global_process_set) -> jax.Array:
    """Concatenate all workers' arrays along the first dimension, ordered by rank.

    Args:
        array: an array of at least one dimension. Outside of jit the first dimension may differ
            between workers. Inside jit it must be equal at all workers, because shapes are fixed.
        process_set (ProcessSet): the workers that take part.
    """
    array = jnp.asarray(array)
    shape = (process_set.n_ranks() * array.shape[0], *array.shape[1:]) if array.ndim else ()
    is_fixed = _is_traced(array)

    def gather(given: Sequence[np.ndarray], _: Any) -> list[np.ndarray]:
        all_, rows, _ = _arrays.gather(process_set.runtime(), given[0])
        if is_fixed and len(set(rows)) > 1:
            raise ValueError(
                f"allgather: the numbers of rows differ between the workers ({rows}), but inside "
                "jit all workers must have the same number of rows"
            )
        return [all_]

    return call(gather, [array], [jax.ShapeDtypeStruct(shape, array.dtype)])[0]


def reducescatter(
    array: Any,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Reduce an array over all workers and return this worker's rows of the result.

    Args:
        array: an array of at least one dimension. The rows are split over the workers. If the
            number of workers does not divide the number of rows, the first ranks get one more row.
        op (int): Average, Sum or another operation, the same at all workers.
        name (str, optional): name of the operation, the same at all workers.
        process_set (ProcessSet): the workers that take part.
    """
    array = jnp.asarray(array)
    if array.ndim == 0:
        raise ValueError("reducescatter needs an array of at least one dimension")
    first, n = share(array.shape[0], process_set)
    total = push_pull(array, op, name, process_set=process_set)
    return total[first : first + n]


def alltoall(
    array: Any, splits: Sequence[int] | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows of an array to each worker, and return the rows that all workers have sent to this
    worker.

    Args:
        array: an array of at least one dimension. All dimensions except the first are the
            same at all workers.
        splits (list of int, optional): number of rows for each worker, by rank; None: equal
            numbers. Not allowed inside jit, because shapes are fixed there.
        process_set (ProcessSet): the workers that take part.

    Returns:
        Array: the rows received, ordered by the rank of the sender. With `splits`, a pair: these
            rows, and the number of rows from each worker.
    """
    array = jnp.asarray(array)
    if splits is not None:
        if _is_traced(array):
            raise NotImplementedError("alltoall: shapes are fixed inside jit, so omit 'splits'")
        rows, received = _arrays.exchange(process_set, np.asarray(array), splits)
        return jnp.asarray(rows), jnp.asarray(received, jnp.int32)

    def exchange(given: Sequence[np.ndarray], _: Any) -> list[np.ndarray]:
        return [_arrays.exchange(process_set, given[0], None)[0]]

    return call(exchange, [array], [like(array)])[0]
