"""Sum tensors over all workers of a job through this machine's bps-agent.

Example::

    import bps

    with bps.open() as job:                       # job, rank and agent from the environment
        t = job.declare("layer.0", "f32", 1000)
        t.input[:] = gradient                     # shared with the agent: no copy
        t.push_pull(bps.AVG)
        t.wait()
        use(t.output)

Only the methods that take or return arrays need NumPy. See bpsclient(3) for the calls.
"""

from bps._core import trace
from bps._gpu_tensor import GpuTensor
from bps._job import Job, open
from bps._library import (
    ABI,
    AVG,
    BAND,
    BLOCKS,
    BOR,
    BXOR,
    CODES,
    DTYPES,
    MAX,
    MIN,
    PRIORITY_AUTO,
    PROD,
    SUM,
    Error,
    Info,
    Timeout,
    Traffic,
    Worker,
    version,
)
from bps._tensor import Tensor

globals().update(CODES)  # defines the error codes bps.EBUSY, bps.ETIMEDOUT, ...

__all__ = [
    "ABI",
    "AVG",
    "BAND",
    "BLOCKS",
    "BOR",
    "BXOR",
    "CODES",
    "DTYPES",
    "MAX",
    "MIN",
    "PRIORITY_AUTO",
    "PROD",
    "SUM",
    "Error",
    "GpuTensor",
    "Info",
    "Job",
    "Tensor",
    "Timeout",
    "Traffic",
    "Worker",
    "open",
    "trace",
    "version",
    *CODES,
]
