"""Provide bps under the names of the modules of Horovod. Import this module before them.

Example::

    import bps.compat.horovod
    import horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
"""

from __future__ import annotations

import collections
import functools
import importlib
from collections.abc import Sequence
from typing import Any

import bps
from bps import _core, _sets
from bps._compression import Compression
from bps._elastic import HostsUpdatedInterrupt
from bps._ops import Average
from bps.compat import _alias

LACKING = {
    "run": "start the script with bpsrun",
    "SyncBatchNormalization": "average the batch statistics with allreduce",
}


def _hosts() -> dict[int, str]:
    """Return the machine of each worker that is present, by rank."""
    present = set(_core.members())
    return {w.rank: w.host for w in _core.runtime().job.workers() if w.rank in present}


def _column() -> list[int]:
    """Return the ranks of the workers with the same local rank as this worker, at most one per
    machine."""
    on_host: dict[str, list[int]] = collections.defaultdict(list)
    for rank, host in _hosts().items():
        on_host[host].append(rank)
    place = next(ranks.index(_core.rank()) for ranks in on_host.values() if _core.rank() in ranks)
    return [ranks[place] for ranks in on_host.values() if len(ranks) > place]


def _cross_rank() -> int:
    """Return the index of this machine among the machines that have a worker with this worker's
    local rank."""
    return _column().index(_core.rank())


def _cross_size() -> int:
    """Return the number of machines that have a worker with this worker's local rank."""
    return len(_column())


def _is_homogeneous() -> bool:
    """Return whether all machines have the same number of workers."""
    return len(set(collections.Counter(_hosts().values()).values())) == 1


def _init(comm: Any = None, process_sets: Sequence[Any] | str | None = None) -> None:
    """Join the job. Further calls return at once.

    Args:
        comm: must be None. bps supports neither a list of ranks nor an MPI communicator.
        process_sets (sequence, optional): process sets to create. "dynamic" creates none; sets
            can always be added later.

    Raises:
        ValueError: two of the sets have the same ranks, or the job has been joined already without
            one of these sets.
    """
    if comm is not None:
        raise NotImplementedError(
            "init(comm=...) has no counterpart in bps: give each communicator its own job "
            "name, and set BPS_JOB to this name at all its workers"
        )
    asked = [] if process_sets in (None, "dynamic") else list(process_sets or ())
    sets = list(map(_process_set, asked))
    for i, one in enumerate(sets):
        if any(one.ranks == other.ranks for other in sets[:i]):
            raise ValueError(f"init: process_sets has {one} twice")
    if not _core.is_initialized():
        _core.init()
        for one in sets:
            _sets.add_process_set(one)
    elif sets:
        known = list(_sets.process_sets().values())
        known_ranks = [one.ranks for one in known]
        for given, one in zip(asked, sets):
            is_known = one in known if given is one else one.ranks in known_ranks
            if not is_known:
                raise ValueError(
                    "init: the job has been joined already: create further sets with "
                    "add_process_set()"
                )


def _process_set(one: Any) -> _sets.ProcessSet:
    return one if isinstance(one, _sets.ProcessSet) else _sets.ProcessSet(one)


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks in each process set, by the id of the set."""
    return {number: one.ranks for number, one in _sets.process_sets().items()}


def _no(*_: Any) -> bool:
    """Return False for libraries that bps does not use, such as MPI and NCCL."""
    return False


def _yes() -> bool:
    """Return True, as Horovod with Gloo does, so that scripts do not require MPI."""
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


PLACE = {
    "init": _init,
    "cross_rank": _cross_rank,
    "cross_size": _cross_size,
    "is_homogeneous": _is_homogeneous,
    "get_process_set_ids_and_ranks": _get_process_set_ids_and_ranks,
}


ERRORS = {"HorovodInternalError": bps.Error, "HostsUpdatedInterrupt": HostsUpdatedInterrupt}


SETS = {
    "ProcessSet": _sets.ProcessSet,
    "add_process_set": _sets.add_process_set,
    "global_process_set": _sets.global_process_set,
    "remove_process_set": _sets.remove_process_set,
}


def _all_of(module: str) -> _alias.Names:
    return lambda: {**_alias.names_of(module), **BUILT, **PLACE, **ERRORS}


def _mxnet() -> dict[str, Any]:
    return {**_all_of("bps.mxnet")(), "DistributedTrainer": _trainer}


def _trainer(
    params: Any,
    optimizer: Any,
    optimizer_params: Any = None,
    compression: Any = None,
    gradient_predivide_factor: float = 1.0,
    prefix: str | None = None,
    num_groups: int = 0,
    process_set: Any = _sets.global_process_set,
) -> Any:
    """Make a :class:`bps.mxnet.DistributedTrainer` from Horovod's arguments."""
    import bps.mxnet

    return bps.mxnet.DistributedTrainer(
        params,
        optimizer,
        optimizer_params,
        compression=compression or bps.mxnet.Compression.none,
        gradient_predivide_factor=gradient_predivide_factor,
        prefix=prefix,
        num_groups=num_groups,
        process_set=process_set,
    )


