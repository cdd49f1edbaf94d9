"""State that all front-ends share: the process's job, names of tensors, reusable tensors, objects.

Names follow the order of the program, never the order of completion, so that all workers use the
same tensor for the same operation. A worker's n-th shape under one name is the tensor ``u/NAME#n``:
shapes that differ between workers meet there, and the mismatch is an error at all of them. Tensors
without a name travel in shared pieces. There the workers compare what they do in a small tensor of
its own, which is in flight beside the data, so that a difference is an error at all of them, too.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import errno
import os
import pickle
import secrets
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from bps._job import Job, Tensor
from bps._job import open as open_job
from bps._library import CODES, DTYPES, MAX, SUM, Error, Timeout

# Bytes of the pieces that carry tensors without a name, and how many of each size are in flight.
PIECES = tuple(1 << n for n in range(8, 23))
PIECES_IN_FLIGHT = 4
# Tensors without a name that repeat get slots of their exact size: from OWN_SLOT_BYTES each, up to
# OWN_SLOTS_BYTES in all.
OWN_SLOT_BYTES, OWN_SLOTS_BYTES = 64 << 10, 1 << 30
PRIORITY_MOST = 2**31 - 1
# Operations that workers compare, and how many comparisons are in flight.
KINDS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_single", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "all_to_all", "barrier", "broadcast_object",
    "all_gather_object",
)  # fmt: skip
AGREEMENTS_IN_FLIGHT = 32
OPS = ("sum", "prod", "max", "min", "avg")  # by number
# Numbers that are compared, in the order in which a difference is reported.
FIELDS = ("epoch", "history", "kind", "dtype", "n_elems", "op", "root")
# A compared number travels with the rank that has it, which is less than this.
RANKS = 1 << 16
# After these errors an operation is still in flight, and may be waited for again.
IN_FLIGHT = {CODES[name] for name in ("ETIMEDOUT", "ENOSERVER", "EISOLATED")}
# Errors that all workers get from an operation that was compared, so that they stay in step.
ALIKE = {CODES["EMISMATCH"], CODES["EWORKER_LOST"], -errno.EINVAL}


Key = tuple[str, int, int]


class NotInitialized(RuntimeError):
    """The process has joined no job yet."""


class Slot:
    """A declared tensor that one operation at a time uses.

    Attributes:
        tensor (Tensor): what the agent knows.
        owner (Operation, optional): the operation in flight.
        lock (Lock): held while the operation is finished.
        views (dict): a front-end's views of the slot's memory.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.owner: Operation | None = None
        self.lock = threading.Lock()
        self.views: dict[Any, Any] = {}


