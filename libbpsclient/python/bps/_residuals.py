"""Residuals of the block types: the errors of the last step, which the next step adds (error
feedback). They belong to the program, which saves them with its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Residuals in use, by the name of their tensor: arrays, or tensors of a framework on a device.
_used: dict[str, Any] = {}
_loaded: dict[str, np.ndarray] = {}  # residuals of a checkpoint that no tensor has used yet


def residual_of(
    name: str, n_values: int, place: Callable[[np.ndarray], Any] = lambda array: array
) -> Any:
    """Return the residual of a tensor, which the caller changes in place. It is zero at first. Call
    this function at each step, because a loaded state replaces the residual.

    Args:
        name (str): name of the tensor, see :meth:`bps._runtime.Runtime.residual_name`.
        n_values (int): its number of values.
        place (callable): takes an array of float32, and returns it as a tensor on a device.
    """
    known = _used.get(name)
    if known is None or len(known) != n_values:
        loaded = _loaded.pop(name, None)
        is_same = loaded is not None and loaded.size == n_values
        known = _used[name] = place(loaded if is_same else np.zeros(n_values, np.float32))
    return known


def forget_residual(name: str) -> None:
    """Drop the residual of a tensor that is not used any more."""
    _used.pop(name, None)


def compression_state_dict() -> dict[str, np.ndarray]:
    """Return copies of this worker's residuals, for a checkpoint. Each worker has its own.

    Returns:
        dict: name of the tensor in which values are sent -> one-dimensional array of float32.

    Example:
        >>> state = bps.torch.compression_state_dict()
        >>> torch.save(state, f"residuals.{bps.torch.rank()}.pt")
    """
    return residuals("")


def residuals(prefix: str) -> dict[str, np.ndarray]:
    """Return copies of the residuals whose names begin with a prefix, by the rests of the names."""
    known = [*_used.items()]  # other threads may add residuals
    used = {name: one.cpu().numpy() if hasattr(one, "cpu") else one for name, one in known}
    both = {**_loaded, **used}
    return {
        name.removeprefix(prefix): array.copy()
        for name, array in both.items()
        if name.startswith(prefix)
    }


def load_residuals(prefix: str, state: Mapping[str, Any]) -> None:
    """Replace the residuals whose names begin with a prefix by a result of :func:`residuals`."""
    for known in (_used, _loaded):
        for name in [name for name in known if name.startswith(prefix)]:
            del known[name]
    for name, array in state.items():
        _loaded[prefix + name] = np.array(array, np.float32).reshape(-1)


def load_compression_state_dict(state: Mapping[str, Any]) -> None:
    """Restore the residuals of a checkpoint. Call this function at each worker with the state that
    this worker has saved, before or after the first step. A residual whose tensor has another size
    now is not used.

    Args:
        state (mapping): the result of :func:`compression_state_dict`.
    """
    load_residuals("", state)


def scale_compression_state(factor: float) -> None:
    """Multiply all residuals by ``factor``. Call this function when the loss scale of
    mixed-precision training changes, with the new scale divided by the old scale, because residuals
    have the scale of the gradients.

    Example:
        >>> before = scaler.get_scale()
        >>> scaler.update()
        >>> bps.torch.scale_compression_state(scaler.get_scale() / before)
    """
    for one in [*_used.values(), *_loaded.values()]:
        one *= factor


def clear() -> None:
    """Set all residuals to zero."""
    _used.clear()
    _loaded.clear()
