"""The back-end "bps" of ``torch.distributed``: process groups whose collectives bps runs.

Every collective is a sum of memory over the workers. In a broadcast, all workers but the root add
zeros. In an all-gather, each worker adds its bytes at its place, and zeros elsewhere. With each
collective the workers also compare their calls (``Runtime.agree``), so different calls are an
error. A collective sends its memory in slots, the reusable tensors of :mod:`bps._core`. A group
uses its slots in the order of the program.

A group of all workers shares the process's job; any other group has a job of its own. A
:class:`_Work` is an operation in flight. The thread that waits for an operation also writes its
results. A thread of the group completes futures. The first future starts this thread.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.distributed.rendezvous import register_rendezvous_handler

import bps
from bps import _core
from bps._core import Operation, Runtime
from bps._job import Job
from bps._job import open as open_job
from bps._library import CODES, Error
from bps.torch._memory import NAMES, check_device, flatten, input_view, output_view, wire_dtype

OPS = {
    dist.ReduceOp.SUM: bps.SUM,
    dist.ReduceOp.AVG: bps.AVG,
    dist.ReduceOp.MIN: bps.MIN,
    dist.ReduceOp.MAX: bps.MAX,
    dist.ReduceOp.PRODUCT: bps.PROD,
}
# SLICE_S: longest single wait of a group's thread. Between two waits, the thread checks whether the
# group has ended. RETRY_S: pause before the next attempt while no server can be reached.
SLICE_S = 1.0
RETRY_S = 0.1
# Largest number of operations of one group that are kept alive until a caller waits for them. Used
# with PyTorch before 2.14.
KEPT_WORKS = 1024

# A flat tensor and its place in the memory of an operation, counted in elements.
Part = tuple[int, torch.Tensor]


def _operation(op: Any) -> int:
    for theirs, ours in OPS.items():
        if op == theirs:
            return ours
    raise NotImplementedError(
        f"bps reduces with SUM, AVG, MIN, MAX and PRODUCT, not with {op}: use a gloo group instead"
    )


def _value(future: torch.futures.Future[Any]) -> Any:
    """Return the value of a future. If the value is an exception, raise it.

    ``_Work`` stores errors as values, because callers in C++ do not see an error of
    set_exception().
    """
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value


class _Work(Work):
    """An operation in flight, as ``torch.distributed`` returns it.

    Args:
        group (_Collectives): the group that runs the operation.
        what (str): name of the operation in messages.
        output (list[Tensor]): value of the operation's future.
        timeout (float): default time-out of a wait, in seconds.
    """

    def __init__(self, group: _Collectives, what: str, output: Any, timeout: float) -> None:
        super().__init__()
        self._group, self._what, self._output, self._timeout = group, what, output, timeout
        self._operations: list[Operation] = []  # operation 0 compares the workers' calls
        self._last: list[Callable[[], Any]] = []  # functions that write the results
        self._lock = threading.Lock()
        self._done: torch.futures.Future[Any] = torch.futures.Future()
        self._future: torch.futures.Future[Any] | None = None
        group.keep(self)

    def _finish(self, deadline: float, is_sliced: bool = False) -> None:
        """Wait for the sums and write the results.

        Args:
            deadline (float): end of the wait, on the clock time.monotonic().
            is_sliced (bool): repeat short waits, and stop when the group ends.

        Raises:
            DistBackendError: the operation has failed, or was not complete in time.
        """
        for operation in self._operations:
            has_warned = False
            while True:
                left = max(deadline - time.monotonic(), 0.001)
                try:
                    operation.finish(min(left, SLICE_S) if is_sliced else left, True)
                    break
                except Error as error:
                    is_late = time.monotonic() >= deadline
                    if error.code not in _core.IN_FLIGHT or is_late or self._group.closing.is_set():
                        raise self._error(error) from error
                    if error.code != CODES["ETIMEDOUT"]:
                        if not has_warned:
                            warnings.warn(f"{self._what} still waits: {error}", stacklevel=2)
                            has_warned = True
                        self._group.closing.wait(RETRY_S)
        with self._lock, torch.no_grad():
            while self._last:
                self._last[0]()
                self._last.pop(0)

    def _error(self, error: Error) -> dist.DistBackendError:
        """Return an exception of torch.distributed with the text and the fields of a bps.Error."""
        failure = dist.DistBackendError(f"{self._what} in group '{self._group.title}': {error}")
        for name in ("code", "rank", "host", "tensor"):
            setattr(failure, name, getattr(error, name))
        return failure

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the results are written.

        Args:
            timeout (timedelta, optional): limit of the wait; zero or None: the operation's default.

        Raises:
            DistBackendError: the operation has failed, or was not complete in time. After a
                time-out the caller may wait again.
        """
        seconds = timeout.total_seconds() if timeout else 0
        self._finish(time.monotonic() + (seconds if seconds > 0 else self._timeout))
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
            return error.code not in _core.IN_FLIGHT

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

        If the operation fails, the future raises a RuntimeError with the text of the error.
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
            self._finish(time.monotonic() + self._timeout, is_sliced=True)
        except Exception as error:
            self._done.set_result(error)
        else:
            self._done.set_result(self._output)
        self._group.release(self)


