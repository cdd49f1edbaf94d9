"""Steps of an optimizer whose parameters are values of the servers (:mod:`bps._values`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bps._values import BUCKET_BYTES, Bound, Bucket, Parameter, Values
from bps.torch._memory import check_device, described, described_type, input_view, output_view

# For each size of a floating-point type, the integers that have its bits.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)


def _have_equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same type, device and bits. NaNs may be equal."""
    bits = _BITS[b.element_size()]
    return _are_alike(a, b) and torch.equal(a.detach().view(bits), b.view(bits))


class _Group:
    """Parameters that became part of the optimizer together.

    Args:
        named: names and parameters.
        bound (Bound): how far workers may be apart.
        bucket_bytes (int): size of the tensors in which values are sent.
    """

    def __init__(
        self, named: Sequence[tuple[str, torch.Tensor]], bound: Bound, bucket_bytes: int
    ) -> None:
        self._named = list(named)
        for _, param in named:
            check_device(param)
        known = [
            Parameter(name, described(param), described_type(param.dtype), param.numel())
            for name, param in named
        ]
        self.values = Values(known, bound, bucket_bytes)
        self._kept: dict[int, torch.Tensor] = {}  # copy of the last answer, by parameter

    def _write_parameters(self, bucket: Bucket) -> None:
        flat = input_view(bucket.slot)
        for i, first, n in bucket.parts:
            param = self._named[i][1].detach()
            flat[first : first + n].view(param.shape).copy_(param)

    def _write_deltas(self, bucket: Bucket) -> None:
        flat = input_view(bucket.slot)
        for i, first, n in bucket.parts:
            param, kept = self._named[i][1].detach(), self._kept[i]
            delta = flat[first : first + n].view(param.shape)
            if param.dtype == flat.dtype and param.device == flat.device:
                torch.sub(param, kept, out=delta)
            else:
                delta.copy_(param.to(flat.dtype) - kept.to(flat.dtype))

    def _read(self, bucket: Bucket) -> None:
        flat = output_view(bucket.slot)
        for i, first, n in bucket.parts:
            param = self._named[i][1].detach()
            param.copy_(flat[first : first + n].view(param.shape))
            if i in self._kept:
                self._kept[i].copy_(param)
            else:
                self._kept[i] = param.clone()

    def prepare(self) -> None:
        """Complete what a time-out has ended, set the values if they are not set, and check that
        the parameters are those of the last answer.

        Raises:
            RuntimeError: a parameter was changed since the last step.
        """
        self.values.finish(self._read)
        if not self.values.is_set:
            self._kept.clear()
            self.values.start(self._write_parameters, self._read)
            self.values.take_broadcasts()
            return
        has_received = self.values.take_broadcasts()
        for i, kept in self._kept.items():
            name, param = self._named[i]
            if _have_equal_bits(param, kept):
                continue
            if has_received and _are_alike(param, kept):
                kept.copy_(param)
            else:
                raise RuntimeError(
                    f"parameter '{name}' was changed outside of step(), but the servers keep its "
                    "value: call reset_values() of the optimizer at all workers before the next "
                    "step, for example after load_state_dict() of the model"
                )

    def send(self) -> None:
        """Send the deltas of a step, and read the servers' values into the parameters."""
        self.values.add(self._write_deltas, self._read)

    def pull(self) -> None:
        """Read the same values at all workers."""
        self.values.pull(self._write_parameters, self._read)


class AsynchronousSteps:
    """Runs steps of an optimizer at this worker alone, and exchanges deltas for values.

    Args:
        named: names and parameters of the optimizer.
        bound (Bound): how far workers may be apart.
        bucket_bytes (int): size of the tensors in which values are sent.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        bound: Bound,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._options = bound, bucket_bytes
        self._groups = [_Group(named, *self._options)]

    def add(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Exchange further parameters from the next step on."""
        self._groups.append(_Group(named, *self._options))

    def step(self, update: Callable[[], Any]) -> Any:
        """Run a step.

        Args:
            update (callable): updates the parameters with this worker's gradients.

        Returns:
            The result of `update`.
        """
        with torch.no_grad():
            for group in self._groups:
                group.prepare()
        result = update()
        with torch.no_grad():
            for group in self._groups:
                group.send()
        return result

    def pull(self) -> None:
        """Wait for all workers, and read the same values at all of them."""
        with torch.no_grad():
            for group in self._groups:
                group.pull()

    def reset(self) -> None:
        """Let the next step set the values to the parameters of rank 0."""
        for group in self._groups:
            group.values.reset()
