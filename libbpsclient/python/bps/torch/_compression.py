"""Compressors, which choose the type in which gradients are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bps._ops import is_half


class Compressor:
    """Sends tensors in their own type. The base class of all compressors.

    Attributes:
        wire (torch.dtype, optional): type in which floating-point tensors are sent. If None, each
            tensor is sent in its own type.
    """

    wire: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor in the type in which it is sent, and the argument for
        :meth:`decompress`."""
        if cls.wire is None or not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the tensor in the type that it had before :meth:`compress`."""
        return tensor if context is None else tensor.to(context)


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16; servers add in float32."""

    wire = torch.float16


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16; servers add in float32."""

    wire = torch.bfloat16


class Compression:
    """Compressors, as values for the argument ``compression`` of functions in this package."""

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def wire_of(
    compression: type[Compressor], params: Mapping[str, Any] | None = None
) -> torch.dtype | None:
    """Return the type in which gradients are sent. None: their own type.

    Args:
        compression (Compressor): chooses the type.
        params (dict, optional): BytePS's way to choose a compression: ``{"fp16": True}``.

    Raises:
        ValueError: the compressor has its own functions, which are not called for gradients.
        NotImplementedError: see :func:`bps._ops.is_half`.
    """
    for name in ("compress", "decompress"):
        own = getattr(getattr(compression, name, None), "__func__", None)
        if own is not getattr(Compressor, name).__func__:
            raise ValueError(
                f"{name}() of {getattr(compression, '__name__', compression)} cannot be used for "
                "gradients, which are sent in buckets: to choose the type in which they are sent, "
                "derive a class from Compressor that sets only the attribute 'wire'; for other "
                "changes, register hooks of the parameters (Tensor.register_hook)"
            )
    return Compression.fp16.wire if is_half(params) else compression.wire
