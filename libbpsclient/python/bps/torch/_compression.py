"""The type in which gradients travel."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Leaves tensors as they are; the base of all compressors.

    Attributes:
        wire (torch.dtype, optional): the type on the wire of floating-point tensors; None: their
            own.
    """

    wire: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor for the wire, and what :meth:`decompress` needs."""
        if cls.wire is None or not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the tensor in its own type."""
        return tensor if context is None else tensor.to(context)


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16; servers add in float32."""

    wire = torch.float16


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16; servers add in float32."""

    wire = torch.bfloat16


class Compression:
    """The compressors by name."""

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
