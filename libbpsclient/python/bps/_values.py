"""Parameters that servers keep as values, for optimizers that train asynchronously.

Each worker updates its parameters with its own gradients, and sends the change (the delta). The
servers add the delta to their values when it arrives, and answer with the values of that moment,
which become the worker's parameters. The first round sets the values to the parameters of one
worker (docs/reference/values.md).

A worker waits for the others only in the first round, and for those that are more steps behind than
the bound allows. The workers of one machine stay in step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bps import _compare, _core
from bps._library import MODES, PRIORITY_AUTO, STALE_UNBOUNDED, SUM, Error
from bps._operation import Slot
from bps._tensor import size_of

BUCKET_BYTES = 16 << 20
WHAT = "the parameters of an asynchronous optimizer"  # for the text of errors
# Types of parameters, each with the type in which the servers keep the values. The sum of many
# small deltas needs the 24 bits of float32.
KEPT = {"float16": "f32", "bfloat16": "f32", "float32": "f32", "float64": "f64"}
_NO_GRADIENTS = "no gradients are exchanged"
_NO_ROUNDING = "deltas are sent as float32 or float64"
_WAITS = "each step waits for the servers' values"
# Options of optimizers that exclude asynchronous training, with the reason.
EXCLUDED = {
    "compression": _NO_ROUNDING,
    "compression_params": _NO_ROUNDING,
    "cross_barrier": _WAITS,
    "gradient_predivide_factor": _NO_GRADIENTS,
    "groups": _NO_GRADIENTS,
    "local_layers": "all parameters are values of the servers",
    "num_groups": _NO_GRADIENTS,
    "one_step_late": _WAITS,
    "op": _NO_GRADIENTS,
    "process_set": "the values are those of all workers",
    "scale_local_gradients": _NO_GRADIENTS,
    "sparse_as_dense": _NO_GRADIENTS,
}


class Bound(NamedTuple):
    """How far asynchronous workers may be apart. `stale` is the number of steps by which a worker
    may be behind without being waited for; None: any number."""

    stale: int | None

    def __str__(self) -> str:
        return "without a bound" if self.stale is None else f"with the bound {self.stale}"


def _bound_of_environment() -> Bound | None:
    """Return the bound that the environment variables choose; None: they choose no asynchronous
    training.

    Raises:
        ValueError: BPS_STALE is not a bound.
    """
    raw = os.environ.get("BPS_STALE", "")
    if raw.isdecimal() and int(raw) < STALE_UNBOUNDED:
        return Bound(int(raw))
    if raw not in ("", "inf"):
        raise ValueError(
            f"BPS_STALE={raw} is not a bound: set it to a number of steps, or to inf for none"
        )
    is_byteps = os.environ.get("BYTEPS_ENABLE_ASYNC", "").lower() not in ("", "0", "false")
    return Bound(None) if raw or is_byteps else None


def choose_bound(asynchronous: bool | None, stale: int | None) -> Bound | None:
    """Return the bound for an optimizer; None: the optimizer is synchronous.

    Args:
        asynchronous (bool, optional): the user's choice; None: that of the environment variables
            BPS_STALE and BYTEPS_ENABLE_ASYNC.
        stale (int, optional): the bound; None: that of BPS_STALE, or none.

    Raises:
        ValueError: the bound is negative, or the optimizer is synchronous; BPS_STALE is wrong.
    """
    if stale is not None and not asynchronous:
        raise ValueError("stale needs asynchronous=True")
    if stale is not None and not 0 <= stale < STALE_UNBOUNDED:
        raise ValueError(f"stale is {stale}, but must be a number of steps from 0")
    if asynchronous is False:
        return None
    if stale is not None:
        return Bound(stale)
    return _bound_of_environment() or (Bound(None) if asynchronous else None)


def check_excluded(options: Mapping[str, bool]) -> None:
    """Check that no option excludes asynchronous training.

    Args:
        options (mapping): for names of EXCLUDED, whether the user has set them.

    Raises:
        ValueError: an option is set.
    """
    for name, is_set in options.items():
        if is_set:
            raise ValueError(
                f"{name} cannot be combined with asynchronous training, in which "
                f"{EXCLUDED[name]}: omit {name}, or pass asynchronous=False"
            )


def refuse(what: str) -> None:
    """Refuse a synchronous operation if the environment chooses asynchronous training.

    Args:
        what (str): the operation, for the text of the error.

    Raises:
        ValueError: it does.
    """
    if _bound_of_environment() is not None:
        raise ValueError(
            f"{what} cannot train asynchronously: use DistributedOptimizer, or unset "
            "BYTEPS_ENABLE_ASYNC and BPS_STALE"
        )


class Parameter(NamedTuple):
    """A parameter: its name, its type and shape as text, its type ("float32") and its number of
    values."""

    name: str
    text: str
    dtype: str
    n_values: int


class Bucket(NamedTuple):
    """A tensor of the job, and the parameters whose values it holds: for each parameter its index,
    its first value in the tensor and its number of values."""

    slot: Slot
    parts: list[tuple[int, int, int]]


Access = Callable[[Bucket], None]  # writes the input of a bucket, or reads its output


class Values:
    """Parameters of one or more optimizers that servers keep as values.

    Args:
        parameters: the same ones at all workers, in any order.
        bound (Bound): how far workers may be apart.
        bucket_bytes (int): size of the tensors in which the values are sent.
        root (int): rank of the worker whose parameters become the first values.
        labels (sequence of str, optional): names of the parameters for the text of an error, which
            may differ between the workers.

    Attributes:
        is_set (bool): whether the values exist at the servers.
        buckets (list of Bucket): the tensors; empty before the first round.

    Raises:
        TypeError: servers cannot keep values of a parameter's type.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        bound: Bound,
        bucket_bytes: int = BUCKET_BYTES,
        root: int = 0,
        labels: Sequence[str] | None = None,
    ) -> None:
        for i, one in enumerate(parameters):
            if one.dtype not in KEPT:
                raise TypeError(
                    f"parameter '{labels[i] if labels else one.name}' has the type {one.dtype}, "
                    f"but asynchronous training needs one of {', '.join(KEPT)}: exclude it from "
                    "the optimizer, or pass asynchronous=False"
                )
        self._parameters, self._bound = parameters, bound
        self._bucket_bytes, self._root, self._labels = bucket_bytes, root, labels
        self._runtime = _core.runtime()
        self._runtime.reopened.add(self)
        self._first_number = self._runtime.next_set()
        self.reopen()

    def reset(self) -> None:
        """Forget the values. The next round sets those of new tensors. All workers must call this
        method."""
        self._forget(self._runtime.next_set())

    def reopen(self) -> None:
        """Forget the values, as in a new process. This method is called after this worker has left
        the job and joined it again. The values of its tensors are lost then."""
        self._forget(self._first_number)

    def _forget(self, number: int) -> None:
        self._number = number
        self.buckets: list[Bucket] = []
        self.is_set = False
        self._n_awaited = 0  # buckets of the round in flight whose answers are not read yet
        self._n_pulled = 0  # steps of pull() that are complete
        self._n_received = self._runtime.n_received

    @property
    def is_in_flight(self) -> bool:
        """Whether a time-out has ended the wait for a round whose answers are not read yet."""
        return self._n_awaited > 0

    def take_broadcasts(self) -> bool:
        """Return whether this worker has received a broadcast since the last call. Its parameters
        may then be those of another worker, as after the first step of many scripts. The next
        answer replaces them."""
        seen, self._n_received = self._n_received, self._runtime.n_received
        return seen != self._n_received

    def _cut(self, order: Sequence[int]) -> list[tuple[str, list[tuple[int, int, int]]]]:
        """Return the type and the parts of each bucket."""
        cut: list[tuple[str, list[tuple[int, int, int]]]] = []
        for kind in ("f32", "f64"):
            room = 0
            for i in order:
                one = self._parameters[i]
                if KEPT[one.dtype] != kind or not one.n_values:
                    continue
                if room <= 0:
                    cut.append((kind, []))
                    room = self._bucket_bytes
                parts = cut[-1][1]
                first = sum(parts[-1][1:]) if parts else 0
                parts.append((i, first, one.n_values))
                room -= size_of(kind, one.n_values)
        return cut

    def _open(self) -> None:
        """Compare the parameters with those of the other workers, and declare the buckets. After a
        time-out, another call continues this one.

        Raises:
            Error: EMISMATCH at all workers if their parameters or their bounds differ.
            ValueError: the job has an option that excludes values.
        """
        rt = self._runtime
        entries = [(one.name, one.text) for one in self._parameters]
        options = (
            f" asynchronous training {self._bound}, buckets of {self._bucket_bytes} bytes, values "
            f"of rank {self._root}"
        )
        mine = _compare.List(entries, options)
        # A synchronous optimizer of PyTorch compares its gradients under this name, too.
        name = f"grad/{self._number}.0"
        cut = self._cut(rt.compare_lists(name, WHAT, mine, self._labels))
        stale = STALE_UNBOUNDED if self._bound.stale is None else self._bound.stale
        mode = (0, MODES.index("value"), stale)
        decls = [
            (f"{rt.prefix}value/{self._number}.{i}", kind, sum(parts[-1][1:]), *mode)
            for i, (kind, parts) in enumerate(cut)
        ]
        try:
            tensors = rt.job.declare_group(decls)
        except Error as error:
            if error.code != -errno.EINVAL:
                raise
            raise ValueError(f"this job cannot train asynchronously: {error}") from error
        self.buckets = [Bucket(Slot(t), parts) for t, (_, parts) in zip(tensors, cut)]

    def _submit(self, write: Access | None) -> None:
        with self._runtime.lock:
            for bucket in self.buckets:
                if write is None:
                    bucket.slot.tensor.abstain(SUM, PRIORITY_AUTO)
                else:
                    write(bucket)
                    bucket.slot.tensor.push_pull(SUM, PRIORITY_AUTO)
            self._n_awaited = len(self.buckets)

    def finish(self, read: Access) -> None:
        """Wait for the answers of the round in flight, if there is one, and read them. After a
        time-out, another call continues this one. The values are then set, because the first round
        sets them.

        Raises:
            Error: the round is not complete before the job's time-out. The text names the workers
                that it waits for.
        """
        while self._n_awaited:
            bucket = self.buckets[-self._n_awaited]
            bucket.slot.tensor.finish(is_interruptible=True)
            read(bucket)
            self._n_awaited -= 1
            self.is_set |= not self._n_awaited

    def start(self, write: Access, read: Access) -> None:
        """Set the values to the parameters of one worker, and read them, unless they are set. Wait
        for all workers. After a time-out, another call continues this one.

        Args:
            write (callable): writes the parameters of a bucket.
            read (callable): reads the parameters of a bucket.
        """
        if self.is_set:
            return
        if not self.buckets and any(one.n_values for one in self._parameters):
            self._open()
        if not self._n_awaited:
            is_root = self._runtime.job.rank == self._root
            self._submit(write if is_root else None)
        self.finish(read)
        self.is_set = True

    def add(self, write: Access | None, read: Access) -> None:
        """Add this worker's deltas to the values, and read the sums.

        Args:
            write (callable, optional): writes the deltas of a bucket; None: all deltas are 0.
            read (callable): reads the values of a bucket.
        """
        self._n_pulled = 0  # the step replaces a pull that has timed out
        self._submit(write)
        self.finish(read)

    def pull(self, write: Access, read: Access) -> None:
        """Wait until all workers have called this method, and read the values, which are then the
        same at all workers. After a time-out, another call continues this one. `write` is that of
        :meth:`start`."""
        if self._n_pulled == 0:
            self.finish(read)
            self.start(write, read)
            self._n_pulled = 1
        if self._n_pulled == 1:
            self._runtime.job.barrier()
            self._submit(None)
            self._n_pulled = 2
        self.finish(read)
        self._runtime.job.barrier()  # no worker goes on before all have read
        self._n_pulled = 0
