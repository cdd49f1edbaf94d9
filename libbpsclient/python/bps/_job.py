"""Jobs: one method per C function, see bpsclient(3)."""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bps import _compare
from bps._gpu_tensor import GpuTensor, uuid_bytes
from bps._library import (
    ABI,
    CODES,
    MODES,
    PRIORITY_AUTO,
    STALE_UNBOUNDED,
    SUM,
    DeclStruct,
    Error,
    Options,
    Traffic,
    TrafficStruct,
    Worker,
    check,
    dtype_number,
    encode,
    lib,
    milliseconds,
)
from bps._tensor import Shape, Tensor, workers_of

if TYPE_CHECKING:
    import numpy as np

DESCRIPTION_BYTES = 128  # length of the text with which workers compare their arrays


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
        """Return the handle for calls of the C library."""
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
        self,
        decls: Iterable[
            tuple[str, str, Shape]
            | tuple[str, str, Shape, int]
            | tuple[str, str, Shape, int, int, int]
            | tuple[str, str, Shape, int, int, int, int]
        ],
    ) -> list[Tensor]:
        """Declare tensors in one request to the agent.

        Args:
            decls: (name, dtype, shape) or (name, dtype, shape, digest) of each tensor, or these
                with the numbers of mode, staleness and sharded (see :meth:`declare`). The shape of
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
        known: list[tuple[str, str, tuple[int, ...], bool]] = []
        raw: list[DeclStruct] = []
        for name, dtype, shape, *digest in decls:
            sizes = tuple(shape) if isinstance(shape, Iterable) else (int(shape),)
            known.append((name, dtype, sizes, any(digest[3:])))
            given = encode(name), dtype_number(dtype), math.prod(sizes), *digest
            raw.append(DeclStruct(ctypes.sizeof(DeclStruct), *given))
        structs, handles = (DeclStruct * len(raw))(*raw), (ctypes.c_void_p * len(known))()
        check(lib.bps_declare_group(self.handle, structs, len(known), handles))
        return [Tensor(self, handle, *one) for handle, one in zip(handles, known)]

    def declare(
        self,
        name: str,
        dtype: str,
        shape: Shape,
        digest: int = 0,
        mode: str = "sum",
        stale: int | None = 0,
        sharded: bool = False,
    ) -> Tensor:
        """Declare one tensor, see :meth:`declare_group`.

        Args:
            mode (str): "sum": each round has the sum of its contributions. "value": servers keep a
                value from round to round. They add each contribution (a delta) when it arrives, and
                answer with the value of that moment. To set the value, one worker submits it in the
                first round and the others abstain. :meth:`Tensor.abstain` reads the value. Only
                types "f32" and "f64", and SUM.
            stale (int, optional): for "value", the number of rounds by which a worker may be behind
                without being waited for; None: no worker is waited for after the first round.
            sharded (bool): cut the results into as many equal shards as the job has workers. Each
                worker gets only the shard of its rank, :attr:`Tensor.shard` (reduce-scatter). The
                number of values must be a multiple of the number of workers; for a block type, of
                that number times the values of a block. Not in jobs that go on without a machine.

        Raises:
            Error: those of :meth:`declare_group`; -EINVAL if the job's options or the number of
                values do not allow the tensor.

        Example:
            >>> w = job.declare("w", "f32", 1000, mode="value", stale=2)
            >>> w.input[:] = weights  # at rank 0
            >>> w.push_pull() if job.rank == 0 else w.abstain()
            >>> weights = w.wait()
            >>> for batch in batches:
            ...     w.input[:] = delta(weights, batch)
            ...     w.push_pull()
            ...     weights = w.wait()
        """
        if mode not in MODES:
            raise ValueError(f"{mode!r} is not a mode of a tensor: use one of {', '.join(MODES)}")
        bound = STALE_UNBOUNDED if stale is None else stale
        given = (digest, MODES.index(mode), bound, int(sharded))
        return self.declare_group([(name, dtype, shape, *given)])[0]

    def push_pull(
        self, tensors: Sequence[Tensor], op: int = SUM, priority: int = PRIORITY_AUTO
    ) -> None:
        """Submit several tensors with one wake-up of the agent. If an error is raised, no tensor
        was submitted. The arguments ``op`` and ``priority`` are those of :meth:`Tensor.push_pull`
        for each of them."""
        handles = (ctypes.c_void_p * len(tensors))(*[t.handle for t in tensors])
        check(lib.bps_push_pull_group(handles, len(tensors), op, priority))

    def wait(self, tensors: Sequence[Tensor], timeout: float | None = None) -> None:
        """Wait until the rounds of all these tensors are complete. ``timeout`` is in seconds; None
        stands for the job's time-out."""
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
        return workers_of(lambda raw, n: lib.bps_workers(self.handle, raw, n, None))

    def traffic(self) -> Traffic:
        """Return how many bytes this machine's agent has sent and received for all of its jobs, see
        bps_traffic(3)."""
        raw = TrafficStruct()
        check(lib.bps_traffic(self.handle, ctypes.byref(raw)))
        return Traffic(raw.instance, raw.sent_bytes, raw.received_bytes)

    def trace(self, path: str | os.PathLike[str], since: float = 0.0) -> None:
        """Write the last rounds of this job on this machine to a file, see :func:`bps.trace`.

        Args:
            path (str): the file.
            since (float): leave out rounds that began earlier, in seconds of
                :func:`time.monotonic`.
        """
        check(lib.bps_trace(self.handle, os.fsencode(path), int(since * 1e9)))

    def gpu_open(self, uuid: Any = None) -> None:
        """Prepare for tensors in the memory of a GPU. All workers of a machine must call this
        method.

        Args:
            uuid: UUID of the GPU, as 16 bytes or "GPU-8a2f...". None selects the current device
                of the calling thread.
        """
        check(lib.bps_gpu_open(self.handle, uuid_bytes(uuid)))

    gpu_route = property(lambda self: lib.bps_gpu_route(self.handle).decode())

    def gpu_alloc(self, n_bytes: int) -> int:
        """Allocate ``n_bytes`` of zeroed device memory, see bps_gpu(3), and return its address."""
        address = ctypes.c_void_p()
        check(lib.bps_gpu_alloc(self.handle, n_bytes, ctypes.byref(address)))
        return address.value or 0

    def gpu_import(self, address: int, n_bytes: int) -> None:
        """Import ``n_bytes`` of device memory at ``address``, which this process has allocated
        itself. Tensors can then be declared in this memory."""
        check(lib.bps_gpu_import(self.handle, address, n_bytes))

    def gpu_release(self, address: int) -> None:
        """Release memory from :meth:`gpu_alloc` or :meth:`gpu_import`, see bps_gpu(3)."""
        check(lib.bps_gpu_release(self.handle, address))

    def gpu_declare(self, name: str, dtype: str, n_values: int, address: int) -> GpuTensor:
        """Declare a tensor in memory from :meth:`gpu_alloc` or :meth:`gpu_import`.

        Args:
            name (str): name of the tensor, the same at all workers.
            dtype (str): a name in :data:`DTYPES`.
            n_values (int): number of values.
            address (int): address of the first value.
        """
        handle = ctypes.c_void_p()
        check(
            lib.bps_gpu_declare(
                self.handle,
                encode(name),
                dtype_number(dtype),
                n_values,
                address,
                ctypes.byref(handle),
            )
        )
        return GpuTensor(self, handle, name, dtype, n_values, address)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all workers have called this method.

        Args:
            timeout (float, optional): seconds to wait. None: the job's time-out.
        """
        check(lib.bps_barrier(self.handle, milliseconds(timeout)))

    def checkpoint_barrier(self, timeout: float | None = None) -> int:
        """Wait until all workers have called this method and have no round in flight. Return the
        number of workers that have joined the job at this barrier.

        Args:
            timeout (float, optional): seconds to wait. None: the job's time-out.
        """
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
        """Overwrite ``n_bytes`` bytes at ``address`` with the bytes of rank ``root``.

        Args:
            timeout (float, optional): seconds to wait. None: the job's time-out.
        """
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
        of the workers follow each other in the order of the ranks.

        Args:
            timeout (float, optional): seconds to wait. None: the job's time-out.
        """
        check(lib.bps_allgather(self.handle, src, n_bytes, dst, milliseconds(timeout)))

    def close(self, timeout: float | None = None) -> None:
        """Wait until all workers have called this method. Then leave the job. Even if an error is
        raised, the job is closed in this process.

        Args:
            timeout (float, optional): seconds to wait. None: the job's time-out.
        """
        if self._handle is not None:
            self._stop(is_abort=False)
            handle, self._handle = self._handle, None
            check(lib.bps_close(handle, milliseconds(timeout)))

    def _stop(self, is_abort: bool) -> None:
        for one in list(self.leaving):
            one.stop(is_abort)

    def suspend(self, timeout: float | None = None) -> None:
        """Wait until all workers have called this method. Then leave the job. Declarations remain
        valid. Inputs and outputs do not exist until :meth:`resume`.

        Args:
            timeout (float, optional): seconds to wait. None: the job's time-out.
        """
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
