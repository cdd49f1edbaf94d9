"""PyTorch tensors that share the memory of bps tensors."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import torch

from bps import _compare
from bps._compression import RAW, Coding
from bps._operation import Slot

# NAMES: types of PyTorch that servers can sum, each with the service's name for the type.
# CARRIERS: types of PyTorch that are converted to another type for the reduction.
NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
CARRIERS = {torch.bool: torch.uint8, torch.int16: torch.int32}
TYPES = {name: dtype for dtype, name in NAMES.items()}
# Type in which values are sent: one of PyTorch, or one of bps._compression.CODED.
Wire: TypeAlias = torch.dtype | str
# Size from which the library copies values faster than PyTorch, because the copies bypass the CPU
# caches.
COPIED_BYTES = 64 << 10


def torch_type(name: str) -> torch.dtype:
    """Return PyTorch's type of this name."""
    return getattr(torch, name)


def wire_dtype(dtype: torch.dtype, coding: Coding = RAW, n_bytes: int | None = None) -> torch.dtype:
    """Return the type in which a tensor of type `dtype` is sent.

    Args:
        coding (Coding): how floating-point tensors are sent.
        n_bytes (int, optional): size of the tensor, if it is known.

    Raises:
        TypeError: tensors of type `dtype` cannot be reduced.
    """
    name = described_type(dtype)
    sent = coding.type_of(name, n_bytes)
    if sent != name:
        return torch_type(sent)
    wire = CARRIERS.get(dtype, dtype)
    if wire not in NAMES:
        known = ", ".join(str(t).removeprefix("torch.") for t in (*NAMES, *CARRIERS))
        raise TypeError(f"{dtype} cannot be summed: use one of {known}")
    return wire


def described_type(dtype: torch.dtype) -> str:
    """Return the name of a type, for example "float32"."""
    return str(dtype).removeprefix("torch.")


def described(tensor: torch.Tensor) -> str:
    """Return type and shape of a tensor as text, which the workers compare."""
    return _compare.described(described_type(tensor.dtype), tensor.shape)


def view(address: int, dtype: torch.dtype, n_values: int, owner: Any = None) -> torch.Tensor:
    """Return a flat tensor of the memory at an address. The memory must outlive the tensor. The
    tensor's storage keeps the object `owner` alive."""
    raw = (ctypes.c_char * (n_values * dtype.itemsize)).from_address(address)
    raw.owner = owner
    return torch.frombuffer(raw, dtype=dtype)


def has_storage_of(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are views of one storage. Returns False if `a` is sparse."""
    return not a.is_sparse and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def host_floats(n: int) -> torch.Tensor:
    """Return n zeros of float32 in host memory, whatever PyTorch's default type and device are. The
    library can access them as an array."""
    return torch.zeros(n, dtype=torch.float32, device="cpu")


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor as a vector that shares the tensor's memory.

    The stride of the vector is 1. With view(-1) the stride would be 0 for an expanded tensor of one
    element, and a vector with stride 0 cannot be viewed as bytes.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def input_view(slot: Slot) -> torch.Tensor:
    """Return the input of a slot (a declared tensor) as a flat tensor."""
    # Read the property `handle`, because the cached view must not be used after the job is closed
    # (the memory is unmapped) or in a forked child (the memory is the parent's). In both cases the
    # property raises an error.
    assert slot.tensor.handle
    seen = slot.views.get("input")
    if seen is None:
        t = slot.tensor
        seen = slot.views["input"] = view(t.input_address, TYPES[t.dtype], t.n_values)
    return seen


def output_view(slot: Slot) -> torch.Tensor:
    """Return the last result of a slot as a flat tensor, which must not be written to."""
    t = slot.tensor
    address = t.output_address
    assert address, "a round is complete"
    seen = slot.views.get(address)
    if seen is None:
        seen = slot.views[address] = view(address, TYPES[t.dtype], t.n_values)
    return seen


def _range(part: torch.Tensor, flat: torch.Tensor, values: torch.Tensor) -> tuple[int, int] | None:
    """Return the offset of `part` in `flat` and the size of `part`, both in bytes. Return None if
    the library cannot copy between `part` and `values`, or is not faster than PyTorch. `part` is a
    view of `flat`, has no gaps between its elements, and has the shape of `values`."""
    n_bytes = part.numel() * part.element_size()
    is_alike = part.dtype == values.dtype and part.stride() == values.stride()
    if n_bytes < COPIED_BYTES or not is_alike or values.device.type != "cpu":
        return None
    return part.data_ptr() - flat.data_ptr(), n_bytes


def write_input(slot: Slot, part: torch.Tensor, values: torch.Tensor) -> None:
    """Copy `values` to `part`. `part` is a view of the tensor that :func:`input_view` returns, and
    has no gaps between its elements."""
    where = _range(part, input_view(slot), values)
    if where is None:
        part.copy_(values)
    else:
        slot.tensor.write_memory(where[0], values.data_ptr(), where[1])


def read_output(slot: Slot, part: torch.Tensor, values: torch.Tensor) -> None:
    """Copy `part` to `values`. `part` is a view of the tensor that :func:`output_view` returns, and
    has no gaps between its elements."""
    where = _range(part, output_view(slot), values)
    if where is None:
        values.copy_(part)
    else:
        slot.tensor.read_memory(where[0], values.data_ptr(), where[1])


def check_device(tensor: torch.Tensor) -> None:
    """Check that a tensor is dense, and is in host memory or on a CUDA device.

    Raises:
        NotImplementedError: the layout or the device is not supported. The text says what to do.
    """
    if tensor.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(
            f"a tensor must be in host memory or on a CUDA device, not on {tensor.device}: copy it "
            "with .cpu() first"
        )
    if tensor.layout != torch.strided:
        raise NotImplementedError(
            f"a tensor of layout {tensor.layout} is not supported: convert it with .to_dense()"
        )
