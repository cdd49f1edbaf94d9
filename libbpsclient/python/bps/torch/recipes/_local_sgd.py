"""Averages of parameters in place of averages of gradients."""

from __future__ import annotations

from typing import Any

import torch

from bps import _core
from bps.torch._reducer import Reducer
from bps.torch.recipes._recipe import Averager, Recipe


class LocalSGD(Recipe):
    """Trains each worker alone, and averages the parameters over all workers after every
    ``sync_every`` steps.

    The arguments are those of torchft's class without its first one, the manager: the job that
    :func:`bps.torch.init` has joined takes its place. Send the parameters of one worker to the
    others before the first step. Buffers and the state of the optimizer stay as they are at each
    worker. A machine that is lost while the job may shrink is missing from the averages from then
    on. A worker waits for the others only after ``sync_every`` steps. After a time-out of this
    wait, the next ``step()`` first continues it.

    Args:
        model (Module): the model. Its parameters that require gradients are averaged.
        optimizer (Optimizer): updates these parameters; not a ``DistributedOptimizer`` of all
            workers. Its calls of ``step()`` are counted.
        sync_every (int): number of steps between two averages.

    Raises:
        ValueError: an argument is not allowed.

    Example::

        >>> bps.torch.init()
        >>> bps.torch.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> with bps.torch.LocalSGD(model, optimizer, sync_every=20):
        ...     for inputs, labels in batches:
        ...         optimizer.zero_grad()
        ...         loss_of(model(inputs), labels).backward()
        ...         optimizer.step()

    Source: Stich 2018, "Local SGD Converges Fast and Communicates Little".
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: int
    ) -> None:
        super().__init__(optimizer, sync_every)
        self._sync_every = sync_every
        named = list(model.named_parameters())
        self._params = [param for _, param in named]
        self._leaves = [p.detach().requires_grad_(p.requires_grad) for p in self._params]
        self._averager = Averager([(name, leaf) for (name, _), leaf in zip(named, self._leaves)])

    def _act(self) -> None:
        if self._n_steps >= self._sync_every:
            self.sync()

    def sync(self) -> None:
        """Average the parameters now, and count the steps from 0 again. All workers must call this
        method after the same step."""
        if not self._averager.is_in_flight:
            for leaf, param in zip(self._leaves, self._params):
                leaf.requires_grad_(param.requires_grad)
            self._averager.begin(param.detach() for param in self._params)
        with torch.no_grad():
            for param, mean in zip(self._params, self._averager.finish()):
                if mean is not None:
                    param.copy_(mean)
        self._n_steps = 0

    @property
    def reducers(self) -> list[Reducer]:
        """The reducers, for an elastic state."""
        return [self._averager.reducer]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps since the last averages, for a checkpoint beside those of
        model and optimizer, which differ between workers."""
        self._continue()
        return {"n_steps": self._n_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`."""
        self._n_steps, self._is_due = state_dict["n_steps"], False

    def broadcast_state(self, root_rank: int = 0) -> None:
        """Give the state of rank ``root_rank`` to all others, as an elastic state does."""
        rt = _core.runtime()
        mine = self.state_dict() if rt.job.rank == root_rank else None
        self.load_state_dict(rt.broadcast_object(mine, root_rank, "the state of LocalSGD"))
