"""MXNet front-end: BytePS's and Horovod's calls over the summation service.

Example::

    import bps.mxnet as bps

    bps.init()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(len(x))                # averages the gradients first

Start the script with ``bpsrun -n 4 -- python train.py``. MXNet 1.9.1 needs a NumPy older than 1.24.
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
from bps.mxnet import elastic
from bps.mxnet._ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    byteps_declare_tensor,
    byteps_push_pull,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from bps.mxnet._optimizer import DistributedOptimizer, DistributedTrainer, broadcast_parameters

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "Error",
    "Max",
    "Min",
    "NotInitialized",
    "ProcessSet",
    "Product",
    "Sum",
    "Timeout",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "compression_state_dict",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "load_compression_state_dict",
    "local_rank",
    "local_size",
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
