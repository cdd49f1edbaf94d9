"""The end of training at workers that have fewer batches than others."""

from __future__ import annotations

import gc
from concurrent import futures

from bps import _core
from bps._values import Values
from bps.torch._reducer import Reducer, open_reducers


def join(device: int = -1) -> int:
    """Take part in the other workers' steps, with zeros for gradients, until all workers have
    called this function.

    A worker that has fewer batches than other workers calls this function after its last batch.
    Averages are still over all workers. Meanwhile, the other workers may only run the steps of
    ``DistributedOptimizer`` and of ``DistributedDataParallel`` with ``broadcast_buffers=False``.
    They must call no other collective before they call ``join``.

    Args:
        device (int): Horovod's device for the zeros. It has no effect, because the zeros are
            written to the memory of the gradients.

    Returns:
        int: rank of the worker that called ``join`` last. The model of that worker is the newest.
            If several workers were last, the largest of their ranks.

    Raises:
        NotImplementedError: an optimizer sums sparse gradients as rows, or is asynchronous.

    Example::

        >>> for batch in batches:
        ...     train(batch)
        >>> newest = bps.torch.join()
        >>> bps.torch.broadcast_parameters(model.state_dict(), root_rank=newest)
    """
    rt = _core.runtime()
    gc.collect()  # all workers must have the same reducers, so free those of unused models
    if any(isinstance(one, Values) for one in rt.reopened):
        raise NotImplementedError(
            "join: an asynchronous optimizer averages no gradients: omit the call, and read the "
            "last parameters with pull_values() of the optimizer"
        )
    reducers = sorted(open_reducers, key=lambda r: r.number)
    with futures.ThreadPoolExecutor(max(1, len(reducers))) as threads:
        n_steps = sum(threads.map(Reducer.send_zeros, reducers))
    given = rt.allgather_object(n_steps, "the steps of join")
    return max(rank for rank, n in enumerate(given) if n == min(given))
