"""Jobs and tensors: one class per C struct, one method per C function, see bpsclient(3)."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bps import _compare
from bps._library import (
    ABI,
    CODES,
    DTYPES,
    PRIORITY_AUTO,
    SUM,
    DeclStruct,
    Error,
    Info,
    InfoStruct,
    Options,
    Traffic,
    TrafficStruct,
    Worker,
    WorkerStruct,
    check,
    dtype_number,
    encode,
    lib,
    milliseconds,
)

if TYPE_CHECKING:
    import numpy as np

Shape = int | Sequence[int]
DESCRIPTION_BYTES = 128  # length of the text with which workers compare their arrays


def _uuid(gpu: Any) -> bytes | None:
    """Return the 16 bytes of a GPU's UUID; None for None.

    The argument may be a string as nvidia-smi -L prints it ("GPU-8a2f..."), a uuid.UUID, or the
    UUID of PyTorch's device properties.

    Raises:
        Error: the argument is none of these.
    """
    if gpu is None:
        return None
    value, raw = getattr(gpu, "bytes", gpu), b""
    try:
        if isinstance(value, str):
            raw = bytes.fromhex(value.removeprefix("GPU-").replace("-", ""))
        elif isinstance(value, (bytes, bytearray, memoryview, list)):
            raw = bytes(value)
    except (TypeError, ValueError):
        pass  # `raw` stays empty, and the check below raises an error
    if len(raw) != 16:
        raise Error(
            -errno.EINVAL,
            "the argument is not a GPU's UUID: pass 16 bytes, or GPU-8a2f... as nvidia-smi -L "
            "prints it",
        )
    return raw


def _workers(call: Callable[[Any, int], int]) -> list[Worker]:
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
        n_elems (int): the number of its elements.
        n_bytes (int): the size of its input; its output has the same size.
    """

    def __init__(
        self, job: Job, handle: int, name: str, dtype: str, shape: tuple[int, ...]
    ) -> None:
        self.job, self.name, self.dtype, self.shape = job, name, dtype, shape
        self.n_elems = math.prod(shape)
        self.n_bytes = self.n_elems * int(DTYPES[dtype][1][1:])
        self._handle = handle
        self._input: np.ndarray | None = None
        job._tensors.add(self)

    def _view(self, address: int) -> np.ndarray:
        import numpy as np

        raw = (ctypes.c_char * self.n_bytes).from_address(address)
        return np.frombuffer(raw, dtype=DTYPES[self.dtype][1]).reshape(self.shape)

    @property
    def handle(self) -> int:
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
        if not address:
            return None
        view = self._view(address)
        view.flags.writeable = False
        return view

    @property
    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """The two result buffers, read-only, valid until the job is suspended or closed.

        The result of round ``n`` is in ``outputs[n & 1]``; ``info.round`` is the last completed
        round. So a program can read this property once, and use both arrays in all rounds. These
        buffers do not hold averages of integers. For such averages, use :attr:`output`.
        """
        addresses = (ctypes.c_void_p * 2)()
        check(lib.bps_outputs(self.handle, addresses))
        views = self._view(addresses[0] or 0), self._view(addresses[1] or 0)
        for view in views:
            view.flags.writeable = False
        return views

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

    def fill(self, src: Any, scale: float = 1.0) -> None:
        """Multiply the values of ``src`` by a factor, and write the products to the tensor's input.
        The tensor must have a floating-point type; bf16 is allowed.

        Args:
            src: an array of n_elems values, of f32 or of a type that NumPy converts to f32 safely.
            scale (float): the factor, rounded to f32. Each product is rounded once, to the nearest
                value, ties to even.

        Raises:
            Error: EBUSY while a push_pull of this tensor is in flight; -EINVAL for a tensor of
                integers.
        """
        import numpy as np

        src = np.asarray(src)
        if not np.can_cast(src.dtype, np.float32) or src.size != self.n_elems:
            raise ValueError(
                f"{self.name}: the array has {src.size} values of {src.dtype}, but fill() needs "
                f"{self.n_elems} of f32"
            )
        src = np.ascontiguousarray(src, dtype=np.float32)
        check(lib.bps_fill_f32(self.handle, src.ctypes.data, scale))

    def read(self, scale: float = 1.0) -> np.ndarray:
        """Return the output, multiplied by a factor. The tensor must have a floating-point type;
        bf16 is allowed.

        Args:
            scale (float): the factor, rounded to f32.

        Returns:
            numpy.ndarray: f32 values in the tensor's shape.

        Raises:
            Error: -EINVAL for a tensor of integers, or if no round is complete.
        """
        import numpy as np

        out = np.empty(self.shape, np.float32)
        check(lib.bps_read_f32(self.handle, out.ctypes.data, scale))
        return out

    @property
    def contributors(self) -> int:
        """Number of workers whose values are in the last completed round."""
        return lib.bps_contributors(self.handle)

    @property
    def info(self) -> Info:
        """The last completed round, and the number of workers that contributed to it."""
        raw = InfoStruct()
        check(lib.bps_tensor_info(self.handle, ctypes.byref(raw)))
        return Info(raw.round, raw.contributors, raw.contributors_most)

    def contributor_list(self) -> list[Worker]:
        """Return the workers of the job. ``is_missing`` is set for each worker whose values are
        missing in some part of this tensor's last round."""
        return _workers(lambda raw, n: lib.bps_contributor_list(self.handle, raw, n))

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

    def push_pull_copy(
        self, src: Any, dst: np.ndarray | None = None, op: int = SUM, priority: int = PRIORITY_AUTO
    ) -> None:
        """Copy the array src, and submit the copy. When a later :meth:`wait` or :meth:`poll` finds
        that the round is complete, that method writes the result to dst."""
        import numpy as np

        kind = np.dtype(DTYPES[self.dtype][1])
        src = np.asarray(src)
        if not np.can_cast(src.dtype, kind, "same_kind"):
            raise ValueError(
                f"{self.name}: an array of {src.dtype} cannot be sent as {self.dtype} ({kind})"
            )
        src = np.ascontiguousarray(src, dtype=kind)
        if src.size != self.n_elems:
            raise ValueError(
                f"{self.name}: the array has {src.size} values, but the tensor has {self.n_elems}"
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


class GpuTensor:
    """A tensor in device memory at ``address``. The result of a push_pull replaces the
    tensor's values. Methods take the address of a CUDA stream as a number. 0 is the default
    stream."""

    def __init__(
        self, job: Job, handle: ctypes.c_void_p, name: str, dtype: str, n_elems: int, address: int
    ) -> None:
        self.job, self.name, self.dtype, self.n_elems, self.address = (
            job,
            name,
            dtype,
            n_elems,
            address,
        )
        self._handle = handle

    @property
    def handle(self) -> ctypes.c_void_p:
        self.job.handle  # noqa: B018 - raises an error if the job cannot be used
        return self._handle

    @property
    def contributors(self) -> int:
        """Number of workers whose values are in the last completed round."""
        return lib.bps_contributors(self.handle)

    def push_pull(self, op: int = SUM, priority: int = PRIORITY_AUTO, stream: int = 0) -> None:
        """Submit for reduction the values that the tensor will have when the stream has completed
        all earlier work. Return at once, without waiting for this work.

        Raises:
            Error: -EOPNOTSUPP for AVG of integers; EBUSY while 8 rounds are in flight.
        """
        check(lib.bps_gpu_push_pull(self.handle, op, priority, stream))

    def wait_stream(self, stream: int = 0) -> None:
        """Make later work of the stream wait for the result of the last push_pull. Return at
        once."""
        check(lib.bps_gpu_wait_stream(self.handle, stream))

    def poll(self) -> bool:
        """Return whether the last submitted round is complete."""
        return check(lib.bps_poll(self.handle)) == 1

    def wait(self, timeout: float | None = None) -> None:
        """Block this thread until the last submitted round is complete."""
        check(lib.bps_wait(self.handle, milliseconds(timeout)))


class Job:
    """A job that this process has joined as a worker. :func:`bps.open` returns it.

    The end of a ``with`` block closes the job, or aborts it after an exception.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle: ctypes.c_void_p | None = handle
        self._pid = os.getpid()
        self._is_suspended = False
        self._tensors: weakref.WeakSet[Tensor] = weakref.WeakSet()
        # Before leaving the job, close() and abort() call stop(is_abort) of these objects.
        self.leaving: weakref.WeakSet[Any] = weakref.WeakSet()
        self._copied: dict[int, np.ndarray | None] = {}  # dst of push_pull_copy, by tensor handle

    @property
    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise Error(CODES["ECLOSED"], "the job is closed")
        return self._handle

    @property
    def handle(self) -> ctypes.c_void_p:
        self.check_process()
        return self._open_handle

    def check_mapped(self) -> None:
        """Raise an error if the job is closed or suspended. In these states, the inputs and outputs
        of the job's tensors do not exist."""
        # Test for the usual case first, because front-ends call this method for each gradient.
        if os.getpid() == self._pid and self._handle is not None and not self._is_suspended:
            return
        if self.handle and self._is_suspended:
            raise Error(CODES["ECLOSED"], "the job is suspended: call resume() first")

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the process that has joined the job."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Check that this process is not a forked child of the process that has joined the job.

        A forked child shares the memory of the tensors with its parent. So this check must come
        before each write into this memory.

        Raises:
            Error: EFORKED if this process is such a child.
        """
        if self.is_forked:
            raise Error(
                CODES["EFORKED"],
                f"this process was forked from process {self._pid}, which has joined the job. A "
                "forked process has no part in the job: call bps in the original process",
            )

    # A forked child may read these numbers, for example to choose its part of the data.
    rank = property(lambda self: lib.bps_rank(self._open_handle))
    size = property(lambda self: lib.bps_size(self._open_handle))
    local_rank = property(lambda self: lib.bps_local_rank(self._open_handle))
    local_size = property(lambda self: lib.bps_local_size(self._open_handle))

    def declare_group(
        self, decls: Iterable[tuple[str, str, Shape] | tuple[str, str, Shape, int]]
    ) -> list[Tensor]:
        """Declare tensors in one request to the agent.

        Args:
            decls: (name, dtype, shape) or (name, dtype, shape, digest) of each tensor. The shape of
                a vector may be an int. The digest is a 64-bit number that is made of what the
                worker stores in the tensor. All workers must give the same one.

        Returns:
            The tensors in the order of ``decls``. If a name was declared before, the
            :class:`Tensor` returned for this name refers to the existing tensor.

        Raises:
            Error: the code is EMISMATCH if this worker has already declared one of the names with a
                different type, size or digest. The code is EQUOTA if the tensors would exceed a
                quota.
        """
        known: list[tuple[str, str, tuple[int, ...]]] = []
        raw: list[DeclStruct] = []
        for name, dtype, shape, *digest in decls:
            known.append(
                (name, dtype, tuple(shape) if isinstance(shape, Iterable) else (int(shape),))
            )
            n_values = math.prod(known[-1][2])
            given = encode(name), dtype_number(dtype), n_values, *digest
            raw.append(DeclStruct(ctypes.sizeof(DeclStruct), *given))
        structs, handles = (DeclStruct * len(raw))(*raw), (ctypes.c_void_p * len(known))()
        check(lib.bps_declare_group(self.handle, structs, len(known), handles))
        return [Tensor(self, h, n, d, s) for h, (n, d, s) in zip(handles, known)]

    def declare(self, name: str, dtype: str, shape: Shape, digest: int = 0) -> Tensor:
        """Declare one tensor, see :meth:`declare_group`."""
        return self.declare_group([(name, dtype, shape, digest)])[0]

    def push_pull(
        self, tensors: Sequence[Tensor], op: int = SUM, priority: int = PRIORITY_AUTO
    ) -> None:
        """Submit several tensors with one wake-up of the agent. If an error is raised, no tensor
        was submitted."""
        handles = (ctypes.c_void_p * len(tensors))(*[t.handle for t in tensors])
        check(lib.bps_push_pull_group(handles, len(tensors), op, priority))

    def wait(self, tensors: Sequence[Tensor], timeout: float | None = None) -> None:
        """Wait until the rounds of all these tensors are complete."""
        handles = (ctypes.c_void_p * len(tensors))(*[t.handle for t in tensors])
        check(lib.bps_wait_group(handles, len(tensors), milliseconds(timeout)))

    def wait_some(self, tensors: Sequence[Tensor], timeout: float | None = None) -> list[Tensor]:
        """Wait until one or more of the tensors are complete, have failed, or are not in flight.

        Args:
            tensors: the tensors to wait for.
            timeout (float): seconds; None is the job's time-out.

        Returns:
            The tensors that are done, in the order of their completion on this machine; an empty
            list if ``tensors`` is empty. :meth:`Tensor.wait` then returns the result of each, or
            raises its failure, at once.

        Raises:
            Timeout: no tensor was complete before the time-out.

        Example:
            >>> left = set(tensors)
            >>> while left:
            ...     for t in job.wait_some(list(left)):
            ...         use(t.wait())
            ...         left.remove(t)
        """
        handles = (ctypes.c_void_p * len(tensors))(*[t.handle for t in tensors])
        done = (ctypes.c_size_t * len(tensors))()
        n = check(lib.bps_wait_some(handles, len(tensors), milliseconds(timeout), done))
        return [tensors[i] for i in done[:n]]

    def workers(self) -> list[Worker]:
        """Return the workers of the job by rank, including those that were lost."""
        return _workers(lambda raw, n: lib.bps_workers(self.handle, raw, n, None))

    def traffic(self) -> Traffic:
        """Return how many bytes this machine's agent has sent and received for all of its jobs, see
        bps_traffic(3)."""
        raw = TrafficStruct()
        check(lib.bps_traffic(self.handle, ctypes.byref(raw)))
        return Traffic(raw.instance, raw.sent_bytes, raw.received_bytes)

    def gpu_open(self, uuid: Any = None) -> None:
        """Prepare for tensors in the memory of a GPU. All workers of a machine must call this
        method.

        Args:
            uuid: UUID of the GPU, as 16 bytes or "GPU-8a2f...". None selects the current device
                of the calling thread.
        """
        check(lib.bps_gpu_open(self.handle, _uuid(uuid)))

    gpu_route = property(lambda self: lib.bps_gpu_route(self.handle).decode())

    def gpu_alloc(self, n_bytes: int) -> int:
        """Allocate zeroed device memory, see bps_gpu(3), and return its address."""
        address = ctypes.c_void_p()
        check(lib.bps_gpu_alloc(self.handle, n_bytes, ctypes.byref(address)))
        return address.value or 0

    def gpu_import(self, address: int, n_bytes: int) -> None:
        """Import device memory that this process has allocated itself. Tensors can then be declared
        in this memory."""
        check(lib.bps_gpu_import(self.handle, address, n_bytes))

    def gpu_release(self, address: int) -> None:
        """Release memory from :meth:`gpu_alloc` or :meth:`gpu_import`, see bps_gpu(3)."""
        check(lib.bps_gpu_release(self.handle, address))

    def gpu_declare(self, name: str, dtype: str, n_elems: int, address: int) -> GpuTensor:
        """Declare a tensor at this address, in memory from :meth:`gpu_alloc` or
        :meth:`gpu_import`."""
        handle = ctypes.c_void_p()
        check(
            lib.bps_gpu_declare(
                self.handle,
                encode(name),
                dtype_number(dtype),
                n_elems,
                address,
                ctypes.byref(handle),
            )
        )
        return GpuTensor(self, handle, name, dtype, n_elems, address)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all workers have called this method."""
        check(lib.bps_barrier(self.handle, milliseconds(timeout)))

    def checkpoint_barrier(self, timeout: float | None = None) -> int:
        """Wait until all workers have called this method and have no round in flight. Return the
        number of workers that have joined the job at this barrier."""
        return check(lib.bps_checkpoint_barrier(self.handle, milliseconds(timeout)))

    @property
    def is_new(self) -> bool:
        """Whether this worker joined while the job was running. Such a worker needs the state of
        the other workers."""
        return bool(lib.bps_is_new(self.handle))

    @property
    def root(self) -> int:
        """The lowest rank among the old workers.

        A worker is old if it is still in the job, and joined before the last barrier that admitted
        new workers.
        """
        return lib.bps_root(self.handle)

    def broadcast(
        self, array: np.ndarray, root: int = 0, timeout: float | None = None
    ) -> np.ndarray:
        """Overwrite a contiguous array with the array of rank ``root``. Return the overwritten
        array.

        Args:
            array (ndarray): an array with the same type and shape at all workers.
            root (int): rank of the worker whose values all workers get.
            timeout (float, optional): seconds; None: the job's time-out.

        Raises:
            TypeError: the array holds Python objects.
            ValueError: the array is not contiguous or not writable, or the arrays of the workers
                differ in type or shape.
        """
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError("broadcast: the array must be contiguous and writable")
        self._compare("broadcast", array, timeout)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        self.broadcast_memory(native.ctypes.data, native.nbytes, root, timeout)
        if native is not array:
            array[...] = native
        return array

    def _compare(self, what: str, array: np.ndarray, timeout: float | None) -> None:
        """Check that the arrays of all workers have the same type and shape.

        Raises:
            TypeError: the array holds Python objects.
            ValueError: the arrays differ.
        """
        _compare.check_values(what, array)
        mine = _compare.described(array.dtype.name, array.shape)
        src = ctypes.create_string_buffer(mine.encode()[: DESCRIPTION_BYTES - 1], DESCRIPTION_BYTES)
        dst = ctypes.create_string_buffer(DESCRIPTION_BYTES * self.size)
        addresses = ctypes.addressof(src), DESCRIPTION_BYTES, ctypes.addressof(dst)
        self.allgather_memory(*addresses, timeout)
        for rank in range(self.size):
            at = rank * DESCRIPTION_BYTES
            other = dst.raw[at : at + DESCRIPTION_BYTES].rstrip(b"\0")
            if other and other != src.raw.rstrip(b"\0"):
                raise ValueError(
                    f"{what}: rank {rank} has {other.decode(errors='replace')}, but rank "
                    f"{self.rank} has {mine}: all workers must pass arrays of the same type and "
                    "shape"
                )

    def broadcast_memory(
        self, address: int, n_bytes: int, root: int = 0, timeout: float | None = None
    ) -> None:
        """Overwrite ``n_bytes`` bytes at ``address`` with the bytes of rank ``root``."""
        check(lib.bps_broadcast(self.handle, address, n_bytes, root, milliseconds(timeout)))

    def allgather(self, array: Any, timeout: float | None = None) -> np.ndarray:
        """Return the arrays of all workers in one array. The array of rank r is at index [r].

        Args:
            array (ndarray): an array, or numbers, with the same type and shape at all workers.
            timeout (float, optional): seconds; None: the job's time-out.

        Raises:
            TypeError: the array holds Python objects.
            ValueError: the arrays of the workers differ in type or shape.
        """
        import numpy as np

        given = np.asarray(array)
        array = np.ascontiguousarray(given, given.dtype.newbyteorder("="))
        self._compare("allgather", array, timeout)
        out = np.empty((self.size, *array.shape), dtype=array.dtype)
        self.allgather_memory(array.ctypes.data, array.nbytes, out.ctypes.data, timeout)
        return out

    def allgather_memory(
        self, src: int, n_bytes: int, dst: int, timeout: float | None = None
    ) -> None:
        """Copy ``n_bytes`` bytes at address ``src`` from every worker to address ``dst``. The bytes
        of the workers follow each other in the order of the ranks."""
        check(lib.bps_allgather(self.handle, src, n_bytes, dst, milliseconds(timeout)))

    def close(self, timeout: float | None = None) -> None:
        """Wait until all workers have called this method. Then leave the job. Even if an error is
        raised, the job is closed in this process."""
        if self._handle is not None:
            self._stop(is_abort=False)
            handle, self._handle = self._handle, None
            check(lib.bps_close(handle, milliseconds(timeout)))

    def _stop(self, is_abort: bool) -> None:
        for one in list(self.leaving):
            one.stop(is_abort)

    def suspend(self, timeout: float | None = None) -> None:
        """Wait until all workers have called this method. Then leave the job. Declarations remain
        valid. Inputs and outputs do not exist until :meth:`resume`."""
        check(lib.bps_suspend(self.handle, milliseconds(timeout)))
        self._is_suspended = True
        for t in self._tensors:
            t._input = None

    def resume(self, size: int, rank: int = -1) -> None:
        """Join the job again, with rank ``rank`` (-1: any free rank) in a job of ``size`` workers.
        All inputs are then zero, and there is no output yet."""
        check(lib.bps_resume(self.handle, rank, size))
        self._is_suspended = False

    def abort(self) -> None:
        """Leave the job without waiting. The job then fails at the other workers, unless all of
        them have closed it."""
        if self._handle is not None:
            self._stop(is_abort=True)
            handle, self._handle = self._handle, None
            lib.bps_abort(handle)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def open(
    job: str | None = None,
    agent_socket: str | None = None,
    rank: int = -1,
    size: int = -1,
    local_rank: int = -1,
    local_size: int = -1,
    timeout: float | None = None,
    open_timeout: float | None = None,
    deterministic: bool | None = None,
    part_bytes: int = 0,
    on_agent_loss: str | None = None,
    backup: int | None = None,
    backup_grace: float | None = None,
    elastic: bool | None = None,
    max_size: int = -1,
) -> Job:
    """Join a job, and wait until all its workers have joined.

    An argument that is not given comes from the environment, see bpsclient(3). Times are in
    seconds.

    Args:
        job: the job's name.
        agent_socket: path of the agent's socket.
        rank, size: this worker's number, and the number of workers in the job.
        local_rank, local_size: this worker's number on this machine, and the number of the job's
            workers on this machine.
        timeout: limit of every wait for which the caller passes no limit.
        open_timeout: limit of the wait for all workers to join.
        deterministic: whether equal inputs give equal bits in every run.
        part_bytes: requested size of a partition, the part of a tensor that is summed at one
            server.
        on_agent_loss: what happens when a machine is lost: "abort" ends the job, "shrink" lets it
            continue.
        backup: number of machines that a round need not wait for if they are late.
        backup_grace: how long a round still waits for late machines after all required machines
            have contributed.
        elastic: whether machines may join while the job runs.
        max_size: largest number of workers of an elastic job.

    Raises:
        Error: this worker cannot join. The text says what to do.
    """
    opt = Options()
    lib.bps_options_init(ctypes.byref(opt))
    if opt.abi != ABI:
        text = (
            f"package bps needs ABI {ABI}, but libbpsclient has {opt.abi}: install one release of "
            "both"
        )
        raise Error(CODES["EVERSION"], text)
    opt.job, opt.agent_socket = encode(job), encode(agent_socket)
    opt.rank, opt.size, opt.local_rank, opt.local_size = rank, size, local_rank, local_size
    opt.timeout_ms, opt.open_timeout_ms = milliseconds(timeout), milliseconds(open_timeout)
    opt.deterministic = -1 if deterministic is None else int(deterministic)
    opt.part_bytes = part_bytes
    if on_agent_loss not in (None, "abort", "shrink"):
        raise ValueError(f"on_agent_loss is {on_agent_loss!r}, but must be 'abort' or 'shrink'")
    opt.on_agent_loss = {None: -1, "abort": 0, "shrink": 1}[on_agent_loss]
    opt.backup = -1 if backup is None else backup
    opt.backup_grace_ms = milliseconds(backup_grace)
    opt.elastic = -1 if elastic is None else int(elastic)
    opt.max_size = max_size
    handle = ctypes.c_void_p()
    check(lib.bps_open(ctypes.byref(opt), ctypes.byref(handle)))
    return Job(handle)
