"""Collectives of the back-end "bps" of ``torch.distributed``.

Every collective is a sum of memory over the workers. In a broadcast, all workers but the root add
zeros. In an all-gather, each worker adds its bytes at its place, and zeros elsewhere. With each
collective the workers also compare their calls (``Runtime.agree``), so different calls are an
error. A collective sends its memory in slots, the reusable tensors of :mod:`bps._slots`. A group
uses its slots in the order in which the program calls the collectives.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import threading
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

import bps
from bps import _core
from bps._compression import RAW
from bps._library import CODES, OPS, Error
from bps._runtime import Runtime
from bps.torch._c10d_monitor import MonitoredBarriers
from bps.torch._c10d_sparse import sum_sparse
from bps.torch._c10d_work import GroupWork, ManyWorks, failure
from bps.torch._memory import Wire, check_device, described_type, flatten, wire_dtype
from bps.torch._parts import MOVE, Part, as_bytes, consecutive, length, scatter_sums, sum_parts

OPERATIONS = {
    dist.ReduceOp.SUM: bps.SUM,
    dist.ReduceOp.AVG: bps.AVG,
    dist.ReduceOp.MIN: bps.MIN,
    dist.ReduceOp.MAX: bps.MAX,
    dist.ReduceOp.PRODUCT: bps.PROD,
    dist.ReduceOp.PREMUL_SUM: bps.SUM,
    dist.ReduceOp.BAND: bps.BAND,
    dist.ReduceOp.BOR: bps.BOR,
    dist.ReduceOp.BXOR: bps.BXOR,
}
# Collectives whose tensors are sent in blocks after bps.torch.compress().
ENCODED = ("all_reduce", "reduce_scatter", "reduce_scatter_single")
BITWISE = (bps.BAND, bps.BOR, bps.BXOR)


def _factor(op: Any) -> Any:
    """Return the factor of PREMUL_SUM, a number or a tensor of one element. Return None for other
    operations."""
    return op.__getstate__()[1] if op == dist.ReduceOp.PREMUL_SUM else None


def _operation(op: Any) -> int:
    for theirs, ours in OPERATIONS.items():
        if op == theirs:
            return ours
    raise NotImplementedError(f"bps has no reduction {op}: use a gloo group instead")


class Collectives:
    """Provide the methods of a process group: the operations, and the start and end of the group.

    ``torch.distributed`` calls these methods, and passes tensors in lists of one tensor.

    Args:
        runtime (Runtime): runs the group's operations in its job.
        rank (int): this worker's number in the group.
        size (int): number of workers in the group.
        timeout (float): default time-out of an operation, in seconds.
        title (str): name of the group in messages.
        leave (callable): leaves the group's job, or aborts the job if the argument is True.
        store (Store): PyTorch's store of the group.
    """

    def __init__(
        self,
        runtime: Runtime,
        rank: int,
        size: int,
        timeout: float,
        title: str,
        leave: Callable[[bool], None],
        store: Any,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg] # to PyTorch's class, see Group
        self.title = title
        self._runtime, self._rank, self._size = runtime, rank, size
        self._timeout, self._leave = timeout, leave
        self._n_operations = 0
        self._monitor = MonitoredBarriers(store, rank, size)
        self.coding = RAW  # set by bps.torch.compress()
        self._coalesced: list[GroupWork] | None = None  # see start_coalescing()
        self.closing = threading.Event()
        self._works: queue.SimpleQueue[GroupWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        atexit.register(self._at_exit, os.getpid())

    # ---- start and end ----

    def getBackendName(self) -> str:  # noqa: N802
        """Return "bps"."""
        return "bps"

    def complete(self, work: GroupWork) -> None:
        """Make the group's thread complete the future of an operation.

        The group's thread also runs callbacks of futures. If a callback requests the future of
        a second operation, this method runs in the group's thread. It then completes the second
        operation at once.
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

    def keep(self, work: GroupWork) -> None:
        """Do nothing. A new operation calls this method. A subclass overrides this method to keep
        a reference to the operation."""

    def release(self, work: GroupWork) -> None:
        """Do nothing. An operation calls this method after a wait for the operation's results. A
        new ManyWorks calls this method for the operations that it combines. A subclass overrides
        this method to drop the reference that :meth:`keep` took."""

    def start_coalescing(self) -> None:
        """Begin to collect operations, which :meth:`end_coalescing` returns as one."""
        self._coalesced = []

    def end_coalescing(self) -> Work | None:
        """Return the operations since :meth:`start_coalescing` as one operation."""
        works, self._coalesced = self._coalesced, None
        return ManyWorks(works) if works else None

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of operations that this worker has submitted to the group."""
        return self._n_operations

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing, because the operations are counted from the start of the group."""

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Wait until all workers of the group have called this method.

        Raises:
            DistBackendError: a worker had not called this method before the time-out. The text at
                rank 0 names the first missing worker, or all if `wait_all_ranks` is True.
        """
        seconds = opts.timeout.total_seconds()
        try:
            self._monitor.wait(
                self._n_operations, seconds if seconds >= 0 else self._timeout, wait_all_ranks
            )
        except Error as error:
            raise failure(f"monitored_barrier in group '{self.title}'", error) from error

    # ---- one operation ----

    @property
    def runtime(self) -> Runtime:
        """The runtime of the group's operations."""
        return self._runtime

    def new_work(self, what: str, output: Any, opts: Any) -> GroupWork:
        """Return a work without operations.

        Args:
            what (str): name of the operation.
            output: value of the operation's future.
            opts: options of torch.distributed, with time-out.

        Raises:
            DistBackendError: the group was shut down.
        """
        if self.closing.is_set():
            raise failure(what, Error(CODES["ECLOSED"], f"group '{self.title}' was shut down"))
        seconds = opts.timeout.total_seconds() if opts is not None else -1
        self._n_operations += 1
        title = f"{what} (operation {self._n_operations})"
        return GroupWork(self, title, output, seconds if seconds > 0 else self._timeout)

    def submitted(self, work: GroupWork) -> GroupWork:
        """Return a work whose operations have been submitted. Note the work while the operations
        are coalesced."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _submit(
        self,
        what: str,
        wire: Wire,
        op: int,
        given: Sequence[Part],
        taken: Sequence[Part],
        output: Any,
        n_values: int,
        text: str,
        opts: Any,
        last: Sequence[Callable[[], Any]] = (),
        is_scattered: bool = False,
        lengths: Sequence[int] = (),
    ) -> GroupWork:
        """Submit memory of `n_values` values for reduction over the group. Return the operation.

        Args:
            what (str): name of the operation.
            wire (torch.dtype or str): type in which the elements are sent.
            op (int): the reduction, for example bps.SUM.
            given: parts of the memory that this worker fills. All other parts are zeros.
            taken: parts of the memory to which the result is copied.
            output: value of the operation's future.
            n_values (int): number of values of the memory.
            text (str): what must be equal at all workers. The root is added to the text.
            opts: options of torch.distributed, with time-out and root.
            last: functions to call when the results are in `taken`.
            is_scattered (bool): each worker takes an equal part of the memory, in the order of the
                ranks.
            lengths (sequence of int): for a gather, how many values each worker gives. They follow
                each other in the memory.
        """
        work = self.new_work(what, output, opts)
        rt, root = self._runtime, getattr(opts, "rootRank", None)
        try:
            with rt.submission():
                agreement = rt.agree(what, text if root is None else f"{text}, root {root}")
                if is_scattered and rt.slots.may_shard():
                    parts = scatter_sums(rt, wire, op, given, taken[0][1], agreement)
                elif lengths:
                    ends = [*itertools.accumulate(lengths)]
                    owners = [(r, end - n, end) for r, (n, end) in enumerate(zip(lengths, ends))]
                    whole = (given, taken, n_values, agreement)
                    parts = sum_parts(rt, wire, op, *whole, owners=owners, **MOVE)
                else:
                    parts = sum_parts(
                        rt, wire, op, given, taken, n_values, agreement, has_own_slot=True
                    )
                work._operations = [agreement, *parts]
        except Error as error:
            raise work.failure(error) from error
        work._last = list(last)
        return self.submitted(work)

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements of a tensor as a flat tensor, which the caller must not write to."""
        check_device(tensor)
        return flatten(tensor.contiguous())

    def _room(self, tensor: torch.Tensor, last: list[Callable[[], Any]]) -> torch.Tensor:
        """Return a flat tensor that receives the result for `tensor`. If `tensor` is not
        contiguous, append to `last` a function that copies the result to `tensor`."""
        check_device(tensor)
        if tensor.is_contiguous():
            return flatten(tensor)
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
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
        is_scattered: bool = False,
    ) -> GroupWork:
        """Reduce flat tensors over the group. The operation's memory holds the tensors one after
        the other. is_scattered: see :meth:`_submit`."""
        op, dtype = _operation(opts.reduceOp), given[0].dtype
        factor = _factor(opts.reduceOp)
        if factor is not None:
            if not (dtype.is_floating_point or dtype.is_complex):
                raise ValueError(f"{what}: PREMUL_SUM needs floating-point tensors, not {dtype}")
            given = [flat * factor for flat in given]
        if op in BITWISE and (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"{what}: {opts.reduceOp} needs tensors of integers, not {dtype}")
        if dtype.is_complex:
            if op not in (bps.SUM, bps.AVG):
                raise ValueError(f"{what}: complex tensors can only be summed or averaged")
            given = [torch.view_as_real(flat).view(-1) for flat in given]
            taken = [(2 * at, torch.view_as_real(flat).view(-1)) for at, flat in taken]
            dtype = given[0].dtype
        parts = consecutive(given)
        n = length(parts)
        text, wire = f"{n} elements of {described_type(dtype)}, {OPS[op]}", wire_dtype(dtype)
        if is_scattered:
            text = f"{text} in equal parts"
        block = self.coding.block_of(described_type(dtype), n * dtype.itemsize)
        if block and what in ENCODED and op in (bps.SUM, bps.AVG) and factor is None:
            text, wire = f"{text}{self.coding}", block
        return self._submit(what, wire, op, parts, taken, output, n, text, opts, last, is_scattered)

    def _move(
        self,
        what: str,
        given: Sequence[Part],
        taken: Sequence[Part],
        output: Any,
        n_values: int,
        dtype: torch.dtype,
        opts: Any,
        last: Sequence[Callable[[], Any]] = (),
        lengths: Sequence[int] = (),
    ) -> GroupWork:
        """Copy flat tensors to other workers by means of a sum of bytes. Each worker takes the
        parts of the sum that it needs. dtype: type of the elements. lengths: see :meth:`_submit`,
        in elements."""
        item, text = dtype.itemsize, f"{n_values} elements of {described_type(dtype)}"
        if len(set(lengths)) > 1:
            text = f"{text} in parts {zlib.crc32(repr([*lengths]).encode()):x}"
        given = [(at * item, as_bytes(flat)) for at, flat in given]
        taken = [(at * item, as_bytes(flat)) for at, flat in taken]
        return self._submit(
            what, torch.uint8, bps.SUM, given, taken, output, n_values * item, text, opts, last,
            lengths=[n * item for n in lengths],
        )  # fmt: skip

    # ---- collectives ----

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce a tensor over the group, in place. A sparse tensor (COO) can be summed."""
        last: list[Callable[[], Any]] = []
        (tensor,) = tensors
        if tensor.layout == torch.sparse_coo:
            return sum_sparse(self, tensor, opts)
        flat = self._flat(tensor)
        return self._reduce(
            "all_reduce", [flat], [(0, self._room(tensor, last))], tensors, opts, last
        )

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce several tensors over the group, in place."""
        return ManyWorks([self.allreduce([tensor], opts) for tensor in tensors])

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
        n = tensor.numel()
        return self._move("broadcast", given, taken, tensors, n, tensor.dtype, opts, last)

    def _gather_parts(
        self,
        what: str,
        flat: torch.Tensor,
        outputs: Sequence[torch.Tensor],
        output: Any,
        opts: Any,
        last: list[Callable[[], Any]],
    ) -> GroupWork:
        """Gather the flat tensors of all workers into `outputs` at every worker. The lengths of the
        tensors may differ."""
        if len(outputs) != self._size or outputs[self._rank].numel() != flat.numel():
            raise ValueError(
                f"{what}: the outputs must be {self._size} tensors, and tensor {self._rank} must "
                f"have {flat.numel()} elements"
            )
        if any(out.dtype != flat.dtype for out in outputs):
            raise ValueError(f"{what}: input and outputs must have the same type")
        taken = consecutive(outputs)
        given = [(taken[self._rank][0], flat)]
        lengths = [out.numel() for out in outputs]
        whole = (given, taken, output, length(taken), flat.dtype)
        return self._move(what, *whole, opts, last, lengths)

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
        return ManyWorks(
            [self.allgather([column], [t], opts) for column, t in zip(columns, inputs)]
        )

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Write the workers' tensors to `output`, one after the other. All have the same size."""
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
        return ManyWorks([self.all_gather_single(out, t, opts) for out, t in zip(outputs, inputs)])

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
            taken = consecutive([self._room(out, last) for out in outputs[0]])
        given = [(self._rank * n, flat)]
        size = self._size * n
        lengths = [n] * self._size
        return self._move("gather", given, taken, outputs, size, flat.dtype, opts, last, lengths)

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
            given = consecutive([self._flat(t) for t in inputs[0]])
        taken, size = [(self._rank * n, flat)], self._size * n
        return self._move("scatter", given, taken, outputs, size, flat.dtype, opts, last)

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
        is_even = all(flat.numel() == outputs[0].numel() for flat in flats)
        return self._reduce("reduce_scatter", flats, taken, outputs, opts, last, is_even)

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
        return self._reduce("reduce_scatter_single", [flat], taken, [output], opts, last, True)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        """Apply :meth:`reduce_scatter_single` to each pair of output and input."""
        return ManyWorks(
            [self.reduce_scatter_single(out, t, opts) for out, t in zip(outputs, inputs)]
        )

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
    ) -> GroupWork:
        """Do an all-to-all of flat tensors: exchange and compare the lengths of all tensors, then
        copy the tensors with :meth:`_move`."""
        n, me = self._size, self._rank
        if len(given) != n or len(taken) != n:
            raise ValueError(f"all_to_all needs lists of {n} tensors")
        mine = torch.tensor([flat.numel() for flat in (*given, *taken)], device="cpu")
        both = torch.empty(2 * n * n, dtype=torch.int64, device="cpu")
        self._gather_parts("all_to_all", mine, both.split(2 * n), [both], opts, []).wait()
        table, room = both.view(n, 2 * n).split(n, 1)
        if not torch.equal(table, room.t()):  # at all workers
            r, s = (table != room.t()).nonzero()[0].tolist()
            raise ValueError(
                f"all_to_all: rank {r} sends {table[r, s]} elements to rank {s}, but the output of "
                f"rank {s} holds {room[s, r]}"
            )
        ends = table.flatten().cumsum(0).tolist()
        starts = [0, *ends]
        return self._move(
            "all_to_all",
            [(starts[me * n + r], given[r]) for r in range(n)],
            [(starts[r * n + me], taken[r]) for r in range(n)],
            output,
            ends[-1],
            given[0].dtype,
            opts,
            last,
            table.sum(1).tolist(),
        )

    def barrier(self, opts: Any) -> Work:
        """Return an operation that is complete when all workers of the group have called this
        method."""
        return self._submit("barrier", torch.uint8, bps.SUM, [], [], [], 0, "no values", opts)

    def _no_pairs(self, *args: Any) -> Work:
        raise NotImplementedError(
            "bps has no send and recv: create a group for these calls with "
            "torch.distributed.new_group(backend='gloo')"
        )

    send = recv = recv_anysource = _no_pairs
