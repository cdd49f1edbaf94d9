"""Steps of an optimizer that apply the gradients of the step before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bps.torch._bucket import Place
from bps.torch._reducer import Reducer
from bps.torch.recipes._recipe import refuse_join

Gradients = dict[torch.Tensor, torch.Tensor | None]


class OneStepLate:
    """Exchanges gradients while the next step computes.

    Autograd adds the gradients of a step up in ``.grad``. :meth:`exchange` submits them, and puts
    the averages of the step before into ``.grad``.

    Args:
        reducer (Reducer): reduces the optimizer's gradients.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        reducer.is_paused = True  # gradients stay in .grad until exchange() submits them
        reducer.on_join, reducer.on_reopen = refuse_join, self._forget
        self._is_in_flight = False
        self._arrived: Gradients = {}  # averages of the exchange in flight, before its end
        self._late: Gradients | None = None  # averages that are received and not applied yet

    def _forget(self) -> None:
        self._is_in_flight, self._arrived, self._late = False, {}, None

    @property
    def is_empty(self) -> bool:
        """Whether all gradients that were submitted have been applied."""
        return not self._is_in_flight and self._late is None

    def exchange(self) -> None:
        """Submit the gradients of this step, and put the averages of the step before into
        ``.grad``: None in the first step. After a time-out, another call continues this one.

        Raises:
            NotImplementedError: a gradient is sparse.
        """
        self.receive()
        self._reducer.send()
        self._is_in_flight, late, self._late = True, self._late or {}, None
        if self._reducer.has_sparse:
            raise NotImplementedError(
                "one_step_late=True cannot exchange sparse gradients: pass sparse_as_dense=True"
            )
        for place in self._reducer.places:
            place.param.grad = late.get(place.param)

    def receive(self) -> None:
        """Wait for the averages that are in flight, and leave ``.grad`` as it is. After a time-out,
        another call continues this one."""
        if not self._is_in_flight:
            return
        places = self._reducer.places
        own = [place.param.grad for place in places]
        try:
            self._reducer.receive()
        finally:  # after a time-out, too, keep what has arrived
            for place, grad in zip(places, own):
                if place.param.grad is not grad:
                    self._arrived[place.param] = self._kept(place)
                    place.param.grad = grad
        self._is_in_flight, self._late, self._arrived = False, self._arrived, {}

    @staticmethod
    def _kept(place: Place) -> torch.Tensor:
        """Return the average that has arrived, in memory that the next exchange leaves alone."""
        assert place.bucket is not None and place.param.grad is not None
        return place.param.grad.clone() if place.bucket.is_in_place else place.param.grad

    def flush(self, step: Callable[[], Any]) -> None:
        """Apply the averages that are in flight, and leave ``.grad`` as it is.

        Args:
            step (callable): runs the optimizer's step with the gradients in ``.grad``.
        """
        self.receive()
        late, self._late = self._late, None
        if late is None:
            return
        own = {param: param.grad for param in late}
        for param, grad in late.items():
            param.grad = grad
        step()
        for param, grad in own.items():
            param.grad = grad

    def state(self, params: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
        """Return copies of the averages that are not applied yet, in the order of the parameters;
        None: all are applied."""
        self.receive()
        if self._late is None:
            return None
        found = [self._late.get(param) for param in params]
        return [None if grad is None else grad.clone() for grad in found]

    def load(self, params: list[torch.Tensor], state: list[torch.Tensor | None] | None) -> None:
        """Load a result of :meth:`state`."""
        self.receive()
        self._late = None
        if state is not None:
            self._late = {
                param: None if grad is None else grad.to(param.device, param.dtype, copy=True)
                for param, grad in zip(params, state)
            }
