"""Reduction over the workers for TensorFlow's own distribution strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bps import _core
from bps._ops import Average, check_gradients
from bps._values import refuse
from bps.tensorflow._tape import reduce_gradients


class CrossDeviceOps(tf.distribute.ReductionToOneDevice):
    """Lets ``tf.distribute.MirroredStrategy`` also reduce gradients over all workers of the job.

    TensorFlow reduces over the devices of this worker, then bps reduces over the workers. A
    strategy scales the loss by the number of replicas in this process, not by the number of
    workers. So the default op is the average over the workers. First give all workers the same
    variables, with :func:`bps.tensorflow.broadcast_variables`.

    Args:
        op (int): Average or Sum over the workers.

    Example::

        >>> strategy = tf.distribute.MirroredStrategy(
        ...     cross_device_ops=bps.tensorflow.CrossDeviceOps()
        ... )
    """

    def __init__(self, op: int = Average) -> None:
        refuse("CrossDeviceOps")
        super().__init__()
        check_gradients(op)
        self._bps_op = op

    @property
    def _num_between_graph_workers(self) -> int:
        # If this property is above 1, TensorFlow calls the methods below even for a single device.
        return _core.size()

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduce a value over the devices, then over the workers."""
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        """Reduce each value over the devices. Then reduce all values over the workers, in one
        call."""
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
