"""Training that continues while machines leave and join the job. The classes and functions have the
same names as in Horovod.

See :mod:`bps.torch.elastic` for how to start the workers.

Example::

    state = bps.elastic.TensorFlowState(model.variables, step=0)

    @bps.elastic.run
    def train(state):
        while state.step < 1000:
            train_one_step()
            state.step += 1
            state.commit()          # machines join here

    train(state)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bps._elastic import HostsUpdatedInterrupt, State, run
from bps.tensorflow._broadcast import broadcast_variables

__all__ = ["HostsUpdatedInterrupt", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(State):
    """Variables and other values that are equal at all workers. Workers that join later receive
    them.

    Args:
        variables (sequence, optional): variables of TensorFlow or Keras.
        session: must be None, because the variables of a session cannot be saved here.
        values: values that can be copied and pickled. Each becomes an attribute.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **values: Any
    ) -> None:
        if session is not None:
            raise NotImplementedError(
                "a state cannot hold variables of a session: use variables of TensorFlow 2"
            )
        self._variables: Callable[[], list[Any]] = lambda: list(variables or [])
        super().__init__(**values)

    def _save_parts(self) -> list[np.ndarray]:
        return [np.array(variable) for variable in self._variables()]

    def _restore_parts(self, saved: list[np.ndarray]) -> None:
        for variable, value in zip(self._variables(), saved):
            variable.assign(value)

    def _sync_parts(self, root: int) -> None:
        broadcast_variables(self._variables(), root)


class TensorFlowKerasState(TensorFlowState):
    """State of a Keras model and its optimizer.

    Args:
        model (Model): a model that is built.
        optimizer (Optimizer, optional): optimizer of the model. None means the optimizer that was
            passed to ``compile()``.
        backend: not needed. Scripts of Horovod for TensorFlow 1 pass the back-end module of Keras.
        values: values that can be copied and pickled. Each becomes an attribute.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any
    ) -> None:
        self.model, self.optimizer = model, optimizer or model.optimizer
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__([*model.variables, *self.optimizer.variables], **values)
