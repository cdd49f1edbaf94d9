"""Collectives on objects of Python, and join()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bps import _ops
from bps._sets import ProcessSet, global_process_set


def join() -> None:
    """Raise an error, because bps has no ``join``. Scripts of Horovod call this function.

    Raises:
        NotImplementedError: always. The text says what to do instead.
    """
    raise NotImplementedError(
        "bps has no join(): let all workers make the same number of steps, such as "
        "int(allreduce(n_batches, op=Min)), or repeat the dataset and take as many batches at all "
        "workers"
    )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of rank ``root_rank`` at every worker. The object is sent pickled.

    Args:
        obj: an object that can be pickled.
        root_rank (int): rank of the worker whose object all workers get.
        session (Session, optional): not needed, because no graph has a part in this call. Scripts
            of Horovod for TensorFlow 1 pass it.
        name (str, optional): name of the operation, which the workers compare.
        process_set (ProcessSet): the workers that take part.
    """
    return _ops.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that calls :func:`broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all workers, ordered by rank. The arguments are those of
    :func:`broadcast_object`."""
    return _ops.allgather_object(obj, name, process_set)
