"""PyTorch front-end, with the calls of BytePS and Horovod.

Example::

    import bps.torch as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

Start the script with ``bpsrun -n 4 -- python train.py``, or with torchrun on machines where an
agent runs.
"""

import torch

if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 1):
    raise ImportError(f"bps.torch needs PyTorch 2.1 or later, not {torch.__version__}")

from bps._compression import BF16Compressor, Compression, Compressor, FP16Compressor
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
    declare,
)
from bps._residuals import (
    compression_state_dict,
    load_compression_state_dict,
    scale_compression_state,
)
from bps._sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from bps._timeline import start_timeline, stop_timeline
from bps.torch import elastic
from bps.torch._allgather import allgather, allgather_async
from bps.torch._allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from bps.torch._alltoall import alltoall, alltoall_async
from bps.torch._broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from bps.torch._compression import compress
from bps.torch._ddp import DistributedDataParallel, HookState, ddp_hook
from bps.torch._grouped import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from bps.torch._handle import Handle, poll, synchronize
from bps.torch._join import join
from bps.torch._optimizer import (
    DistributedOptimizer,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from bps.torch._reducescatter import reducescatter, reducescatter_async
from bps.torch._sharded import ShardedOptimizer
from bps.torch._sparse import sparse_allreduce_async
from bps.torch._sync_batch_norm import SyncBatchNorm
from bps.torch.recipes._diloco import DiLoCo
from bps.torch.recipes._local_sgd import LocalSGD

if torch.distributed.is_available():
    from bps.torch import _c10d

    _c10d.register()

__all__ = [
    "Adasum",
    "Average",
    "BF16Compressor",
    "Compression",
    "Compressor",
    "DiLoCo",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Error",
    "FP16Compressor",
    "Handle",
    "HookState",
    "LocalSGD",
    "Max",
    "Min",
    "NotInitialized",
    "ProcessSet",
    "Product",
    "ShardedOptimizer",
    "Sum",
    "SyncBatchNorm",
    "Timeout",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress",
    "compression_state_dict",
    "ddp_hook",
    "declare",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "load_compression_state_dict",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "resume",
    "scale_compression_state",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "suspend",
    "synchronize",
    "trace",
]
