"""Types of NumPy arrays, and copies between types."""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from bps._compression import RAW, Coding

# NAMES: NumPy types that servers can sum, each with the service's name for the type.
# CARRIERS: NumPy types that are converted to another type for the reduction.
NAMES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
}
CARRIERS = {"bool": "uint8", "int16": "int32", "uint16": "int32", "uint32": "int64"}
FLOATS = ("float16", "bfloat16", "float32", "float64")


@functools.lru_cache
def numpy_type(name: str) -> np.dtype:
    """Return NumPy's type of this name.

    Raises:
        TypeError: the type is bfloat16, and package ml_dtypes is missing.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("bfloat16 needs the package ml_dtypes: run pip install ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)


def wire_type(dtype: np.dtype, coding: Coding = RAW, n_values: int | None = None) -> np.dtype:
    """Return the type in which an array is sent.

    Args:
        dtype (dtype): type of the array.
        coding (Coding): how floating-point arrays are sent.
        n_values (int, optional): size of the array, if it is known.

    Raises:
        TypeError: arrays of this type cannot be reduced.
    """
    wire = coding.type_of(dtype.name, None if n_values is None else n_values * dtype.itemsize)
    if wire != dtype.name:
        return numpy_type(wire)
    name = CARRIERS.get(dtype.name, dtype.name)
    if name not in NAMES:
        raise TypeError(
            f"{dtype.name} cannot be summed: use one of {', '.join((*NAMES, *CARRIERS))}"
        )
    return dtype.newbyteorder("=") if name == dtype.name else np.dtype(name)


def at_address(address: int, dtype: np.dtype, n_values: int) -> np.ndarray:
    """Return a flat array of the memory at an address. The memory must outlive the array."""
    raw = (ctypes.c_char * (n_values * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype)


def copy_scaled(target: np.ndarray, source: np.ndarray, factor: float) -> None:
    if factor == 1.0:
        np.copyto(target, source, casting="unsafe")
    else:
        # Multiply in f32, because f16 may be unable to hold the factor. Multiply f64 and integers
        # in f64, and round the products of integers towards zero.
        is_small = target.dtype.name in FLOATS and target.dtype != np.float64
        kind = np.float32 if is_small else np.float64
        np.copyto(target, source.astype(kind) * kind(factor), casting="unsafe")
