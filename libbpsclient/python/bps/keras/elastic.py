"""Training that goes on while machines leave and join the job, by Horovod's names.

See :mod:`bps.torch.elastic` for how to start the workers.

Example::

    state = bps.elastic.KerasState(model, epoch=0, batch=0)

    @bps.elastic.run
    def train(state):
        model.fit(
            data,
            initial_epoch=state.epoch,
            epochs=10,
            callbacks=[
                bps.elastic.UpdateEpochStateCallback(state),
                bps.elastic.CommitStateCallback(state, batches_per_commit=10),
            ],
        )

    train(state)
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from bps._elastic import HostsUpdatedInterrupt, State, run
from bps.keras._ops import broadcast_variables

__all__ = [
    "CommitStateCallback",
    "HostsUpdatedInterrupt",
    "KerasState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def sync_variables(model: Any) -> None:
    """Write what a training step has computed into the variables: on JAX they lag behind."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


class KerasState(State):
    """A model with its optimizer, and plain values, that all workers must have in common.

    Args:
        model (Model): built already.
        optimizer (Optimizer, optional): None: the one that the model was compiled with.
        values: plain values, which become attributes.
    """

    def __init__(self, model: Any, optimizer: Any = None, **values: Any) -> None:
        self.model, self.optimizer = model, optimizer or model.optimizer
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(**values)

    def _variables(self) -> list[Any]:
        sync_variables(self.model)
        return [*self.model.variables, *self.optimizer.variables]

    def _save_parts(self) -> list[np.ndarray]:
        return [np.array(keras.ops.convert_to_numpy(v)) for v in self._variables()]

    def _restore_parts(self, saved: list[np.ndarray]) -> None:
        for variable, value in zip(self._variables(), saved):
            variable.assign(value)

    def _sync_parts(self, root: int) -> None:
        broadcast_variables(self._variables(), root)


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state behind every few batches, and behind each epoch.

    Args:
        state (KerasState): what is committed.
        batches_per_commit (int): how many batches lie between two commits.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from here."""
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit behind a batch."""
        self._left -= 1
        if self._left == 0:
            self._left = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit behind an epoch."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of the batch in ``state.batch``. Put it in front of the commit.

    Args:
        state (KerasState): has the value ``batch``.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note a batch."""
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin again."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of the next epoch in ``state.epoch``. Put it in front of the commit.

    Args:
        state (KerasState): has the value ``epoch``.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note an epoch; ``initial_epoch`` of fit goes on from it."""
        self.state.epoch = epoch + 1
