"""Training that continues while machines leave and join the job.

See :mod:`bps.torch.elastic` for how to start the workers.

Example::

    state = bps.elastic.State(params=params, opt_state=opt_state, step=0)

    @bps.elastic.run
    def train(state):
        while state.step < 1000:
            state.params, state.opt_state = update(state.params, state.opt_state)
            state.step += 1
            state.commit()          # machines join here

    train(state)

Attributes of a state are trees of arrays, or other values that can be copied and pickled.
"""

from bps._elastic import HostsUpdatedInterrupt, State, run

__all__ = ["HostsUpdatedInterrupt", "State", "run"]
