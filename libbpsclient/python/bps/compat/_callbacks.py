"""Callbacks of Keras with the arguments of BytePS's callbacks. In this module, the initial learning
rate is optional. The default is the optimizer's learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from bps.keras import callbacks


class LearningRateScheduleCallback(callbacks.LearningRateScheduleCallback):
    """Multiplies the initial learning rate by a factor during some epochs.

    Args:
        multiplier (float or callable): the factor, or a function that maps an epoch to its factor.
        initial_lr (float, optional): the learning rate that is multiplied; None: the optimizer's
            learning rate.
        options: further arguments of :class:`bps.keras.callbacks.LearningRateScheduleCallback`.
    """

    def __init__(
        self,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        initial_lr: float | None = None,
    ) -> None:
        super().__init__(
            initial_lr,  # type: ignore[arg-type] # on_train_begin() replaces None
            multiplier,
            start_epoch,
            end_epoch,
            staircase,
            momentum_correction,
            steps_per_epoch,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        """Set initial_lr to the optimizer's learning rate if the caller gave no initial_lr."""
        _take_rate(self)


class LearningRateWarmupCallback(callbacks.LearningRateWarmupCallback):
    """Raises the learning rate from initial_lr / size to initial_lr during the first epochs.

    Args:
        warmup_epochs (int): number of epochs in which the rate rises.
        initial_lr (float, optional): the rate at the end of the warm-up; None: the optimizer's
            learning rate.
        options: further arguments of :class:`bps.keras.callbacks.LearningRateWarmupCallback`.
    """

    def __init__(
        self,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        initial_lr: float | None = None,
    ) -> None:
        super().__init__(
            initial_lr,  # type: ignore[arg-type] # on_train_begin() replaces None
            warmup_epochs,
            momentum_correction,
            steps_per_epoch,
            verbose,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        """Set initial_lr to the optimizer's learning rate if the caller gave no initial_lr."""
        _take_rate(self)


def _take_rate(callback: Any) -> None:
    if callback.initial_lr is None:
        rate = callback.model.optimizer.learning_rate
        callback.initial_lr = float(keras.ops.convert_to_numpy(rate))


NAMES = {name: getattr(callbacks, name) for name in callbacks.__all__} | {
    "LearningRateScheduleCallback": LearningRateScheduleCallback,
    "LearningRateWarmupCallback": LearningRateWarmupCallback,
}
