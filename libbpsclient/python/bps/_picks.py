"""Random-k: of each tensor, the workers send k values at positions that they agree on.

Position j of k is drawn from the values ``j * n // k`` to ``(j + 1) * n // k - 1``, by a hash of
seed, name, step and j. The steps of a tensor count from 0 again when a worker joins. So all workers
compute the same positions, and the k values are summed as a small tensor.
"""

from __future__ import annotations

import hashlib

import numpy as np


def range_of(n: int, k: int, first: int, last: int) -> slice:
    """Return the values from which the positions `first` to `last - 1` are drawn."""
    return slice(first * n // k, last * n // k)


def positions(seed: int, name: str, step: int, n: int, k: int, first: int, last: int) -> np.ndarray:
    """Return some of the k positions in a tensor of n values, in ascending order.

    Args:
        seed (int): chosen by the user.
        name (str): name of the tensor, the same at all workers.
        step (int): number of exchanges of the tensor since the last :meth:`Runtime.restart`.
        n, k (int): numbers of values, 1 <= k <= n < 2**32.
        first, last (int): return the positions `first` to `last - 1`.
    """
    raw = hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    ends = np.arange(first, last + 1, dtype=np.uint64) * np.uint64(n) // np.uint64(k)
    # The generator SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), begun at number `first`.
    z = np.arange(first + 1, last + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(int.from_bytes(raw, "little"))
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z = (z ^ z >> np.uint64(31)) >> np.uint64(32)
    return (ends[:-1] + (z * (ends[1:] - ends[:-1]) >> np.uint64(32))).astype(np.int64)


def take(
    target: np.ndarray,
    values: np.ndarray,
    factor: float,
    at: np.ndarray,
    residual: np.ndarray | None,
) -> None:
    """Write the values at some positions, multiplied by a factor, to `target`. If one of the values
    is not finite, write NaN, so that mixed-precision training finds the overflow.

    Args:
        residual (array, optional): float32 values that are added to the products. Then it gets what
            was not sent.
    """
    if residual is None:
        is_finite, sent = np.isfinite(values).all(), values[at].astype(np.float32) * factor
    else:
        residual += values.astype(np.float32) * np.float32(factor)
        is_finite, sent = np.isfinite(residual).all(), residual[at]
        residual[at] = 0
        if not is_finite:
            np.nan_to_num(residual, copy=False, nan=0, posinf=0, neginf=0)
    target[:] = sent if is_finite else np.nan


def put(output: np.ndarray, sent: np.ndarray, factor: float, at: np.ndarray) -> None:
    """Write results, multiplied by a factor, to their positions in `output`, and zeros to all
    others."""
    output[:] = 0
    output[at] = sent * np.float32(factor)
