"""Transformations for optax that average gradients over all workers."""

from __future__ import annotations

from typing import Any

from bps._compression import Compression
from bps._ops import Average, check_gradients
from bps._sets import ProcessSet, global_process_set
from bps.jax._ops import push_pull


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


def DistributedOptimizer(optimizer: Any, **options: Any) -> Any:  # noqa: N802 - a name users know
    """Let an optax optimizer average gradients over all workers before each update.

    Args:
        optimizer (GradientTransformation): an optimizer of optax.
        options: arguments of :func:`average_gradients`.
    """
    import optax

    return optax.chain(average_gradients(**options), optimizer)
