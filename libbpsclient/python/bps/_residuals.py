"""Residuals of the block types: the errors of the last step, which the next step adds (error
feedback). They belong to the program, which saves them with its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_arrays: dict[str, np.ndarray] = {}  # residuals in use, by the name of their tensor
_loaded: dict[str, np.ndarray] = {}  # residuals of a checkpoint that no tensor has used yet


def residual_of(name: str, n_values: int) -> np.ndarray:
    """Return the residual of a tensor, which the caller changes in place. It is zero at first.

    Args:
        name (str): name of the tensor, unique in the job.
        n_values (int): its number of values.
    """
    known = _arrays.get(name)
    if known is None or known.size != n_values:
        loaded = _loaded.pop(name, None)
        known = np.zeros(n_values, np.float32)
        if loaded is not None and loaded.size == n_values:
            known[:] = loaded
        _arrays[name] = known
    return known


def compression_state_dict() -> dict[str, np.ndarray]:
    """Return copies of this worker's residuals, for a checkpoint. Each worker has its own.

    Returns:
        dict: name of the tensor in which values are sent -> one-dimensional array of float32.

    Example:
        >>> state = bps.torch.compression_state_dict()
        >>> torch.save(state, f"residuals.{bps.torch.rank()}.pt")
    """
    return {name: array.copy() for name, array in {**_loaded, **_arrays}.items()}


def load_compression_state_dict(state: Mapping[str, Any]) -> None:
    """Restore the residuals of a checkpoint. Call this function at each worker with the state that
    this worker has saved, before or after the first step. A residual whose tensor has another size
    now is not used.

    Args:
        state (mapping): the result of :func:`compression_state_dict`.
    """
    clear()
    for name, array in state.items():
        _loaded[name] = np.asarray(array, np.float32).reshape(-1)
    for name, array in _arrays.items():
        loaded = _loaded.pop(name, None)
        if loaded is not None and loaded.size == array.size:
            array[:] = loaded


def scale_compression_state(factor: float) -> None:
    """Multiply all residuals. Call this function when the loss scale of mixed-precision training
    changes, with the new scale divided by the old scale, because residuals have the scale of the
    gradients.

    Example:
        >>> before = scaler.get_scale()
        >>> scaler.update()
        >>> bps.torch.scale_compression_state(scaler.get_scale() / before)
    """
    for array in (*_arrays.values(), *_loaded.values()):
        array *= np.float32(factor)


def clear() -> None:
    """Set all residuals to zero."""
    _loaded.clear()
    for array in _arrays.values():
        array[:] = 0
