"""The exchange between workers under TensorFlow's own strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bps import _core
from bps._ops import Average, check_gradients
from bps.tensorflow._tape import reduce_gradients


class CrossDeviceOps(tf.distribute.ReductionToOneDevice):
    """Lets ``tf.distribute.MirroredStrategy`` reduce gradients over all workers of the job, too.

    TensorFlow reduces over this worker's devices, then the service over the workers. A strategy
    counts its own replicas alone, and scales the loss by their number: the default averages over
    the workers. Give all workers the same variables first:
    :func:`bps.tensorflow.broadcast_variables`.

    Args:
        op (int): Average or Sum over the workers.

    Example::

        >>> strategy = tf.distribute.MirroredStrategy(
        ...     cross_device_ops=bps.tensorflow.CrossDeviceOps()
        ... )
    """

    def __init__(self, op: int = Average) -> None:
        super().__init__()
        check_gradients(op)
        self._bps_op = op

    @property
    def _num_between_graph_workers(self) -> int:
        return _core.size()  # above 1: TensorFlow calls the methods below also for one device

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduce a value over devices and workers."""
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        """Reduce values over devices, and all of them in one call over the workers."""
        reduced = [
            super(CrossDeviceOps, self).reduce_implementation(reduce_op, value, place, options)
            for value, place in value_destination_pairs
        ]
        first = [
            one.values[0] if isinstance(one, tf.distribute.DistributedValues) else one
            for one in reduced
        ]
        totals = reduce_gradients(first, "strategy", self._bps_op)
        return [
            self.broadcast(total, place)
            for total, (_, place) in zip(totals, value_destination_pairs)
        ]
