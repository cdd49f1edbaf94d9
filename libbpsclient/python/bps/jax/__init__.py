"""JAX front-end: sums and averages of trees of arrays over all workers, inside and outside of jit.

Example::

    import bps.jax as bps

    bps.init()
    params = bps.broadcast(params, root_rank=0)
    optimizer = bps.DistributedOptimizer(optax.adam(1e-3))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        grads = jax.grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)   # averages the gradients first
        return optax.apply_updates(params, updates), state

Start the script with ``bpsrun -n 4 -- python train.py``. A process uses one device.
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
from bps.jax import elastic
from bps.jax._ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    push_pull,
    reducescatter,
)
from bps.jax._optimizer import DistributedOptimizer, average_gradients

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
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
    "alltoall",
    "average_gradients",
    "barrier",
    "broadcast",
    "broadcast_object",
    "compression_state_dict",
    "elastic",
    "global_process_set",
    "init",
    "is_initialized",
    "load_compression_state_dict",
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
    "suspend",
    "trace",
]
