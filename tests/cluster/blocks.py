"""Block types in NumPy: a plain encoder and decoder that follow the text of common/data/block.h."""

import numpy as np

# values, words, bits, bytes of the scale, mask of the scale
LAYOUTS = {
    "q8": (256, 64, 8, 4, 0xFFFFFF00),
    "q4": (64, 8, 4, 2, 0xFFFF0000),
    "sign": (1024, 32, 1, 4, 0xFFFFF000),
}
LEAST = np.float32(2.0**-126)


def mean_of_sizes(blocks):
    """Return the mean absolute value of each block, added in the order of the kernels."""
    sums = np.zeros((len(blocks), 32), np.float32)
    for field in range(32):
        sums += np.abs(blocks[:, field * 32 : field * 32 + 32]) * np.float32(1 / 1024)
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


def encode(dtype, x):
    """Return the blocks of an array of float32, as uint8."""
    values, words, bits, scale_bytes, mask = LAYOUTS[dtype]
    x = np.asarray(x, np.float32).reshape(-1)
    rest = len(x) % values
    if rest:
        x = np.concatenate([x, np.resize(x[-rest:], values - rest)])
    blocks = x.reshape(-1, values)
    largest = np.abs(blocks).max(axis=1)
    top = np.float32(2 ** (bits - 1) - 1)
    scale = mean_of_sizes(blocks) if bits == 1 else largest / top
    scale = np.minimum(scale, np.finfo(np.float32).max)
    scale = (scale.view(np.uint32) & np.uint32(mask)).view(np.float32)
    is_nan = ~np.isfinite(largest)
    is_zero = ~is_nan & (scale < LEAST)
    with np.errstate(all="ignore"):
        if bits == 1:
            q = np.signbit(blocks).astype(np.uint32)
        else:
            factor = (np.float32(1) / scale)[:, None]
            q = np.nan_to_num(np.rint(blocks * factor)).astype(np.int64).astype(np.uint32)
    q[is_nan | is_zero] = 0
    scale[is_zero], scale[is_nan] = 0, np.nan
    bits_of_scale = np.where(is_nan, np.uint32(0x7FC00000), scale.view(np.uint32))
    fields = (q & np.uint32(2**bits - 1)).reshape(len(q), 32 // bits, words)
    shifts = (np.arange(32 // bits, dtype=np.uint32) * bits)[None, :, None]
    packed = np.bitwise_or.reduce(fields << shifts, axis=1)
    out = np.empty((len(q), scale_bytes + 4 * words), np.uint8)
    out[:, :scale_bytes] = (
        bits_of_scale.astype("<u4").view(np.uint8).reshape(-1, 4)[:, -scale_bytes:]
    )
    out[:, scale_bytes:] = packed.astype("<u4").view(np.uint8)
    return out


def decode(dtype, raw, n):
    """Return the n values of blocks as float32."""
    _, _, bits, scale_bytes, mask = LAYOUTS[dtype]
    scale = np.zeros((len(raw), 4), np.uint8)
    scale[:, -scale_bytes:] = raw[:, :scale_bytes]
    scale = (scale.view("<u4") & np.uint32(mask)).view("<f4").astype(np.float32)[:, :, None]
    packed = np.ascontiguousarray(raw[:, scale_bytes:]).view("<u4").astype(np.uint32)
    up = np.uint32(32) - np.uint32(bits) - np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    q = (packed[:, None, :] << up[None, :, None]).view(np.int32) >> (32 - bits)
    if bits == 1:
        q |= 1
    return (scale * q.astype(np.float32)).reshape(-1)[:n]


def reduced(dtype, machines, op):
    """Return the blocks of a result: one encoding per worker, per machine with several workers, and
    per sum. The agent of the only machine of a job makes the sum.

    Args:
        machines: for each machine, the arrays of its workers, all in the order of the additions.
    """
    parts, n = [], machines[0][0].size
    for workers in machines:
        part = decode(dtype, encode(dtype, workers[0]), n)
        for x in workers[1:]:
            part = part + decode(dtype, encode(dtype, x), n)
        parts.append(
            decode(dtype, encode(dtype, part), n) if min(len(workers), len(machines)) > 1 else part
        )
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    size = sum(map(len, machines))
    return encode(dtype, total / np.float32(size) if op == "avg" else total)
