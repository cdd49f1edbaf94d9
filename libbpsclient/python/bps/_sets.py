"""Process sets: groups of the job's workers that run collectives of their own.

A set of all workers uses the process's job. Any other set is a job of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from bps import _core
from bps._job import open as open_job
from bps._runtime import Runtime


class ProcessSet:
    """Some of the job's workers, for the argument ``process_set`` of collectives.

    Args:
        ranks (iterable of int): ranks of these workers in the job.

    Attributes:
        process_set_id (int, optional): id of the set; None before :func:`add_process_set`.
    """

    process_set_id: int | None = None
    _runtime: Runtime | None = None

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = sorted(ranks)
        if any(not isinstance(rank, int) for rank in self.ranks):
            raise ValueError(f"{self.ranks} is not a process set: pass the ranks as integers")
        if not self.ranks or len(set(self.ranks)) < len(self.ranks):
            raise ValueError(
                f"{self.ranks} is not a process set: pass at least one rank, and pass no rank twice"
            )

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks})"

    @property
    def ranks(self) -> list[int]:
        """Ranks of these workers in the job, in ascending order."""
        return self._ranks

    def included(self) -> bool:
        """Return True when this worker is in the set."""
        return _core.rank() in self.ranks

    def size(self) -> int:
        """Return the number of workers in the set."""
        return len(self.ranks)

    def n_ranks(self) -> int:
        """Return the number of ranks in the set, see :func:`bps._core.n_ranks`."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return this worker's number in the set, from 0."""
        return self.place(_core.rank())

    def place(self, rank: int) -> int:
        """Convert a worker's rank in the job to its rank in the set.

        Raises:
            ValueError: the worker is not in the set.
        """
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not in {self}")
        return self.ranks.index(rank)

    def check_added(self) -> None:
        """Check that the set is part of the job.

        Raises:
            ValueError: add_process_set was not called.
        """
        if self.process_set_id is None:
            raise ValueError(f"{self} is not part of the job: call add_process_set first")

    def runtime(self) -> Runtime:
        """Return the runtime that runs the collectives of this set.

        Raises:
            ValueError: this worker is not in the set, or add_process_set was not called.
            Error: EFORKED in a forked child.
        """
        _core.runtime()
        self.rank()
        if self._runtime is None:
            raise ValueError(f"{self} is not part of the job: call add_process_set first")
        return self._runtime

    def __deepcopy__(self, memo: Any) -> ProcessSet:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            f"{self} belongs to the job of this process and cannot be pickled: pickle the state of "
            "the object that uses the set, for example its state_dict()"
        )


class _All(ProcessSet):
    """The process set of all workers."""

    process_set_id = 0

    def __init__(self) -> None:
        pass

    def __repr__(self) -> str:
        return "global_process_set"

    def __reduce__(self) -> str:
        return "global_process_set"  # name of the object in this module

    @property
    def ranks(self) -> list[int]:
        return list(_core.members())

    def place(self, rank: int) -> int:
        return rank  # the C library checks that the rank is in the job

    def rank(self) -> int:
        return _core.rank()

    def size(self) -> int:
        return _core.size()

    def n_ranks(self) -> int:
        return _core.n_ranks()

    def runtime(self) -> Runtime:
        return _core.runtime()


global_process_set = _All()
# The sets that add_process_set has created in each job, by their ids.
_added: weakref.WeakKeyDictionary[Runtime, dict[int, ProcessSet]] = weakref.WeakKeyDictionary()


def process_sets() -> dict[int, ProcessSet]:
    """Return the process sets of the job by their ids. The set of all workers has the id 0."""
    return {0: global_process_set, **_added.get(_core.runtime(), {})}


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Create a process set. All workers of the job must call this function, including workers that
    are not in the set. All workers must create the same sets in the same order.

    Args:
        process_set (ProcessSet or iterable of int): the set, or the ranks in it.

    Returns:
        ProcessSet: for the argument ``process_set`` of collectives.

    Raises:
        ValueError: a rank is not in the job, a set of the same workers has been added already, or
            workers gave different ranks.

    Example::

        >>> even = bps.torch.add_process_set(range(0, bps.torch.size(), 2))
        >>> if even.included():
        ...     bps.torch.allreduce(x, process_set=even)
    """
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    rt = _core.runtime()
    mine = (one.ranks, _core.host_key(), _core.job_name(f"set{rt.n_sets}"))
    given = rt.allgather_object(mine, "a process set")
    number = rt.next_set()  # after an error above, the number is still free at all workers
    for rank, (ranks, _, _) in enumerate(given):
        if ranks != one.ranks:
            raise ValueError(
                f"rank {rank} adds a process set of {ranks}, but this worker adds {one.ranks}"
            )
    known = _added.setdefault(rt, {})
    if any(one.ranks == other.ranks for other in known.values()):
        raise ValueError(f"{one} has been added already: use that set, or remove it first")
    if not 0 <= one.ranks[0] <= one.ranks[-1] < rt.job.size:
        raise ValueError(f"{one} has ranks outside of the job of {rt.job.size} workers")
    one.process_set_id = number + 1
    known[one.process_set_id] = one
    if one.size() == rt.job.size:
        one._runtime = Runtime(rt.job, f"set{number}/")
    elif one.included():
        hosts = [given[rank][1] for rank in one.ranks]
        place, name = one.rank(), given[0][2]
        job = open_job(
            **_core.inherited(),
            job=name,
            rank=place,
            size=len(hosts),
            local_rank=hosts[:place].count(hosts[place]),
            local_size=hosts.count(hosts[place]),
            elastic=False,
        )
        _core.subjobs.append(job)
        one._runtime = Runtime(job, ranks=one.ranks)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set. All workers of the job must call this function for the same sets in the
    same order.

    Args:
        process_set (ProcessSet): the set that add_process_set has returned.

    Returns:
        bool: False for the set of all workers, and for a set that add_process_set did not create.
    """
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    _added.get(_core.runtime(), {}).pop(process_set.process_set_id, None)
    rt, process_set._runtime, process_set.process_set_id = process_set._runtime, None, None
    if rt is not None and rt.job in _core.subjobs:
        _core.subjobs.remove(rt.job)
        rt.job.close()
    return True
