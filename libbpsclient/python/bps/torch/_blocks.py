"""Block types in PyTorch operations, for tensors on a device. The bytes are those of the library
(common/data/block.h), which encodes tensors in host memory."""

from __future__ import annotations

from typing import NamedTuple

import torch

INF_BITS, NAN_BITS = 0x7F800000, 0x7FC00000
LEAST_BITS = 0x00800000  # 2^-126: blocks of a smaller scale become zero


class Layout(NamedTuple):
    """Layout of a block: a scale, and ``words`` integers of 32 bits with fields of ``bits`` bits.

    Attributes:
        scale_bytes (int): size of the scale: the upper bytes of a float32.
        dropped (int): number of lower bits of the scale that are zero.
    """

    words: int
    bits: int
    scale_bytes: int
    dropped: int

    @property
    def fields(self) -> int:
        return 32 // self.bits

    @property
    def values(self) -> int:
        return self.words * self.fields


LAYOUTS = {"q8": Layout(64, 8, 4, 8), "q4": Layout(8, 4, 2, 16), "sign": Layout(32, 1, 4, 12)}


def _mean_size(fields: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute value of each block, added in the order of the library."""
    sums = torch.zeros_like(fields[:, 0])
    for i in range(fields.shape[1]):
        sums += fields[:, i].abs() * (1 / 1024)
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


def encode(kind: str, values: torch.Tensor) -> torch.Tensor:
    """Return the blocks of values.

    Args:
        kind (str): "q8", "q4" or "sign".
        values (Tensor): float32 values of shape (n,). The last block repeats its values until it is
            full.

    Returns:
        Tensor: uint8, of shape (blocks, bytes of a block), on the device of the values.
    """
    layout = LAYOUTS[kind]
    rest = values.numel() % layout.values
    if rest:
        missing = torch.arange(layout.values - rest, device=values.device) % rest
        values = torch.cat([values, values[-rest:][missing]])
    fields = values.view(-1, layout.fields, layout.words)
    largest = fields.abs().amax((1, 2))
    # Divide by a tensor: on CUDA, PyTorch divides by a number as it multiplies by the reciprocal,
    # which rounds twice.
    top = torch.full_like(largest, 2 ** (layout.bits - 1) - 1)
    scale = _mean_size(fields) if layout.bits == 1 else largest / top
    bits = torch.where(largest.isfinite(), scale.view(torch.int32), 0)
    bits = bits.clamp(max=INF_BITS - 1) >> layout.dropped << layout.dropped
    is_nan = ~largest.isfinite()
    is_zero = (bits < LEAST_BITS) & ~is_nan
    if layout.bits == 1:
        q = (fields.view(torch.int32) < 0).to(torch.int32)
    else:
        factor = (1 / bits.view(torch.float32)).view(-1, 1, 1)
        q = torch.where((is_zero | is_nan).view(-1, 1, 1), 0, fields * factor).round()
        q = q.to(torch.int32) & (2**layout.bits - 1)
    q.masked_fill_((is_zero | is_nan).view(-1, 1, 1), 0)
    bits = bits.masked_fill(is_zero, 0).masked_fill(is_nan, NAN_BITS)
    shifts = torch.arange(layout.fields, dtype=torch.int32, device=q.device) * layout.bits
    words = (q << shifts.view(1, -1, 1)).sum(1, dtype=torch.int32)
    of_scale = bits.view(-1, 1).view(torch.uint8)[:, 4 - layout.scale_bytes :]
    return torch.cat([of_scale, words.view(torch.uint8)], 1)


def decode(kind: str, blocks: torch.Tensor, n_values: int) -> torch.Tensor:
    """Return the values of blocks as float32, of shape (n_values,)."""
    layout = LAYOUTS[kind]
    bits = torch.zeros(len(blocks), 4, dtype=torch.uint8, device=blocks.device)
    bits[:, 4 - layout.scale_bytes :] = blocks[:, : layout.scale_bytes]
    bits = bits.view(torch.int32) >> layout.dropped << layout.dropped
    scale = bits.view(torch.float32).view(-1, 1, 1)
    words = (
        blocks[:, layout.scale_bytes :]
        .clone(memory_format=torch.contiguous_format)
        .view(torch.int32)
        .unsqueeze(1)
    )
    up = torch.arange(layout.fields, dtype=torch.int32, device=blocks.device) * layout.bits
    q = words << (32 - layout.bits - up).view(1, -1, 1) >> (32 - layout.bits)
    if layout.bits == 1:
        q = q | 1
    return (scale * q.to(torch.float32)).reshape(-1)[:n_values]
