"""Callbacks for ``model.fit``: broadcast, averages of metrics, learning rates, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from bps import _arrays, _core
from bps._ops import Average, check_devices
from bps._sets import ProcessSet, global_process_set
from bps.keras._ops import broadcast_variables
from bps.keras._optimizer import agreeing, is_distributed
from bps.keras.elastic import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    sync_variables,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts the model and the optimizer of one worker to all workers before the first batch.

    A model that Keras builds at its first batch is broadcast after that batch. On TensorFlow the
    callback also switches off XLA, which cannot compile calls of bps.

    Args:
        root_rank (int): rank of the worker whose values are broadcast.
        device (str): must be empty or a CPU, because bps exchanges values in host memory.
        local_variables (sequence, optional): variables of the model that are not broadcast.
        process_set (ProcessSet): the workers that take part. A worker outside this set keeps its
            own values.
    """

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Sequence[Any] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        check_devices(device)
        self.root_rank, self.process_set = root_rank, process_set
        self.local_variables = list(local_variables or [])
        self.broadcast_done = False

    def set_model(self, model: Any) -> None:
        """Switch off XLA on TensorFlow, and prepare a LossScaleOptimizer."""
        super().set_model(model)
        if keras.backend.backend() == "tensorflow":
            model.jit_compile = False
        optimizer = model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            # compile() has put the LossScaleOptimizer around a DistributedOptimizer.
            if not is_distributed(optimizer) and is_distributed(optimizer.inner_optimizer):
                model.optimizer = agreeing(optimizer, self.process_set)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast the variables if every worker has built the model."""
        if not self.process_set.included():
            self.broadcast_done = True
            return
        # All workers must make the same decision, but the model may be built at some workers only.
        if all(self.process_set.runtime().allgather_object(bool(self.model.built))):
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self._send()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast the variables after the first batch, unless they were broadcast before."""
        if not self.broadcast_done:
            self._send()

    def register_local_var(self, variable: Any) -> None:
        """Do not broadcast a variable."""
        self.local_variables.append(variable)

    def _send(self) -> None:
        sync_variables(self.model)
        local = {id(variable) for variable in self.local_variables}
        variables = [*self.model.variables, *self.model.optimizer.variables]
        variables = [variable for variable in variables if id(variable) not in local]
        broadcast_variables(variables, self.root_rank, self.process_set)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all workers. In the list of callbacks, this callback
    must come before callbacks that read metrics.

    Args:
        device (str): must be empty or a CPU, because bps exchanges values in host memory.
        process_set (ProcessSet): the workers that take part. A worker outside this set keeps its
            own metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        check_devices(device)
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the metrics in the logs by their averages."""
        logs = {} if logs is None else logs
        names = sorted(logs)
        if names and self.process_set.included():
            mine = np.array([float(logs[name]) for name in names])
            rt = self.process_set.runtime()
            (mean,) = _arrays.reduce(rt, [mine], name=f"metrics.{len(names)}", op=Average)
            logs.update(zip(names, map(float, mean)))


def _momenta(optimizer: Any) -> list[Any]:
    """Return the momenta of an optimizer that are sums of steps, not of gradients."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    if not isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop)):
        return []
    return [v for v in optimizer.variables if v.path.endswith("_momentum")]


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the initial learning rate by a factor during some epochs.

    Args:
        initial_lr (float): the learning rate that is multiplied.
        multiplier (float or callable): the factor, or a function that returns it for an epoch.
        start_epoch (int): first epoch in which the factor applies.
        end_epoch (int, optional): first epoch in which the factor does not apply any more; None:
            the factor applies until the training ends.
        staircase (bool): True: set the rate at the beginning of each epoch. False: set the rate at
            each batch, and pass fractions of epochs to the function.
        momentum_correction (bool): when the rate changes, multiply the momenta of SGD or RMSprop by
            the new rate divided by the old one. These momenta are sums of gradients that were
            multiplied by the old rate (Goyal et al., arXiv:1706.02677, section 3).
        steps_per_epoch (int, optional): number of batches of an epoch, to compute fractions of
            epochs; None: the number that ``fit`` reports.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda _: multiplier
        # A constant factor does not depend on fractions of epochs, so set the rate once an epoch.
        self.staircase = staircase or not callable(multiplier)
        self.steps_per_epoch, self.momentum_correction = steps_per_epoch, momentum_correction
        self._epoch = 0

    def _set(self, epoch: float) -> None:
        inside = self.end_epoch is None or self._epoch < self.end_epoch
        if self._epoch >= self.start_epoch and inside:
            sync_variables(self.model)
            optimizer, new = self.model.optimizer, self.initial_lr * self.multiplier(epoch)
            old = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
            optimizer.learning_rate = new
            if self.momentum_correction and old not in (0.0, new):
                for momentum in _momenta(optimizer):
                    momentum.assign(momentum * (new / old))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rate at the beginning of an epoch, if ``staircase`` is true."""
        self._epoch = epoch
        if self.staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate at the beginning of a batch, if ``staircase`` is false."""
        if not self.staircase:
            steps = self.steps_per_epoch or (self.params or {}).get("steps")
            if not steps:
                raise ValueError("the number of batches per epoch is unknown: pass steps_per_epoch")
            self._set(self._epoch + batch / steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the learning rate to the metrics, as ``lr``."""
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate to ``initial_lr`` during the first epochs. The rate at the start is
    ``initial_lr`` divided by the number of workers.

    Args:
        initial_lr (float): the rate at the end of the warm-up.
        warmup_epochs (int): number of epochs in which the rate rises.
        momentum_correction (bool): see :class:`LearningRateScheduleCallback`.
        steps_per_epoch (int, optional): number of batches of an epoch; None: the number that
            ``fit`` reports.
        verbose (int): 1 prints a line at the end of the warm-up.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            if steps := self.steps_per_epoch or (self.params or {}).get("steps"):
                epoch += 1.0 / steps  # the last batch of the warm-up gets the full rate
            return 1.0 / _core.size() * (epoch * (_core.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rate to the metrics, and print a line at the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if epoch == (self.end_epoch or 0) - 1 and self.verbose > 0:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"Epoch {epoch + 1}: the learning rate has reached {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best model so far, at rank 0 only. In the list of callbacks, MetricAverageCallback
    must come before this callback.

    Args:
        filepath (str): path of the saved model.
        monitor (str): name of the metric that decides which model is best.
        options: further arguments of ``keras.callbacks.ModelCheckpoint``.
    """

    def __init__(self, filepath: Any, monitor: str = "val_loss", **options: Any) -> None:
        super().__init__(filepath, monitor=monitor, save_best_only=True, **options)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save the model at rank 0."""
        if _core.rank() == 0:
            super().on_epoch_end(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save the model at rank 0, if ``save_freq`` is a number of batches."""
        if _core.rank() == 0:
            super().on_train_batch_end(batch, logs)