class _Many(_Work):
    """Several operations that are returned as one operation."""

    def __init__(self, works: Sequence[_Work]) -> None:
        first = works[0]
        super().__init__(first._group, first._what, [w._output for w in works], first._timeout)
        self._operations = [operation for w in works for operation in w._operations]
        self._last = [last for w in works for last in w._last]
        for work in works:
            self._group.release(work)


def _overlap(parts: Sequence[Part], start: int, n: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the parts of tensors that belong to [start, start + n) of an operation's memory. Each
    item is a slice of that memory, relative to start, and a view of the elements."""
    for at, flat in parts:
        first, last = max(at, start), min(at + flat.numel(), start + n)
        if first < last:
            yield slice(first - start, last - start), flat[first - at : last - at]


def _consecutive(tensors: Sequence[torch.Tensor]) -> list[Part]:
    parts, at = [], 0
    for flat in tensors:
        parts.append((at, flat))
        at += flat.numel()
    return parts


def _length(parts: Sequence[Part]) -> int:
    return max((at + flat.numel() for at, flat in parts), default=0)


def _as_bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)


class _Collectives:
    """Methods of a process group: operations, start and end.

    ``torch.distributed`` calls these methods, and passes tensors in lists of one tensor.

    Args:
        runtime (Runtime): runs the group's operations in its job.
        rank (int): this worker's number in the group.
        size (int): number of workers in the group.
        timeout (float): default time-out of an operation, in seconds.
        title (str): name of the group in messages.
        leave (callable): leaves the group's job, or aborts the job if the argument is True.
    """

    def __init__(
        self,
        runtime: Runtime,
        rank: int,
        size: int,
        timeout: float,
        title: str,
        leave: Callable[[bool], None],
    ) -> None:
        super().__init__(rank, size)
        self.title = title
        self._runtime, self._rank, self._size = runtime, rank, size
        self._timeout, self._leave = timeout, leave
        self._n_operations = 0
        self.closing = threading.Event()
        self._works: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        atexit.register(self._at_exit, os.getpid())

    # ---- start and end ----

    def getBackendName(self) -> str:  # noqa: N802
        """Return "bps"."""
        return "bps"

    def complete(self, work: _Work) -> None:
        """Make the group's thread complete the future of an operation.

        The group's thread also runs callbacks of futures. If a callback requests the future of
        another operation, this method runs in that thread, and completes the operation at once.
        """
        if threading.current_thread() is self._thread:
            work._complete()
            return
        self._works.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bps-c10d", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work._complete()

    def _end(self, has_failed: bool) -> None:
        if self.closing.is_set():
            return
        self.closing.set()
        atexit.unregister(self._at_exit)
        if self._thread is not None:
            self._works.put(None)
            self._thread.join()
        self._leave(has_failed)

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:
            self._end(_core.has_failed())

    def shutdown(self) -> None:
        """Wait until all workers of the group have called this method, and leave the group."""
        self._end(False)

    def abort(self) -> None:
        """Leave the group without waiting for the other workers."""
        self._end(True)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default time-out of operations."""
        self._timeout = timeout.total_seconds()

    def keep(self, work: _Work) -> None:
        """Do nothing when an operation begins. A subclass overrides this method."""

    def release(self, work: _Work) -> None:
        """Do nothing after a caller has waited for an operation. A subclass overrides this
        method."""

    # ---- one operation ----

    def _submit(
        self,
        what: str,
        dtype: torch.dtype,
        op: int,
        given: Sequence[Part],
        taken: Sequence[Part],
        output: Any,
        n_elems: int,
        opts: Any,
        last: Sequence[Callable[[], Any]] = (),
    ) -> _Work:
        """Sum memory of n_elems elements over the group, and return the operation.

        Args:
            what (str): name of the operation.
            dtype (torch.dtype): type of the elements.
            op (int): number of the reduction.
            given: parts of the memory that this worker fills. All other parts are zeros.
            taken: parts of the memory to which the result is copied.
            output: value of the operation's future.
            n_elems (int): number of elements of the memory.
            opts: options of torch.distributed, with time-out and root.
            last: functions to call when the results are in `taken`.
        """
        if self.closing.is_set():
            raise dist.DistBackendError(f"{what}: group '{self.title}' was shut down")
        seconds = opts.timeout.total_seconds() if opts is not None else -1
        self._n_operations += 1
        work = _Work(
            self,
            f"{what} (operation {self._n_operations})",
            output,
            seconds if seconds > 0 else self._timeout,
        )
        rt, start, kind = self._runtime, 0, NAMES[dtype]
        try:
            with rt.submission():
                root = getattr(opts, "rootRank", 0)
                agreement = rt.agree(what, kind, n_elems, op, root)
                work._operations.append(agreement)
                while start < n_elems:
                    slot = rt.own_slot(kind, op, n_elems) if start == 0 else None
                    slot = slot or rt.piece(kind, op, n_elems - start)
                    n = min(n_elems - start, slot.tensor.n_elems)
                    target = input_view(slot)[:n]
                    pieces = list(_overlap(given, start, n))
                    if sum(piece.numel() for _, piece in pieces) < n:
                        target.zero_()
                    for where, piece in pieces:
                        target[where].copy_(piece)
                    slot.tensor.push_pull(op)
                    pieces = list(_overlap(taken, start, n))

                    def collect(slot: Any = slot, pieces: Any = pieces) -> None:
                        if pieces:
                            result = output_view(slot)
                        for where, piece in pieces:
                            piece.copy_(result[where])

                    work._operations.append(Operation(slot, collect, agreement))
                    start += n
        except Error as error:
            raise work._error(error) from error
        work._last = list(last)
        return work

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements of a tensor as a flat tensor, which the caller must not write to."""
        check_device(tensor)
        return flatten(tensor.contiguous())

    def _room(self, tensor: torch.Tensor, last: list[Callable[[], Any]]) -> torch.Tensor:
        """Return a flat tensor to which the result for a tensor is written. If the tensor is not
        contiguous, append to `last` a function that copies the result to the tensor."""
        check_device(tensor)
        if tensor.is_contiguous():
            return flatten(tensor)
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        last.append(lambda: tensor.detach().copy_(flat.view(tensor.shape)))
        return flat

    def _reduce(
        self,
        what: str,
        given: Sequence[torch.Tensor],
        taken: Sequence[Part],
        output: Any,
        opts: Any,
        last: Sequence[Callable[[], Any]] = (),
    ) -> _Work:
        """Reduce flat tensors over the group. The operation's memory holds the tensors one after
        the other."""
        op, dtype = _operation(opts.reduceOp), given[0].dtype
        if dtype.is_complex:
            if op not in (bps.SUM, bps.AVG):
                raise ValueError(f"{what}: complex tensors can only be summed or averaged")
            given = [torch.view_as_real(flat).view(-1) for flat in given]
            taken = [(2 * at, torch.view_as_real(flat).view(-1)) for at, flat in taken]
            dtype = given[0].dtype
        parts = _consecutive(given)
        n = _length(parts)
        return self._submit(what, wire_dtype(dtype), op, parts, taken, output, n, opts, last)

    def _move(
        self,
        what: str,
        given: Sequence[Part],
        taken: Sequence[Part],
        output: Any,
        n_elems: int,
        item: int,
        opts: Any,
        last: Sequence[Callable[[], Any]] = (),
    ) -> _Work:
        """Copy flat tensors to other workers by means of a sum of bytes. Each worker takes the
        parts of the sum that it needs. item: size of an element in bytes."""
        given = [(at * item, _as_bytes(flat)) for at, flat in given]
        taken = [(at * item, _as_bytes(flat)) for at, flat in taken]
        return self._submit(
            what, torch.uint8, bps.SUM, given, taken, output, n_elems * item, opts, last
        )

    # ---- collectives ----

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce a tensor over the group, in place."""
        last: list[Callable[[], Any]] = []
        (tensor,) = tensors
        flat = self._flat(tensor)
        return self._reduce(
            "all_reduce", [flat], [(0, self._room(tensor, last))], tensors, opts, last
        )

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce several tensors over the group, in place."""
        return _Many([self.allreduce([tensor], opts) for tensor in tensors])

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce a tensor over the group; only the root gets the result."""
        last: list[Callable[[], Any]] = []
        (tensor,) = tensors
        taken = [(0, self._room(tensor, last))] if opts.rootRank == self._rank else []
        return self._reduce("reduce", [self._flat(tensor)], taken, tensors, opts, last)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Overwrite a tensor with the tensor of the root."""
        last: list[Callable[[], Any]] = []
        (tensor,) = tensors
        given, taken = [], []
        if opts.rootRank == self._rank:
            given = [(0, self._flat(tensor))]
        else:
            taken = [(0, self._room(tensor, last))]
        n, item = tensor.numel(), tensor.element_size()
        return self._move("broadcast", given, taken, tensors, n, item, opts, last)

    def _gather_parts(
        self,
        what: str,
        flat: torch.Tensor,
        outputs: Sequence[torch.Tensor],
        output: Any,
        opts: Any,
        last: list[Callable[[], Any]],
    ) -> _Work:
        """Gather the flat tensors of all workers into `outputs` at every worker. The lengths of the
        tensors may differ."""
        if len(outputs) != self._size or outputs[self._rank].numel() != flat.numel():
            raise ValueError(
                f"{what}: the outputs must be {self._size} tensors, and tensor {self._rank} must "
                f"have {flat.numel()} elements"
            )
        if any(out.dtype != flat.dtype for out in outputs):
            raise ValueError(f"{what}: input and outputs must have the same type")
        taken = _consecutive(outputs)
        given = [(taken[self._rank][0], flat)]
        n, item = _length(taken), flat.element_size()
        return self._move(what, given, taken, output, n, item, opts, last)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gather each worker's tensor at all workers; shapes may differ between ranks."""
        last: list[Callable[[], Any]] = []
        flats = [self._room(out, last) for out in outputs[0]]
        return self._gather_parts("all_gather", self._flat(inputs[0]), flats, outputs, opts, last)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        """Gather several tensors; `outputs` has a list for each rank."""
        columns = [[row[i] for row in outputs] for i in range(len(inputs))]
        return _Many([self.allgather([column], [t], opts) for column, t in zip(columns, inputs)])

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Concatenate the workers' tensors, which have equal sizes, in `output`."""
        last: list[Callable[[], Any]] = []
        flat = self._flat(input)
        if output.numel() != flat.numel() * self._size:
            raise ValueError(
                f"all_gather_single: the output has {output.numel()} elements, not {self._size} x "
                f"{flat.numel()}"
            )
        outputs = self._room(output, last).split(flat.numel()) if flat.numel() else []
        outputs = outputs or [flat] * self._size
        return self._gather_parts("all_gather_single", flat, outputs, [output], opts, last)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        """Apply :meth:`all_gather_single` to each pair of output and input."""
        return _Many([self.all_gather_single(out, t, opts) for out, t in zip(outputs, inputs)])

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        """Gather the tensors of all workers at the root."""
        last: list[Callable[[], Any]] = []
        flat, taken = self._flat(inputs[0]), []
        n = flat.numel()
        if opts.rootRank == self._rank:
            if len(outputs[0]) != self._size or any(out.numel() != n for out in outputs[0]):
                raise ValueError(f"gather: the root needs {self._size} outputs of {n} elements")
            taken = _consecutive([self._room(out, last) for out in outputs[0]])
        given = [(self._rank * n, flat)]
        size = self._size * n
        return self._move("gather", given, taken, outputs, size, flat.element_size(), opts, last)

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        """Send tensor r of the root's list to rank r."""
        last: list[Callable[[], Any]] = []
        (output,) = outputs
        flat, given = self._room(output, last), []
        n = flat.numel()
        if opts.rootRank == self._rank:
            if len(inputs[0]) != self._size or any(t.numel() != n for t in inputs[0]):
                raise ValueError(f"scatter: the root needs {self._size} inputs of {n} elements")
            given = _consecutive([self._flat(t) for t in inputs[0]])
        taken, size = [(self._rank * n, flat)], self._size * n
        return self._move("scatter", given, taken, outputs, size, flat.element_size(), opts, last)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        """Reduce each tensor of a list over the group, and give result r to rank r. Sizes may
        differ."""
        last: list[Callable[[], Any]] = []
        flats = [self._flat(t) for t in inputs[0]]
        if len(flats) != self._size or flats[self._rank].numel() != outputs[0].numel():
            raise ValueError(
                f"reduce_scatter needs {self._size} inputs, and input {self._rank} must have as "
                "many elements as the output"
            )
        at = sum(flat.numel() for flat in flats[: self._rank])
        taken = [(at, self._room(outputs[0], last))]
        return self._reduce("reduce_scatter", flats, taken, outputs, opts, last)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduce a tensor over the group, and give each worker an equal part of the result."""
        last: list[Callable[[], Any]] = []
        flat, n = self._flat(input), output.numel()
        if flat.numel() != n * self._size:
            raise ValueError(
                f"reduce_scatter_single: the input has {flat.numel()} elements, not {self._size} x "
                f"{n}"
            )
        taken = [(self._rank * n, self._room(output, last))]
        return self._reduce("reduce_scatter_single", [flat], taken, [output], opts, last)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        """Apply :meth:`reduce_scatter_single` to each pair of output and input."""
        return _Many([self.reduce_scatter_single(out, t, opts) for out, t in zip(outputs, inputs)])

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        """Send tensor r of the list to rank r. Internally every worker receives the tensors of all
        workers."""
        last: list[Callable[[], Any]] = []
        given = [self._flat(t) for t in inputs]
        taken = [self._room(out, last) for out in outputs]
        return self._exchange(given, taken, outputs, opts, last)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any,
    ) -> Work:
        """Send part r of a tensor to rank r. Internally every worker receives the tensors of all
        workers."""
        last: list[Callable[[], Any]] = []
        flats = []
        pairs = [
            ("input", self._flat(input), input, input_splits),
            ("output", self._room(output, last), output, output_splits),
        ]
        for name, flat, tensor, splits in pairs:
            rows = tensor.shape[0] if tensor.dim() else 1
            if not splits:
                splits = [rows // self._size] * self._size
            if len(splits) != self._size or sum(splits) != rows:
                raise ValueError(
                    f"all_to_all_single: {rows} rows of the {name} cannot be split as {splits}"
                )
            row = flat.numel() // max(rows, 1)
            flats.append(list(flat.split([n * row for n in splits])))
        return self._exchange(flats[0], flats[1], [output], opts, last)

    def _exchange(
        self,
        given: list[torch.Tensor],
        taken: list[torch.Tensor],
        output: Any,
        opts: Any,
        last: list[Callable[[], Any]],
    ) -> _Work:
        """Do an all-to-all of flat tensors: exchange their lengths, then send all bytes to all
        workers."""
        n, me = self._size, self._rank
        if len(given) != n or len(taken) != n:
            raise ValueError(f"all_to_all needs lists of {n} tensors")
        mine = torch.tensor([flat.numel() for flat in given])
        table = torch.empty(n * n, dtype=torch.int64)
        self._gather_parts("all_to_all", mine, table.split(n), [table], opts, []).wait()
        ends = table.cumsum(0).tolist()
        starts = [0, *ends]
        for r in range(n):
            if taken[r].numel() != table[r * n + me]:
                raise ValueError(
                    f"all_to_all: rank {r} sends {table[r * n + me]} elements, but the output "
                    f"holds {taken[r].numel()}"
                )
        return self._move(
            "all_to_all",
            [(starts[me * n + r], given[r]) for r in range(n)],
            [(starts[r * n + me], taken[r]) for r in range(n)],
            output,
            ends[-1],
            given[0].element_size(),
            opts,
            last,
        )

    def barrier(self, opts: Any) -> Work:
        """Return an operation that is complete when all workers of the group have called this
        method."""
        return self._submit("barrier", torch.uint8, bps.SUM, [], [], [], 0, opts)

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Raise an error, because bps reduces dense tensors only.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "bps reduces only dense tensors: convert the tensor with .to_dense() first"
        )

    def _no_pairs(self, *args: Any) -> Work:
        raise NotImplementedError(
            "bps has no send and recv: create a group for these calls with "
            "torch.distributed.new_group(backend='gloo')"
        )

    send = recv = recv_anysource = _no_pairs


if torch.__version__ >= (2, 14):

    class _Group(_Collectives, torch._C._distributed_c10d.Backend):
        """A back-end of PyTorch. A process group of PyTorch calls the methods of this class."""

else:  # older PyTorch has no base class for back-ends in Python: derive from the process group

    class _Group(_Collectives, dist.ProcessGroup):  # type: ignore[no-redef]
        """A process group of bps. Older releases of PyTorch call some operations by other names."""

        _allgather_base = _Collectives.all_gather_single
        _reduce_scatter_base = _Collectives.reduce_scatter_single
        alltoall_base = _Collectives.all_to_all_single
        allgather_into_tensor_coalesced = _Collectives.all_gather_single_coalesced
        reduce_scatter_tensor_coalesced = _Collectives.reduce_scatter_single_coalesced
        _group_name = _group_desc = ""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._kept: dict[int, _Work] = {}

        def keep(self, work: _Work) -> None:
            """Keep the Python object of an operation alive, because callers in C++ hold no
            reference to it before PyTorch 2.7. Drop the oldest operation if there are more than
            KEPT_WORKS, which happens when callers never wait."""
            self._kept[id(work)] = work
            if len(self._kept) > KEPT_WORKS:
                self._kept.pop(next(iter(self._kept)), None)

        def release(self, work: _Work) -> None:
            """Drop the reference to an operation, because its caller has waited for it."""
            self._kept.pop(id(work), None)

        def getGroupName(self) -> str:  # noqa: N802
            """Return the name that PyTorch has given to the group."""
            return self._group_name

        def setGroupName(self, name: str) -> None:  # noqa: N802
            """Set the group's name."""
            self._group_name = name

        def getGroupDesc(self) -> str:  # noqa: N802
            """Return the description that PyTorch has given to the group."""
            return self._group_desc

        def setGroupDesc(self, desc: str) -> None:  # noqa: N802
            """Set the group's description."""
            self._group_desc = desc


# ---- groups ----


def _meet(store: Any, rank: int, size: int, part: str) -> tuple[str, int, int]:
    """Agree with the workers of a group on the name of the group's job, through PyTorch's store.
    Return the name, this worker's local rank, and the group's number of workers on this
    machine."""
    store.set(f"host/{rank}", _core.host_key())
    if rank == 0:
        hosts = [store.get(f"host/{r}").decode() for r in range(size)]
        store.set("job", json.dumps([_core.job_name(part), hosts]))
    name, hosts = json.loads(store.get("job").decode())
    return name, hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


_world: Job | None = None  # the job that all groups with all workers share
_world_users = 0
_world_is_ours = False  # True: a group has opened the job; False: init() has opened it


def _leave_world(has_failed: bool) -> None:
    global _world, _world_users, _world_is_ours
    _world_users -= 1
    if _core.is_initialized():
        _core.runtime().n_users = _world_users
    if _world_users:
        return
    _world, is_ours = None, _world_is_ours
    _world_is_ours = False
    if is_ours:
        _core.leave(has_failed)


def _create(options: Any, _: Any = None) -> _Group:
    """Create a group. PyTorch calls this function at all workers of the group."""
    global _world, _world_users, _world_is_ours
    rank, size = options.group_rank, options.group_size
    timeout, title = options.timeout.total_seconds(), options.group_id or "world"
    ranks = list(options.global_ranks_in_group) or list(range(size))
    is_world = ranks == list(range(dist.get_world_size() if dist.is_initialized() else size))
    times = {"timeout": timeout, "open_timeout": timeout}
    if is_world:
        if _world is None:
            _world_is_ours = not _core.is_initialized()
            if _world_is_ours:
                name, local, n_local = _meet(options.store, rank, size, "")
                _core.init(
                    job=name, rank=rank, size=size, local_rank=local, local_size=n_local, **times
                )
            _world, _world_users = _core.runtime().job, 0
            if (_world.rank, _world.size) != (rank, size):
                text = (
                    f"bps.init() made this worker rank {_world.rank} of {_world.size}, but "
                    f"init_process_group passes {rank} of {size}: give both the same rank and size"
                )
                _world = None
                raise ValueError(text)
        _world_users += 1
        _core.runtime().n_users = _world_users
        runtime = Runtime(_world, f"c10d/{title}/")
        return _Group(runtime, rank, size, timeout, title, _leave_world)
    name, local, n_local = _meet(options.store, rank, size, title)
    job = open_job(job=name, rank=rank, size=size, local_rank=local, local_size=n_local, **times)

    def leave(has_failed: bool) -> None:
        job.abort() if has_failed else job.close()

    return _Group(Runtime(job), rank, size, timeout, title, leave)


def _export(store: Any, rank: int, size: int) -> None:
    """Set the environment variables of torchrun, which libraries such as Accelerate and Lightning
    read.

    The variables are set only in workers that bpsrun has started. If such a worker opens a job
    again, the variables of bpsrun take precedence, so the variables of torchrun do no harm.
    """
    if "BPS_RANK" not in os.environ:
        return
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": _core.local_rank()}
    place |= {"LOCAL_WORLD_SIZE": _core.local_size()}
    place |= {"MASTER_ADDR": store.host, "MASTER_PORT": store.port}
    for name, value in place.items():
        os.environ.setdefault(name, str(value))


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """Handle the address ``bps://``. Rank, size and the address of the store come from the job of
    bps, so a script need not pass them."""
    if not _core.is_initialized():
        _core.init()
    rt = _core.runtime()
    rank, size = rt.job.rank, rt.job.size
    store, place = None, None
    if rank == 0:
        host = os.uname().nodename
        store = dist.TCPStore(host, 0, size, True, wait_for_workers=False)
        place = (host, store.port)
    host, port = rt.broadcast_object(place, 0)
    if store is None:
        store = dist.TCPStore(host, port, size, False)
    _export(store, rank, size)
    yield store, rank, size


def register() -> None:
    """Register the back-end with ``torch.distributed``. Further calls do nothing."""
    if "bps" not in dist.Backend.backend_list:
        dist.Backend.register_backend("bps", _create, extended_api=True, devices=["cpu"])
        register_rendezvous_handler("bps", _rendezvous)
