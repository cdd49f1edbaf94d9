"""Training that continues while machines leave and join the job.

The classes and functions have the same names as in Horovod.

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
    """On JAX, copy the results of the last training step into the model's variables. Keras itself
    copies them later."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


class KerasState(State):
    """A model, its optimizer and other values. The state is equal at all workers.

    Args:
        model (Model): a model that is built.
        optimizer (Optimizer, optional): optimizer of the model; None: the optimizer that was passed
            to ``compile()``.
        backend: not needed. Scripts of Horovod for TensorFlow 1 pass the back-end module of Keras.
        values: values that can be copied and pickled. Each becomes an attribute.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any
    ) -> None:
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
    """Commits a state after each ``batches_per_commit`` batches, and after each epoch.

    Args:
        state (KerasState): the state to commit.
        batches_per_commit (int): number of batches between two commits.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Start to count batches."""
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit after a batch, if enough batches have passed."""
        self._left -= 1
        if self._left == 0:
            self._left = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit after an epoch."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Stores the number of the next batch in ``state.batch``. In the list of callbacks, this
    callback must come before CommitStateCallback.

    Args:
        state (KerasState): a state with the attribute ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the number of the next batch."""
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set the number of the next batch to 0, because a new epoch begins."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Stores the number of the next epoch in ``state.epoch``. In the list of callbacks, this
    callback must come before CommitStateCallback.

    Args:
        state (KerasState): a state with the attribute ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the number of the next epoch, to pass to ``fit`` as ``initial_epoch``."""
        self.state.epoch = epoch + 1
