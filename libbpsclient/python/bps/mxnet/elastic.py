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

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from mxnet import gluon

from bps import _core
from bps._elastic import HostsUpdatedInterrupt, State, run
from bps.mxnet._optimizer import DistributedTrainer, broadcast_parameters

__all__ = ["HostsUpdatedInterrupt", "MXNetState", "State", "run"]


class MXNetState(State):
    """Parameters, the state of trainers, and other values that are equal at all workers. Workers
    that join later receive them.

    Args:
        params (dict, optional): ``net.collect_params()``. Parameters of trainers are always
            included. All parameters must be initialized, and their shapes must be known. To achieve
            this, call the network once before you create the state.
        trainer (Trainer or sequence of Trainer, optional): all trainers of the script. The state of
            their optimizers is included.
        values: values that can be copied and pickled. Each becomes an attribute.

    Raises:
        DeferredInitializationError: the shape of a parameter is not known yet.
    """

    def __init__(
        self,
        params: Mapping[str, gluon.Parameter] | None = None,
        trainer: gluon.Trainer | Sequence[gluon.Trainer] = (),
        **values: Any,
    ) -> None:
        self._trainers = [trainer] if isinstance(trainer, gluon.Trainer) else list(trainer)
        self._params = dict(params or {})
        for one in self._trainers:
            self._params.update({param.name: param for param in one._params})
        super().__init__(**values)

    def _save_parts(self) -> tuple[dict[str, Any], bytes]:
        arrays = {name: param.data().copy() for name, param in self._params.items()}
        return arrays, self._pickle_optimizers()

    def _restore_parts(self, saved: tuple[dict[str, Any], bytes]) -> None:
        arrays, optimizers = saved
        self._set_optimizers(optimizers)
        for name, array in arrays.items():
            self._params[name].set_data(array)

    def _sync_parts(self, root: int) -> None:
        broadcast_parameters(self._params, root)
        rt = _core.runtime()
        mine = self._pickle_optimizers() if rt.job.rank == root else None
        self._set_optimizers(rt.broadcast_object(mine, root))
        for trainer in self._trainers:
            if isinstance(trainer, DistributedTrainer):
                # The workers that were in the job before this call do not broadcast at their
                # next step, so a new worker must not broadcast either.
                trainer.skip_broadcast()

    def _pickle_optimizers(self) -> bytes:
        """Return the state of the trainers' optimizers: momenta, number of updates and so on."""
        states = [
            (t._updaters[0].get_states(), t._optimizer.__getstate__()) for t in self._trainers
        ]
        return pickle.dumps(states)

    def _set_optimizers(self, pickled: bytes) -> None:
        """Set the state that :meth:`_pickle_optimizers` has returned."""
        for trainer, (states, attributes) in zip(self._trainers, pickle.loads(pickled)):
            trainer._updaters[0].set_states(states)
            # Update the optimizer object in place, because the script may use the object, and
            # the object must keep its param_dict.
            trainer._optimizer.__dict__.update(attributes)
