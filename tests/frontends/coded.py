"""Values for the tests of block types, and bounds for their errors."""

import numpy as np

import bps
from bps import _core, _residuals
from bps._compression import Compression

# Compressors, each with the largest number by which it encodes a value.
KINDS = [(Compression.int8, 127), (Compression.int4, 7)]
N = 20_000  # number of values of a tensor that is sent in blocks


def values(rank, shape=(N,)):
    """Return values between -1 and 1 that differ between workers."""
    return np.sin(np.arange(np.prod(shape)) * (rank + 1.0)).reshape(shape).astype(np.float32)


def mean(shape=(N,)):
    """Return the mean of the workers' values."""
    return sum(values(r, shape).astype(float) for r in range(_core.size())) / _core.size()


def bound(levels, largest=1.0):
    """Return a bound for the errors of a mean.

    A worker, a machine and the server each encode once. An error is at most half of a scale; for
    the largest values it may be a whole one, by 2^-7 of int4, because the scale is truncated.
    """
    return 1.5 * largest / levels * (1 + 2**-6)


def check(result, levels):
    """Check the mean of the workers' values, which must have been encoded, and be the same at all
    workers."""
    result = np.asarray(result, np.float32)
    assert 1e-5 < np.abs(result - mean(result.shape)).max() <= bound(levels)
    rows = bps._ops.allgather_object(result.tobytes())
    assert rows.count(rows[0]) == len(rows)


def check_residual(part, levels):
    """Check the residual whose name contains `part`. Save, load and scale it."""
    state = _residuals.compression_state_dict()
    name, residual = next((k, v) for k, v in state.items() if part in k)
    assert 0 < np.abs(residual).max() <= bound(levels)
    _residuals.load_compression_state_dict({name: residual})
    _residuals.scale_compression_state(0.5)
    assert (_residuals.compression_state_dict()[name] == residual / 2).all()
    _residuals.clear()


def shares_a_machine():
    """Return whether two workers of the job share an agent. All workers must call this function."""
    return max(bps._ops.allgather_object(_core.runtime().job.local_size)) > 1
