"""PyTorch's views of the memory that bps tensors lie in."""

from __future__ import annotations

import ctypes

import torch

from bps._core import Slot

# Types that servers sum, and those that travel as another type.
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


def wire_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which a tensor of this type travels.

    Raises:
        TypeError: no type carries it.
    """
    wire = CARRIERS.get(dtype, dtype)
    if wire not in NAMES:
        known = ", ".join(str(t).removeprefix("torch.") for t in (*NAMES, *CARRIERS))
        raise TypeError(f"{dtype} cannot be summed; these types can: {known}")
    return wire


def view(address: int, dtype: torch.dtype, n_elems: int) -> torch.Tensor:
    """A flat tensor over foreign memory, which must outlive it."""
    raw = (ctypes.c_char * (n_elems * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype)


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a contiguous tensor as a vector over the same memory, of stride 1: that of
    view(-1) is 0 for one element of an expanded tensor, which has no view as bytes."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def input_view(slot: Slot) -> torch.Tensor:
    """The slot's input as a flat tensor."""
    assert slot.tensor.handle  # or the job is closed, and its memory gone
    seen = slot.views.get("input")
    if seen is None:
        t = slot.tensor
        seen = slot.views["input"] = view(t.input_address, TYPES[t.dtype], t.n_elems)
    return seen


def output_view(slot: Slot) -> torch.Tensor:
    """The slot's last result as a flat tensor, which must not be written to."""
    t = slot.tensor
    address = t.output_address
    assert address, "a round is complete"
    seen = slot.views.get(address)
    if seen is None:
        seen = slot.views[address] = view(address, TYPES[t.dtype], t.n_elems)
    return seen


def check_device(tensor: torch.Tensor) -> None:
    """Refuse tensors that are not dense, or neither in host memory nor on a CUDA device.

    Raises:
        NotImplementedError: with what to do instead.
    """
    if tensor.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(
            f"a tensor on {tensor.device}: copy it with .cpu() first, only host memory and CUDA "
            "devices are supported"
        )
    if tensor.layout != torch.strided:
        raise NotImplementedError(
            f"a tensor of layout {tensor.layout}: make it dense with .to_dense() first"
        )
