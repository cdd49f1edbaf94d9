"""Operations in flight, and the declared tensors (slots) that they use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bps._library import CODES, Error, Timeout
from bps._tensor import Tensor

# After these errors the operation is still in flight, and the caller may wait again.
IN_FLIGHT = {CODES[name] for name in ("ETIMEDOUT", "ENOSERVER", "EISOLATED")}


class Slot:
    """A declared tensor that operations use one after the other.

    Attributes:
        tensor (Tensor): the declared tensor.
        owner (Operation, optional): the operation in flight; None: the slot is free.
        lock (Lock): held by the thread that waits for the operation and frees the slot.
        views (dict): arrays of a front-end that share the slot's memory.
        is_stale (bool): True if the tensor was submitted for an operation in which the workers
            disagreed, so no caller waits for its result.
        agreement (Operation, optional): the comparison of the tensor's shape, see
            :meth:`Runtime.named`.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.owner: Operation | None = None
        self.agreement: Operation | None = None
        self.is_stale = False
        self.lock = threading.Lock()
        self.views: dict[Any, Any] = {}


class Operation:
    """An operation in flight, which uses a slot. The first caller that needs this operation's
    result, or needs the slot for another operation, waits for this operation and frees the slot.

    Args:
        slot (Slot): holds the tensor that has been submitted.
        collect: called once, when the sum is in the slot's output.
        agreement (Operation, optional): the comparison of :meth:`Runtime.agree`. If the comparison
            fails, this operation fails too, and no caller waits for the sum.
    """

    def __init__(
        self, slot: Slot, collect: Callable[[], None], agreement: Operation | None = None
    ) -> None:
        self._slot, self._collect, self._agreement = slot, collect, agreement
        self._error: Error | None = None
        self.is_interrupted = False  # True after a KeyboardInterrupt has ended a wait
        slot.owner = self

    def drop_result(self) -> None:
        """Make :meth:`settle` discard the result, because the result's memory may be freed before
        the operation ends."""
        self._collect = lambda: None

    def poll(self) -> bool:
        """Return True if :meth:`finish` can return without blocking."""
        if self._slot.owner is not self:
            return True
        if not self._slot.lock.acquire(blocking=False):
            return False  # another thread is in settle()
        try:
            if self._slot.owner is not self:
                return True
            if self._agreement is not None:
                if not self._agreement.poll():
                    return False
                self._agreement.settle()
                if self._agreement._error is not None:
                    return True
            return self._slot.tensor.poll()
        finally:
            self._slot.lock.release()

    def settle(self, timeout: float | None = None, is_interruptible: bool = False) -> None:
        """Wait for the operation and free its slot. If the operation has failed, store the error,
        which :meth:`finish` raises.

        Args:
            timeout (float, optional): seconds; None: the job's time-out.
            is_interruptible (bool): let KeyboardInterrupt end the wait. The operation is then still
                in flight.

        Raises:
            Error: the operation is still in flight (time-out, no server). The caller may call
                settle() again.
        """
        if self._slot.owner is self:
            self._slot.tensor.job.check_process()
        end = None if timeout is None else time.monotonic() + timeout
        if not self._slot.lock.acquire(timeout=-1 if timeout is None else timeout):
            name = self._slot.tensor.name
            raise Timeout(CODES["ETIMEDOUT"], f"tensor '{name}' is not complete after {timeout} s")
        try:
            if self._slot.owner is self:
                try:
                    if self._agreement is not None:
                        self._agreement.finish(timeout, is_interruptible)
                    left = None if end is None else max(end - time.monotonic(), 0.001)
                    self._slot.tensor.finish(left, is_interruptible)
                    self._collect()
                except Error as error:
                    if error.code in IN_FLIGHT:
                        raise
                    self._error = error
                    self._slot.is_stale = self._agreement is not None and self._agreement.has_failed
                except KeyboardInterrupt:
                    self.is_interrupted = True
                    raise
                self._slot.owner = None
        finally:
            self._slot.lock.release()

    def finish(self, timeout: float | None = None, is_interruptible: bool = False) -> None:
        """Wait for the operation, and raise its error if it has failed. The arguments are those of
        :meth:`settle`.

        Raises:
            Error: the operation has failed, or is still in flight (see :meth:`settle`).
        """
        self.settle(timeout, is_interruptible)
        self.check()

    @property
    def has_failed(self) -> bool:
        """Whether the operation is known to have failed."""
        return self._error is not None

    def check(self) -> None:
        """Raise the error of the operation if the operation has failed."""
        if self._error is not None:
            raise self._error
