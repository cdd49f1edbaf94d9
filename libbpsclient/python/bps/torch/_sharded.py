"""An optimizer whose state is divided among the workers (ZeRO-1)."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bps._library import AVG, SUM
from bps._operation import Operation
from bps._runtime import Runtime
from bps._sets import ProcessSet, global_process_set
from bps.torch._bucket import flat_like
from bps.torch._handle import Handle
from bps.torch._memory import check_device, described_type, wire_dtype
from bps.torch._parts import MOVE, Part, as_bytes, consecutive, overlap, scatter_sums, sum_parts

# Optimizers whose update of an element depends on other elements of its parameter, or that need
# parameters of a certain shape
REFUSED = ("LBFGS", "Adafactor", "Muon", "SparseAdam")


def _storage(param: torch.Tensor) -> torch.Tensor:
    """Return the elements of a parameter as a flat tensor that shares its memory."""
    if not torch.ops.aten.is_non_overlapping_and_dense(param):
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} has gaps between its elements: replace it "
            "by its clone()"
        )
    return param.detach().as_strided((param.numel(),), (1,))


class _Bucket:
    """Parameters of one group, one type and one device, as one vector. Each worker updates an equal
    part of the vector, its shard.

    Args:
        rt (Runtime): the workers that take part.
        params (list of Parameter): the parameters.

    Attributes:
        shard (Parameter): this worker's part of the vector. If the vector cannot be divided, zeros
            are appended.
    """

    def __init__(self, rt: Runtime, params: list[torch.Tensor]) -> None:
        self.params = params
        self.parts = consecutive([_storage(p) for p in params])
        n = sum(p.numel() for p in params)
        n_shard = -(-n // rt.job.size)
        self._rank, self._size, self._n_shard = rt.job.rank, rt.job.size, n_shard
        self.shard = torch.nn.Parameter(
            torch.zeros(n_shard, dtype=params[0].dtype, device=params[0].device)
        )
        self.shard.grad = torch.zeros_like(self.shard)
        layout = zlib.crc32(repr([(*p.shape, *p.stride()) for p in params]).encode())
        text = f"{len(params)} parameters of {described_type(params[0].dtype)}"
        self._text = f"{text}, {n} values (layout {layout:x})"

    def take(self, parts: Iterable[Part], into: torch.Tensor) -> None:
        """Copy this worker's part of a vector, which consists of ``parts``."""
        for where, piece in overlap(list(parts), self._rank * self._n_shard, self._n_shard):
            into[where] = piece

    def reduce(self, rt: Runtime) -> list[Operation]:
        """Submit the gradients. Their average over the workers, of this worker's part, is written
        to the gradient of the shard."""
        given = [
            (at, flat_like(param, param.grad))
            for (at, _), param in zip(self.parts, self.params)
            if param.grad is not None
        ]
        wire, taken = wire_dtype(self.shard.dtype), self.shard.grad
        assert taken is not None
        agreement = rt.agree("ShardedOptimizer.step", self._text)
        if rt.slots.may_shard():
            return [agreement, *scatter_sums(rt, wire, AVG, given, taken, agreement)]
        n, at = self._n_shard * self._size, self._rank * self._n_shard
        whole = (given, [(at, taken)], n, agreement)
        return [agreement, *sum_parts(rt, wire, AVG, *whole, has_own_slot=True)]

    def gather(self, rt: Runtime, mine: torch.Tensor, parts: Iterable[Part]) -> list[Operation]:
        """Submit this worker's part of a vector. The whole vector is written to ``parts``."""
        n = self._n_shard * mine.element_size()
        given = [(self._rank * n, as_bytes(mine.detach()))]
        taken = [(at * mine.element_size(), as_bytes(flat)) for at, flat in parts]
        owners = [(rank, rank * n, rank * n + n) for rank in range(self._size)]
        agreement = rt.agree("ShardedOptimizer.gather", self._text)
        options: dict[str, Any] = {"has_own_slot": True, "owners": owners, **MOVE}
        whole = (given, taken, n * self._size, agreement)
        return [agreement, *sum_parts(rt, torch.uint8, SUM, *whole, **options)]


