"""Asynchronous steps on NumPy arrays, for the front-ends whose tensors NumPy can access."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bps import _compare
from bps._dtypes import at_address
from bps._library import DTYPES
from bps._values import Bound, Bucket, Parameter, Values

_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
# Distance between 1 and the next larger number of a type
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _have_equal_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two contiguous arrays of one type have the same bits. NaNs may be equal."""
    bits = _BITS[a.dtype.itemsize]
    return np.array_equal(a.reshape(-1).view(bits), b.reshape(-1).view(bits))


def _largest(array: np.ndarray) -> float:
    """Return the largest absolute value; 0 if the array is empty."""
    return float(np.abs(array).max()) if array.size else 0.0


def _are_near(a: np.ndarray, b: np.ndarray, largest: float) -> bool:
    """Return whether `a` may be c + (b - c), rounded, for a `c` whose largest absolute value is
    known. Arrays that have or had infinities or NaNs are near."""
    room = 4 * _EPSILONS[a.dtype.name] * (largest + _largest(b))
    wide = np.float32 if a.dtype.itemsize == 2 else a.dtype
    with np.errstate(all="ignore"):
        gaps = np.abs(a.astype(wide, copy=False) - b.astype(wide, copy=False))
        return not np.isfinite(room) or bool((gaps <= room).all())


def _flat(bucket: Bucket, address: int) -> np.ndarray:
    tensor = bucket.slot.tensor
    return at_address(address, np.dtype(DTYPES[tensor.dtype][1]), tensor.n_values)


class ArraySteps:
    """Exchanges the parameters before and after a worker's own step for the servers' values.

    Args:
        bound (Bound): how far workers may be apart.
        root (int): rank of the worker whose parameters become the first values.
        is_exact (bool): the parameters of a step are those of the last answer to the bit; False:
            except for the rounding of a sum. Others are an error.
    """

    def __init__(self, bound: Bound, root: int = 0, is_exact: bool = True) -> None:
        self._bound, self._root, self._is_exact = bound, root, is_exact
        self._values: Values | None = None
        self._names: list[str] = []
        self._answers: list[np.ndarray] = []  # the last ones
        # Without is_exact, the largest absolute values of the parameters of the last step
        self._largest: list[float] = []

    def reset(self) -> None:
        """Let the next exchange set the values."""
        if self._values is not None:
            self._values.reset()

    def _open(self, arrays: Sequence[np.ndarray], names: Sequence[str]) -> Values:
        """Return the values. The first call creates them.

        Raises:
            ValueError: the parameters are not those of the first call.
        """
        if self._values is None:
            texts = [_compare.described(a.dtype.name, a.shape) for a in arrays]
            known = [
                Parameter(f"#{i}", text, a.dtype.name, a.size)
                for i, (text, a) in enumerate(zip(texts, arrays))
            ]
            self._values = Values(known, self._bound, root=self._root, labels=names)
            self._names = list(names)
            self._answers = [np.empty(a.shape, a.dtype) for a in arrays]
            self._largest = [0.0] * len(arrays)
        if self._names != list(names) or any(
            (a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(arrays, self._answers)
        ):
            raise ValueError(
                "an asynchronous optimizer must update the same parameters in each step: pass all "
                "of them, or give each part of the model an optimizer of its own"
            )
        return self._values

    def _read(self, bucket: Bucket) -> None:
        flat = _flat(bucket, bucket.slot.tensor.result_address)
        for i, first, n in bucket.parts:
            answer = self._answers[i].reshape(-1)
            np.copyto(answer, flat[first : first + n], casting="unsafe")

    def _writer(self, arrays: Sequence[np.ndarray]) -> Callable[[Bucket], None]:
        def write(bucket: Bucket) -> None:
            flat = _flat(bucket, bucket.slot.tensor.input_address)
            for i, first, n in bucket.parts:
                np.copyto(flat[first : first + n], arrays[i].reshape(-1))

        return write

    def _check(self, arrays: Sequence[np.ndarray]) -> None:
        """Check that the parameters are those of the last answer.

        Raises:
            RuntimeError: they are not.
        """
        for i, (name, array, answer) in enumerate(zip(self._names, arrays, self._answers)):
            if self._is_exact:
                is_known = _have_equal_bits(array, answer)
            else:
                is_known = _are_near(array, answer, self._largest[i])
            if not is_known:
                raise RuntimeError(
                    f"parameter '{name}' was changed outside of the optimizer, but the servers "
                    "keep its value: call reset_values() of the optimizer at all workers "
                    "before the next step, for example after loading weights"
                )

    def exchange(
        self, names: Sequence[str], before: Sequence[np.ndarray], after: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Send the changes of this worker's step, and return the servers' values. The arrays that
        are returned are valid until the next call.

        The first call sets the values to the parameters `before` of the root. After a time-out, the
        changes of that step are sent already, and its answer is not in `before`. So the next call
        does not check `before`, and sends the changes of the next step.

        Args:
            names: names of the parameters for the text of an error, the same ones in each call.
                They may differ between the workers, but the order of the parameters may not.
            before: parameters before the step.
            after: parameters after the step.

        Raises:
            RuntimeError: the parameters before the step are not the last answer.
        """
        before = [np.ascontiguousarray(a).reshape(a.shape) for a in before]
        values = self._open(before, names)
        is_known = values.is_set and not values.is_in_flight
        values.finish(self._read)
        values.start(self._writer(before), self._read)
        has_received = values.take_broadcasts()
        if is_known and not has_received:
            self._check(before)
        if not self._is_exact:
            self._largest = [_largest(a) for a in before]

        def write(bucket: Bucket) -> None:
            flat = _flat(bucket, bucket.slot.tensor.input_address)
            for i, first, n in bucket.parts:
                delta, new = flat[first : first + n], after[i].reshape(-1)
                wide = flat.dtype
                np.subtract(
                    new.astype(wide, copy=False),
                    before[i].reshape(-1).astype(wide, copy=False),
                    out=delta,
                )

        values.add(write, self._read)
        return self._answers

    def pull(self, names: Sequence[str], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Wait until all workers have called this method, and return the servers' values, which
        are then the same at all workers.

        Args:
            names: names of the parameters, as in :meth:`exchange`.
            arrays: the parameters.
        """
        if not arrays:  # the optimizer has updated nothing yet
            return []
        given = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
        self._open(given, names).pull(self._writer(given), self._read)
        return self._answers
