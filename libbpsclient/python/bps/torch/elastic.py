"""Training that continues while machines leave and join the job. The classes and functions have the
same names as in Horovod.

Start the workers with ``BPS_ELASTIC=1`` and ``BPS_MAX_SIZE``, see bps_checkpoint_barrier(3). When
machines only leave, ``bpsrun --on-agent-loss shrink`` is enough.

Example::

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = bps.elastic.ElasticSampler(dataset)
    state = bps.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @bps.elastic.run
    def train(state):
        while state.epoch < 10:
            for i, batch in enumerate(loader):
                step(batch)
                sampler.record_batch(i, 32)
                state.commit()          # machines join here
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    train(state)

If the job is allowed to shrink, the loss of a machine raises no error: from then on, the sums lack
the machine's values. An interrupted epoch continues with the remaining samples, which are divided
among the remaining workers. If the job is not allowed to shrink, the loss ends the job, and
:func:`run` opens the job again. In this case, start a new process for each lost worker. Process
sets and ``torch.distributed`` groups cannot be used in an elastic script.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch

from bps import _core
from bps._elastic import HostsUpdatedInterrupt, State, run
from bps.torch._optimizer import broadcast_optimizer_state, broadcast_parameters
from bps.torch._reducer import Reducer
from bps.torch.recipes._recipe import Recipe

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]


class ElasticSampler(torch.utils.data.Sampler):
    """Divides the samples of a data set among the workers that are present.

    Args:
        dataset (Dataset): a data set that has a length.
        shuffle (bool): shuffle the samples in each epoch, each time in a different order.
        seed (int): seed of the shuffles; must be equal at all workers.

    Attributes:
        num_replicas (int): number of workers that are present.
        rank (int): this worker's number among the workers that are present.
        remaining_indices (list[int]): samples that were not processed at the last :meth:`reset`,
            in the order in which the workers take them.
        num_samples (int): number of samples of this worker.
        total_size (int): number of samples of all workers.
        processed_indices (set[int]): samples that are known to be processed: those of all workers
            at the last synchronization, and those of this worker since then.
        processed_num (int): number of samples that all workers have processed in this epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, and mark all samples as not processed."""
        self.epoch, self.processed_indices, self.processed_num = epoch, set(), 0
        self.reset()

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples in a batch of this worker.

        Args:
            batch_idx (int): index of the batch in this iteration over the sampler, from 0.
            batch_size (int): number of samples in each batch.
        """
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Mark the samples of :meth:`get_indices` as processed."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int]) -> None:
        """Mark samples as processed, by their indices."""
        self.processed_indices.update(indices)
        self.processed_num += len(indices) * self.num_replicas

    def reset(self) -> None:
        """Divide the samples that are not processed yet among the workers that are present."""
        there = _core.members()
        self.num_replicas, self.rank = len(there), there.index(_core.rank())
        left = [i for i in range(len(self.dataset)) if i not in self.processed_indices]
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            left = [left[i] for i in torch.randperm(len(left), generator=generator, device="cpu")]
        self.remaining_indices = left
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        # If the number of workers does not divide the number of remaining samples, repeat the
        # list from its start, so that all workers have the same number of samples.
        self.total_size = self.num_samples * self.num_replicas
        padded = left * math.ceil(self.total_size / len(left)) if left else []
        self.indices = padded[self.rank : self.total_size : self.num_replicas]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and the samples that this worker has processed in it."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`, and divide the remaining samples among the workers
        again."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.processed_num = len(self.processed_indices)
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


class TorchState(State):
    """State that is equal at all workers. Workers that join later receive it.

    Args:
        model (Module, optional): a model, whose parameters and buffers are in the state.
        optimizer (Optimizer, optional): an optimizer, whose state is included.
        objects: other modules, optimizers and samplers, objects of LocalSGD and DiLoCo, and values
            that can be copied and pickled. Each becomes an attribute.

    Example::

        >>> state = bps.torch.elastic.TorchState(model, optimizer, batch=0, epoch=0)
        >>> state.epoch += 1
        >>> state.commit()
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **objects: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **objects}
        parts = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler, Recipe)
        # Put optimizers first, because an optimizer's state_dict() waits until all parameters are
        # updated.
        order = sorted(given, key=lambda name: not isinstance(given[name], torch.optim.Optimizer))
        self._parts = {name: given[name] for name in order if isinstance(given[name], parts)}
        for name, part in self._parts.items():
            setattr(self, name, part)
        values = {name: value for name, value in given.items() if name not in self._parts}
        super().__init__(**values)

    def _save_parts(self) -> dict[str, Any]:
        return copy.deepcopy({name: part.state_dict() for name, part in self._parts.items()})

    def _restore_parts(self, saved: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(saved[name]))

    def _sync_parts(self, root: int) -> None:
        rt = _core.runtime()
        reducers = self._reducers()
        mine = [reducer.plan for reducer in reducers]
        plans = rt.broadcast_object(mine if rt.job.rank == root else None, root, "plans")
        if len(plans) != len(reducers):
            raise ValueError(
                f"rank {root} has {len(plans)} wrapped models and optimizers in its state, but "
                f"this worker has {len(reducers)}: pass the same ones at all workers"
            )
        for reducer, plan in zip(reducers, plans):
            reducer.adopt(plan, root)
        for part in self._parts.values():
            if isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, root)
            elif isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), root)
            elif isinstance(part, Recipe):
                part.broadcast_state(root)
            else:
                all_ = rt.allgather_present((rt.job.rank, part.state_dict()), "a sampler")
                epoch = dict(all_)[root]["epoch"]
                done = [one["processed_indices"] for _, one in all_ if one["epoch"] == epoch]
                part.load_state_dict({"epoch": epoch, "processed_indices": set().union(*done)})

    def _reducers(self) -> list[Reducer]:
        names = ("_bps_reducer", "_reducer")  # of an optimizer, of a DistributedDataParallel
        found = [getattr(part, name, None) for part in self._parts.values() for name in names]
        recipes = [part for part in self._parts.values() if isinstance(part, Recipe)]
        found += [reducer for recipe in recipes for reducer in recipe.reducers]
        return [reducer for reducer in found if isinstance(reducer, Reducer)]


ObjectState = TorchState
