"""Optimizer steps that do not wait for all gradients. In the next forward pass, each layer first
waits for its own gradients and updates its parameters."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from bps.torch._bucket import Bucket
from bps.torch._reducer import Reducer


class CrossBarrier:
    """Updates the parameters of a module just before the module's ``forward()`` uses them.

    When a bucket of gradients is complete, only the parameters of the bucket are updated. The
    update uses the settings that the parameter groups had at ``step()``. The result is correct for
    every optimizer that updates each parameter independently of the other parameters.

    Args:
        optimizer (Optimizer): a ``DistributedOptimizer``.
        base (type): the wrapped optimizer's class, whose ``step`` updates parameters.
        reducer (Reducer): reduces the optimizer's gradients.
    """

    def __init__(self, optimizer: Any, base: type[torch.optim.Optimizer], reducer: Reducer) -> None:
        self._optimizer, self._base, self._reducer = optimizer, base, reducer
        self._waiting: dict[int, Bucket] = {}  # buckets in flight, by id of the parameter
        self._groups: list[dict[str, Any]] = []
        reducer.on_join, reducer.on_reopen = self.flush, self._waiting.clear
        ref = weakref.WeakMethod(self._before_forward)

        def hook(module: torch.nn.Module, _: Any) -> None:
            call = ref()
            if call is not None:
                call(module)

        handle = torch.nn.modules.module.register_module_forward_pre_hook(hook)
        weakref.finalize(self, handle.remove)

    def step(self) -> None:
        """Send the remaining gradients, and return without waiting for sums."""
        self.flush()  # update layers that the last forward pass did not use
        self._groups = [dict(group) for group in self._optimizer.param_groups]
        self._reducer.send()
        sparse = self._reducer.sum_sparse()
        if sparse:
            self._update(sparse)
        for bucket in self._reducer.hand_over():
            for place in bucket.places:
                self._waiting[id(place.param)] = bucket
                place.param.grad = None

    def flush(self) -> None:
        """Wait for all gradients in flight, and update their parameters."""
        while self._waiting:
            self._arrive(next(iter(self._waiting.values())))

    def _before_forward(self, module: torch.nn.Module) -> None:
        if self._waiting:
            for param in module._parameters.values():
                bucket = self._waiting.get(id(param))
                if bucket is not None:
                    self._arrive(bucket)

    def _arrive(self, bucket: Bucket) -> None:
        self._reducer.collect(bucket)
        params = [place.param for place in bucket.places]
        for place in bucket.places:
            del self._waiting[id(place.param)]
        self._update(params)
        for param in params:
            param.grad = None

    def _update(self, params: list[torch.Tensor]) -> None:
        """Run a step of the optimizer on these parameters only."""
        members, groups = {id(p) for p in params}, self._optimizer.param_groups
        some = [{**g, "params": [p for p in g["params"] if id(p) in members]} for g in self._groups]
        self._optimizer.param_groups = [g for g in some if g["params"]]
        try:
            # A forward pass in inference mode may call this method. Leave inference mode, because
            # the optimizer's first step creates state tensors, which must be ordinary tensors.
            with torch.inference_mode(False):
                self._base.step(self._optimizer)
        finally:
            self._optimizer.param_groups = groups
