"""An optimizer whose state is divided among the workers (ZeRO-1)."""

from __future__ import annotations

import collections
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from bps._library import AVG, SUM
from bps._runtime import Runtime
from bps._sets import ProcessSet, global_process_set
from bps.torch._bucket import flat_like
from bps.torch._handle import Handle
from bps.torch._memory import check_device, described_type, wire_dtype
from bps.torch._parts import (
    MOVE,
    Part,
    as_bytes,
    consecutive,
    length,
    overlap,
    scatter_sums,
    sum_parts,
)

# Optimizers whose update of an element depends on other elements of its parameter, or that need
# parameters of a certain shape
REFUSED = ("LBFGS", "Adafactor", "Muon", "SparseAdam")
# State of the optimizers of PyTorch that is one number for a parameter
SCALARS = ("step", "mu_product", "eta", "mu")
# Number of buckets that are reduced before the first one is updated and gathered
AHEAD = 3


def _storage(param: torch.Tensor) -> torch.Tensor:
    """Return the elements of a parameter as a flat tensor that shares its memory."""
    if not torch.ops.aten.is_non_overlapping_and_dense(param):
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} has gaps between its elements: replace it "
            "by its clone()"
        )
    return param.detach().as_strided((param.numel(),), (1,))


def _form(param: torch.Tensor) -> Any:
    """Return what must stay the same while the memory of a parameter may change."""
    strides = [stride for n, stride in zip(param.shape, param.stride()) if n > 1]
    return param.dtype, param.device, param.shape, strides


class _Bucket:
    """A part of the vector of a :class:`_Vector`. Each worker updates an equal part of the bucket,
    its shard.

    Args:
        rt (Runtime): the workers that take part.
        vector (_Vector): the vector.
        start, n (int): the bucket's first value in the vector, and its number of values.

    Attributes:
        shard (Parameter): this worker's part. If the bucket cannot be divided, zeros are appended.
        optimizer (Optimizer): updates the shard; set by :class:`ShardedOptimizer`.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, rt: Runtime, vector: _Vector, start: int, n: int) -> None:
        self._start, self._n = start, n
        self._n_shard, self._rank, self._size = -(-n // rt.job.size), rt.job.rank, rt.job.size
        first = vector.params[0]
        self.shard = torch.nn.Parameter(
            torch.zeros(self._n_shard, dtype=first.dtype, device=first.device)
        )
        self.shard.grad = torch.zeros_like(self.shard)
        self._text = f"values {start} to {start + n} of {vector.text}"

    def _within(self, parts: Sequence[Part]) -> list[Part]:
        """Return what parts of the vector have of this bucket."""
        return [(where.start, piece) for where, piece in overlap(parts, self._start, self._n)]

    def take(self, parts: Sequence[Part], into: torch.Tensor) -> None:
        """Copy this worker's part of the bucket out of parts of the vector."""
        for where, piece in overlap(self._within(parts), self._rank * self._n_shard, self._n_shard):
            into[where] = piece

    def reduce(self, rt: Runtime, grads: Sequence[Part], n_frozen: int) -> Handle:
        """Submit gradients, which are parts of the vector. The gradient of the shard becomes their
        average over the workers. n_frozen: number of parameters that this worker does not
        change, which the workers compare."""
        wire, taken = wire_dtype(self.shard.dtype), self.shard.grad
        assert taken is not None
        text = f"{self._text}, {n_frozen} frozen" if n_frozen else self._text
        given, agreement = self._within(grads), rt.agree("ShardedOptimizer.step", text)
        if rt.slots.may_shard():
            parts = scatter_sums(rt, wire, AVG, given, taken, agreement)
        else:
            n, at = self._n_shard * self._size, self._rank * self._n_shard
            whole = (given, [(at, taken)], n, agreement)
            parts = sum_parts(rt, wire, AVG, *whole, has_own_slot=True)
        return Handle(None, [agreement, *parts])

    def gather(self, rt: Runtime, mine: torch.Tensor, parts: Sequence[Part]) -> Handle:
        """Submit this worker's part of the bucket. The bucket is written to parts of the vector."""
        n, item = self._n_shard * mine.element_size(), mine.element_size()
        given = [(self._rank * n, as_bytes(mine.detach()))]
        taken = [(at * item, as_bytes(flat)) for at, flat in self._within(parts)]
        owners = [(rank, rank * n, rank * n + n) for rank in range(self._size)]
        agreement = rt.agree("ShardedOptimizer.gather", self._text)
        options: dict[str, Any] = {"owners": owners, **MOVE}
        whole = (given, taken, n * self._size, agreement)
        return Handle(None, [agreement, *sum_parts(rt, torch.uint8, SUM, *whole, **options)])


