"""Transformations for optax that average gradients over all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bps._asynchronous import ArraySteps
from bps._compression import Compression
from bps._ops import Average, check_gradients
from bps._sets import ProcessSet, global_process_set
from bps._values import Bound, check_excluded, choose_bound, refuse
from bps.jax._ops import call, like, place_names, push_pull


def average_gradients(
    op: int = Average,
    name: str = "grad",
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optax transformation that reduces gradients over all workers.

    Args:
        op (int): Average or Sum.
        name (str): name of the operation, the same at all workers.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(array)`` and ``decompress(array, context)``.
        process_set (ProcessSet): the workers that take part. A worker outside this set keeps its
            own gradients.

    Returns:
        GradientTransformation: for ``optax.chain``, in front of clipping and of the optimizer.

    Example::

        >>> import optax
        >>> clip = optax.clip_by_global_norm(1.0)
        >>> optimizer = optax.chain(bps.jax.average_gradients(), clip, optax.sgd(0.1))
    """
    refuse("average_gradients")
    return _averages(op, name, compression, process_set)


def _averages(
    op: int = Average,
    name: str = "grad",
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Do :func:`average_gradients`, also if the environment chooses asynchronous training."""
    import optax

    check_gradients(op)

    def init(params: Any) -> Any:
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not process_set.included():
            return updates, state
        given = {"op": op, "name": name, "compression": compression, "process_set": process_set}
        return push_pull(updates, **given), state

    return optax.GradientTransformation(init, update)


def _asynchronous(optimizer: Any, bound: Bound) -> Any:
    """Return a transformation whose updates lead to the servers' values."""
    import optax

    # Sums of parameters and updates are rounded, so the parameters of the next step may differ
    # from the answer in their last bit.
    arrays = ArraySteps(bound, is_exact=False)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "an asynchronous optimizer needs the parameters: call update(grads, state, params)"
            )
        inner = optax.with_extra_args_support(optimizer)
        updates, state = inner.update(updates, state, params, **extra)
        before, structure = jax.tree.flatten(params)
        after, names = jax.tree.leaves(optax.apply_updates(params, updates)), place_names(params)
        n = len(before)

        def exchange(given: Sequence[np.ndarray], _: Any) -> list[np.ndarray]:
            return [one.copy() for one in arrays.exchange(names, given[:n], given[n:])]

        answers = call(exchange, [*before, *after], [like(leaf) for leaf in before])
        changes = [answer - leaf for answer, leaf in zip(answers, before)]
        return jax.tree.unflatten(structure, changes), state

    def pull_values(params: Any) -> Any:
        leaves, structure = jax.tree.flatten(params)
        names = place_names(params)

        def pull(given: Sequence[np.ndarray], _: Any) -> list[np.ndarray]:
            return [one.copy() for one in arrays.pull(names, given)]

        values = call(pull, leaves, [like(leaf) for leaf in leaves])
        return jax.tree.unflatten(structure, values)

    class Asynchronous(optax.GradientTransformationExtraArgs):
        """An asynchronous optimizer, with functions that read and reset the servers' values."""

    wrapped = Asynchronous(optimizer.init, update)
    wrapped.pull_values, wrapped.reset_values = pull_values, arrays.reset
    return wrapped


def DistributedOptimizer(  # noqa: N802 - a name users know
    optimizer: Any, asynchronous: bool | None = None, stale: int | None = None, **options: Any
) -> Any:
    """Let an optax optimizer average gradients over all workers before each update.

    Args:
        optimizer (GradientTransformation): an optimizer of optax.
        asynchronous (bool, optional): gradients are not averaged. The optimizer computes the new
            parameters with the gradients of this worker, and sends the change. Its updates then
            lead to the servers' values, which have the changes that have arrived so far, except for
            the rounding of the last bit. The first update sets these values to the parameters of
            rank 0. ``update()`` needs the parameters, and no transformation may follow. Before
            another training with the same optimizer, call ``reset_values()``. None: True if
            BPS_STALE or BYTEPS_ENABLE_ASYNC is set. See the guide "Asynchronous training".
        stale (int, optional): with `asynchronous`, the number of updates by which a worker may be
            behind without being waited for; None: that of BPS_STALE, or any number.
        options: arguments of :func:`average_gradients`.

    Returns:
        GradientTransformation: the optimizer. With `asynchronous`, it also has the functions
            ``pull_values(params)`` and ``reset_values()``. The first waits until all workers have
            called it, and returns the servers' values, which are the same at all workers. The
            second lets the next update set the values; call it at all workers.

    Raises:
        ValueError: options exclude each other.
    """
    import optax

    bound = choose_bound(asynchronous, stale)
    if bound is None:
        return optax.chain(_averages(**options), optimizer)
    given = {
        "op": options.get("op", Average) != Average,
        "compression": options.get("compression", Compression.none) is not Compression.none,
        "process_set": options.get("process_set", global_process_set) is not global_process_set,
    }
    check_excluded(given)
    if unknown := options.keys() - {*given, "name"}:
        raise TypeError(f"DistributedOptimizer has no argument {', '.join(sorted(unknown))}")
    return _asynchronous(optimizer, bound)
