"""Handles of operations in flight, which the asynchronous collectives return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bps._library import Error
from bps._runtime import IN_FLIGHT, Operation


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


class Named(Mapped):
    """An operation with a name, which another operation may have when a caller has waited.

    Args:
        inner (Handle): the operation.

    Attributes:
        is_waited (bool): True after :meth:`wait` has returned the output or the final error.
    """

    def __init__(self, inner: Handle) -> None:
        super().__init__(inner, lambda output: output)
        self.is_waited = False

    def wait(self) -> Any:
        try:
            output = super().wait()
        except Exception as error:
            self.is_waited = not (isinstance(error, Error) and error.code in IN_FLIGHT)
            raise
        self.is_waited = True
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