class _Vector:
    """Parameters of one group, one type and one device, one after the other.

    Args:
        rt (Runtime): the workers that take part.
        params (list of Parameter): the parameters.
        bucket_bytes (int): size of a bucket.

    Attributes:
        buckets (list of _Bucket): the vector, in buckets of equal sizes except the last one.
    """

    def __init__(self, rt: Runtime, params: list[torch.Tensor], bucket_bytes: int) -> None:
        self.params, self._forms = params, [_form(p) for p in params]
        layout = zlib.crc32(repr([(*p.shape, *p.stride()) for p in params]).encode())
        n, each = length(self.parts()), max(1, bucket_bytes // params[0].element_size())
        kind = f"{len(params)} parameters of {described_type(params[0].dtype)}"
        self.text = f"{kind} with {n} values (layout {layout:x})"
        self.buckets = [_Bucket(rt, self, at, min(each, n - at)) for at in range(0, n, each)]

    def parts(self) -> list[Part]:
        """Return the parameters' memory as parts of the vector. The program may give a parameter
        other memory at any time, for example by ``torch.nn.utils.vector_to_parameters``.

        Raises:
            RuntimeError: a parameter has another type, shape or order of elements than before.
        """
        for param, form in zip(self.params, self._forms):
            if _form(param) != form:
                raise RuntimeError(
                    f"a parameter of shape {tuple(param.shape)} has another type, shape or memory "
                    "format than when the ShardedOptimizer was constructed: construct a new one"
                )
        return consecutive([_storage(p) for p in self.params])

    def frozen(self) -> list[bool]:
        """Return for each parameter whether no step may change it: it needs no gradient, and has
        none."""
        return [not p.requires_grad and p.grad is None for p in self.params]

    def gradients(self) -> list[Part]:
        """Return the gradients as parts of the vector."""
        return [
            (at, flat_like(param, param.grad))
            for (at, _), param in zip(self.parts(), self.params)
            if param.grad is not None
        ]


class ShardedOptimizer(torch.optim.Optimizer):
    """Optimizer whose state is divided among the workers, ZeRO stage 1.

    Each worker keeps the state for an equal part of the parameters. :meth:`step` averages the
    gradients, of which each worker receives its part, updates this part, and gathers the
    parameters. So Adam with n workers keeps 8 / n bytes of state for each parameter of f32 instead
    of 8, and a copy of its part of the parameters and gradients, 8 / n bytes. Use it for memory: in
    time, ``DistributedOptimizer`` is better, because it averages gradients during the backward
    pass.

    The optimizer averages gradients itself, so do not wrap the model in DistributedDataParallel. It
    also sends the parameters of each step, but not the first ones: broadcast these. A parameter
    without gradient at a worker counts as a gradient of zeros. A frozen parameter
    (``requires_grad=False``, at all workers) without gradient is not changed.

    Args:
        params (iterable): parameters, or dicts that define groups, as for ``optimizer_class``.
        optimizer_class (type): a class of ``torch.optim`` that updates each element by the history
            of this element alone, such as SGD, Adam or AdamW.
        process_set (ProcessSet): the workers that take part.
        bucket_bytes (int): the gradients are sent in buckets of this size in bytes. While one
            bucket is reduced, the parameters of another one are gathered. Default: 2 MiB.
        **defaults: options of ``optimizer_class``.

    Raises:
        ValueError: the class or a parameter cannot be divided.

    Example::

        >>> bps.torch.init()
        >>> bps.torch.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> optimizer = bps.torch.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        >>> for inputs, labels in batches:
        ...     optimizer.zero_grad()
        ...     loss_of(model(inputs), labels).backward()
        ...     optimizer.step()

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models".
    """

    # GradScaler then calls step() at all workers, also at those whose gradients overflow.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        process_set: ProcessSet = global_process_set,
        bucket_bytes: int = 2 << 20,
        **defaults: Any,
    ) -> None:
        refused = (getattr(torch.optim, name, None) for name in REFUSED)
        if any(kind is not None and issubclass(optimizer_class, kind) for kind in refused):
            raise ValueError(
                f"ShardedOptimizer cannot divide {optimizer_class.__name__}, which does not update "
                "each element of a parameter alone: use an optimizer such as AdamW"
            )
        self._is_built = False
        super().__init__(params, defaults)
        self._process_set = process_set
        rt = process_set.runtime()
        self._place = rt.job.rank, rt.job.size
        self._vectors = [self._divide(rt, g, bucket_bytes) for g in self.param_groups]
        for group, vectors in zip(self.param_groups, self._vectors):
            options = {name: value for name, value in group.items() if name != "params"}
            for bucket in itertools.chain(*(vector.buckets for vector in vectors)):
                bucket.optimizer = optimizer_class([{"params": [bucket.shard], **options}])
                for name, value in bucket.optimizer.param_groups[0].items():
                    group.setdefault(name, value)
        self._consolidated: dict[str, Any] | None = None
        self._is_in_step = False  # True after a step that has ended with an error, too
        self._is_built = True

    @staticmethod
    def _divide(rt: Runtime, group: dict[str, Any], bucket_bytes: int) -> list[_Vector]:
        """Return vectors with all parameters of a group."""
        kinds: dict[Any, list[torch.Tensor]] = {}
        for param in group["params"]:
            check_device(param)
            if not param.dtype.is_floating_point:
                raise ValueError(
                    f"ShardedOptimizer needs floating-point parameters, not {param.dtype}"
                )
            kinds.setdefault((param.dtype, param.device), []).append(param)
        return [_Vector(rt, params, bucket_bytes) for params in kinds.values()]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. Only the constructor may do this.

        Raises:
            NotImplementedError: the optimizer has been constructed.
        """
        if self._is_built:
            raise NotImplementedError(
                "ShardedOptimizer has divided its parameters: pass all groups to the constructor"
            )
        super().add_param_group(param_group)

    def _all(self) -> Iterator[tuple[dict[str, Any], _Vector, _Bucket]]:
        """Yield each bucket, with its group and its vector."""
        for group, vectors in zip(self.param_groups, self._vectors):
            for vector in vectors:
                for bucket in vector.buckets:
                    yield group, vector, bucket

    def _placed_runtime(self) -> Runtime:
        """Return the runtime of the workers among which the parameters are divided.

        Raises:
            RuntimeError: the workers are others, for example after :func:`bps.torch.resume`.
        """
        rt = self._process_set.runtime()
        if (rt.job.rank, rt.job.size) != self._place:
            rank, size = self._place
            raise RuntimeError(
                f"this ShardedOptimizer has the part of rank {rank} of {size} workers, but the job "
                f"now has {rt.job.size} workers, and this is rank {rt.job.rank}: construct a new "
                "one, and load a state that was consolidated before"
            )
        return rt

    def _exchange(self) -> None:
        """Reduce, update and gather each bucket. AHEAD buckets are reduced in advance, so that both
        directions of the network are busy."""
        rt = self._placed_runtime()
        grads = {id(v): v.gradients() for vectors in self._vectors for v in vectors}
        frozen = {id(v): v.frozen() for vectors in self._vectors for v in vectors}
        self._is_in_step = True
        todo = list(self._all())
        reduced: collections.deque[Handle] = collections.deque()
        gathered: list[Handle] = []
        for i in range(len(todo) + AHEAD):
            if i < len(todo):
                _, vector, bucket = todo[i]
                with rt.submission():
                    n_frozen = sum(frozen[id(vector)])
                    reduced.append(bucket.reduce(rt, grads[id(vector)], n_frozen))
            if i >= AHEAD:
                group, vector, bucket = todo[i - AHEAD]
                reduced.popleft().wait()
                parts = vector.parts()
                self._update(group, parts, bucket)
                changed = [one for one, stays in zip(parts, frozen[id(vector)]) if not stays]
                with rt.submission():
                    gathered.append(bucket.gather(rt, bucket.shard, changed))
        for handle in gathered:
            handle.wait()
        self._is_in_step = False

    @staticmethod
    def _update(group: dict[str, Any], parts: Sequence[Part], bucket: _Bucket) -> None:
        """Update the shard of a bucket."""
        options = {name: value for name, value in group.items() if name != "params"}
        bucket.optimizer.param_groups[0].update(options)
        bucket.take(parts, bucket.shard)  # the program may have changed the parameters
        bucket.optimizer.step()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients over the workers, update the parameters, and send them.

        Args:
            closure (callable, optional): computes the loss and the gradients.

        Returns:
            the result of the closure, or None.

        Raises:
            bps.Error: a worker was lost or is late, or the workers' parameters differ. Then load a
                checkpoint before the next step.
            RuntimeError: the step before ended with an error.
            NotImplementedError: a GradScaler makes the call. Workers would scale by different
                factors; train with bfloat16, which needs no scaler.
        """
        if getattr(self, "found_inf", None) is not None:
            raise NotImplementedError(
                "ShardedOptimizer does not work with a GradScaler: train with bfloat16, which "
                "needs no scaler"
            )
        if self._is_in_step:
            raise RuntimeError(
                "the last step of this ShardedOptimizer ended with an error, so some parameters "
                "are updated and others are not: load a checkpoint of the model and the optimizer"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._exchange()
        self._consolidated = None
        return loss

    # ---- checkpoints ----

    def consolidate_state_dict(self) -> None:
        """Gather the state at all workers, for :meth:`state_dict`. All workers must call this
        method after the same step."""
        rt = self._placed_runtime()
        result = super().state_dict()
        numbers = {
            id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])
        }
        for _, vector, bucket in self._all():
            for name, value in bucket.optimizer.state.get(bucket.shard, {}).items():
                states = [result["state"].setdefault(numbers[id(p)], {}) for p in vector.params]
                if not isinstance(value, torch.Tensor) or value.shape != bucket.shard.shape:
                    for state in states:  # a number of steps
                        state[name] = value.clone() if isinstance(value, torch.Tensor) else value
                    continue
                for state, param in zip(states, vector.params):
                    state.setdefault(name, torch.empty_like(param, dtype=value.dtype).detach())
                parts = consecutive([_storage(state[name]) for state in states])
                with rt.submission():
                    handle = bucket.gather(rt, value, parts)
                handle.wait()
        self._consolidated = result

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the last :meth:`consolidate_state_dict`, in the form of
        ``optimizer_class``: it can be loaded with any number of workers, and by ``optimizer_class``
        itself.

        Raises:
            RuntimeError: the state has not been gathered since the last step.
        """
        if self._consolidated is None:
            raise RuntimeError(
                "each worker has a part of the state: call consolidate_state_dict() at all workers "
                "first"
            )
        return self._consolidated

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`, or of ``optimizer_class.state_dict()`` for the same
        parameters. Each worker keeps its part. A parameter without state, because it never had a
        gradient, gets zeros.

        Raises:
            ValueError: the groups or parameters differ from those of this optimizer.
            RuntimeError: the workers are others than when the optimizer was constructed.
        """
        self._placed_runtime()
        groups, states = state_dict["param_groups"], state_dict["state"]
        sizes = [len(group["params"]) for group in groups]
        if sizes != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the state is that of other groups of parameters")
        for mine, group in zip(self.param_groups, groups):
            mine.update({name: value for name, value in group.items() if name != "params"})
        ids = [i for group in groups for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        of_param = {id(p): states[i] for i, p in zip(ids, params) if i in states}
        for _, vector, bucket in self._all():
            known = [of_param.get(id(p), {}) for p in vector.params]
            names = dict.fromkeys(itertools.chain(*known))
            bucket.optimizer.state[bucket.shard] = {
                name: self._own_part(vector, bucket, name, [one.get(name) for one in known])
                for name in names
            }
        self._consolidated, self._is_in_step = None, False

    @staticmethod
    def _own_part(vector: _Vector, bucket: _Bucket, name: str, values: list[Any]) -> Any:
        """Return this worker's part of the state `name` of all parameters of a bucket."""
        first = next((v for v in values if v is not None), None)
        if not isinstance(first, torch.Tensor):
            return first
        pairs = list(zip(values, vector.params))
        if name in SCALARS or any(v is not None and not v.dim() and p.dim() for v, p in pairs):
            return first.clone()  # the same for all parameters
        if any(v is not None and v.shape != p.shape for v, p in pairs):
            raise ValueError("the state is that of parameters of other shapes")
        part = torch.zeros_like(bucket.shard, dtype=first.dtype, requires_grad=False)
        flats = []
        for value, param in pairs:
            whole = torch.zeros_like(param, dtype=first.dtype)
            flats.append(_storage(whole if value is None else whole.copy_(value)))
        bucket.take(consecutive(flats), part)
        return part
