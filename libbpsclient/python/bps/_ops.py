"""Collectives: the functions that need neither a framework nor NumPy."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from bps._library import AVG, MAX, MIN, PRIORITY_AUTO, PROD, SUM
from bps._sets import ProcessSet, global_process_set

Average, Sum, Min, Max, Product = AVG, SUM, MIN, MAX, PROD
Adasum = -1
# The largest priority. The library gives it to the first tensor of a job, too.
PRIORITY_FIRST = 32767


def check_op(average: bool | None, op: int | None) -> int:
    """Return the operation that a caller has chosen with one of two arguments.

    Args:
        average (bool, optional): older form of `op`: True is Average, False is Sum.
        op (int, optional): Average (default), Sum, Min, Max or Product.

    Raises:
        ValueError: `average` and `op` are both given, or the value of `op` is not an operation.
        NotImplementedError: for Adasum.
    """
    if average is not None and op is not None:
        raise ValueError("'average' and 'op' exclude each other: pass one of them")
    if op is None:
        return Average if average in (None, True) else Sum
    # Compare the type first, because operations of other libraries may be equal to integers.
    if not isinstance(op, int) or op not in (Average, Sum, Min, Max, Product, Adasum):
        raise ValueError(
            f"op={op} is not an operation: use Average, Sum, Min, Max or Product of this module"
        )
    if op == Adasum:
        raise NotImplementedError(
            "Adasum is not supported: use Average, or Sum with a scaled learning rate"
        )
    return op


def check_gradients(op: int, predivide: float = 1.0) -> None:
    """Check the parameters of a reduction of gradients.

    Args:
        op (int): must be Average or Sum.
        predivide (float): the user's gradient_predivide_factor, by which each gradient is divided
            before the sum. If `op` is Sum, the factor must be 1.

    Raises:
        ValueError: `op` or `predivide` is not allowed.
        NotImplementedError: for Adasum.
    """
    if check_op(None, op) not in (Average, Sum):
        raise ValueError("op must be Average or Sum for gradients")
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=Average")


def check_devices(*devices: str) -> None:
    """Check the devices that a script of Horovod or BytePS chooses for collectives.

    Raises:
        NotImplementedError: a device is not a CPU.
    """
    for device in devices:
        if device and "cpu" not in device.lower():
            raise NotImplementedError(
                f"bps exchanges values in host memory, not on {device}: omit the device"
            )


def check_groups(num_groups: int, groups: Any) -> Any:
    """Return how a caller wants to group gradients: a number of groups, or lists of variables.

    Args:
        num_groups (int): older form of `groups`; 0: one group.
        groups (int or list, optional): number of groups, or lists of variables.

    Raises:
        ValueError: `groups` is neither.
    """
    chosen = num_groups if groups is None else groups
    if isinstance(chosen, (list, tuple)):
        return [list(group) for group in chosen]
    if not isinstance(chosen, int) or chosen < 0:
        raise ValueError(f"groups must be a number from 0, or lists of variables, not {chosen!r}")
    return chosen


def in_groups(groups: Any, n: int, variables: Sequence[Any]) -> list[list[int]]:
    """Return the indices of the gradients in each group. The gradients of a group are sent in one
    call.

    Args:
        groups: result of :func:`check_groups`.
        n (int): number of gradients.
        variables: variables of the gradients; used if `groups` is a list. A variable that is in no
            group has a group of its own.
    """
    if isinstance(groups, int):
        many = min(max(groups, 1), n)
        return [list(range(i * n // many, (i + 1) * n // many)) for i in range(many)]
    places = {id(variable): i for i, variable in enumerate(variables)}
    found = [[places.pop(id(v)) for v in group if id(v) in places] for group in groups]
    return [group for group in [*found, *([i] for i in places.values())] if group]


def group_names(name: str | None, n: int) -> list[str | None]:
    """Return names for the n tensors of a group. If the group has no name, all n are None."""
    return [None if name is None else f"{name}_{i + 1}of{n}" for i in range(n)]


def share(n: int, process_set: ProcessSet) -> tuple[int, int]:
    """Return this worker's part of n rows: its first row and its number of rows. If the number of
    workers does not divide n, the first ranks get one row more."""
    rank, size = process_set.rank(), process_set.n_ranks()
    return rank * (n // size) + min(rank, n % size), n // size + (rank < n % size)


def split_table(rows: int, splits: Sequence[int] | None, size: int) -> list[int]:
    """Return how many rows each worker gets in an all-to-all.

    Args:
        rows (int): number of rows of this worker's tensor.
        splits (sequence of int, optional): number of rows for each worker; None: equal numbers.
        size (int): number of workers.

    Raises:
        ValueError: the rows cannot be split in this way, or the numbers are not integers.
    """
    try:
        table = [rows // size] * size if splits is None else [operator.index(n) for n in splits]
    except TypeError:
        raise ValueError("alltoall: the numbers in splits must be integers") from None
    if len(table) != size or min(table) < 0 or sum(table) != rows:
        what = f"evenly over {size} workers" if splits is None else f"as {table}"
        raise ValueError(f"alltoall: {rows} rows cannot be split {what}")
    return table


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all workers of ``process_set`` have called this function."""
    rt = process_set.runtime()
    with rt.lock:
        rt.job.barrier()


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of rank ``root_rank`` at every worker. The object is sent pickled.

    Args:
        obj: an object that can be pickled.
        root_rank (int): rank of the worker whose object all workers get.
        name (str, optional): name of the operation, which the workers compare.
        process_set (ProcessSet): the workers that take part.
    """
    rt, root = process_set.runtime(), process_set.place(root_rank)
    return rt.broadcast_object(obj, root, _object_title(name))


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all workers, ordered by rank. The arguments are those of
    :func:`broadcast_object`."""
    return process_set.runtime().allgather_object(obj, _object_title(name))


def _object_title(name: str | None) -> str:
    """Return text about an object, which the workers compare."""
    return "an object" if name is None else f"object '{name}'"


_declared: dict[str, int] = {}  # names of declare(), and their numbers in this order


def declare(name: str) -> None:
    """Give the next lower priority to the tensors with this name. Among the tensors that wait to be
    sent, the one whose name was declared first is sent first. Further calls for a name do nothing.

    A tensor's type and size are not known here, so bps declares the tensor to the job at its first
    use.
    """
    _declared.setdefault(name, len(_declared))


def priority_of(name: str | None, priority: int = PRIORITY_AUTO) -> int:
    """Return the priority of a tensor: `priority` if the caller has chosen one, else the priority
    that :func:`declare` has given to the name."""
    if priority != PRIORITY_AUTO or name not in _declared:
        return priority
    return PRIORITY_FIRST - _declared[name]