class Operation:
    """Use of a slot. The first caller that needs its result or the slot finishes it.

    Args:
        slot (Slot): its tensor has been submitted.
        collect: called once with the sum in the slot's output.
        agreement (Operation, optional): fails when the workers do different things. Then the slot's
            sum is not waited for.
    """

    def __init__(
        self, slot: Slot, collect: Callable[[], None], agreement: Operation | None = None
    ) -> None:
        self._slot, self._collect, self._agreement = slot, collect, agreement
        self._error: Error | None = None
        slot.owner = self

    def poll(self) -> bool:
        """True when :meth:`finish` would not block."""
        if self._slot.owner is not self:
            return True
        if not self._slot.lock.acquire(blocking=False):
            return False  # another thread waits for it
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

    def settle(self, timeout: float | None = None) -> None:
        """Finish the operation, and keep an error that is final for :meth:`finish`.

        Args:
            timeout (float, optional): seconds; None: the job's time-out.

        Raises:
            Error: it is still in flight (time-out, no server): call it again.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self._slot.lock.acquire(timeout=-1 if timeout is None else timeout):
            name = self._slot.tensor.name
            raise Timeout(CODES["ETIMEDOUT"], f"tensor '{name}' is not complete after {timeout} s")
        try:
            if self._slot.owner is self:
                try:
                    if self._agreement is not None:
                        self._agreement.finish(timeout)
                    left = None if end is None else max(end - time.monotonic(), 0.001)
                    self._slot.tensor.finish(left)
                    self._collect()
                except Error as error:
                    if error.code in IN_FLIGHT:
                        raise
                    self._error = error
                self._slot.owner = None
        finally:
            self._slot.lock.release()

    def finish(self, timeout: float | None = None) -> None:
        """Wait for the sum and hand it out.

        Raises:
            Error: the operation has failed, or is still in flight as after :meth:`settle`.
        """
        self.settle(timeout)
        if self._error is not None:
            raise self._error


class Runtime:
    """A job of this process, with the tensors that front-ends declare in it.

    Args:
        job (Job): joined already.
        prefix (str): begins the names of its tensors, so that several runtimes can share a job.
    """

    def __init__(self, job: Job, prefix: str = "") -> None:
        self.job, self.prefix = job, prefix
        self.lock = threading.RLock()  # declarations and collectives have one order
        self._named: dict[str, dict[tuple[str, int], Slot]] = collections.defaultdict(dict)
        # Slots without a name, by type, operation and size. With different operations workers
        # never meet in a slot, which would fail the job.
        self._rings: dict[Key, list[Slot]] = {}
        self._turns: collections.Counter[Key] = collections.Counter()
        self._own: dict[Key, list[Slot]] = {}
        self._own_turns: collections.Counter[Key] = collections.Counter()
        self._own_bytes = 0
        self._agreements: list[Slot] = []
        self._n_agreements = 0
        self._epoch, self._next_epoch, self._history = 0, 0, 0
        self._sets = 0
        self.groups: dict[str, dict[Any, Any]] = {}  # of bps._arrays, by name and by shapes
        self.reopened: weakref.WeakSet[Any] = weakref.WeakSet()  # whose reopen() follows a resume
        self.members: list[int] = []  # workers at the last sync of elastic training
        self.n_users = 0  # process groups that share the job
        self._failure: BaseException | None = None  # of an operation that was submitted in part

    def next_set(self) -> int:
        """Return the number of the next set of gradients of this process."""
        with self.lock:
            self._sets += 1
            return self._sets - 1

    def named(self, name: str, dtype: str, n_elems: int) -> Slot:
        """Return the slot of a user's name.

        Raises:
            ValueError: an operation with this name is in flight.
        """
        with self.lock:
            shapes = self._named[name]
            slot = shapes.get((dtype, n_elems))
            if slot is None:
                suffix = f"#{len(shapes) + 1}" if shapes else ""
                slot = shapes[dtype, n_elems] = Slot(
                    self.job.declare(f"{self.prefix}u/{name}{suffix}", dtype, n_elems)
                )
            if slot.owner is not None:
                raise ValueError(
                    f"tensor '{name}' is in flight already: names in flight must differ, "
                    "synchronize the first one"
                )
            return slot

    @contextlib.contextmanager
    def submission(self, is_compared: bool = False) -> Iterator[None]:
        """Hold the lock while an operation without a name is compared and submitted.

        An error between the two leaves this worker out of step: the others take its next values for
        those of this operation. So no further operation without a name is submitted here.

        Args:
            is_compared (bool): the workers have compared the operation before.
        """
        with self.lock:
            n = self._n_agreements
            try:
                yield
            except BaseException as error:
                is_alike = isinstance(error, Error) and error.code in ALIKE
                if (is_compared or self._n_agreements > n) and not is_alike:
                    self._failure = error
                raise

    def agree(self, kind: str, dtype: str, n_elems: int, op: int = SUM, root: int = 0) -> Operation:
        """Compare the next operation without a name with that of the other workers.

        A difference ends the epoch at all workers: slots for operations without a name are then new
        ones, because the workers have used the old ones differently.

        Args:
            kind (str): one of KINDS.
            dtype (str), n_elems (int): of the memory that is reduced.
            op (int), root (int): of the operation.

        Returns:
            Operation: fails with EMISMATCH at all workers when their arguments differ.

        Raises:
            RuntimeError: an earlier operation was compared and not submitted.
        """
        if self._failure is not None:
            raise RuntimeError(
                "an operation without a name failed after a part of it had been submitted: "
                "this worker is out of step with the others"
            ) from self._failure
        with self.lock:
            if self._next_epoch > self._epoch:
                self._epoch, self._history = self._next_epoch, 0
                self._forget_unnamed()
            if not self._agreements:
                decls = [
                    (f"{self.prefix}agree/{i}", "i64", 2 * len(FIELDS))
                    for i in range(AGREEMENTS_IN_FLIGHT)
                ]
                self._agreements = [Slot(t) for t in self.job.declare_group(decls)]
            slot = self._agreements[self._n_agreements % AGREEMENTS_IN_FLIGHT]
            if slot.owner is not None:
                slot.owner.settle()
            mine = (KINDS.index(kind), DTYPES[dtype][0], n_elems, op, root)
            numbers = (self._epoch, self._history, *mine)
            memory = (ctypes.c_int64 * (2 * len(FIELDS))).from_address(slot.tensor.input_address)
            rank = self.job.rank
            memory[:] = [sign * n * RANKS + rank for sign in (1, -1) for n in numbers]
            slot.tensor.push_pull(MAX, PRIORITY_MOST)
            self._n_agreements += 1
            self._history = zlib.crc32(repr(mine).encode(), self._history)
            return Operation(slot, lambda: self._compare(slot))

    def _compare(self, slot: Slot) -> None:
        """Raise the first difference between the workers."""
        n = len(FIELDS)
        memory = (ctypes.c_int64 * (2 * n)).from_address(slot.tensor.output_address)
        most = [divmod(x, RANKS) for x in memory[:n]]
        least = [(-x, rank) for x, rank in (divmod(x, RANKS) for x in memory[n:])]
        for field, (a, rank), (b, other) in zip(FIELDS, most, least):
            if a == b:
                continue
            self._next_epoch = max(self._next_epoch, most[0][0] + 1)
            what = f"workers disagree in {KINDS[most[FIELDS.index('kind')][0]]}"
            if field in ("epoch", "history"):
                text = "an operation before it differed between them, too"
            else:
                text = f"rank {other} has {_described(field, b)}, rank {rank} "
                text += _described(field, a)
            raise Error(
                CODES["EMISMATCH"],
                f"{what}: {text}. All workers must make the same calls in the same order, with "
                "tensors of one shape and type",
                other,
            )

    def _forget_unnamed(self) -> None:
        for known in (self._rings, self._turns, self._own, self._own_turns):
            known.clear()
        self._own_bytes = 0

    def _unnamed(self, kind: str, key: Key, i: int) -> str:
        dtype, op, size = key
        epoch = f"e{self._epoch}/" if self._epoch else ""
        return f"{self.prefix}{epoch}{kind}/{dtype}.{OPS[op]}.{size}.{i}"

    def piece(self, dtype: str, op: int, n_elems: int) -> Slot:
        """Return the next slot for a piece of at most n_elems; completes the operation that had it
        before."""
        item = int(DTYPES[dtype][1][1:])
        with self.lock:
            size = next((p for p in PIECES if p >= n_elems * item), PIECES[-1])
            key = (dtype, op, size)
            ring = self._rings.get(key)
            if ring is None:
                decls = [
                    (self._unnamed("p", key, i), dtype, size // item)
                    for i in range(PIECES_IN_FLIGHT)
                ]
                ring = self._rings[key] = [Slot(t) for t in self.job.declare_group(decls)]
            slot = ring[self._turns[key] % PIECES_IN_FLIGHT]
            if slot.owner is not None:
                slot.owner.settle()
            self._turns[key] += 1
            return slot

    def own_slot(self, dtype: str, op: int, n_elems: int) -> Slot | None:
        """Return the next slot of exactly this size; completes the operation that had it before.

        The decision depends on the order of the program alone, and is the same at all workers.

        Returns:
            Slot: or None for a size that comes for the first time, is small, or has no room left:
                take pieces then.
        """
        n_bytes = n_elems * int(DTYPES[dtype][1][1:])
        key = (dtype, op, n_elems)
        if n_bytes < OWN_SLOT_BYTES:
            return None
        with self.lock:
            turn = self._own_turns[key]
            if turn == 0:
                self._own_turns[key] = 1
                return None
            many = 1 if n_bytes >= PIECES[-1] else PIECES_IN_FLIGHT
            ring = self._own.get(key)
            if ring is None:
                if self._own_bytes + many * n_bytes > OWN_SLOTS_BYTES:
                    return None
                self._own_bytes += many * n_bytes
                ring = self._own[key] = []
            at = (turn - 1) % many
            if at == len(ring):
                ring.append(Slot(self.job.declare(self._unnamed("s", key, at), dtype, n_elems)))
            if ring[at].owner is not None:
                ring[at].owner.settle()
            self._own_turns[key] += 1
            return ring[at]

    def settle(self) -> None:
        """Finish all operations in flight."""
        named = [slot for shapes in self._named.values() for slot in shapes.values()]
        for ring in (named, self._agreements, *self._rings.values(), *self._own.values()):
            for slot in ring:
                if slot.owner is not None:
                    slot.owner.settle()

    def restart(self, is_failed: bool = False) -> None:
        """Choose slots as a worker that begins does, so that it and this one choose the same.

        Args:
            is_failed (bool): operations in flight ended with their job.
        """
        if not is_failed:
            self.settle()
        with self.lock:
            self._agreements = []
            self._named.clear()
            self.groups.clear()
            self.members.clear()
            self._forget_unnamed()
            self._n_agreements = self._epoch = self._next_epoch = self._history = 0
            self._failure = None

    def broadcast_bytes(self, data: bytes | None, root: int) -> bytes:
        """Return root's bytes at every worker."""
        with self.submission():
            self.agree("broadcast_object", "u8", 0, root=root).finish()
            n = ctypes.c_uint64(len(data) if data is not None else 0)
            self.job.broadcast_memory(ctypes.addressof(n), 8, root)
            raw = ctypes.create_string_buffer(data or b"", max(n.value, 1))
            self.job.broadcast_memory(ctypes.addressof(raw), n.value, root)
            return raw.raw[: n.value]

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        """Return every worker's bytes, ordered by rank; their lengths may differ."""
        size = self.job.size
        with self.submission():
            self.agree("all_gather_object", "u8", 0).finish()
            mine, all_ = ctypes.c_uint64(len(data)), (ctypes.c_uint64 * size)()
            self.job.allgather_memory(ctypes.addressof(mine), 8, ctypes.addressof(all_))
            most = max(1, *all_)
            src, dst = (
                ctypes.create_string_buffer(data, most),
                ctypes.create_string_buffer(most * size),
            )
            self.job.allgather_memory(ctypes.addressof(src), most, ctypes.addressof(dst))
        raw = memoryview(dst)
        return [bytes(raw[r * most : r * most + all_[r]]) for r in range(size)]

    def broadcast_object(self, obj: Any, root: int) -> Any:
        """Return root's object, pickled, at every worker."""
        is_root = self.job.rank == root
        data = self.broadcast_bytes(_pack(obj) if is_root else None, root)
        return obj if is_root and data[:1] == _GOOD else _unpack(data, root)

    def allgather_object(self, obj: Any) -> list[Any]:
        """Return every worker's object, ordered by rank."""
        return [_unpack(data, rank) for rank, data in enumerate(self.allgather_bytes(_pack(obj)))]

    def allgather_present(self, obj: Any) -> list[Any]:
        """Return the objects of the workers that are there: none of those lost or yet to join."""
        data = self.allgather_bytes(_pack(obj))
        return [_unpack(one, rank) for rank, one in enumerate(data) if one]


