"""Operations in flight of the back-end "bps" for ``torch.distributed``.

The thread that waits for an operation also writes the operation's results. Each group has a
separate thread that completes futures. The group's first future starts this separate thread.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from bps._library import CODES, Error
from bps._operation import IN_FLIGHT, Operation
from bps.torch._profile import waiting

if TYPE_CHECKING:
    from bps.torch._c10d_collectives import Collectives

# SLICE_S: longest single wait of a group's thread. Between two waits, the thread checks whether the
# group has ended. RETRY_S: pause before the next attempt while no server can be reached.
SLICE_S = 1.0
RETRY_S = 0.1


def failure(what: str, error: Error) -> dist.DistBackendError:
    """Return an exception of ``torch.distributed`` with the text and the fields of a bps.Error.

    Args:
        what (str): the operation that has failed, and its group.
        error (Error): the reason.
    """
    one = dist.DistBackendError(f"{what}: {error}")
    for name in ("code", "rank", "host", "tensor"):
        setattr(one, name, getattr(error, name))
    return one


def _value(future: torch.futures.Future[Any]) -> Any:
    """Return the value of a future. If the value is an exception, raise it.

    ``GroupWork`` stores errors as values, because callers in C++ do not see an error
    that set_exception() has stored.
    """
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value


class GroupWork(Work):
    """An operation in flight, as ``torch.distributed`` returns it.

    Args:
        group (Collectives): the group that runs the operation.
        what (str): name of the operation in messages.
        output (list[Tensor]): value of the operation's future.
        timeout (float): default time-out of a wait, in seconds.
    """

    def __init__(self, group: Collectives, what: str, output: Any, timeout: float) -> None:
        super().__init__()
        self._group, self._what, self._output, self._timeout = group, what, output, timeout
        self._operations: list[Operation] = []  # operation 0 compares the workers' calls
        self._last: list[Callable[[], Any]] = []  # functions that write the results
        self._lock = threading.Lock()
        self._done: torch.futures.Future[Any] = torch.futures.Future()
        self._future: torch.futures.Future[Any] | None = None
        group.keep(self)

    @property
    def timeout(self) -> float:
        """Default time-out of a wait, in seconds."""
        return self._timeout

    def _wait(self, seconds: float, is_sliced: bool) -> None:
        """Wait for the sums. The arguments and errors are those of :meth:`_finish`."""
        deadline = time.monotonic() + seconds
        for operation in self._operations:
            has_warned = False
            while True:
                left = max(deadline - time.monotonic(), 0.001)
                try:
                    operation.finish(min(left, SLICE_S) if is_sliced else left, True)
                    break
                except Error as error:
                    is_late = time.monotonic() >= deadline
                    if error.code not in IN_FLIGHT or is_late or self._group.closing.is_set():
                        is_time_out = is_late and error.code == CODES["ETIMEDOUT"]
                        raise self.failure(error, seconds if is_time_out else 0) from error
                    if error.code != CODES["ETIMEDOUT"]:
                        if not has_warned:
                            warnings.warn(f"{self._what} still waits: {error}", stacklevel=2)
                            has_warned = True
                        self._group.closing.wait(RETRY_S)

    def _finish(self, seconds: float, is_sliced: bool = False) -> None:
        """Wait for the sums and write the results.

        Args:
            seconds (float): longest wait.
            is_sliced (bool): repeat short waits, and stop when the group ends.

        Raises:
            DistBackendError: the operation has failed, or was not complete in time.
        """
        with waiting():
            self._wait(seconds, is_sliced)
        with self._lock, torch.no_grad():
            while self._last:
                self._last[0]()
                self._last.pop(0)

    def failure(self, error: Error, seconds: float = 0) -> dist.DistBackendError:
        """Return the exception that callers of this operation get for a bps.Error.

        Args:
            error (Error): the reason.
            seconds (float): the time-out that has passed; 0: none. The text of `error` only has the
                time-out of the last of several waits. Programs search the texts of PyTorch's own
                back-ends for "Timed out".
        """
        what = f"{self._what} in group '{self._group.title}'"
        return failure(f"{what}: Timed out after {seconds:g} s" if seconds else what, error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the results are written.

        Args:
            timeout (timedelta, optional): limit of the wait. Zero or None means the operation's
                own time-out.

        Raises:
            DistBackendError: the operation has failed, or was not complete before the time-out.
                After a time-out the caller may wait again.
        """
        seconds = timeout.total_seconds() if timeout else 0
        self._finish(seconds if seconds > 0 else self._timeout)
        self._group.release(self)
        return True

    def synchronize(self) -> None:
        """Do the same as :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return True if :meth:`wait` can return without blocking."""
        try:
            return all(operation.poll() for operation in self._operations)
        except Error as error:
            return error.code not in IN_FLIGHT

    def is_success(self) -> bool:
        """Return whether the operation is complete and has not failed."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error if the operation has failed, else None. Does not block."""
        if self.is_completed():
            try:
                self.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> Any:
        """Wait, and return the output tensors."""
        self.wait()
        return self._output

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the output tensors.

        If the operation fails, the future raises a RuntimeError with the text of the error. PyTorch
        creates this exception, so the exception lacks the attributes code, rank, host and tensor.
        By contrast, :meth:`GroupWork.wait` raises a DistBackendError, which has these attributes.
        """
        with self._lock:
            is_first = self._future is None
            if is_first:
                self._future = self._done.then(_value)
        if is_first:
            self._group.complete(self)
        return self._future

    def _complete(self) -> None:
        """Wait for the operation, and complete its future. Runs in the group's thread."""
        try:
            self._finish(self._timeout, is_sliced=True)
        except Exception as error:
            self._done.set_result(error)
        else:
            self._done.set_result(self._output)
        self._group.release(self)


class ManyWorks(GroupWork):
    """Several operations that are returned as one operation."""

    def __init__(self, works: Sequence[GroupWork]) -> None:
        first = works[0]
        super().__init__(first._group, first._what, [w._output for w in works], first._timeout)
        self._operations = [operation for w in works for operation in w._operations]
        self._last = [last for w in works for last in w._last]
        for work in works:
            self._group.release(work)
