"""Parts that the recipes share: averages of tensors, and calls at the steps of an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from bps._compression import Compression
from bps._sets import global_process_set
from bps._values import refuse
from bps.torch._compression import gradient_coding
from bps.torch._reducer import BUCKET_BYTES, Reducer

Self = TypeVar("Self", bound="Recipe")  # typing.Self is in Python 3.11 and later


class Averager:
    """Averages tensors over all workers.

    The reducer of an optimizer exchanges them: the values are the gradients of leaves, which
    autograd does not know.

    Args:
        named: names and leaves. The leaves are tensors of the shapes, types and devices of the
            values. A leaf that requires no gradient takes no part.
        compression (Compressor): type in which the values are sent.
        bucket_bytes (int): size of the groups in which the values are sent.

    Attributes:
        reducer (Reducer): exchanges the values.
        is_in_flight (bool): whether values have been submitted that :meth:`finish` waits for.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        compression: Any = Compression.none,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._leaves = [leaf for _, leaf in named]
        coding = gradient_coding(compression)
        self.reducer = Reducer(named, coding=coding, bucket_bytes=bucket_bytes)
        self.reducer.on_join, self.reducer.on_reopen = refuse_join, self._forget
        self.is_in_flight = self._is_filled = False

    def _forget(self) -> None:
        self.is_in_flight = self._is_filled = False

    def begin(self, values: Iterable[torch.Tensor | None]) -> None:
        """Submit values, one for each leaf. After a time-out, another call continues this one, and
        does not use its own values."""
        if not self._is_filled:
            for leaf, value in zip(self._leaves, values):
                leaf.grad = value if leaf.requires_grad else None
            self._is_filled = True
        self.reducer.send()
        self.is_in_flight = True

    def finish(self) -> list[torch.Tensor | None]:
        """Wait for the averages, and return them. They are valid until the next :meth:`begin`.
        After a time-out, another call continues this one. A leaf without values has None."""
        self.reducer.receive()
        self._forget()
        return [leaf.grad for leaf in self._leaves]


def refuse_join() -> None:
    """Raise the error of :func:`bps.torch.join`."""
    raise NotImplementedError(
        "join: a worker that has ended cannot take part in the averages of LocalSGD, of DiLoCo "
        "and of one_step_late=True: let all workers make the same number of steps"
    )


class Recipe:
    """Container of what :class:`LocalSGD` and :class:`DiLoCo` share: they count the steps of an
    optimizer inside a ``with`` statement, and act after some of them.

    Args:
        optimizer (Optimizer): updates the parameters of this worker alone.
        sync_every (int): number of steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, sync_every: int) -> None:
        if sync_every < 1:
            raise ValueError(f"sync_every is {sync_every}, but must be 1 or more")
        if getattr(optimizer, "_bps_bound", None) is not None:
            raise ValueError(
                f"{type(self).__name__} cannot use an asynchronous DistributedOptimizer, whose "
                "parameters are those of all workers in each step: pass the optimizer of PyTorch"
            )
        refuse(type(self).__name__)
        options = getattr(optimizer, "_bps_options", {})
        if options.get("process_set") is global_process_set:
            raise ValueError(
                "the optimizer is a DistributedOptimizer, which averages over all workers in each "
                "step already: pass the optimizer of PyTorch"
            )
        self._optimizer = optimizer
        self._n_steps = 0
        self._is_due = False  # whether _act() has not returned since the last step
        self._hooks: list[Any] = []

    def __enter__(self: Self) -> Self:
        if self._hooks:
            raise RuntimeError(f"this {type(self).__name__} is in a with statement already")
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before_step(self, *_: Any) -> None:
        self._continue()  # a time-out may have ended the action of the last step

    def _after_step(self, *_: Any) -> None:
        self._n_steps += 1
        self._is_due = True
        self._continue()

    def _continue(self) -> None:
        if self._is_due:
            self._act()
            self._is_due = False

    def _act(self) -> None:
        """Do what is due after step number ``_n_steps``. After a time-out, another call continues
        this one."""
        raise NotImplementedError

    @property
    def reducers(self) -> list[Reducer]:
        """The reducers, for an elastic state."""
        raise NotImplementedError

    def broadcast_state(self, root_rank: int = 0) -> None:
        """Give the state of rank ``root_rank`` to all others, as an elastic state does."""
        raise NotImplementedError
