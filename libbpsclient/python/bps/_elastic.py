"""Training that continues when machines leave or join the job, or after the job has failed.

This module depends on no framework. The front-end for a framework derives a class from
:class:`State`. The derived class defines how models and optimizers are saved, restored and
broadcast.
"""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bps import _core
from bps._library import CODES, cause_of

# Failures after which the workers open the job again. EJOB_FAILED is not among them, so a job that
# an operator has ended is not opened again.
REOPENED = {
    CODES[name] for name in ("EWORKER_LOST", "EAGENT_LOST", "ENOAGENT", "EROUND_LOST", "EDEVICE")
}
# Largest number of consecutive failures with codes in REOPENED, without a commit in between.
FAILURES_MOST = 3


class HostsUpdatedInterrupt(RuntimeError):
    """Raised when machines have left or joined the job. :func:`run` then synchronizes the state and
    calls the training function again."""


def _residuals() -> Any:
    """Return the module :mod:`bps._residuals` if it is in use. The module needs NumPy."""
    return sys.modules.get("bps._residuals")


class State:
    """State that is equal at all workers. Workers that join later receive it.

    The residuals of a compression differ between workers. They are saved and restored with the
    state, but not sent: the residuals of a worker that joins are zero.

    Args:
        values: values that can be copied and pickled. Each becomes an attribute.
    """

    def __init__(self, **values: Any) -> None:
        self._names = list(values)
        self._n_commits = 0
        self._callbacks: list[Callable[[], None]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def _save_parts(self) -> Any:
        """Return a copy of the models and optimizers. A front-end overrides this method."""

    def _restore_parts(self, saved: Any) -> None:
        """Restore the copy that :meth:`_save_parts` has returned."""

    def _sync_parts(self, root: int) -> None:
        """Broadcast the models and optimizers of rank ``root`` to all workers."""

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Add ``callbacks``, functions that are called after each change of the workers, for
        example to scale the learning rate."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call the functions of :meth:`register_reset_callbacks`."""
        for callback in self._callbacks:
            callback()

    def save(self) -> None:
        """Keep a copy of the state in memory."""
        values = {name: getattr(self, name) for name in self._names}
        residuals = _residuals()
        mine = {} if residuals is None else residuals.compression_state_dict()
        self._saved = copy.deepcopy(values), self._save_parts(), mine

    def restore(self) -> None:
        """Set the state to the copy that the last :meth:`save` made."""
        values, parts, mine = self._saved
        for name, value in copy.deepcopy(values).items():
            setattr(self, name, value)
        self._restore_parts(parts)
        residuals = _residuals()
        if residuals is not None:
            residuals.load_compression_state_dict(mine)

    def commit(self) -> None:
        """Save the state, and let machines join. All workers must commit after the same step.

        Raises:
            HostsUpdatedInterrupt: machines have left or joined; :func:`run` handles it.
        """
        self.save()
        self._n_commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Let machines join, without saving the state. :meth:`commit` also saves the state."""
        rt = _core.runtime()
        rt.settle()
        rt.finish_stale()
        n_joined = rt.job.checkpoint_barrier()
        if n_joined:
            rt.restart()
        else:
            known, rt.members = _core.members(), rt.allgather_present(rt.job.rank, "ranks")
            if known == rt.members:
                return
        raise HostsUpdatedInterrupt("machines have left or joined the job")

    def sync(self) -> None:
        """Broadcast the state of one worker to all others.

        After a failure, some workers may have made one commit more than other workers. This method
        broadcasts the state of a worker with the most commits. If several workers have the most
        commits, the worker :attr:`Job.root` is preferred, because that worker was in the job before
        the newest workers joined.
        """
        rt = _core.runtime()
        given = rt.allgather_present((rt.job.rank, self._n_commits), "a number of commits")
        rt.members = [rank for rank, _ in given]
        self._n_commits = max(n for _, n in given)
        first = [rank for rank, n in given if n == self._n_commits]
        root = rt.job.root if rt.job.root in first else first[0]
        values = {name: getattr(self, name) for name in self._names}
        values = rt.broadcast_object(values if rt.job.rank == root else None, root, "a state")
        for name, value in values.items():
            setattr(self, name, value)
        self._sync_parts(root)
        self.save()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function again in two cases: the job has failed, or a commit has found that machines
    have left or joined the job.

    After a failure each remaining worker joins a new job of the same name, keeps its rank, and
    restores the state of the last commit. The new job continues when all workers are present. So
    start a new process in the place of a lost worker. The new process receives the state of the
    other workers.

    Only the loss of a worker, a machine, an agent, a round or a GPU is handled in this way. Other
    errors are raised. The fourth loss in a row without a commit in between is raised, too.

    Args:
        func (callable): its first argument is a :class:`State`, from which it continues training.

    Returns:
        callable: a function that synchronizes the state, then calls ``func``.
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
            except Exception as error:
                failure = cause_of(error)
                if failure is None:
                    raise
                n_failures = 1 if state._n_commits > n_commits else n_failures + 1
                n_commits = state._n_commits
                if failure.code not in REOPENED or n_failures > FAILURES_MOST:
                    raise
                warnings.warn(f"{failure}; this worker opens the job again", stacklevel=2)
                _core.reopen()
                state.restore()
            state.on_reset()

    return wrapper