def _public(module: str) -> _alias.Names:
    def names() -> dict[str, Any]:
        one = importlib.import_module(module)
        return {name: value for name, value in vars(one).items() if name[0] != "_"} | ERRORS

    return names


def _torch() -> dict[str, Any]:
    names = _all_of("bps.torch")()
    own = {
        "broadcast_optimizer_state": _broadcast_optimizer_state,
        "DistributedOptimizer": functools.partial(
            names["DistributedOptimizer"], keeps_gradients=True
        ),
    }
    return {**names, **_reducescatters(), **own}


def _broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Do :func:`bps.torch.broadcast_optimizer_state`. If the optimizer had no state, set gradients
    that are None to zeros, as Horovod does when it creates the state."""
    import torch

    import bps.torch

    had_state = bool(optimizer.state)
    bps.torch.broadcast_optimizer_state(optimizer, root_rank, model)
    if had_state or isinstance(optimizer, torch.optim.SparseAdam):  # it refuses dense gradients
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad and param.grad is None:
                param.grad = torch.zeros_like(param)


@functools.cache
def _reducescatters() -> dict[str, Any]:
    """Return functions whose gradients are Horovod's: those of bps.torch, multiplied by the number
    of workers."""
    import torch

    from bps.torch import _grouped, _reducescatter

    def reducescatter(
        tensor: Any,
        name: str | None = None,
        compression: Any = Compression.none,
        op: int = Average,
        process_set: Any = _sets.global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Any:
        """Do the same as :func:`bps.torch.reducescatter`, but multiply the gradient by the number
        of workers, as Horovod does."""
        if tensor.requires_grad and torch.is_grad_enabled():
            n, tensor = process_set.size(), tensor.view_as(tensor)
            tensor.register_hook(lambda grad: grad * n)
        pre, post = prescale_factor, postscale_factor
        return _reducescatter.reducescatter(tensor, name, compression, op, process_set, pre, post)

    grouped = _grouped.make_grouped("grouped_reducescatter", reducescatter, list)
    return {"reducescatter": reducescatter, "grouped_reducescatter": grouped}


def _tensorflow() -> dict[str, Any]:
    import bps.tensorflow

    # Horovod's gradients are the exact ones multiplied by the number of workers.
    names = ("reducescatter", "grouped_reducescatter")
    calls = {name: getattr(bps.tensorflow, name) for name in names}
    own = {n: functools.partial(call, has_horovods_gradient=True) for n, call in calls.items()}
    return {**_all_of("bps.tensorflow")(), **own}


_keras, _elastic = _all_of("bps.keras"), _public("bps.torch.elastic")
_callbacks, _keras_elastic = _public("bps.keras.callbacks"), _public("bps.keras.elastic")

MODULES = {
    "horovod": _alias.version,
    "horovod.common": dict,
    "horovod.common.exceptions": lambda: ERRORS,
    "horovod.common.process_sets": lambda: SETS,
    "horovod.keras": _keras,
    "horovod.keras.callbacks": _callbacks,
    "horovod.keras.elastic": _keras_elastic,
    "horovod.mxnet": _mxnet,
    "horovod.mxnet.compression": _alias.compressors,
    "horovod.mxnet.functions": _mxnet,
    "horovod.mxnet.mpi_ops": _mxnet,
    "horovod.tensorflow": _tensorflow,
    "horovod.tensorflow.compression": _alias.compressors,
    "horovod.tensorflow.elastic": _public("bps.tensorflow.elastic"),
    "horovod.tensorflow.functions": _tensorflow,
    "horovod.tensorflow.keras": _keras,
    "horovod.tensorflow.keras.callbacks": _callbacks,
    "horovod.tensorflow.keras.elastic": _keras_elastic,
    "horovod.tensorflow.mpi_ops": _tensorflow,
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
