"""Gathers in flight: each worker sends rows, and each worker receives the rows of all workers.

A gather has two sums. In the first sum, each worker describes its tensor. The second sum moves the
rows, and its size follows from the descriptions. So the second sum is submitted only when the first
sum is complete. The second sum must not use the slots of the job's runtime, because workers take
those slots in the order of the program's calls. A :class:`Line` has slots of its own. It submits
the second sums in the order in which the first sums were submitted.

The thread that waits for a gather submits the gather's second sum. A worker may begin to wait for
an asynchronous gather long after the other workers have begun. So the thread of the :class:`Line`
submits the second sum of an asynchronous gather, unless a waiting thread has submitted it before.
The first asynchronous gather starts the thread of the :class:`Line`.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import queue
import struct
import threading
import zlib
from collections.abc import Sequence

import torch

from bps._library import CODES, SUM, Error
from bps._operation import Operation
from bps._runtime import Runtime
from bps.torch._handle import Handle
from bps.torch._memory import check_device, flatten
from bps.torch._parts import MOVE, Part, as_bytes, sum_parts
from bps.torch._profile import waiting

# Description of a tensor: number of rows, checksum of the text that follows, and this text. The
# text states the type and the shape of a row.
DESCRIPTION = struct.Struct("<qI116s")
KINDS = {"allgather": "all_gather", "alltoall": "all_to_all"}  # kinds for Runtime.agree()
# SLICE_S: longest single wait of the thread of a `Line`. Between two waits, the thread checks
# whether stop() was called. RETRY_S: pause before the next attempt while no server can be reached.
SLICE_S = 1.0
RETRY_S = 0.1


def _row_text(tensor: torch.Tensor) -> str:
    """Return shape and type of a tensor's rows as text."""
    shape = ", ".join(map(str, ("?", *tensor.shape[1:])))
    return f"[{shape}] of {tensor.dtype}"


def _sum_bytes(
    rt: Runtime,
    given: Sequence[Part],
    taken: Sequence[Part],
    lengths: Sequence[int],
    agreement: Operation | None,
) -> list[Operation]:
    """Submit bytes for a sum that must contain all workers' values, see :func:`sum_parts`. The
    workers' bytes follow each other by rank; ``lengths`` has their numbers."""
    ends = [*itertools.accumulate(lengths)]
    owners = [(rank, end - n, end) for rank, (n, end) in enumerate(zip(lengths, ends))]
    options = {"owners": owners, **MOVE}
    return sum_parts(rt, torch.uint8, SUM, given, taken, ends[-1], agreement, **options)


