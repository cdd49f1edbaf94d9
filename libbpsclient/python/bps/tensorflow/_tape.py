"""A gradient tape whose gradients are averages over all workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bps._ops import Average, check_gradients
from bps._sets import ProcessSet, global_process_set
from bps.tensorflow._ops import Compression, Compressor, reduce_tensors, size_op, sum_slices


def reduce_gradients(
    grads: Sequence[Any],
    name: str,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    wire: str | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce gradients over all workers. All dense gradients are reduced in one call. A gradient
    that is None stays None.

    Args:
        grads: tensors, IndexedSlices and None.
        name (str): name of the operation, the same at all workers.
        op (int): Average or Sum.
        prescale, postscale (float): factors before and after the reduction.
        wire (str, optional): type in which the gradients are sent; None: their own type.
        sparse_as_dense (bool): convert IndexedSlices to dense tensors and sum them, instead of
            gathering their rows.
        process_set (ProcessSet): the workers that take part.
    """
    outputs = list(grads)
    dense = []
    for i, grad in enumerate(grads):
        if isinstance(grad, tf.IndexedSlices) and not sparse_as_dense:
            outputs[i] = sum_slices(grad, op, process_set)
        elif grad is not None:
            dense.append(i)
    tensors = [tf.convert_to_tensor(grads[i]) for i in dense]
    options = (name, op, prescale, postscale, wire, process_set)
    for i, total in zip(dense, reduce_tensors(tensors, *options)):
        outputs[i] = total
    return outputs


def _reducer(
    op: int,
    compression: type[Compressor],
    sparse_as_dense: bool,
    predivide: float,
    process_set: ProcessSet,
) -> Callable[[Sequence[Any]], list[Any]]:
    check_gradients(op, predivide)

    def reduce(grads: Sequence[Any]) -> list[Any]:
        factors = (1 / predivide, predivide)
        options = (compression.wire, sparse_as_dense, process_set)
        return reduce_gradients(grads, "grad", op, *factors, *options)

    return reduce


class _DistributedGradientTape(tf.GradientTape):
    """Container of the methods that :func:`DistributedGradientTape` adds to a tape's class."""

    _bps_base: type[tf.GradientTape]
    _bps_reduce: Callable[[Sequence[Any]], list[Any]]
    _bps_size: Callable[[], tf.Tensor]
    _bps_local: set[int]
    _bps_scales_local: bool

    def register_local_source(self, source: Any) -> None:
        """Exclude the gradient of the variable `source` from the reduction over the workers."""
        self._bps_local.add(id(source))

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the gradients, averaged over all workers."""
        given = self._bps_base.gradient(self, target, sources, *args, **kwargs)
        flat, grads = tf.nest.flatten(sources), tf.nest.flatten(given)
        shared = [i for i, source in enumerate(flat) if id(source) not in self._bps_local]
        for i, total in zip(shared, self._bps_reduce([grads[i] for i in shared])):
            grads[i] = total
        local = [i for i in {*range(len(flat))} - {*shared} if grads[i] is not None]
        if self._bps_scales_local and local:
            size = self._bps_size()
            for i in local:
                grads[i] = grads[i] / tf.cast(size, grads[i].dtype)
        return tf.nest.pack_sequence_as(sources, grads)


def DistributedGradientTape(  # noqa: N802 - the name that users know
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Let a tape return gradients that are averaged over all workers.

    Args:
        gradtape (GradientTape): a tape, before or after it has recorded the forward pass.
        device_dense, device_sparse (str): ignored; kept for scripts of BytePS and Horovod.
        compression (Compressor): type in which the tensors are sent.
        sparse_as_dense (bool): convert IndexedSlices to dense tensors and sum them, instead of
            gathering their rows.
        op (int): Average or Sum.
        gradient_predivide_factor (float): divisor f. Each worker divides its gradients by f before
            the sum. The sum over n workers is then divided by n / f. Only with Average.
        num_groups (int), groups: ignored; kept for scripts of Horovod. Buckets have a fixed size in
            bytes.
        process_set (ProcessSet): the workers over which gradients are averaged.
        scale_local_gradients (bool): divide the gradients of local variables by the number of
            workers. Local variables are those that were passed to ``register_local_source``.

    Returns:
        GradientTape: a tape with the method ``register_local_source(variable)``. The gradient of
            such a variable is not reduced over the workers.

    Example::

        >>> with tf.GradientTape() as tape:
        ...     loss = loss_of(model(x), y)
        >>> tape = bps.tensorflow.DistributedGradientTape(tape)
        >>> grads = tape.gradient(loss, model.trainable_variables)
    """
    base = type(gradtape)
    hidden = ("__dict__", "__weakref__", "__doc__")
    methods = {k: v for k, v in vars(_DistributedGradientTape).items() if k not in hidden}
    wrapped = object.__new__(type(base.__name__, (base,), methods))
    wrapped.__dict__.update(gradtape.__dict__)
    wrapped._bps_base = base
    wrapped._bps_size = functools.partial(size_op, process_set=process_set)
    wrapped._bps_reduce = _reducer(
        op, compression, sparse_as_dense, gradient_predivide_factor, process_set
    )
    wrapped._bps_local, wrapped._bps_scales_local = set(), scale_local_gradients
    return wrapped


