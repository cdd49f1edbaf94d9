"""Training that goes on while machines leave and join the job, or after the job has failed.

Everything here knows no framework.

A front-end derives its state from :class:`State`, and says how its models and optimizers are saved,
restored and sent.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bps import _core
from bps._library import CODES, Error

# Failures after which workers can open the job again. An operator who ends a job does not want it.
REOPENED = {
    CODES[name] for name in ("EWORKER_LOST", "EAGENT_LOST", "ENOAGENT", "EROUND_LOST", "EDEVICE")
}
# How many of them may follow each other without a commit in between.
FAILURES_MOST = 3


class HostsUpdatedInterrupt(RuntimeError):
    """Machines have left or joined: :func:`run` synchronizes the state, and calls its function
    again."""


def members() -> list[int]:
    """Return the ranks of the workers that were there at the last sync, all before the first."""
    return _core.runtime().members or list(range(_core.size()))


class State:
    """State that all workers must have in common, and that newcomers receive.

    Args:
        values: plain values, which become attributes.
    """

    def __init__(self, **values: Any) -> None:
        self._names = list(values)
        self._n_commits = 0
        self._callbacks: list[Callable[[], None]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def _save_parts(self) -> Any:
        """Return a copy of what is no plain value."""

    def _restore_parts(self, saved: Any) -> None:
        """Go back to what :meth:`_save_parts` has returned."""

    def _sync_parts(self, root: int) -> None:
        """Give all workers root's parts."""

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call these after each change of the workers, for example to scale the learning rate."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Run the callbacks."""
        for callback in self._callbacks:
            callback()

    def save(self) -> None:
        """Keep a copy of the state in memory."""
        values = {name: getattr(self, name) for name in self._names}
        self._saved = copy.deepcopy(values), self._save_parts()

    def restore(self) -> None:
        """Go back to the last :meth:`save`."""
        values, parts = self._saved
        for name, value in copy.deepcopy(values).items():
            setattr(self, name, value)
        self._restore_parts(parts)

    def commit(self) -> None:
        """Save the state, and let machines join. All workers call it after the same step.

        Raises:
            HostsUpdatedInterrupt: machines have left or joined; :func:`run` handles it.
        """
        self.save()
        self._n_commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Let machines join, see :meth:`commit`."""
        rt = _core.runtime()
        rt.settle()
        n_joined = rt.job.checkpoint_barrier()
        if n_joined:
            rt.restart()
        elif rt.allgather_present(rt.job.rank) == rt.members:
            return
        raise HostsUpdatedInterrupt("machines have left or joined the job")

    def sync(self) -> None:
        """Give all workers the state of one that was there before the last ones joined.

        Of a job that was opened again, this is a worker that has made most commits.
        """
        rt = _core.runtime()
        given = rt.allgather_present((rt.job.rank, self._n_commits))
        rt.members = [rank for rank, _ in given]
        self._n_commits = max(n for _, n in given)
        first = [rank for rank, n in given if n == self._n_commits]
        root = rt.job.root if rt.job.root in first else first[0]
        values = {name: getattr(self, name) for name in self._names}
        values = rt.broadcast_object(values if rt.job.rank == root else None, root)
        for name, value in values.items():
            setattr(self, name, value)
        self._sync_parts(root)
        self.save()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function again when machines have left or joined at a commit, or the job has failed.

    After a failure each worker that is left opens the job again under its name, with its rank, and
    goes back to the last commit. The job goes on when all workers are there: start a process in
    the place of a lost one, which gets the others' state. An error ends the call when it is not
    the loss of a worker, a machine, an agent or a GPU, or after several of them without a commit.

    Args:
        func (callable): takes a :class:`State` first, and goes on from it.

    Returns:
        callable: it synchronizes the state before each call.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        n_failures, n_commits = 0, -1
        while True:
            try:
                state.sync()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                pass
            except Error as error:
                n_failures = 1 if state._n_commits > n_commits else n_failures + 1
                n_commits = state._n_commits
                if error.code not in REOPENED or n_failures > FAILURES_MOST:
                    raise
                warnings.warn(f"{error}; the job is opened again", stacklevel=2)
                _core.reopen()
                state.restore()
            state.on_reset()

    return wrapper
