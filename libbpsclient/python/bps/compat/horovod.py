"""Replace Horovod's modules: import this before ``horovod.torch``.

Example::

    import bps.compat.horovod
    import horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import bps
from bps import _core
from bps.compat import _alias

LACKING = {
    "start_timeline": "watch the job with bpsctl, or use torch.profiler",
    "stop_timeline": "watch the job with bpsctl, or use torch.profiler",
    "run": "start the script with bpsrun",
}


_places: list[tuple[int, int]] = []  # local rank and size of each worker


def _column() -> list[int]:
    """The workers that have this one's local rank, one of each machine."""
    local = _core.local_rank()
    return [rank for rank, (place, _) in enumerate(_places) if place == local]


def _cross_rank() -> int:
    """Return the machine's number among those that have a worker of this local rank."""
    return _column().index(_core.rank())


def _cross_size() -> int:
    """Return the number of machines that have a worker of this local rank."""
    return len(_column())


def _is_homogeneous() -> bool:
    """Return True when all machines have equally many workers."""
    _core.runtime()
    return len({size for _, size in _places}) == 1


def _init(comm: Any = None, process_sets: Sequence[Any] | None = None) -> None:
    """Join the job.

    Args:
        comm: a list of ranks or a communicator of MPI; refused.
        process_sets (sequence, optional): sets to add at once.
    """
    if comm is not None:
        raise NotImplementedError(
            "init(comm=...) has no counterpart in bps: give another job name (BPS_JOB) to the "
            "workers of each communicator"
        )
    _core.init()
    _places[:] = _core.runtime().allgather_object((_core.local_rank(), _core.local_size()))
    for one in process_sets or ():
        import bps.torch

        bps.torch.add_process_set(one)


def _no(*_: Any) -> bool:
    """Report that a library is not used."""
    return False


def _yes() -> bool:
    """Report that it is as if Gloo were built in: no MPI is needed."""
    return True


BUILT = {
    "mpi_threads_supported": _no,
    "mpi_enabled": _no,
    "mpi_built": _no,
    "gloo_enabled": _yes,
    "gloo_built": _yes,
    "nccl_built": _no,
    "ddl_built": _no,
    "ccl_built": _no,
    "cuda_built": _no,
    "rocm_built": _no,
}


def _torch() -> dict[str, Any]:
    place = {
        "init": _init,
        "cross_rank": _cross_rank,
        "cross_size": _cross_size,
        "is_homogeneous": _is_homogeneous,
    }
    return {**_alias.torch_names(), **BUILT, **place}


def _exceptions() -> dict[str, Any]:
    from bps.torch.elastic import HostsUpdatedInterrupt

    return {"HorovodInternalError": bps.Error, "HostsUpdatedInterrupt": HostsUpdatedInterrupt}


def _elastic() -> dict[str, Any]:
    from bps.torch import elastic

    return {name: value for name, value in vars(elastic).items() if name[0] != "_"}


MODULES = {
    "horovod": _alias.version,
    "horovod.common": dict,
    "horovod.common.exceptions": _exceptions,
    "horovod.torch": _torch,
    "horovod.torch.elastic": _elastic,
    "horovod.torch.elastic.sampler": _elastic,
    "horovod.torch.elastic.state": _elastic,
    "horovod.torch.compression": _torch,
    "horovod.torch.functions": _torch,
    "horovod.torch.mpi_ops": _torch,
    "horovod.torch.optimizer": _torch,
}

_alias.install("horovod", MODULES, LACKING)
