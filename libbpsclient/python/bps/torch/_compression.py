"""Compression of gradients, which are sent in buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bps._compression import Coding, Compression, cast, coding_of, is_half, own_methods, type_name
from bps.torch._memory import torch_type


@cast.register
def _cast(tensor: torch.Tensor, dtype: str | torch.dtype) -> torch.Tensor:
    return tensor.to(torch_type(type_name(dtype)))


def gradient_coding(compression: Any, params: Mapping[str, Any] | None = None) -> Coding:
    """Return how gradients are sent.

    Args:
        compression (Compressor): chooses the type.
        params (dict, optional): BytePS's way to choose a compression: ``{"fp16": True}``.

    Raises:
        ValueError: the compressor has its own functions, which are not called for gradients.
        NotImplementedError: see :func:`bps._compression.is_half`.
    """
    for name in own_methods(compression):
        raise ValueError(
            f"{name}() of {getattr(compression, '__name__', compression)} cannot be used for "
            "gradients, which are sent in buckets: to choose the type in which they are sent, "
            "derive a class from Compressor that sets only the attribute 'wire'; for other "
            "changes, register hooks of the parameters (Tensor.register_hook)"
        )
    return coding_of(Compression.fp16 if is_half(params) else compression)