class ShardedOptimizer(torch.optim.Optimizer):
    """Optimizer whose state is divided among the workers, ZeRO stage 1.

    Each worker keeps the state for an equal part of the parameters. :meth:`step` averages the
    gradients, of which each worker receives its part, updates this part, and gathers the
    parameters. So Adam with n workers keeps 8 / n bytes of state for each parameter of f32 instead
    of 8. Use it for memory: in time, ``DistributedOptimizer`` is better, because it averages
    gradients during the backward pass.

    The optimizer averages gradients itself, so do not wrap the model in DistributedDataParallel. It
    also sends the parameters of each step, but not the first ones: broadcast these. A parameter
    without gradient at a worker counts as a gradient of zeros.

    Args:
        params (iterable): parameters, or dicts that define groups, as for ``optimizer_class``.
        optimizer_class (type): a class of ``torch.optim`` that updates each element by the history
            of this element alone, such as SGD, Adam or AdamW.
        process_set (ProcessSet): the workers that take part.
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
        **defaults: Any,
    ) -> None:
        if optimizer_class.__name__ in REFUSED:
            raise ValueError(
                f"ShardedOptimizer cannot divide {optimizer_class.__name__}, which does not update "
                "each element of a parameter alone: use an optimizer such as AdamW"
            )
        self._is_built = False
        super().__init__(params, defaults)
        self._process_set = process_set
        rt = process_set.runtime()
        self._buckets: list[list[_Bucket]] = [self._divide(rt, g) for g in self.param_groups]
        groups = [
            {**group, "params": [bucket.shard for bucket in buckets]}
            for group, buckets in zip(self.param_groups, self._buckets)
        ]
        self._inner = optimizer_class(groups, **defaults)
        for group, inner in zip(self.param_groups, self._inner.param_groups):
            for name, value in inner.items():
                group.setdefault(name, value)
        self._consolidated: dict[str, Any] | None = None
        self._is_built = True

    @staticmethod
    def _divide(rt: Runtime, group: dict[str, Any]) -> list[_Bucket]:
        """Return buckets with all parameters of a group."""
        kinds: dict[Any, list[torch.Tensor]] = {}
        for param in group["params"]:
            check_device(param)
            if not param.dtype.is_floating_point:
                raise ValueError(
                    f"ShardedOptimizer needs floating-point parameters, not {param.dtype}"
                )
            kinds.setdefault((param.dtype, param.device), []).append(param)
        return [_Bucket(rt, params) for params in kinds.values()]

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

    def _all(self) -> list[_Bucket]:
        return list(itertools.chain(*self._buckets))

    def _run(self, submit: Callable[[Runtime, _Bucket], list[Operation]]) -> None:
        """Submit an operation for each bucket, and wait for all of them."""
        rt = self._process_set.runtime()
        with rt.submission():
            handles = [Handle(None, submit(rt, bucket)) for bucket in self._all()]
        for handle in handles:
            handle.wait()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients over the workers, update the parameters, and send them.

        Args:
            closure (callable, optional): computes the loss and the gradients.

        Raises:
            NotImplementedError: a GradScaler makes the call. Workers would scale by different
                factors; train with bfloat16, which needs no scaler.
        """
        if getattr(self, "found_inf", None) is not None:
            raise NotImplementedError(
                "ShardedOptimizer does not work with a GradScaler: train with bfloat16, which "
                "needs no scaler"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._run(lambda rt, bucket: bucket.reduce(rt))
            for mine, inner in zip(self.param_groups, self._inner.param_groups):
                inner.update({name: value for name, value in mine.items() if name != "params"})
            for bucket in self._all():  # the program may have changed the parameters
                bucket.take(bucket.parts, bucket.shard)
            self._inner.step()
            self._run(lambda rt, bucket: bucket.gather(rt, bucket.shard, bucket.parts))
        self._consolidated = None
        return loss

    # ---- checkpoints ----

    def consolidate_state_dict(self) -> None:
        """Gather the state at all workers, for :meth:`state_dict`. All workers must call this
        method after the same step."""
        result = super().state_dict()
        numbers = {
            id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])
        }
        for bucket in self._all():
            of_shard = self._inner.state.get(bucket.shard, {})
            for param in bucket.params if of_shard else ():
                result["state"][numbers[id(param)]] = {}
            for name, value in of_shard.items():
                each = [value] * len(bucket.params)
                if isinstance(value, torch.Tensor) and value.shape == bucket.shard.shape:
                    each = [torch.empty_like(p, dtype=value.dtype) for p in bucket.params]
                    parts = consecutive([_storage(one) for one in each])
                    self._gather_one(bucket, value, parts)
                for param, one in zip(bucket.params, each):
                    one = one.clone() if isinstance(one, torch.Tensor) else one
                    result["state"][numbers[id(param)]][name] = one
        self._consolidated = result

    def _gather_one(self, bucket: _Bucket, value: torch.Tensor, parts: list[Part]) -> None:
        rt = self._process_set.runtime()
        with rt.submission():
            handle = Handle(None, bucket.gather(rt, value, parts))
        handle.wait()

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
        parameters. Each worker keeps its part.

        Raises:
            ValueError: the groups or parameters differ from those of this optimizer.
        """
        groups, states = state_dict["param_groups"], state_dict["state"]
        sizes = [len(group["params"]) for group in groups]
        if sizes != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the state is that of other groups of parameters")
        for mine, group in zip(self.param_groups, groups):
            mine.update({name: value for name, value in group.items() if name != "params"})
        ids = [i for group in groups for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        of_param = {id(p): states[i] for i, p in zip(ids, params) if i in states}
        for bucket in self._all():
            known = [of_param.get(id(p), {}) for p in bucket.params]
            self._inner.state[bucket.shard] = {
                name: self._own_part(bucket, name, [one.get(name) for one in known])
                for name in known[0]
            }
        self._consolidated = None

    @staticmethod
    def _own_part(bucket: _Bucket, name: str, values: list[Any]) -> Any:
        """Return this worker's part of the state `name` of all parameters of a bucket."""
        first = values[0]
        if not isinstance(first, torch.Tensor):
            return first
        if name == "step":  # the same for all parameters
            return first.clone()
        if any(v is None or v.shape != p.shape for v, p in zip(values, bucket.params)):
            raise ValueError("the state is that of parameters of other shapes")
        part = torch.zeros_like(bucket.shard, dtype=first.dtype, requires_grad=False)
        flats = [
            _storage(torch.empty_like(p, dtype=v.dtype).copy_(v))
            for v, p in zip(values, bucket.params)
        ]
        bucket.take(consecutive(flats), part)
        return part
