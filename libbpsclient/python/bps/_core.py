"""The process's job, which all front-ends share: join, leave, suspend, and join again."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any

from bps._job import Job
from bps._job import open as open_job
from bps._runtime import Runtime


class NotInitialized(RuntimeError):
    """The process has joined no job yet."""


_current: Runtime | None = None
_options: dict[str, Any] = {}  # arguments of init()
subjobs: list[Job] = []  # jobs of process sets; they end with the process's job
# Functions that wait for a framework's threads. Each function returns when these threads have made
# all calls to bps that the program has asked for. Before leaving the job, leave() and suspend()
# call all these functions.
before_leaving: list[Callable[[], object]] = []
# Functions that frameworks have added here. resume() calls all these functions, because the number
# of workers may have changed.
after_resuming: list[Callable[[], object]] = []


def host_key() -> str:
    """Return a key that is equal in all processes that use the same agent, and in no others."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = f.read().strip()
    try:
        at = os.stat(os.environ.get("BPS_AGENT_SOCKET", "/run/bps/agent.sock"))
    except OSError:
        return boot
    return f"{boot}.{at.st_dev}.{at.st_ino}"


def job_name(part: str = "") -> str:
    """Return a name for a new job. The new name consists of these parts: the launcher's job name,
    ``part``, and random digits. If the launcher has set no job name, the new name begins with
    "torch"."""
    names = ("BPS_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    base = next((os.environ[name] for name in names if os.environ.get(name)), "torch")
    return f"{base}.{part}"[:150].rstrip(".") + f".{secrets.token_hex(4)}"


def inherited() -> dict[str, Any]:
    """Return those options of :func:`init` that also apply to the job of a process set."""
    mine = {"job", "rank", "size", "local_rank", "local_size", "elastic", "max_size"}
    return {name: value for name, value in _options.items() if name not in mine}


def init(**options: Any) -> None:
    """Join the job; further calls do nothing.

    Args:
        options: arguments of :func:`bps.open`. Options that are not passed come from the
            environment variables of bpsrun, torchrun, MPI, Slurm or BytePS.

    Raises:
        Error: this worker cannot join. The code is EFORKED if this is a forked process whose
            parent has joined a job. To join a job, such a process must first call
            :func:`shutdown`.
    """
    global _current
    if _current is not None:
        _current.job.check_process()
    else:
        _current = Runtime(open_job(**options))
        _options.clear()
        _options.update(options)
        atexit.register(_at_exit, os.getpid())
        members()


def _check_unshared(what: str) -> None:
    """Check that no process set or process group uses the job, which the caller is about to leave.

    Raises:
        RuntimeError: a process set or process group uses the job.
    """
    if subjobs or runtime().n_users:
        raise RuntimeError(
            f"{what}: process sets or process groups still use the job: remove the sets and "
            "destroy the groups first"
        )


def suspend(timeout: float | None = None) -> None:
    """Wait until all workers have called this function, and leave the job. The process can join the
    job again with :func:`resume`.

    Args:
        timeout (float, optional): seconds; None: the job's time-out.

    Raises:
        RuntimeError: process sets, or process groups of a framework, use the job.
        Error: a result was not complete before the time-out, or a worker had not called this
            function before the time-out.
    """
    rt = runtime()
    _check_unshared("suspend")
    _end_calls()
    rt.settle()
    rt.job.suspend(timeout)


def resume(num_workers: int, num_servers: int = 0, global_rank: int = -1) -> None:
    """Join the job again after :func:`suspend`, with another number of workers.

    Each worker that continues must call this function. Each worker that is new to the job calls
    :func:`init`.

    Args:
        num_workers (int): number of workers of the job from now on.
        num_servers (int): BytePS's scripts pass this number. It has no effect, because servers
            belong to the cluster, not to the job.
        global_rank (int): this worker's rank; -1: any rank that is free.
    """
    rt = runtime()
    rt.job.resume(num_workers, global_rank)
    _options["size"] = num_workers
    rt.restart()
    members()
    for one in list(rt.reopened):
        one.reopen()
    for forget in after_resuming:
        forget()


def reopen() -> None:
    """Join the job again after it has failed, with this worker's rank and the same options.

    Each worker that continues must call this function. A process that replaces a lost worker calls
    :func:`init`.

    Raises:
        RuntimeError: process sets, or process groups of a framework, use the job.
        Error: the job cannot be joined, or a worker has not joined it before the time-out.
    """
    rt = runtime()
    _check_unshared("reopen")
    rank = rt.job.rank
    rt.job.abort()
    rt.job = open_job(**(_options | {"rank": rank}))
    rt.restart(is_failed=True)
    members()
    for one in list(rt.reopened):
        one.reopen()


def has_failed() -> bool:
    """Return whether an uncaught exception ends this process. Call this only at exit."""
    return getattr(sys, "last_value", None) is not None


def _end_calls() -> None:
    """Wait for calls that a framework's threads run."""
    for wait in before_leaving:
        # A failed call raises its error when the program uses the result.
        with contextlib.suppress(Exception):
            wait()


def leave(is_abort: bool) -> None:
    """Abort the process's job if is_abort, else close the job. A forked child only forgets the job,
    which its parent has joined."""
    global _current
    atexit.unregister(_at_exit)
    if _current is not None:
        jobs = [_current.job, *reversed(subjobs)]
        is_forked = _current.job.is_forked
        if not (is_abort or is_forked):
            _end_calls()
        _current = None
        subjobs.clear()
        if is_forked:
            return
        if is_abort:
            for job in jobs:
                job.abort()
            return
        with contextlib.ExitStack() as stack:  # the process's own job closes last
            for job in jobs:
                stack.enter_context(job)


def _at_exit(pid: int) -> None:
    """Close the job at the end of the process. If an exception ends the process, abort the job, so
    that it fails at all workers. A forked child does nothing, because it is not in the job.

    After sys.exit(1) the job is closed, not aborted, because sys.exit does not set sys.last_value.
    """
    if os.getpid() == pid:
        leave(has_failed())


def shutdown() -> None:
    """Wait until all workers have called this function, and leave the job. If an exception is being
    handled, abort the job instead, without waiting."""
    leave(sys.exc_info()[0] is not None)
    if "bps._residuals" in sys.modules:  # the module needs NumPy
        sys.modules["bps._residuals"].clear()


def is_initialized() -> bool:
    """Return whether the process has joined a job and has not left it."""
    return _current is not None and not _current.job.is_forked


def _known_job() -> Job:
    """Return the process's job. In a forked child, return the job of its parent.

    Raises:
        NotInitialized: :func:`init` has not been called.
    """
    if _current is None:
        raise NotInitialized(
            "bps is not initialized: call init() first, in a process that bpsrun or torchrun "
            "started"
        )
    return _current.job


def runtime() -> Runtime:
    """Return the runtime of the process's job.

    Raises:
        NotInitialized: :func:`init` has not been called.
        Error: EFORKED in a forked child.
    """
    _known_job().check_process()
    assert _current is not None
    return _current


def trace(path: str | os.PathLike[str], since: float = 0.0) -> None:
    """Write the last rounds of the process's job on this machine to a file. A job that
    :func:`bps.open` has returned has a method of this name.

    The file is a trace in the format of Chrome's JSON. https://ui.perfetto.dev and
    ``chrome://tracing`` show it, and ``python -m bps.tracing join`` adds it to a trace of PyTorch's
    profiler. Its rows are steps, waits and rounds, see the guide "monitor". The call does not
    disturb rounds that are in flight, and each worker may make it.

    Args:
        path (str): the file. A file of this name is replaced.
        since (float): leave out rounds that began earlier, in seconds of :func:`time.monotonic`.
            The agent keeps the last 16,384 rounds; the file says how many it has lost.

    In a job of one worker, which has no agent, the trace has no rounds.

    Raises:
        NotInitialized: :func:`init` has not been called.
        Error: the agent does not answer, or is of an older release (-EOPNOTSUPP), or the file
            cannot be written. The last error has the code of the system, such as -ENOENT.

    Example:
        >>> begun = time.monotonic()
        >>> train(steps=20)
        >>> bps.trace(f"/tmp/trace-{bps.rank()}.json", since=begun)
    """
    runtime().job.trace(path, since)


def rank() -> int:
    """Return this worker's number in the job, from 0."""
    return _known_job().rank


def n_ranks() -> int:
    """Return the number of ranks in the job. In a job whose workers may leave and join, this number
    includes the ranks of workers that are lost or have not joined."""
    return _known_job().size


def members() -> list[int]:
    """Return the ranks of the workers that are present. This list is the same at all workers. It
    changes only when all workers agree on it: when the job begins, and at commits of an elastic
    state."""
    rt = runtime()
    if not rt.members:
        rt.members = [worker.rank for worker in rt.job.workers() if not worker.is_lost]
    return rt.members


def size() -> int:
    """Return the number of workers in the job, without those that are lost or have not joined, see
    :func:`members`."""
    if _known_job().is_forked:
        return len(_current.members) if _current and _current.members else n_ranks()
    return len(members())


def local_rank() -> int:
    """Return this worker's number among the job's workers on its machine, from 0."""
    return _known_job().local_rank


def local_size() -> int:
    """Return the number of the job's workers on this machine."""
    return _known_job().local_size
