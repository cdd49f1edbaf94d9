"""Keras 3 front-end, on the back-ends of TensorFlow, JAX and PyTorch.

Example::

    import bps.keras as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1 * bps.size()))
    model.compile(optimizer, "mse")
    model.fit(
        x[bps.rank() :: bps.size()],
        y[bps.rank() :: bps.size()],
        callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(0)],
    )

Start the script with ``bpsrun -n 4 -- python train.py``.
"""

from bps._compression import Compression
from bps._core import (
    NotInitialized,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
    trace,
)
from bps._library import Error, Timeout
from bps._ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
)
from bps._residuals import (
    compression_state_dict,
    load_compression_state_dict,
    scale_compression_state,
)
from bps._sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from bps._timeline import start_timeline, stop_timeline
from bps.keras import callbacks, elastic
from bps.keras._ops import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    push_pull,
    reducescatter,
)
from bps.keras._optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Error",
    "Max",
    "Min",
    "NotInitialized",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "Timeout",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "compression_state_dict",
    "elastic",
    "global_process_set",
    "init",
    "is_initialized",
    "load_compression_state_dict",
    "load_model",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "reducescatter",
    "remove_process_set",
    "resume",
    "scale_compression_state",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "suspend",
    "trace",
]
