"""Compression of gradients, which are sent in buckets, and of groups of ``torch.distributed``."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist

from bps._compression import Coding, Compression, cast, coding_of, own_methods, type_name
from bps.torch._memory import torch_type


@cast.register
def _cast(tensor: torch.Tensor, dtype: str | torch.dtype) -> torch.Tensor:
    return tensor.to(torch_type(type_name(dtype)))


def gradient_coding(compression: Any) -> Coding:
    """Return how gradients are sent.

    Args:
        compression (Compressor): chooses the type.

    Raises:
        TypeError: the object is not a compressor.
        ValueError: the compressor has its own functions, which are not called for gradients.
    """
    coding = coding_of(compression)
    for name in own_methods(compression):
        raise ValueError(
            f"{name}() of {getattr(compression, '__name__', compression)} cannot be used for "
            "gradients, which are sent in buckets: to choose the type in which they are sent, "
            "derive a class from Compressor that sets only the attribute 'wire'; for other "
            "changes, register hooks of the parameters (Tensor.register_hook)"
        )
    return coding


def compress(group: Any = None, compression: str = "int8") -> None:
    """Send large tensors of a group of ``torch.distributed`` in blocks from now on.

    The collectives ``all_reduce`` and ``reduce_scatter`` encode tensors of 64 KiB or more of
    floating-point or complex numbers, with the operations SUM and AVG. Everything else is sent as
    before. Call this function at all workers of the group, between the same collectives.

    Args:
        group (ProcessGroup, optional): a group of the back-end "bps"; None: the default group.
        compression (str): "int8", "int4", or "none", which ends the compression.

    Raises:
        ValueError: the compression is not one of these.
        TypeError: the group has another back-end.

    Example::

        >>> torch.distributed.init_process_group("bps")
        >>> bps.torch.compress(None, "int8")
        >>> torch.distributed.all_reduce(tensor)
    """
    from bps.torch._c10d_collectives import Collectives

    if compression == "sign":
        raise ValueError(
            "compress: 'sign' needs a residual, which collectives do not have: use 'int4', or "
            "Compression.sign with DistributedOptimizer"
        )
    if compression not in ("int8", "int4", "none"):
        raise ValueError(f"compress: use 'int8', 'int4' or 'none', not {compression!r}")
    one = dist.group.WORLD if group is None else group
    if not isinstance(one, Collectives):
        with contextlib.suppress(RuntimeError):  # the group has no back-end for host memory
            one = one._get_backend(torch.device("cpu"))
    if not isinstance(one, Collectives):
        raise TypeError(f"compress: {group or 'the default group'} has another back-end than 'bps'")
    one.coding = coding_of(getattr(Compression, compression))