class Gather(Handle):
    """A gather in flight. Its output is a tensor with the rows of all workers, ordered by rank.

    Args:
        rt (Runtime): the workers that take part.
        tensor (Tensor): this worker's rows.
        what (str): a key of KINDS.
        numbers (sequence of int): numbers to send to all workers. Each worker passes the same
            count of numbers.
        is_async (bool): True: copy the tensor, and let the thread of the :class:`Line` submit the
            second of the gather's two sums.
        name (str, optional): name of the operation, which the workers compare.

    Attributes:
        rows (list[int]): number of rows of each worker, after :meth:`wait`.
        numbers (list[tuple[int, ...]]): the numbers of each worker, after :meth:`wait`.
    """

    def __init__(
        self,
        rt: Runtime,
        tensor: torch.Tensor,
        what: str = "allgather",
        numbers: Sequence[int] = (),
        is_async: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        check_device(tensor)
        if tensor.dim() == 0:
            raise ValueError(
                f"{what} needs a tensor of at least one dimension: use tensor.unsqueeze(0)"
            )
        self._title = what if name is None else f"{what} '{name}'"
        self._device, self._text = tensor.device, _row_text(tensor)
        self._source = tensor.detach().cpu().contiguous()
        if is_async and self._source.data_ptr() == tensor.data_ptr():
            self._source = self._source.clone()
        self._error: Exception | None = None
        self._is_sent = threading.Event()
        self.rows: list[int] = []
        self.numbers: list[tuple[int, ...]] = []
        self._form = struct.Struct(f"<{len(numbers)}q")
        text = self._text.encode()
        mine = DESCRIPTION.pack(len(tensor), zlib.crc32(text), text) + self._form.pack(*numbers)
        n, size = len(mine), rt.job.size
        self._described = torch.empty(n * size, dtype=torch.uint8, device="cpu")
        given = [(n * rt.job.rank, torch.frombuffer(bytearray(mine), dtype=torch.uint8))]
        taken = [(0, self._described)]
        with rt.submission():
            agreement = rt.agree(KINDS[what], f"{self._title} of {len(numbers)} numbers and rows")
            parts = _sum_bytes(rt, given, taken, [n] * size, agreement)
            self._first: list[Operation] = [agreement, *parts]
            self._line = Line.of(rt)
            self._line.add(self, is_async)

    @property
    def is_sent(self) -> bool:
        """True if the second sum has been submitted, or if the gather has failed."""
        return self._is_sent.is_set()

    def poll(self) -> bool:
        return self.is_sent and (self._error is not None or super().poll())

    def wait(self) -> torch.Tensor:
        with waiting():
            while not self.is_sent:
                self._line.advance()
        if self._error is not None:
            raise self._error
        super().wait()
        if self._output.device != self._device:
            self._output = self._output.to(self._device)
        return self._output

    def describe(self, timeout: float | None = None) -> None:
        """Wait for the first sum.

        Raises:
            Error: the wait has ended before the first sum was complete (time-out, no server).
        """
        for part in self._first:
            part.settle(timeout)

    def send(self, rt: Runtime) -> None:
        """Submit the second sum in slots of the runtime rt. Call :meth:`describe` first."""
        try:
            for part in self._first:
                part.finish()
            rt.check()
            self._read(rt)
            self._parts = self._move(rt)
        except Exception as error:
            self._error = error
        self._is_sent.set()

    def fail(self, error: Exception) -> None:
        """Give up the second sum. :meth:`wait` raises the error."""
        self._error = error
        self._is_sent.set()

    def _read(self, rt: Runtime) -> None:
        """Read the descriptions, and compare them with this worker's tensor.

        Raises:
            Error: EMISMATCH: another worker's rows have another shape or type.
        """
        raw = ctypes.string_at(self._described.data_ptr(), self._described.numel())
        n = len(raw) // rt.job.size
        mine = zlib.crc32(self._text.encode())
        for rank in range(rt.job.size):
            one = raw[rank * n : (rank + 1) * n]
            rows, checksum, text = DESCRIPTION.unpack_from(one)
            if checksum != mine:
                raise Error(
                    CODES["EMISMATCH"],
                    f"{self._title}: rank {rt.shown(rank)} has shape "
                    f"{text.rstrip(bytes(1)).decode()}, but this worker has {self._text}",
                    rt.shown(rank),
                )
            self.rows.append(rows)
            self.numbers.append(self._form.unpack_from(one, DESCRIPTION.size))

    def _move(self, rt: Runtime) -> list[Operation]:
        """Submit the rows."""
        source, first = self._source, sum(self.rows[: rt.job.rank])
        self._output = source.new_empty((sum(self.rows), *source.shape[1:]))
        n_bytes = self._output.numel() * source.element_size()
        if n_bytes == 0:
            return []
        row_bytes = n_bytes // len(self._output)
        given = [(first * row_bytes, as_bytes(flatten(source)))]
        taken = [(0, as_bytes(flatten(self._output)))]
        with rt.submission(is_compared=True):
            return _sum_bytes(rt, given, taken, [n * row_bytes for n in self.rows], None)


class Line:
    """Queue of a runtime's gathers, in the order in which the program started them.

    A gather stays in the queue until its second sum is submitted. The queue has slots of its own in
    the runtime's job.

    Args:
        rt (Runtime): the runtime of the workers that take part.
    """

    def __init__(self, rt: Runtime) -> None:
        self._runtime = Runtime(rt.job, f"{rt.prefix}rows/", [*map(rt.shown, range(rt.job.size))])
        self._waiting: collections.deque[Gather] = collections.deque()
        self._lock = threading.Lock()  # held while a second sum is submitted
        self._is_ending = threading.Event()
        self._works: queue.SimpleQueue[Gather | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        rt.job.leaving.add(self)

    @staticmethod
    def of(rt: Runtime) -> Line:
        """Return the runtime's `Line`. The first call creates it."""
        if rt.line is None:
            rt.line = Line(rt)
        return rt.line

    def add(self, gather: Gather, has_thread: bool) -> None:
        """Append a gather whose first sum has already been submitted.

        Args:
            gather (Gather): the gather.
            has_thread (bool): True: let the thread of this queue submit the second sum.
        """
        self._waiting.append(gather)
        if has_thread:
            self._works.put(gather)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bps-gather", daemon=True)
                self._thread.start()

    def advance(self, timeout: float | None = None) -> None:
        """Wait for the first sum of the gather at the head of the queue. Then submit the second sum
        of the same gather.

        Args:
            timeout (float, optional): seconds; None: the job's time-out.

        Raises:
            Error: the wait has ended before the first sum was complete (time-out, no server). The
                caller may call again.
        """
        try:
            first = self._waiting[0]
        except IndexError:
            return  # another thread has submitted the second sums of all gathers
        first.describe(timeout)
        with self._lock:
            if self._waiting and self._waiting[0] is first:
                first.send(self._runtime)
                self._waiting.popleft()

    def settle(self) -> None:
        """Finish all gathers in the queue."""
        while self._waiting:
            self.advance()
        self._runtime.settle()

    def stop(self, is_abort: bool) -> None:
        """End the thread, because the process leaves the job.

        Args:
            is_abort (bool): True: end the thread without finishing the gathers in the queue.
                After the end of the thread, all gathers that are still in the queue fail.
        """
        if not is_abort:
            with contextlib.suppress(Error):  # Gather.wait raises the gather's error
                self.settle()
        self._is_ending.set()
        if self._thread is not None:
            self._works.put(None)
            self._thread.join()
            self._thread = None
        with self._lock:
            while self._waiting:
                text = "this worker left the job before the gather was complete"
                self._waiting.popleft().fail(Error(CODES["ECLOSED"], text))

    def _run(self) -> None:
        while (gather := self._works.get()) is not None:
            while not (gather.is_sent or self._is_ending.is_set()):
                try:
                    self.advance(SLICE_S)
                except Error as error:
                    if error.code != CODES["ETIMEDOUT"]:
                        self._is_ending.wait(RETRY_S)
