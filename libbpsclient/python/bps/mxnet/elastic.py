"""Training that continues while machines leave and join the job.

See :mod:`bps.torch.elastic` for how to start the workers.

Example::

    state = bps.elastic.MXNetState(net.collect_params(), trainer, step=0)

    @bps.elastic.run
    def train(state):
        while state.step < 1000:
            train_one_step()
            state.step += 1
            state.commit()          # machines join here

    train(state)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxnet import gluon

from bps import _core
from bps._elastic import HostsUpdatedInterrupt, State, run
from bps.mxnet._optimizer import DistributedTrainer, broadcast_parameters

__all__ = ["HostsUpdatedInterrupt", "MXNetState", "State", "run"]


class MXNetState(State):
    """Parameters, the state of a trainer, and other values that are equal at all workers. Workers
    that join later receive them.

    Args:
        params (dict, optional): ``net.collect_params()``. The parameters must be initialized, and
            their shapes must be known: call the network once before.
        trainer (Trainer, optional): the trainer of these parameters. Its optimizer's state is
            included.
        values: values that can be copied and pickled. Each becomes an attribute.

    Raises:
        DeferredInitializationError: the shape of a parameter is not known yet.
    """

    def __init__(
        self,
        params: Mapping[str, gluon.Parameter] | None = None,
        trainer: gluon.Trainer | None = None,
        **values: Any,
    ) -> None:
        self._params, self._trainer = dict(params or {}), trainer
        super().__init__(**values)

    def _save_parts(self) -> tuple[dict[str, Any], bytes]:
        arrays = {name: param.data().copy() for name, param in self._params.items()}
        return arrays, self._trainer_state()

    def _restore_parts(self, saved: tuple[dict[str, Any], bytes]) -> None:
        arrays, trainer = saved
        for name, array in arrays.items():
            self._params[name].set_data(array)
        self._set_trainer_state(trainer)

    def _sync_parts(self, root: int) -> None:
        broadcast_parameters(self._params, root)
        rt = _core.runtime()
        self._set_trainer_state(
            rt.broadcast_object(self._trainer_state() if rt.job.rank == root else None, root)
        )
        if isinstance(self._trainer, DistributedTrainer):
            # Workers that were in the job before do not broadcast at their next step.
            self._trainer.skip_broadcast()

    def _trainer_state(self) -> bytes:
        """Return what the trainer's ``save_states()`` writes."""
        if self._trainer is None:
            return b""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "states")
            self._trainer.save_states(str(path))
            return path.read_bytes()

    def _set_trainer_state(self, state: bytes) -> None:
        if self._trainer is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "states")
            path.write_bytes(state)
            self._trainer.load_states(str(path))
