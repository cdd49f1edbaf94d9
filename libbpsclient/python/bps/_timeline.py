"""Timelines with the calls of Horovod."""

from __future__ import annotations

import os
import time
import warnings

from bps import _core
from bps._job import Job
from bps._library import Error


class _Timeline:
    """A timeline that was started and not stopped.

    Args:
        job (Job): the process's job, which writes the timeline when it is closed.
        path (str): the file.
    """

    def __init__(self, job: Job, path: str) -> None:
        self.path = path
        self._job, self._since = job, time.monotonic()
        if self._is_written:
            job.trace(path, self._since)
        job.leaving.add(self)

    @property
    def _is_written(self) -> bool:
        return self._job.rank == 0

    def write(self) -> None:
        """Write the rounds since the start, at rank 0."""
        if self._is_written:
            self._job.trace(self.path, self._since)

    def stop(self, is_abort: bool) -> None:
        """Write the timeline, because the job ends. If this fails, print a warning."""
        global _current
        _current = None
        try:
            if not is_abort:
                self.write()
            elif self._is_written:
                warnings.warn(
                    f"the timeline '{self.path}' has no rounds, because the job was aborted",
                    stacklevel=2,
                )
        except Error as error:
            warnings.warn(f"the timeline '{self.path}' is not written: {error}", stacklevel=2)


_current: _Timeline | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Create a timeline file. It gets the rounds from now until :func:`stop_timeline`, at most the
    last 16,384, or until the job is closed. The file is one for :func:`bps.trace`.

    As in Horovod, all workers may call this function, and only rank 0 writes the file. The file has
    the rounds of rank 0's machine. For another machine, call :func:`bps.trace` there. The variable
    ``HOROVOD_TIMELINE=DYNAMIC``, which Horovod needs for this call, has no effect.

    Args:
        file_path (str): the file. A file of this name is replaced.
        mark_cycles (bool): must be False, because bps does not work in cycles.

    Raises:
        NotImplementedError: mark_cycles is True.
        ValueError: a timeline was started already.
        Error: the file cannot be written.

    Example:
        >>> hvd.start_timeline("/tmp/timeline.json")
        >>> train(steps=20)
        >>> hvd.stop_timeline()
    """
    global _current
    job = _core.runtime().job
    if mark_cycles:
        raise NotImplementedError(
            "start_timeline(mark_cycles=True) has no counterpart in bps, which does not work in "
            "cycles: leave mark_cycles out"
        )
    if _current is not None:
        raise ValueError(
            f"start_timeline: the timeline '{_current.path}' was started already: call "
            "stop_timeline() first"
        )
    _current = _Timeline(job, os.path.abspath(file_path))


def stop_timeline() -> None:
    """End the timeline of :func:`start_timeline`. Rank 0 writes the file.

    Raises:
        ValueError: no timeline was started, or the job in which it was started is closed. The file
            has been written then. Horovod ignores this call if no timeline was started.
        Error: the file cannot be written any more.
    """
    global _current
    _core.runtime()
    if _current is None:
        raise ValueError("stop_timeline: no timeline was started in this job")
    timeline, _current = _current, None
    timeline.write()
