"""Operations of a job: names of their tensors, comparison of calls, objects.

All workers must use the same tensor of the job for the same operation. So the names of these
tensors follow from the order of the calls, which all workers share, never from the order of
completion.

A named operation NAME uses the tensor ``u/NAME`` for the first shape that a worker passes, and
``uN/NAME`` for shape number N. Each worker counts its own shapes. So all workers use the same
tensor for their shapes of the same number. At the first use of this tensor the workers compare the
shapes and types. If these differ, the mismatch is an error at all workers, and none of them uses
the tensor again: a shape that is passed again gets a new number at each worker.

The values of unnamed operations are sent in reusable tensors (:mod:`bps._slots`). If workers made
different calls, their values would be mixed in these tensors. So the workers compare each call
(:mod:`bps._compare`). A difference is an error at all workers.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bps import _compare
from bps._job import Job
from bps._library import CODES, MAX, SUM, Error
from bps._objects import is_object, pack_object, unpack_object
from bps._operation import Operation, Slot
from bps._slots import Slots

PRIORITY_MOST = 2**31 - 1
# Longest wait of Runtime.finish_stale(), for tensors submitted although the workers disagreed.
STALE_S = 1.0
# KINDS lists the unnamed operations. Before a worker submits the values of such an operation, it
# submits a comparison of its operation with those of the other workers (Runtime.agree). At most
# AGREEMENTS_IN_FLIGHT comparisons may be in flight.
KINDS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_single", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "all_to_all", "barrier", "broadcast_object",
    "all_gather_object", "grouped_all_reduce", "grouped_broadcast", "ShardedOptimizer.step",
    "ShardedOptimizer.gather",
)  # fmt: skip
AGREEMENTS_IN_FLIGHT = 32
# Names of the numbers that the workers compare for each unnamed operation. `history` is a checksum
# of the earlier operations. If several numbers differ, the error reports the first one in this
# order.
FIELDS = ("epoch", "history", "kind")
SAME_TENSORS = "All workers must use a name for tensors of the same shape and type"
# Errors that an operation raises at all workers. After such an error, each worker still makes the
# same calls as the other workers.
ALIKE = {CODES["EMISMATCH"], CODES["EWORKER_LOST"], -errno.EINVAL}


class Agreement(Operation):
    """The comparison of an unnamed operation, see :meth:`Runtime.agree`.

    Args:
        rt (Runtime): the workers that take part.
        slot (Slot): holds the tensor of the comparison.
        is_alone (bool): the caller submits no values before the comparison is complete. So if only
            the texts differ, no slot has values of different operations, and all slots are kept.

    Attributes:
        differs_in_text (bool): True if all workers made calls of the same kind after the same
            earlier calls, and only the texts differ.
    """

    def __init__(self, rt: Runtime, slot: Slot, is_alone: bool = False) -> None:
        super().__init__(slot, self._compare)
        self._runtime, self._is_alone, self.differs_in_text = rt, is_alone, False

    def _compare(self) -> None:
        """Raise an error about the first difference between the workers, if any."""
        most, least = _compare.read(self._slot.tensor.result_address, len(FIELDS))
        for field, (a, rank), (b, other) in zip(FIELDS, most.numbers, least.numbers):
            if a != b:
                text = "an earlier operation already differed between the workers"
                if field == "kind":
                    first, second = sorted(((rank, KINDS[a]), (other, KINDS[b])))
                    text = f"rank {first[0]} calls {first[1]}, rank {second[0]} calls {second[1]}"
                text = f"workers disagree in an operation: {text}. {_compare.SAME_CALLS}"
                error: Error | None = Error(CODES["EMISMATCH"], text, min(rank, other))
                break
        else:
            error = _compare.difference(
                KINDS[most.numbers[-1][0]], most, least, _compare.SAME_CALLS
            )
            self.differs_in_text = error is not None
        if error is not None:
            rt = self._runtime
            if not (self._is_alone and self.differs_in_text):
                rt._next_epoch = max(rt._next_epoch, most.numbers[0][0] + 1)
            raise error


class Runtime:
    """A job of this process, with the tensors that front-ends declare in it.

    Args:
        job (Job): a job that this process has joined.
        prefix (str): beginning of the tensors' names. Different prefixes let several runtimes share
            a job.
        ranks (sequence of int, optional): for each rank in this job, the rank that the errors of
            comparisons name; None: the same rank.
    """

    def __init__(self, job: Job, prefix: str = "", ranks: Sequence[int] | None = None) -> None:
        self.job, self.prefix, self._ranks = job, prefix, ranks
        self.lock = threading.RLock()  # held while a thread declares or submits tensors
        self._named: dict[str, dict[str, Slot]] = collections.defaultdict(dict)
        # For each path of :meth:`next_path`, the number of paths that were returned.
        self._numbers: collections.Counter[str] = collections.Counter()
        self.slots = Slots(self)
        self._stale: list[Slot] = []  # slots of earlier epochs with Slot.is_stale
        self._agreements: list[Slot] = []
        self._n_agreements = 0
        self._epoch, self._next_epoch, self._history = 0, 0, 0
        self._begun: dict[str, Slot] = {}  # see begin_once()
        self.n_sets = 0
        self.groups: dict[str, dict[Any, Any]] = {}  # bps._group.Group objects by name and key
        # Objects with a method reopen(). The functions resume() and reopen() of bps._core join the
        # job again, and then call that method of each object.
        self.reopened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.n_restarts = 0  # number of calls of restart()
        self.members: list[int] = []  # ranks that took part in the last State.sync()
        self.n_users = 0  # number of process groups that use the job
        # Number of broadcasts that have overwritten tensors of this worker with another worker's.
        self.n_received = 0
        self.line: Any = None  # queue of gathers: a bps.torch._gather.Line; None: no gather yet
        self.turns: Any = None  # a bps.tensorflow._session.Turns; None: no session graph has run
        self._failure: BaseException | None = None  # error that check() raises, see submission()

    def shown(self, rank: int) -> int:
        """Return the rank that errors name for a rank in this runtime's job."""
        return rank if self._ranks is None else self._ranks[rank]

    def residual_name(self, tensor: str) -> str:
        """Return the name of a tensor's residual (:mod:`bps._residuals`). This name differs between
        the jobs of process sets, and is the same when the program runs again."""
        if self._ranks is None:
            return tensor
        return f"ranks {', '.join(map(str, self._ranks))}: {tensor}"

    def next_set(self) -> int:
        """Return the next number for a set of gradients or a process set: 0, 1, ..."""
        with self.lock:
            self.n_sets += 1
            return self.n_sets - 1

    def next_path(self, name: str) -> str:
        """Return the next path of a name: ``u/NAME``, ``u2/NAME``, ``u3/NAME``, ... The number
        precedes the name, so the paths of two names differ."""
        with self.lock:
            self._numbers[name] += 1
            number = self._numbers[name]
            return f"u{number}/{name}" if number > 1 else f"u/{name}"

    def named(self, name: str, dtype: str, n_values: int, description: str) -> Slot:
        """Return the slot for a tensor to which the user gave a name.

        At the first use of the slot, the workers compare the descriptions. If they differ, the
        slot's `agreement` fails with EMISMATCH at all workers, and the next call with this
        description returns a new slot.

        Args:
            name (str): the user's name.
            dtype (str): element type in which the tensor is sent.
            n_values (int): number of values.
            description (str): the tensor's own type, and its shape.

        Raises:
            Error: EMISMATCH if the workers' descriptions are known to differ.
            ValueError: an operation with this name is in flight.
        """
        with self.lock:
            shapes = self._named[name]
            slot = shapes.get(description)
            if slot is not None and slot.owner is not None:
                if slot.owner.is_interrupted:
                    slot.owner.settle()  # the operation's caller may have lost the handle
                else:
                    raise ValueError(
                        f"tensor '{name}' is in flight already: synchronize the first operation, "
                        "or use another name"
                    )
            if slot is None or slot.agreement is None or slot.agreement.has_failed:
                if slot is not None and slot.is_stale:
                    self._stale.append(slot)
                path = self.next_path(name)
                agreement = self._agree_on_tensor(path, f"tensor '{name}'", description)
                try:
                    tensor = self.job.declare(f"{self.prefix}{path}", dtype, max(n_values, 1))
                except Error as error:
                    if error.code == CODES["EMISMATCH"]:
                        agreement.finish()  # its error has more details
                    raise
                slot = shapes[description] = Slot(tensor)
                slot.agreement = agreement
            return slot

    def _agree_on_tensor(self, path: str, title: str, description: str) -> Operation:
        """Submit the comparison of a tensor's description, and return it. The description has the
        number 0 in place of the size of a list. So if another worker compares a list of tensors
        under this path (:meth:`compare_lists`), both get an error."""
        tensor = self.job.declare(f"{self.prefix}c/{path}", "i64", _compare.n_words(1))
        _compare.write(tensor.input_address, (0,), description, self.shown(self.job.rank))
        tensor.push_pull(MAX, PRIORITY_MOST)

        def compare() -> None:
            both = _compare.read(tensor.result_address, 1)
            error = _compare.difference(title, *both, SAME_TENSORS)
            if error is not None:
                raise error

        return Operation(Slot(tensor), compare)

    def compare_lists(
        self,
        name: str,
        what: str,
        mine: _compare.List,
        labels: Sequence[str] | None = None,
    ) -> list[int]:
        """Compare this worker's list of tensors with the lists of the other workers, and wait.

        Different workers may compare lists of different names in different orders. If the wait ends
        early (time-out, KeyboardInterrupt), another call with the same arguments continues it.

        Args:
            name (str): name of the comparison, the same at all workers. It may be used once.
            what (str): the operation, for the text of the error.
            mine (List): this worker's list.
            labels (sequence of str, optional): see :func:`bps._compare.order`.

        Returns:
            list of int: the positions at which this worker's list has the tensors of the list of
            the lowest rank.

        Raises:
            Error: EMISMATCH at all workers if the lists differ in more than their order, or if the
                options differ.
        """
        raw = mine.pack()

        def write_text(slot: Slot) -> None:
            me = self.shown(self.job.rank)
            _compare.write(slot.tensor.input_address, (len(raw),), mine.text(), me)

        slot = self.begin_once(f"c/{name}", "i64", _compare.n_words(1), MAX, write_text)
        slot.tensor.finish(is_interruptible=True)
        most, least = _compare.read(slot.tensor.result_address, 1)
        error = _compare.difference(what, most, least, _compare.SAME_CALLS)
        if error is None or not least.numbers[0][0]:  # 0: a tensor's description, not a list
            self.end_once(f"c/{name}")
            if error is not None:
                raise error
            return [*range(len(mine.entries))]
        length, size, rank = most.numbers[0][0], self.job.size, self.job.rank

        def write_list(slot: Slot) -> None:
            ctypes.memset(slot.tensor.input_address, 0, length * size)
            ctypes.memmove(slot.tensor.input_address + rank * length, raw, len(raw))

        slot = self.begin_once(f"c/lists/{name}", "u8", length * size, SUM, write_list)
        slot.tensor.finish(is_interruptible=True)
        all_ = ctypes.string_at(slot.tensor.result_address, length * size)
        self.end_once(f"c/{name}", f"c/lists/{name}")
        given = (all_[r * length : (r + 1) * length].rstrip(b"\0") for r in range(size))
        lists = {self.shown(r): _compare.List.unpack(one) for r, one in enumerate(given) if one}
        return _compare.order(what, mine, lists, labels)

    def begin_once(
        self, name: str, dtype: str, n_values: int, op: int, fill: Callable[[Slot], None]
    ) -> Slot:
        """Declare and submit a tensor, unless it has been submitted since the last
        :meth:`end_once`, and return its slot.

        Args:
            name (str): the tensor's name.
            dtype (str): element type.
            n_values (int): number of values.
            op (int): the reduction.
            fill (callable): writes this worker's values to the tensor.
        """
        with self.lock:
            slot = self._begun.get(name)
            if slot is None:
                slot = Slot(self.job.declare(f"{self.prefix}{name}", dtype, n_values))
                fill(slot)
                slot.tensor.push_pull(op, PRIORITY_MOST)
                self._begun[name] = slot
            return slot

    def end_once(self, *names: str) -> None:
        """Forget the tensors of :meth:`begin_once`, because their results have been used."""
        with self.lock:
            for name in names:
                del self._begun[name]

    @contextlib.contextmanager
    def submission(self, is_compared: bool = False) -> Iterator[None]:
        """Hold the lock while an unnamed operation is compared and submitted.

        If an error occurs after the comparison and before the submission, the other workers still
        wait for this worker's values. They would mistake the values of this worker's next
        operation for the missing values. So after such an error, :meth:`agree` rejects all further
        operations.

        Args:
            is_compared (bool): the workers have already compared the operation.

        Raises:
            Error: EFORKED in a forked child; ECLOSED while the job is suspended.
        """
        # Check before taking the lock. If a thread of the parent held the lock at the fork, no
        # thread of the forked child would release the lock.
        self.job.check_mapped()
        with self.lock:
            n = self._n_agreements
            try:
                yield
            except BaseException as error:
                is_alike = isinstance(error, Error) and error.code in ALIKE
                if (is_compared or self._n_agreements > n) and not is_alike:
                    self._failure = error
                raise

    def check(self) -> None:
        """Check that each operation that the workers have compared was also submitted
        (:meth:`submission`).

        Raises:
            Error: an operation was compared but its submission failed. If the cause was an Error,
                the new Error has the same code, rank, host and tensor.
        """
        if self._failure is not None:
            raise _out_of_step(self._failure) from self._failure

    def agree(self, kind: str, text: str, is_alone: bool = False) -> Agreement:
        """Compare this worker's next unnamed operation with those of the other workers.

        After a difference, all workers use new slots for unnamed operations, because the workers
        have used the old slots for different operations. The names of the new slots contain the
        epoch, a number that grows with each difference.

        Args:
            kind (str): one of KINDS.
            text (str): type and shape of the tensor, and the other arguments that must be equal at
                all workers.
            is_alone (bool): see :class:`Agreement`.

        Returns:
            Agreement: fails with EMISMATCH at all workers if kind or text of the workers differ.

        Raises:
            Error: see :meth:`check`.
        """
        self.check()
        with self.lock:
            if self._next_epoch > self._epoch:
                self._epoch, self._history = self._next_epoch, 0
                self._stale += self.slots.restart(self._epoch)
            if not self._agreements:
                n = _compare.n_words(len(FIELDS))
                decls = [(f"{self.prefix}agree/{i}", "i64", n) for i in range(AGREEMENTS_IN_FLIGHT)]
                self._agreements = [Slot(t) for t in self.job.declare_group(decls)]
            slot = self._agreements[self._n_agreements % AGREEMENTS_IN_FLIGHT]
            if slot.owner is not None:
                slot.owner.settle()
            numbers = (self._epoch, self._history, KINDS.index(kind))
            me = self.shown(self.job.rank)
            _compare.write(slot.tensor.input_address, numbers, text, me)
            slot.tensor.push_pull(MAX, PRIORITY_MOST)
            self._n_agreements += 1
            # A worker goes on after texts that differ, so the history lacks these texts.
            known = kind if is_alone else f"{kind} {text}"
            self._history = zlib.crc32(known.encode(), self._history)
            return Agreement(self, slot, is_alone)

    def agree_on_list(
        self,
        kind: str,
        mine: _compare.List,
        labels: Sequence[str] | None = None,
    ) -> list[int]:
        """Compare the list of tensors of this worker's next unnamed operation with the lists of the
        other workers, and wait.

        Args:
            kind (str): a grouped operation of KINDS.
            mine, labels: see :meth:`compare_lists`.

        Returns:
            list of int: the positions at which this worker's list has the tensors of the list of
            the lowest rank.

        Raises:
            Error: EMISMATCH at all workers if the operations differ, or if the lists differ in more
                than their order.
        """
        with self.submission():
            agreement = self.agree(kind, mine.text(), is_alone=True)
            try:
                agreement.finish()
                return [*range(len(mine.entries))]
            except Error:
                if not agreement.differs_in_text:
                    raise
            all_ = self.allgather_bytes(mine.pack(), "a list of tensors")
            lists = {self.shown(r): _compare.List.unpack(one) for r, one in enumerate(all_) if one}
            return _compare.order(kind, mine, lists, labels)

    def settle(self) -> None:
        """Finish all operations in flight."""
        named = [slot for shapes in self._named.values() for slot in shapes.values()]
        for ring in (named, self._agreements, self.slots.all()):
            for slot in ring:
                if slot.agreement is not None:
                    slot.agreement.settle()
                if slot.owner is not None:
                    slot.owner.settle()
        for slot in self._stale:
            if slot.owner is not None:
                slot.owner.settle()
        self._stale = [slot for slot in self._stale if slot.is_stale]
        if self.line is not None:
            self.line.settle()

    def finish_stale(self) -> None:
        """Wait for tensors that were submitted although the workers disagreed, because a checkpoint
        refuses tensors in flight. A tensor that all workers have submitted is complete soon. The
        wait ends after :data:`STALE_S` seconds.

        A worker that leaves the job must not call this function: another worker may have left
        already, and the job fails if a worker waits for a tensor of a worker that has left.
        """
        end = time.monotonic() + STALE_S
        named = [slot for shapes in self._named.values() for slot in shapes.values()]
        for slot in [*self._stale, *(slot for slot in named if slot.is_stale)]:
            with contextlib.suppress(Error):
                slot.tensor.finish(max(end - time.monotonic(), 0.001))
                slot.is_stale = False
        self._stale = [slot for slot in self._stale if slot.is_stale]

    def restart(self, is_failed: bool = False) -> None:
        """Forget all slots, as in a new process. This worker then chooses the same slots as workers
        that are new to the job.

        Args:
            is_failed (bool): the job has failed, so do not wait for operations in flight.
        """
        if not is_failed:
            self.settle()
        with self.lock:
            if self.line is not None:
                self.line.stop(is_failed)
                self.line = None
            self.turns = None
            self._agreements = []
            self._named.clear()
            self._numbers.clear()
            self._begun.clear()
            self.groups.clear()
            self.n_restarts += 1
            self.members.clear()
            self.slots.restart()
            self._stale = []
            self._n_agreements = self._epoch = self._next_epoch = self._history = 0
            self._failure = None

    def broadcast_bytes(self, data: bytes | None, root: int, what: str = "an object") -> bytes:
        """Send the bytes of rank ``root`` to all workers. Every worker's call returns these
        bytes. The workers compare `what`, which says what is sent."""
        with self.submission():
            text = f"{what}, root {self.shown(root)}"
            self.agree("broadcast_object", text, is_alone=True).finish()
            n = ctypes.c_uint64(len(data) if data is not None else 0)
            self.job.broadcast_memory(ctypes.addressof(n), 8, root)
            raw = ctypes.create_string_buffer(data or b"", max(n.value, 1))
            self.job.broadcast_memory(ctypes.addressof(raw), n.value, root)
            return raw.raw[: n.value]

    def allgather_bytes(self, data: bytes, what: str = "an object") -> list[bytes]:
        """Return every worker's bytes, ordered by rank. The lengths may differ between workers. The
        workers compare `what`, which says what is sent."""
        size = self.job.size
        with self.submission():
            self.agree("all_gather_object", what, is_alone=True).finish()
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

    def broadcast_object(self, obj: Any, root: int, what: str = "an object") -> Any:
        """Send the object of rank ``root`` to all workers, pickled. Every worker's call returns
        this object. `what` is that of :meth:`broadcast_bytes`."""
        is_root = self.job.rank == root
        data = self.broadcast_bytes(pack_object(obj) if is_root else None, root, what)
        return obj if is_root and is_object(data) else unpack_object(data, self.shown(root))

    def allgather_object(self, obj: Any, what: str = "an object") -> list[Any]:
        """Return every worker's object, ordered by rank. `what` is that of
        :meth:`allgather_bytes`."""
        given = self.allgather_bytes(pack_object(obj), what)
        return [unpack_object(data, self.shown(rank)) for rank, data in enumerate(given)]

    def allgather_present(self, obj: Any, what: str = "an object") -> list[Any]:
        """Return the objects of the workers that are present. Leave out workers that are lost or
        have not joined yet. `what` is that of :meth:`allgather_bytes`."""
        data = self.allgather_bytes(pack_object(obj), what)
        return [unpack_object(one, self.shown(rank)) for rank, one in enumerate(data) if one]


def _out_of_step(failure: BaseException) -> Error:
    """Return the error of operations that follow a failed submission."""
    text = (
        f"an earlier operation without a name failed while it was submitted ({failure}), so this "
        "worker is out of step with the others: start the job again"
    )
    if isinstance(failure, Error):
        return Error(failure.code, text, failure.rank, failure.host, failure.tensor)
    return Error(CODES["EMISMATCH"], text)
