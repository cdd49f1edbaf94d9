"""Tensors in memory that is shared with the agent: one method per C function, see bpsclient(3)."""

from __future__ import annotations

import ctypes
import errno
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bps._library import (
    BLOCKS,
    DTYPES,
    PRIORITY_AUTO,
    SUM,
    Info,
    InfoStruct,
    Worker,
    WorkerStruct,
    check,
    lib,
    milliseconds,
    size_of,
)

if TYPE_CHECKING:
    import numpy as np

    from bps._job import Job

Shape = int | Sequence[int]


def workers_of(call: Callable[[Any, int], int]) -> list[Worker]:
    """Return the workers that a function of the library lists.

    Args:
        call: takes memory for the workers and its length, and returns how many there are.
    """
    n = check(call(None, 0))
    while True:
        raw = (WorkerStruct * max(n, 1))()
        room, n = n, check(call(raw, n))
        if n <= room:
            return [
                Worker(
                    w.rank,
                    bool(w.is_lost),
                    bool(w.is_new),
                    bool(w.is_missing),
                    w.host.decode(errors="replace"),
                    w.why.decode(errors="replace"),
                )
                for w in raw[:n]
            ]


class Tensor:
    """A declared tensor in memory that is shared with the agent.

    A tensor keeps its :class:`Job` object alive, but not the job itself. After the job is closed,
    the program must not use the memory of the tensor.

    Attributes:
        job (Job): the job in which it was declared.
        name (str): its name, the same at all workers.
        dtype (str): its element type, a key of :data:`bps.DTYPES`.
        shape (tuple[int, ...]): its shape.
        n_values (int): the number of its values.
        n_bytes (int): the size of its input; its output has the same size.

    Of a tensor that is declared in shards, this worker gets only the values :attr:`shard` of each
    result. Its :attr:`output` is a vector of these values.

    A tensor of type "q8", "q4" or "sign" holds blocks of 8, 4 or 1 bits per value. Write its values
    with :meth:`fill`, and read them with :meth:`read`. Its :attr:`input` and :attr:`output` are the
    bytes of the blocks, in the shape (blocks, bytes of a block).
    """

    def __init__(
        self,
        job: Job,
        handle: int,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        is_sharded: bool = False,
    ) -> None:
        self.job, self.name, self.dtype, self.shape = job, name, dtype, shape
        self.n_values = math.prod(shape)
        self.n_bytes = size_of(dtype, self.n_values)
        self._handle, self._is_sharded = handle, is_sharded
        self._input: np.ndarray | None = None
        job._tensors.add(self)

    def _view(self, address: int) -> np.ndarray:
        import numpy as np

        raw = (ctypes.c_char * self.n_bytes).from_address(address)
        flat = np.frombuffer(raw, dtype=DTYPES[self.dtype][1])
        shape = (-1, BLOCKS[self.dtype][1]) if self.dtype in BLOCKS else self.shape
        return flat.reshape(shape)

    def _result_view(self, address: int) -> np.ndarray:
        """Return the result at an address, or this worker's shard of it, read-only."""
        view = self._view(address)
        if self._is_sharded:
            shard = self.shard
            values = BLOCKS[self.dtype][0] if self.dtype in BLOCKS else 1
            flat = view if self.dtype in BLOCKS else view.reshape(-1)
            view = flat[shard.start // values : shard.stop // values]
        view.flags.writeable = False
        return view

    @property
    def shard(self) -> slice:
        """The values of each result that this worker gets: all of them, or those of its shard."""
        if not self._is_sharded:
            return slice(0, self.n_values)
        first, n = ctypes.c_uint64(), ctypes.c_uint64()
        check(lib.bps_shard(self._handle, ctypes.byref(first), ctypes.byref(n)))
        return slice(first.value, first.value + n.value)

    @property
    def handle(self) -> int:
        """Return the handle for calls of the C library."""
        self.job.handle  # noqa: B018 - raises an error if the job cannot be used
        return self._handle

    @property
    def input_address(self) -> int:
        """Address of the ``n_bytes`` bytes that the next push_pull reads. Write to these bytes only
        while no push_pull is in flight."""
        return lib.bps_input(self.handle)

    @property
    def output_address(self) -> int | None:
        """Address of the result of the last completed round. The result has ``n_bytes`` bytes and
        must not be written to. None before the first round."""
        return lib.bps_output(self.handle)

    @property
    def result_address(self) -> int:
        """Address of the result of the last completed round, which must exist."""
        address = self.output_address
        assert address, "a round is complete"
        return address

    @property
    def input(self) -> np.ndarray | None:
        """The input as a NumPy array; None while the job is suspended."""
        if self.handle and self._input is None and not self.job._is_suspended:
            self._input = self._view(self.input_address)
        return self._input

    @property
    def output(self) -> np.ndarray | None:
        """The result of the last completed round, read-only; None if no round is complete. The
        array is valid until the second push_pull after the round that the array belongs to."""
        address = self.output_address
        return self._result_view(address) if address else None

    @property
    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """The two result buffers, read-only, valid until the job is suspended or closed.

        The result of round ``n`` is in ``outputs[n & 1]``; ``info.round`` is the last completed
        round. So a program can read this property once, and use both arrays in all rounds. These
        buffers do not hold averages of integers. For such averages, use :attr:`output`.
        """
        addresses = (ctypes.c_void_p * 2)()
        check(lib.bps_outputs(self.handle, addresses))
        return self._result_view(addresses[0] or 0), self._result_view(addresses[1] or 0)

    def map_results(self) -> Results:
        """Map the two result buffers again, copy-on-write, so that the caller may write to them.

        Raises:
            Error: -EOPNOTSUPP in a job of one worker, whose results are not shared with an agent.
        """
        handle = ctypes.c_void_p()
        check(lib.bps_results_map(self.handle, ctypes.byref(handle)))
        return Results(self, handle)

    def write_memory(self, at: int, address: int, n_bytes: int) -> None:
        """Copy ``n_bytes`` bytes from the memory at ``address`` to the input. In the input, the
        copied bytes begin at the byte offset ``at``."""
        check(lib.bps_write(self.handle, at, address, n_bytes))

    def read_memory(self, at: int, address: int, n_bytes: int) -> None:
        """Copy ``n_bytes`` bytes of the output to the memory at ``address``. In the output, the
        copied bytes begin at the byte offset ``at``."""
        check(lib.bps_read(self.handle, at, address, n_bytes))

    def fill(self, src: Any, scale: float = 1.0, residual: np.ndarray | None = None) -> None:
        """Multiply the values of ``src`` by a factor, and write the products to the tensor's input.
        The tensor must have a floating-point type or a block type.

        Args:
            src: an array of n_values values, of f32 or of a type that NumPy converts to f32 safely.
            scale (float): the factor, rounded to f32. Each product is rounded once, to the nearest
                value, ties to even. Products for blocks are rounded to f32, and then encoded.
            residual (numpy.ndarray, optional): for block types, n_values values of f32, zeros at
                first. They are added to the products before they are encoded, and then become the
                errors of this call (error feedback). Save the array with a checkpoint.

        Raises:
            Error: EBUSY while a push_pull of this tensor is in flight; -EINVAL for a tensor of
                integers, or a residual of a type without blocks. Neither the input nor the residual
                has changed then.
            ValueError: an array has another size or type.

        Example:
            >>> t = job.declare("gradient", "q8", grad.shape)
            >>> residual = np.zeros(grad.size, np.float32)
            >>> t.fill(grad, residual=residual)
            >>> t.push_pull(bps.AVG)
            >>> t.wait()
            >>> mean = t.read()
        """
        import numpy as np

        src = np.asarray(src)
        if not np.can_cast(src.dtype, np.float32) or src.size != self.n_values:
            raise ValueError(
                f"{self.name}: the array has {src.size} values of {src.dtype}, but fill() needs "
                f"{self.n_values} of f32"
            )
        if residual is not None and (
            residual.dtype != np.float32
            or residual.size != self.n_values
            or not residual.flags.c_contiguous
            or not residual.flags.writeable
        ):
            raise ValueError(
                f"{self.name}: residual must be a contiguous writable float32 array of "
                f"{self.n_values} values"
            )
        src = np.ascontiguousarray(src, dtype=np.float32)
        at = None if residual is None else residual.ctypes.data
        self.fill_memory(0, src.ctypes.data, self.n_values, scale, at)

    def fill_memory(
        self, first: int, address: int, n_values: int, scale: float, residual: int | None = None
    ) -> None:
        """Do what :meth:`fill` does for ``n_values`` values of f32 at ``address``. In the tensor,
        the values begin at value ``first``, which must be the first value of a block.

        Args:
            residual (int, optional): address of the ``n_values`` residuals.
        """
        check(lib.bps_fill_at_f32(self.handle, first, address, n_values, scale, residual))

    def read_values(self, first: int, address: int, n_values: int, scale: float) -> None:
        """Multiply ``n_values`` values of the output, from value ``first`` on, by ``scale``, and
        write them to the memory at ``address`` as f32. ``first`` must be the first value of a
        block."""
        check(lib.bps_read_at_f32(self.handle, first, address, n_values, scale))

    def read(self, scale: float = 1.0) -> np.ndarray:
        """Return the output, multiplied by a factor. The tensor must have a floating-point type or
        a block type.

        Args:
            scale (float): the factor, rounded to f32.

        Returns:
            numpy.ndarray: f32 values in the tensor's shape, or a vector of the shard's values.

        Raises:
            Error: -EINVAL for a tensor of integers, or if no round is complete.
        """
        import numpy as np

        shard = self.shard
        first, n = shard.start, shard.stop - shard.start
        out = np.empty(self.shape if n == self.n_values else n, np.float32)
        self.read_values(first, out.ctypes.data, n, scale)
        return out

    @property
    def contributors(self) -> int:
        """Number of workers whose values are in the last completed round."""
        return lib.bps_contributors(self.handle)

    @property
    def info(self) -> Info:
        """The last completed round, and whose values are in it."""
        raw = InfoStruct()
        check(lib.bps_tensor_info(self.handle, ctypes.byref(raw)))
        return Info(
            raw.round,
            raw.contributors,
            raw.contributors_most,
            bool(raw.is_mine_missing),
            bool(raw.is_late),
        )

    def contributor_list(self) -> list[Worker]:
        """Return the workers of the job. ``is_missing`` is set for each worker whose machine's
        values are missing in some part of this tensor's last round."""
        return workers_of(lambda raw, n: lib.bps_contributor_list(self.handle, raw, n))

    def push_pull(self, op: int = SUM, priority: int = PRIORITY_AUTO) -> None:
        """Submit the input for reduction over all workers, and return at once.

        Args:
            op (int): one of SUM, PROD, MAX, MIN, AVG, and for integers BAND, BOR, BXOR. Sums of
                integers wrap; AVG of integers is the floor of the exact mean.
            priority (int): tensors with a larger priority are sent first. By default the tensor
                that was declared first is sent first.

        Raises:
            Error: EBUSY while a push_pull of this tensor is in flight. If the job has failed, the
                error with which the job failed.
        """
        check(lib.bps_push_pull(self.handle, op, priority))

    def abstain(self, op: int = SUM, priority: int = PRIORITY_AUTO) -> None:
        """Take part in the next round without values, and return at once.

        The round does not wait for this worker. Its result has the values of the other workers; an
        average is divided by the number of workers that gave values. If all workers abstain, the
        result is zeros, for every operation.

        Args:
            op (int): the operation of the workers that submit values, see :meth:`push_pull`.
            priority (int): see :meth:`push_pull`.

        Raises:
            Error: those of :meth:`push_pull`.

        Example:
            >>> t.push_pull(bps.AVG) if has_batch else t.abstain(bps.AVG)
            >>> mean = t.wait()
        """
        check(lib.bps_abstain(self.handle, op, priority))

    def push_pull_copy(
        self, src: Any, dst: np.ndarray | None = None, op: int = SUM, priority: int = PRIORITY_AUTO
    ) -> None:
        """Copy the array src, and submit the copy. When a later :meth:`wait` or :meth:`poll` finds
        that the round is complete, that method writes the result to dst. The arguments
        ``op`` and ``priority`` are those of :meth:`push_pull`."""
        import numpy as np

        if self.dtype in BLOCKS:
            raise ValueError(
                f"{self.name}: push_pull_copy() does not encode {self.dtype}: use fill(), "
                "push_pull() and read()"
            )
        kind = np.dtype(DTYPES[self.dtype][1])
        src = np.asarray(src)
        if not np.can_cast(src.dtype, kind, "same_kind"):
            raise ValueError(
                f"{self.name}: an array of {src.dtype} cannot be sent as {self.dtype} ({kind})"
            )
        src = np.ascontiguousarray(src, dtype=kind)
        if src.size != self.n_values:
            raise ValueError(
                f"{self.name}: the array has {src.size} values, but the tensor has {self.n_values}"
            )
        if dst is not None and (
            dst.dtype != kind
            or dst.size != src.size
            or not dst.flags.c_contiguous
            or not dst.flags.writeable
        ):
            raise ValueError(
                f"{self.name}: dst must be a contiguous writable {kind} array of {src.size} values"
            )
        address = dst.ctypes.data if dst is not None else None
        check(lib.bps_push_pull_copy(self.handle, src.ctypes.data, address, op, priority))
        self.job._copied[self._handle] = dst  # keep dst alive until the result is written

    def poll(self) -> bool:
        """Return True if the last submitted round is complete, or no round was submitted."""
        return check(lib.bps_poll(self.handle)) == 1

    def wait(self, timeout: float | None = None) -> np.ndarray | None:
        """Wait for the last submitted round, and return the output.

        Wait for at most ``timeout`` seconds. If ``timeout`` is None, use the job's time-out. After
        a KeyboardInterrupt the round is still in flight, and the caller may wait again.
        """
        self.finish(timeout, is_interruptible=True)
        return self.output

    def finish(self, timeout: float | None = None, is_interruptible: bool = False) -> None:
        """Wait as :meth:`wait` does, but return no array. Does not need NumPy.

        Args:
            timeout (float, optional): seconds; None: the job's time-out.
            is_interruptible (bool): let signal handlers run during the wait. A handler may raise
                KeyboardInterrupt.
        """
        if not is_interruptible:
            check(lib.bps_wait(self.handle, milliseconds(timeout)))
            return
        begun_ns = ctypes.c_uint64()
        handle, limit, rc = self.handle, milliseconds(timeout), -errno.EINTR
        while rc == -errno.EINTR:  # Python runs signal handlers before each repeated call
            rc = lib.bps_wait_intr(handle, limit, ctypes.byref(begun_ns))
        check(rc)


class Mapping:
    """Mapped memory of a :class:`Results`. When the Mapping is freed, the memory is unmapped."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle
        # Keep the memory at exit, because functions that run later may read it.
        weakref.finalize(self, lib.bps_results_unmap, handle).atexit = False


class Results:
    """The two result buffers of a tensor, mapped copy-on-write: no other process sees the caller's
    writes. :meth:`Tensor.map_results` returns this object.

    Attributes:
        mapping (Mapping): keeps the memory mapped, also after the job is closed.
    """

    def __init__(self, tensor: Tensor, handle: ctypes.c_void_p) -> None:
        self._tensor, self.mapping = tensor, Mapping(handle)

    def last(self) -> tuple[int, bool]:
        """Get the result of the last completed round. If the caller has written to the buffer of
        this result, this method first discards those writes.

        Returns:
            tuple: address of the result, and whether there were such writes.
        """
        self._tensor.handle  # noqa: B018 - raises an error if the job cannot be used
        address = ctypes.c_void_p()
        rc = check(lib.bps_results_last(self.mapping.handle, ctypes.byref(address)))
        return address.value or 0, rc == 1
