"""TensorFlow front-end: BytePS's and Horovod's calls over the summation service.

Example::

    import bps.tensorflow as bps

    bps.init()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
        tape = bps.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    bps.broadcast_variables(model.variables, root_rank=0)

Start the script with ``bpsrun -n 4 -- python train.py``. For ``model.fit`` see :mod:`bps.keras`.
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
from bps._ops import Adasum, Average, Max, Min, Product, Sum, barrier, declare
from bps._residuals import (
    compression_state_dict,
    load_compression_state_dict,
    scale_compression_state,
)
from bps._sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from bps._timeline import start_timeline, stop_timeline
from bps.tensorflow import elastic
from bps.tensorflow._allreduce import allreduce, grouped_allreduce, push_pull
from bps.tensorflow._broadcast import (
    BroadcastGlobalVariablesHook,
    broadcast,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)
from bps.tensorflow._cross_device import CrossDeviceOps
from bps.tensorflow._gather import (
    allgather,
    alltoall,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
)
from bps.tensorflow._objects import allgather_object, broadcast_object, broadcast_object_fn, join
from bps.tensorflow._place import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from bps.tensorflow._tape import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "CrossDeviceOps",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Error",
    "Max",
    "Min",
    "NotInitialized",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "Timeout",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "compression_state_dict",
    "declare",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "join",
    "load_compression_state_dict",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "process_set_included_op",
    "push_pull",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "resume",
    "scale_compression_state",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "suspend",
    "trace",
]
