"""Handles of operations in flight, which the asynchronous collectives return."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from bps._library import Error
from bps._operation import IN_FLIGHT, Operation
from bps.torch._profile import waiting


class Handle:
    """An operation in flight. :func:`synchronize` waits for it and returns its output.

    Args:
        output: the output.
        parts (sequence of Operation): parts of the operation, which write the output.
    """

    def __init__(self, output: Any = None, parts: Sequence[Operation] = ()) -> None:
        self._output, self._parts = output, parts

    def poll(self) -> bool:
        """Return True if :meth:`wait` can return without blocking."""
        return all(part.poll() for part in self._parts)

    def wait(self) -> Any:
        """Wait for the operation and return its output."""
        with waiting():
            for part in self._parts:
                part.finish(is_interruptible=True)
        return self._output

    def __call__(self) -> Any:
        """Do the same as :meth:`wait`. Scripts of Horovod call the result of
        ``sparse_allreduce_async``."""
        return self.wait()


class Mapped(Handle):
    """An operation that applies a function to the output of another operation.

    Args:
        inner (Handle): the other operation.
        function (callable): called once, by the first :meth:`wait`.
    """

    def __init__(self, inner: Handle, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._inner, self._function = inner, function
        self._is_done = False

    def poll(self) -> bool:
        return self._inner.poll()

    def wait(self) -> Any:
        if not self._is_done:
            self._output = self._function(self._inner.wait())
            self._is_done = True
        return self._output


class NameUse:
    """The use of a name, which one operation at a time may have.

    Args:
        handle (Handle): the operation that has the name.

    Attributes:
        handle (Handle, optional): the same; None: a caller has waited for the operation.
        is_lost (bool): True if no caller has the operation's :class:`Named` any more.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle: Handle | None = handle
        self.is_lost = False

    def release_if_lost(self) -> None:
        """End the use of the name if no caller can wait for the operation and it is complete."""
        if self.handle is not None and self.is_lost and self.handle.poll():
            with contextlib.suppress(Exception):  # no caller can get the error
                self.handle.wait()
            self.handle = None

    def is_free(self) -> bool:
        """Return whether another operation may have the name."""
        self.release_if_lost()
        return self.handle is None


class Named(Mapped):
    """An operation with a name, which another operation may have when a caller has waited.

    Args:
        handle (Handle): the operation.
        use (NameUse): the use of the name by this operation.
    """

    def __init__(self, handle: Handle, use: NameUse) -> None:
        super().__init__(handle, lambda output: output)
        self._use = use

    def __del__(self) -> None:
        self._use.is_lost = True

    def wait(self) -> Any:
        try:
            output = super().wait()
        except BaseException as error:
            # After a KeyboardInterrupt, the caller may have lost this operation.
            if not (isinstance(error, Error) and error.code in IN_FLIGHT):
                self._use.handle = None
            raise
        self._use.handle = None
        return output


class Several(Handle):
    """Several operations with one handle. The output is the list of the operations' outputs."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        super().__init__()
        self._handles = handles

    def poll(self) -> bool:
        return all(h.poll() for h in self._handles)

    def wait(self) -> list[Any]:
        return [h.wait() for h in self._handles]


def poll(handle: Handle) -> bool:
    """Return True if :func:`synchronize` can return without blocking for this ``handle``."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait for the operation of ``handle`` and return its output."""
    return handle.wait()
