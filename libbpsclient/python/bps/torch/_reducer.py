"""Reduction of gradients in buckets (:mod:`bps.torch._bucket`).

When autograd has computed a gradient, a hook copies it into its bucket, and a full bucket is sent.
No thread is started. The caller of :meth:`Reducer.finish` waits for the sums.

Gradients are assigned to buckets at the end of the first step. First the workers compare the names,
shapes and types of their parameters. If only the order of the names differs, the order of the
lowest rank is used. Then the workers agree on which parameters have sparse gradients. Sparse
gradients are gathered instead of summed. Parameters that need a gradient only later, because they
were frozen or were added, get buckets in the first step in which they need one.

The first bucket has one more element at its end. A worker that trains sends 1 in this element, and
a worker that has called :func:`bps.torch.join` sends 0. If the sum is 0, all workers have called
``join``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

import bps
from bps import _compare
from bps._compression import (
    RANDOMK,
    RAW,
    Coding,
    check_block_op,
    check_machines,
    check_own_machine,
)
from bps._library import OPS
from bps._operation import IN_FLIGHT, Slot
from bps._sets import ProcessSet, global_process_set
from bps.torch._bucket import Bucket, Place
from bps.torch._channels import check_gradient, open_channels
from bps.torch._memory import (
    described,
    described_type,
    has_storage_of,
    input_view,
    output_view,
    wire_dtype,
)
from bps.torch._profile import waiting
from bps.torch._sparse import sum_sparse

BUCKET_BYTES = 16 << 20
WHAT = "the gradients of an optimizer or a module"  # for the text of errors
# All reducers whose hooks are registered.
open_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()


class Reducer:
    """Reduces the gradients of named parameters over all workers.

    Args:
        named: pairs (name, parameter). Begin with the layers that the forward pass uses first.
            Parameters that are frozen may be among them.
        op (int): Average or Sum.
        passes (int): number of backward passes whose gradients are added up before they are sent.
        prescale, postscale (float): factors before and after the sum.
        coding (Coding): how gradients are sent.
        sparse_as_dense (bool): convert sparse gradients to dense gradients and sum them, instead of
            summing only the rows that a worker has.
        bucket_bytes (int): size of a bucket.
        groups (dict): names of parameters -> number of a group. The gradients of a group are sent
            in one bucket, without others.
        is_forward_order (bool): send the gradients of the first layers first, because the next
            forward pass waits for each bucket separately. If False, send the gradients of the last
            layers first, because the backward pass computes them first.
        process_set (ProcessSet): the workers that take part.
        keeps_gradients (bool): leave this worker's gradient in ``.grad`` until the sum replaces it,
            although both then take memory. If False, ``.grad`` is None in between.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        op: int = bps.AVG,
        passes: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        coding: Coding = RAW,
        sparse_as_dense: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        is_forward_order: bool = False,
        process_set: ProcessSet = global_process_set,
        groups: Mapping[str, int] | None = None,
        keeps_gradients: bool = False,
    ) -> None:
        self._op, self.passes, self._prescale, self._postscale = op, passes, prescale, postscale
        self._coding, self._bucket_bytes = coding, bucket_bytes
        self._is_forward_order, self._groups = is_forward_order, groups or {}
        self._keeps_gradients = keeps_gradients
        self._runtime = process_set.runtime()
        self.number = self._runtime.next_set()
        self._buckets: list[Bucket] = []
        self._by_priority: list[Bucket] = []  # all buckets, largest priority first
        self._sparse: list[Place] = []
        self._in_flight: list[Bucket] = []
        self.begun = False  # whether autograd has computed a gradient of this step
        self.is_paused = False  # whether gradients are added up and not sent (no_sync)
        self.on_begin: Callable[[], None] | None = None  # called at the first gradient of a step
        self.on_reopen: Callable[[], None] | None = None  # called by reopen()
        self.on_join: Callable[[], None] | None = None  # called by send_zeros()
        self._places: list[Place] = []  # in the order of the hooks
        self._hooks: list[Any] = []
        self._idle: list[tuple[str, torch.Tensor]] = []  # parameters that need no gradient yet
        self._uncut: list[Place] = []  # places that are not assigned yet
        # Agreements of the workers: for each group of parameters that were assigned together, the
        # parameters in their common order, and the indices of those with sparse gradients.
        self._plan: list[tuple[_compare.List, set[int]]] = []
        # The agreement in progress, which another call continues after a time-out: its places, and
        # their order when it is known.
        self._pending: list[Place] | None = None
        self._order: list[int] | None = None
        self._sparse_as_dense = sparse_as_dense
        self._n_steps = 0  # steps since the plan was empty, or was adopted at all workers
        self._new_owner: str | None = None  # a parameter that a newer reducer reduces
        self.add(named)
        open_reducers.add(self)
        self._runtime.reopened.add(self)

    def add(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Reduce the gradients of further parameters, as soon as they need gradients."""
        self._idle += [(name, param) for name, param in named if param.numel()]
        self.take_in()

    def take_in(self, names: Collection[str] = ()) -> None:
        """Register hooks for those added parameters that need gradients now, and for those of the
        given names."""
        new, idle = [], []
        for name, param in self._idle:
            if param.requires_grad or name in names:
                new.append(Place(name, param))
            else:
                idle.append((name, param))
        if not new:
            return
        for place in new:
            check_gradient(place.param)
            wire_dtype(place.param.dtype)
        self._idle = idle
        mine = {id(place.param): place.name for place in new}
        for other in list(open_reducers - {self}):
            shared = [place for place in other._places if id(place.param) in mine]
            if shared:
                other.close(shared[0].name)  # only the newest reducer may reduce a gradient
        for place in new:
            hook = self._hook(len(self._places))
            is_trained = place.param.requires_grad
            place.param.requires_grad_(True)  # PyTorch refuses hooks of frozen parameters
            self._hooks.append(place.param.register_post_accumulate_grad_hook(hook))
            place.param.requires_grad_(is_trained)
            self._places.append(place)
        self._uncut += new

    def reopen(self) -> None:
        """Forget all buckets, as in a new reducer. This method is called after this worker has left
        the job and joined it again. The buckets are then not valid: some workers may be new, and
        the buckets' memory was allocated before this worker left."""
        self._buckets, self._sparse, self._in_flight, self._plan = [], [], [], []
        self._uncut = list(self._places)
        self._pending = self._order = None
        self._n_steps = 0
        if self.on_reopen is not None:
            self.on_reopen()
        for place in self._places:
            place.bucket = None
        self._reset()

    @property
    def places(self) -> list[Place]:
        """Places of all parameters that need gradients or have needed them."""
        return self._places

    @property
    def has_sparse(self) -> bool:
        """Whether gradients are gathered instead of summed."""
        return bool(self._sparse)

    @property
    def residual_prefix(self) -> str:
        """Beginning of the names of the buckets' residuals."""
        return self._runtime.residual_name(f"{self._runtime.prefix}grad/{self.number}.")

    @property
    def _is_cut(self) -> bool:
        return bool(self._plan) and not self._uncut

    def _list(self, places: Sequence[Place]) -> _compare.List:
        """Return the parameters and options that must be equal at all workers."""
        entries = []
        for place in places:
            group = self._groups.get(place.name)
            text = "" if group is None else f" in group {group}"
            entries.append((place.name, described(place.param) + text))
        coding = f"{self._coding}," if self._coding.wire else ""
        order = "forward" if self._is_forward_order else "backward"
        op = OPS[self._op] + (", sparse as dense" if self._sparse_as_dense else "")
        options = (
            f"{coding} {op}, factors {self._prescale:g} and {self._postscale:g}, buckets of "
            f"{self._bucket_bytes} bytes in {order} order"
        )
        return _compare.List(entries, options)

    def _agree(self) -> None:
        """Compare the parameters that are not assigned yet with those of the other workers, agree
        on which gradients are sparse, and assign the dense gradients to buckets."""
        # Each reducer has its own tensors for the agreement. So different workers may run the
        # agreements of their reducers in different orders.
        name, rt = f"grad/{self.number}.{len(self._plan)}", self._runtime
        # If a worker takes a parameter in at a later step, its buckets would be summed with those
        # of other steps of the other workers. So the steps are compared, too.
        step = f", taken in after {self._n_steps} steps"
        if self._pending is None:
            self._pending = list(self._uncut)
        try:
            if self._order is None:
                mine = self._list(self._pending)
                mine = mine._replace(options=mine.options + step)
                self._order = rt.compare_lists(name, WHAT, mine)
            places = [self._pending[i] for i in self._order]
            sparse = set() if self._sparse_as_dense else self._agree_on_sparse(places, name)
            if any(self._block_of(p) for i, p in enumerate(places) if i not in sparse):
                check_block_op(self._op)
                check_machines(rt, self._coding, name)
        except bps.Error as error:
            if error.code not in IN_FLIGHT:
                self._pending = self._order = None
            raise
        self._pending = self._order = None
        self._cut(places, sparse)

    def _block_of(self, place: Place) -> str | None:
        """Return the block type in which a dense gradient is sent, or None."""
        n_bytes = place.param.numel() * place.param.element_size()
        return self._coding.block_of(described_type(place.param.dtype), n_bytes)

    def _agree_on_sparse(self, places: Sequence[Place], name: str) -> set[int]:
        """Return the indices of those places whose gradient is sparse at one worker or more."""
        rt, n = self._runtime, len(places)

        def mark(slot: Slot) -> None:
            marks = input_view(slot).zero_()
            for i, place in enumerate(places):
                grad = place.param.grad
                marks[i] = grad is not None and grad.is_sparse

        slot = rt.begin_once(f"{name}.sparse", "u8", max(n, 1), bps.MAX, mark)
        with waiting():
            slot.tensor.finish()
        return set(output_view(slot)[:n].nonzero().view(-1).tolist())

    @property
    def plan(self) -> list[tuple[_compare.List, set[int]]]:
        """Agreements of the workers: for each group of parameters that were assigned together, the
        parameters, and the indices of those whose gradients are sparse."""
        return self._plan

    def adopt(self, plan: Sequence[tuple[_compare.List, set[int]]], root: int) -> None:
        """Assign gradients to buckets as the other workers did before this worker joined. This
        worker's parameters may still be frozen.

        Args:
            plan (sequence): :attr:`plan` of the other workers.
            root (int): rank of the worker that has sent the plan.

        Raises:
            Error: EMISMATCH if this worker has other parameters or options.
            ValueError: see :func:`bps._compression.check_own_machine`.
        """
        rt, self._n_steps = self._runtime, 0
        check_own_machine(rt, self._coding)
        for theirs, sparse in plan[len(self._plan) :]:
            names = {name for name, _ in theirs.entries}
            self.take_in(names)
            places = [p for p in self._uncut if p.name in names] if len(plan) > 1 else self._uncut
            mine = self._list(places)
            order = _compare.order(WHAT, mine, {root: theirs} | {rt.job.rank: mine})
            self._cut([places[i] for i in order], sparse)

    def _cut(self, places: Sequence[Place], sparse: set[int]) -> None:
        """Assign the dense gradients of these places to buckets, and declare a tensor for each
        bucket. The buckets depend only on device, type, order and size of these gradients, so all
        workers have the same buckets."""
        first = len(self._buckets)
        last: dict[Any, tuple[Bucket, int]] = {}
        for i, place in enumerate(places):
            if i in sparse:
                self._sparse.append(place)
                continue
            group = self._groups.get(place.name)
            n_bytes = place.param.numel() * place.param.element_size()
            wire = self._block_of(place) or wire_dtype(place.param.dtype, self._coding, n_bytes)
            kind = (place.param.device, place.param.dtype, wire, i if wire == RANDOMK else group)
            found = last.get(kind)
            if found is None or (group is None and found[1] + n_bytes > self._bucket_bytes):
                found = Bucket(wire, self._prescale), 0
                self._buckets.append(found[0])
            bucket, used = found
            bucket.places.append(place)
            last[kind] = (bucket, used + n_bytes)
        # A tensor that is declared earlier has a larger priority.
        self._by_priority = self._buckets if self._is_forward_order else self._buckets[::-1]
        new = self._buckets[first:] if self._is_forward_order else self._buckets[first:][::-1]
        decls = []
        for bucket in new:
            i, param = self._buckets.index(bucket), bucket.places[0].param
            name = f"{self._runtime.prefix}grad/{self.number}.{i}"
            n = bucket.n_values() + (i == 0 and bucket.wire != RANDOMK)
            decls.append((name, bucket.wire, n, param.device))
        for bucket, channel in zip(new, open_channels(self._runtime, decls, self._coding)):
            bucket.attach(channel, self._postscale != 1.0)
        self._plan.append((self._list(places), sparse))
        self._uncut = [place for place in self._uncut if place not in places]

    def _hook(self, i: int) -> Callable[[torch.Tensor], None]:
        """Return a hook for parameter i. The hook has only a weak reference to the reducer, because
        the garbage collector cannot follow references from hooks. A strong reference would keep
        the reducer alive."""
        ref = weakref.ref(self)

        def on_gradient(_: torch.Tensor) -> None:
            reducer = ref()
            if reducer is not None and not reducer.is_paused:
                reducer._on_gradient(reducer._places[i])

        return on_gradient

    def _on_gradient(self, place: Place) -> None:
        if place.bucket is not None and place.bucket.is_handed_over:
            raise RuntimeError(
                f"parameter '{place.name}' was used before its update, because the program used it "
                "without calling its module: use cross_barrier=False for this model"
            )
        place.n_passes += 1
        if not self.begun:
            self.begun = True
            if self.on_begin is not None:
                self.on_begin()
        if place.n_passes == self.passes:
            if place.bucket is not None:
                self._fill(place, place.bucket)
        elif place.n_passes > self.passes:
            raise AssertionError(
                f"parameter '{place.name}' got more gradients than "
                f"backward_passes_per_step={self.passes} allows "
                "before step() or synchronize(): increase backward_passes_per_step to "
                "accumulate gradients. If the loss of another optimizer computes gradients of this "
                "parameter, as in a GAN, call requires_grad_(False) on it before that backward(). "
                "With checkpointing of a layer that is used twice, use use_reentrant=False"
            )

    def _fill(self, place: Place, bucket: Bucket) -> None:
        """Copy a parameter's gradient into its bucket. If the parameter has no gradient, copy zeros
        instead. If the bucket is then full, send the bucket."""
        param = place.param
        grad = param.grad
        bucket.channel.check()
        is_there = (
            grad is not None and bucket.is_in_place and grad.data_ptr() == place.input.data_ptr()
        )
        if not is_there:
            if grad is not None and bucket.is_in_place and has_storage_of(grad, place.input):
                raise RuntimeError(
                    f"the gradient of parameter '{place.name}' shares memory with another "
                    "gradient, and its exchange would overwrite that other gradient: assign a "
                    "clone() to .grad"
                )
            bucket.fill(place, grad)
        if not self._keeps_gradients:
            param.grad = None  # free autograd's memory
        place.is_filled = True
        bucket.n_ready += 1
        if bucket.n_ready == len(bucket.places):
            bucket.pack()
            self._push(bucket, 1)

    def _push(self, bucket: Bucket, is_training: int) -> None:
        if bucket is self._buckets[0]:
            bucket.channel.mark(is_training)
        bucket.channel.push(self._op)
        self._in_flight.append(bucket)

    def send(self) -> None:
        """Send the buckets that are not full, with zeros for the missing gradients.

        Raises:
            RuntimeError: a newer reducer reduces one of the gradients.
        """
        if self._new_owner is not None:
            raise RuntimeError(
                f"parameter '{self._new_owner}' is also in a DistributedOptimizer or module that "
                "was wrapped later, and only the newest one reduces its gradient: wrap one "
                "optimizer of all parameters, or give each optimizer other parameters"
            )
        self.take_in()
        self._fill_all()  # before a wait in _agree(), because other workers may wait for these
        if not self._is_cut:
            while not self._is_cut:
                self._agree()
            self._fill_all()

    def _fill_all(self) -> None:
        """Copy the gradients that are not in their buckets yet, and send the buckets."""
        for place in self._places:
            if place.bucket is not None and not place.is_filled:
                self._fill(place, place.bucket)

    def sum_sparse(self) -> list[torch.Tensor]:
        """Replace sparse gradients by their sums over all workers. Return the parameters that have
        sparse gradients."""
        if not self._sparse:
            return []
        params = [place.param for place in self._sparse]
        grads = [param.grad for param in params]
        factor = self._prescale * self._postscale
        what = f"sparse gradients {self.number}, first '{self._sparse[0].name}'"
        totals = sum_sparse(self._runtime, grads, params, self._op, factor, self._coding, what)
        for param, total in zip(params, totals):
            param.grad = total
        return params

    def collect(self, bucket: Bucket) -> None:
        """Wait for a bucket, and let ``.grad`` of its parameters be the sums."""
        bucket.channel.finish()
        self._in_flight.remove(bucket)
        bucket.is_handed_over = False
        bucket.deliver(self._postscale)

    def hand_over(self) -> list[Bucket]:
        """Begin the next step. The caller must collect the returned buckets, which are still in
        flight."""
        self._reset()
        self._n_steps += 1
        for bucket in self._in_flight:
            bucket.is_handed_over = True
        return list(self._in_flight)

    def _next(self) -> Bucket:
        """Return the bucket to collect next. Prefer a complete bucket, so that the caller copies
        its sums while other buckets are in flight. If no bucket is complete, return the bucket that
        was declared first. Its priority is the largest, so it usually completes first."""
        for bucket in self._in_flight:
            if bucket.channel.poll():
                return bucket
        return min(self._in_flight, key=self._by_priority.index)

    def finish(self) -> None:
        """Send the remaining buckets, wait for all sums and write them into the gradients.

        After a time-out the sums are still in flight, and the caller may call this method again.
        """
        self.send()
        self.receive()

    def receive(self) -> None:
        """Wait for the sums of the buckets that :meth:`send` has sent, and write them into the
        gradients. After a time-out, the caller may call this method again."""
        while self._in_flight:
            self.collect(self._next())
        self.sum_sparse()
        self._reset()
        self._n_steps += 1

    @property
    def is_behind(self) -> bool:
        """Whether the last step did not wait for this worker's machine, because other workers are
        ahead (backup machines)."""
        return any(bucket.channel.is_late for bucket in self._buckets)

    def abstain(self) -> None:
        """Take part in one step of the other workers without gradients. ``.grad`` of the parameters
        becomes their sums.

        Raises:
            RuntimeError: gradients of this worker are being reduced.
        """
        if self.begun or self._in_flight:
            raise RuntimeError(
                "catch_up() was called between backward() and step(): call it before the next "
                "forward pass"
            )
        for place in self._places:
            place.param.grad = None
        for bucket in self._buckets:
            bucket.channel.abstain(self._op)
            self._in_flight.append(bucket)
        self.receive()

    def _reset(self) -> None:
        self.begun = False
        for bucket in self._buckets:
            bucket.n_ready = 0
        for place in self._places:
            place.n_passes, place.is_filled = 0, False

    def send_zeros(self) -> int:
        """Take part in the other workers' steps with zeros as gradients, until all workers send
        zeros.

        Returns:
            int: number of steps in which this worker has sent zeros.

        Raises:
            NotImplementedError: a parameter has sparse gradients.
        """
        if self.on_join is not None:
            self.on_join()
        self.take_in()
        while not self._is_cut:
            self._agree()
        if self._sparse:
            raise NotImplementedError(
                f"join: parameter '{self._sparse[0].name}' has a sparse gradient: give the "
                "optimizer sparse_as_dense=True"
            )
        n_steps = 0
        while self._buckets:
            for bucket in self._buckets:
                bucket.clear()
                self._push(bucket, 0)
            while self._in_flight:
                self._in_flight[0].channel.finish()
                self._in_flight.pop(0)
            if self._buckets[0].channel.last_is_zero():
                break
            n_steps += 1
        self._n_steps += n_steps
        return n_steps

    def close(self, name: str) -> None:
        """Remove the hooks, so that gradients are not reduced any more, because a newer reducer
        reduces the gradient of the parameter `name`."""
        self._new_owner = name
        for hook in self._hooks:
            hook.remove()
        open_reducers.discard(self)