def _described(field: str, n: int) -> str:
    """Return a compared number in words."""
    if field == "kind":
        return KINDS[n]
    if field == "dtype":
        return next(name for name, (number, _) in DTYPES.items() if number == n)
    if field == "op":
        return OPS[n]
    return f"{n} elements" if field == "n_elems" else f"root {n}"


_GOOD, _BAD = b"+", b"-"


def _pack(obj: Any) -> bytes:
    """Pickle an object. A failure is packed too, so that no worker waits for this one."""
    try:
        return _GOOD + pickle.dumps(obj)
    except Exception as error:
        return _BAD + f"{type(error).__name__}: {error}".encode()


def _unpack(data: bytes, rank: int) -> Any:
    if data[:1] == _GOOD:
        return pickle.loads(data[1:])
    if data:
        raise ValueError(f"rank {rank} cannot pickle its object: {data[1:].decode()}")
    raise Error(CODES["EWORKER_LOST"], f"rank {rank} is lost, its object is missing", rank)


_runtime: Runtime | None = None
_options: dict[str, Any] = {}  # of init()
subjobs: list[Job] = []  # of sets of workers; they end with the process's job


def host_key() -> str:
    """Return a key that is equal in all processes that use the same agent, and in no others."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = f.read().strip()
    try:
        at = os.stat(os.environ.get("BPS_AGENT_SOCKET", "/run/bps/agent.sock"))
    except OSError:
        return boot
    return f"{boot}.{at.st_dev}.{at.st_ino}"


def job_name(part: str = "") -> str:
    """Return a new name for a job, from the name that the launcher gave and the name of a part."""
    names = ("BPS_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    base = next((os.environ[name] for name in names if os.environ.get(name)), "torch")
    return f"{base}.{part}"[:150].rstrip(".") + f".{secrets.token_hex(4)}"


def inherited() -> dict[str, Any]:
    """Return the options of :func:`init` that hold for jobs of some of the workers, too."""
    mine = {"job", "rank", "size", "local_rank", "local_size", "elastic", "max_size"}
    return {name: value for name, value in _options.items() if name not in mine}


def init(**options: Any) -> None:
    """Join the job; further calls do nothing.

    Args:
        options: of :func:`bps.open`. The environment (bpsrun, torchrun, Slurm, Open MPI, BytePS)
            gives the others.
    """
    global _runtime
    if _runtime is None:
        _runtime = Runtime(open_job(**options))
        _options.clear()
        _options.update(options)
        atexit.register(_at_exit, os.getpid())


def _check_unshared(what: str) -> None:
    """Refuse to leave a job that process sets or groups use.

    Raises:
        RuntimeError: with what to do.
    """
    if subjobs or runtime().n_users:
        raise RuntimeError(
            f"{what}: process sets and process groups end with the job: remove and destroy them "
            "first"
        )


def suspend(timeout: float | None = None) -> None:
    """Leave the job when all workers do, and keep the process ready for :func:`resume`.

    Args:
        timeout (float, optional): seconds; None: the job's time-out.

    Raises:
        RuntimeError: process sets or groups of a framework use the job.
        Error: a result is late, or the workers did not all call this in time.
    """
    rt = runtime()
    _check_unshared("suspend")
    rt.settle()
    rt.job.suspend(timeout)


def resume(num_workers: int, num_servers: int = 0, global_rank: int = -1) -> None:
    """Join the job again after :func:`suspend`, with another number of workers.

    All workers that go on call it. New ones call :func:`init`.

    Args:
        num_workers (int): of the job from now on.
        num_servers (int): accepted for BytePS's scripts; the cluster has its servers.
        global_rank (int): this worker's rank; -1: any that is free.
    """
    rt = runtime()
    rt.job.resume(num_workers, global_rank)
    _options["size"] = num_workers
    rt.restart()
    for one in list(rt.reopened):
        one.reopen()


def reopen() -> None:
    """Join the job again after it has failed, with this worker's rank and the same options.

    All workers that go on call it. In the place of a lost one a new process calls :func:`init`.

    Raises:
        RuntimeError: process sets or groups of a framework use the job.
        Error: the job cannot be joined, or not all workers have joined it in time.
    """
    rt = runtime()
    _check_unshared("reopen")
    rank = rt.job.rank
    rt.job.abort()
    rt.job = open_job(**(_options | {"rank": rank}))
    rt.restart(is_failed=True)
    for one in list(rt.reopened):
        one.reopen()


def has_failed() -> bool:
    """True at the end of a process that an exception ends."""
    return getattr(sys, "last_value", None) is not None


def leave(is_abort: bool) -> None:
    """Close the process's job, or abort it."""
    global _runtime
    atexit.unregister(_at_exit)
    if _runtime is not None:
        jobs = [_runtime.job, *reversed(subjobs)]
        _runtime = None
        subjobs.clear()
        if is_abort:
            for job in jobs:
                job.abort()
            return
        with contextlib.ExitStack() as stack:  # the job of all workers closes last
            for job in jobs:
                stack.enter_context(job)


def _at_exit(pid: int) -> None:
    """Close the job at the end of the process. After an exception abort it, for all workers. A
    forked child has no part in the job.

    A process that calls sys.exit(1) counts as ended well: the others wait for it in close.
    """
    if os.getpid() == pid:
        leave(has_failed())


def shutdown() -> None:
    """Leave the job when all workers do; while an exception is handled, abort it instead."""
    leave(sys.exc_info()[0] is not None)


def is_initialized() -> bool:
    """True between :func:`init` and :func:`shutdown`."""
    return _runtime is not None


def runtime() -> Runtime:
    """Return the process's runtime.

    Raises:
        NotInitialized: before :func:`init`.
    """
    if _runtime is None:
        raise NotInitialized(
            "bps is not initialized: call init() first, in a process that bpsrun or torchrun "
            "started"
        )
    return _runtime


def rank() -> int:
    """Return this worker's number in the job, from 0."""
    return runtime().job.rank


def size() -> int:
    """Number of workers in the job."""
    return runtime().job.size


def local_rank() -> int:
    """Return this worker's number on its machine."""
    return runtime().job.local_rank


def local_size() -> int:
    """Number of the job's workers on this machine."""
    return runtime().job.local_size
