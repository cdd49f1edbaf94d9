"""The back-end "bps" of ``torch.distributed``: its registration, the jobs of its groups, and the
address ``bps://``.

A group of all workers shares the process's job; any other group has a job of its own. The process
groups are in :mod:`bps.torch._c10d_group`, and their collectives in
:mod:`bps.torch._c10d_collectives`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from bps import _core
from bps._job import Job
from bps._job import open as open_job
from bps._runtime import Runtime
from bps.torch._c10d_group import Group
from bps.torch._c10d_reconfigure import Reconfigurable


def _meet(store: Any, rank: int, size: int, part: str) -> tuple[str, int, int]:
    """Agree with the workers of a group on the name of the group's job, through PyTorch's store.
    Return the name, this worker's local rank, and the group's number of workers on this
    machine."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        # torchrun keeps the store when it restarts the workers, with the keys of the attempt
        # before. On several machines the numbers of restarts may differ.
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    store.set(f"host/{rank}", _core.host_key())
    if rank == 0:
        hosts = [store.get(f"host/{r}").decode() for r in range(size)]
        store.set("job", json.dumps([_core.job_name(part), hosts]))
    name, hosts = json.loads(store.get("job").decode())
    return name, hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


_world: Job | None = None  # the job shared by the groups that each contain all workers
_world_users = 0
_world_is_ours = False  # True: a group has opened the job; False: init() has opened it


def _leave_world(has_failed: bool) -> None:
    global _world, _world_users, _world_is_ours
    _world_users -= 1
    if _core.is_initialized():
        _core.runtime().n_users = _world_users
    if _world_users:
        return
    _world, is_ours = None, _world_is_ours
    _world_is_ours = False
    if is_ours:
        _core.leave(has_failed)


def _create(options: Any, _: Any = None) -> Group:
    """Create a group. PyTorch calls this function at all workers of the group."""
    global _world, _world_users, _world_is_ours
    rank, size = options.group_rank, options.group_size
    timeout, title = options.timeout.total_seconds(), options.group_id or "world"
    ranks = list(options.global_ranks_in_group) or list(range(size))
    is_world = ranks == list(range(dist.get_world_size() if dist.is_initialized() else size))
    times = {"timeout": timeout, "open_timeout": timeout}
    if getattr(options, "enable_reconfigure", False):
        return Reconfigurable(rank, size, timeout, title, options.store)
    if is_world:
        if _world is None:
            _world_is_ours = not _core.is_initialized()
            if _world_is_ours:
                name, local, n_local = _meet(options.store, rank, size, "")
                _core.init(
                    job=name, rank=rank, size=size, local_rank=local, local_size=n_local, **times
                )
            _world, _world_users = _core.runtime().job, 0
            if (_world.rank, _world.size) != (rank, size):
                text = (
                    f"bps.init() made this worker rank {_world.rank} of {_world.size}, but "
                    f"init_process_group passes {rank} of {size}: give both the same rank and size"
                )
                _world = None
                raise ValueError(text)
        _world_users += 1
        _core.runtime().n_users = _world_users
        runtime = Runtime(_world, f"c10d/{title}/")
        return Group(runtime, rank, size, timeout, title, _leave_world, options.store)
    name, local, n_local = _meet(options.store, rank, size, title)
    job = open_job(job=name, rank=rank, size=size, local_rank=local, local_size=n_local, **times)

    def leave(has_failed: bool) -> None:
        job.abort() if has_failed else job.close()

    return Group(Runtime(job), rank, size, timeout, title, leave, options.store)


def _export(store: Any, rank: int, size: int, node: int) -> None:
    """Set the environment variables of torchrun, which libraries such as Accelerate and Lightning
    read.

    Only workers that bpsrun has started set these variables. If such a worker opens a job again,
    bps uses the variables of bpsrun, because they take precedence over the variables of torchrun.
    """
    if "BPS_RANK" not in os.environ:
        return
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": _core.local_rank()}
    place |= {"LOCAL_WORLD_SIZE": _core.local_size(), "GROUP_RANK": node}
    place |= {"MASTER_ADDR": store.host, "MASTER_PORT": store.port}
    for name, value in place.items():
        os.environ.setdefault(name, str(value))


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """Handle the address ``bps://``. Rank, size and the address of the store come from the job of
    bps, so a script need not pass them."""
    if not _core.is_initialized():
        _core.init()
    rt = _core.runtime()
    rank, size = rt.job.rank, rt.job.size
    store, place = None, None
    if rank == 0:
        host = os.uname().nodename
        store = dist.TCPStore(host, 0, size, True, wait_for_workers=False)
        place = (host, store.port)
    places = rt.allgather_object((place, _core.host_key()))
    host, port = places[0][0]
    if store is None:
        store = dist.TCPStore(host, port, size, False)
    nodes = list(dict.fromkeys(key for _, key in places))
    _export(store, rank, size, nodes.index(places[rank][1]))
    yield store, rank, size


def register() -> None:
    """Register the back-end with ``torch.distributed``. Further calls do nothing."""
    if "bps" not in dist.Backend.backend_list:
        dist.Backend.register_backend("bps", _create, extended_api=True, devices=["cpu", "cuda"])
        register_rendezvous_handler("bps", _rendezvous)