def PartialDistributedGradientTape(  # noqa: N802 - the name that users know
    gradtape: tf.GradientTape, *args: Any, local_layers: Any = None, **options: Any
) -> Any:
    """Make a :func:`DistributedGradientTape` that does not reduce the gradients of some layers.

    Args:
        local_layers (Layer or list, optional): layers whose gradients are not reduced.
    """
    tape = DistributedGradientTape(gradtape, *args, **options)
    for layer in tf.nest.flatten(local_layers or []):
        for variable in layer.trainable_variables:
            tape.register_local_source(variable)
    return tape


def DistributedOptimizer(  # noqa: N802 - the name that users know
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Let an optimizer average gradients over all workers before each step.

    Args:
        optimizer (Optimizer): an optimizer of Keras 3 or of ``tf.compat.v1.train``.
        name (str, optional), use_locking (bool), device_dense, device_sparse (str): ignored; kept
            for scripts of BytePS and Horovod.
        compression (Compressor): type in which the tensors are sent.
        sparse_as_dense (bool): convert IndexedSlices to dense tensors and sum them, instead of
            gathering their rows.
        backward_passes_per_step (int): number of calls whose gradients are added up before they
            are sent. Only for Keras.
        op (int): Average or Sum.
        gradient_predivide_factor (float): divisor f. Each worker divides its gradients by f before
            the sum. The sum over n workers is then divided by n / f. Only with Average.
        average_aggregated_gradients (bool): divide accumulated gradients by
            backward_passes_per_step.
        num_groups (int), groups: ignored; kept for scripts of Horovod. Buckets have a fixed size in
            bytes.
        process_set (ProcessSet): the workers over which gradients are averaged.

    Returns:
        Optimizer: an optimizer of a new class. The new class is a subclass of the given optimizer's
            class, and both classes have the same name.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        import bps.keras

        return bps.keras.DistributedOptimizer(
            optimizer,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            average_aggregated_gradients=average_aggregated_gradients,
            process_set=process_set,
        )
    if backward_passes_per_step != 1:
        raise NotImplementedError("backward_passes_per_step needs an optimizer of Keras")
    base = type(optimizer)
    reduce = _reducer(op, compression, sparse_as_dense, gradient_predivide_factor, process_set)

    def compute_gradients(self: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        pairs = base.compute_gradients(self, *args, **kwargs)
        return list(zip(reduce([g for g, _ in pairs]), [v for _, v in pairs]))

    wrapped = object.__new__(type(base.__name__, (base,), {"compute_gradients": compute_gradients}))
    wrapped.__dict__.update(optimizer.__dict__)
    return wrapped
