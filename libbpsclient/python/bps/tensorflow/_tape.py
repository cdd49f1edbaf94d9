"""A gradient tape whose gradients are averages over all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bps._compression import Compression, coding_of
from bps._ops import Average, check_devices, check_gradients, check_groups, in_groups
from bps._sets import ProcessSet, global_process_set
from bps._values import check_excluded, choose_bound, refuse
from bps.tensorflow._allreduce import labels_of, reduce_tensors, sum_slices
from bps.tensorflow._asynchronous import asynchronous_methods
from bps.tensorflow._place import set_size


def reduce_gradients(
    grads: Sequence[Any],
    name: str,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    labels: Sequence[str] | None = None,
) -> list[Any]:
    """Reduce gradients over all workers. All dense gradients are reduced in one call. A gradient
    that is None stays None. A worker outside the process set keeps its gradients.

    Args:
        grads: tensors, IndexedSlices and None.
        name (str): name of the operation, the same at all workers.
        op (int): Average or Sum.
        prescale, postscale (float): factors before and after the reduction.
        compression (Compressor): type in which the gradients are sent.
        sparse_as_dense (bool): convert IndexedSlices to dense tensors and sum them, instead of
            summing only the rows that a worker has.
        process_set (ProcessSet): the workers that take part.
        labels (sequence of str, optional): names of the variables for the text of an error.
    """
    outputs = list(grads)
    if sparse_as_dense:
        is_sparse = [isinstance(grad, tf.IndexedSlices) for grad in grads]
        outputs = [tf.convert_to_tensor(g) if s else g for g, s in zip(grads, is_sparse)]
    if not process_set.included():
        return outputs
    dense = []
    for i, grad in enumerate(outputs):
        if isinstance(grad, tf.IndexedSlices):
            outputs[i] = sum_slices(grad, op, prescale * postscale, compression, process_set)
        elif grad is not None:
            dense.append(i)
    tensors = [tf.convert_to_tensor(outputs[i]) for i in dense]
    options = (name, op, prescale, postscale, compression, process_set)
    known = None if labels is None else [labels[i] for i in dense]
    for i, total in zip(dense, reduce_tensors(tensors, *options, labels=known)):
        outputs[i] = total
    return outputs


class GradientReducer:
    """Reduces gradients over the workers, except those of local variables.

    Args:
        op (int): Average or Sum.
        compression (Compressor): type in which the gradients are sent.
        sparse_as_dense (bool): sum IndexedSlices as dense tensors.
        predivide (float): divisor of the gradients before the sum.
        groups: result of :func:`bps._ops.check_groups`.
        process_set (ProcessSet): the workers that take part.
        scales_local (bool): divide the gradients of local variables by the number of workers.
    """

    def __init__(
        self,
        op: int,
        compression: Any,
        sparse_as_dense: bool,
        predivide: float,
        groups: Any,
        process_set: ProcessSet,
        scales_local: bool,
    ) -> None:
        check_gradients(op, predivide)
        coding_of(compression)  # check it now, not at the first step
        self._options = (op, 1 / predivide, predivide, compression, sparse_as_dense, process_set)
        self._groups, self._process_set = groups, process_set
        self._scales_local = scales_local
        self._local: set[int] = set()

    def register_local(self, variable: Any) -> None:
        """Exclude the gradient of a variable from the reduction."""
        self._local.add(id(variable))

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of the variables, reduced over all workers."""
        outputs = list(grads)
        shared = [i for i, variable in enumerate(variables) if id(variable) not in self._local]
        parts = in_groups(self._groups, len(shared), [variables[i] for i in shared])
        for number, part in enumerate(parts):
            places = [shared[i] for i in part]
            name = "grad" if len(parts) == 1 else f"grad.{number}"
            labels = labels_of([variables[i] for i in places])
            totals = reduce_gradients([grads[i] for i in places], name, *self._options, labels)
            for i, total in zip(places, totals):
                outputs[i] = total
        local = [i for i in {*range(len(outputs))} - {*shared} if grads[i] is not None]
        if self._scales_local and local and self._process_set.included():
            size = set_size(self._process_set)
            for i in local:
                outputs[i] = _divided(grads[i], size)
        return outputs


def _divided(grad: Any, size: tf.Tensor) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(grad.values, size), grad.indices, grad.dense_shape)
    return grad / tf.cast(size, grad.dtype)


class _DistributedGradientTape(tf.GradientTape):
    """Container of the methods that :func:`DistributedGradientTape` adds to a tape's class."""

    _bps_base: type[tf.GradientTape]
    _bps_reducer: GradientReducer

    def register_local_source(self, source: Any) -> None:
        """Exclude the gradient of the variable `source` from the reduction over the workers."""
        self._bps_reducer.register_local(source)

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the gradients, averaged over all workers."""
        given = self._bps_base.gradient(self, target, sources, *args, **kwargs)
        grads = self._bps_reducer.reduce(tf.nest.flatten(given), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, grads)


def DistributedGradientTape(  # noqa: N802 - the name that users know
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
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
        device_dense, device_sparse (str): must be empty or a CPU, because bps exchanges values in
            host memory.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(tensor)`` and ``decompress(tensor, context)``.
        sparse_as_dense (bool): convert IndexedSlices to dense tensors and sum them, instead of
            summing only the rows that a worker has.
        op (int): Average or Sum.
        gradient_predivide_factor (float): divisor f. Each worker divides its gradients by f before
            the sum. The sum over n workers is then divided by n / f. Only with Average.
        num_groups (int): number of groups; older form of `groups`.
        groups (int or list, optional): send the gradients in this number of calls, or in a call for
            each list of variables; None: in one call.
        process_set (ProcessSet): the workers over which gradients are averaged. A worker outside
            this set keeps its own gradients.
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
    check_devices(device_dense, device_sparse)
    refuse("DistributedGradientTape")
    base = type(gradtape)
    hidden = ("__dict__", "__weakref__", "__doc__")
    methods = {k: v for k, v in vars(_DistributedGradientTape).items() if k not in hidden}
    wrapped: Any = object.__new__(type(base.__name__, (base,), methods))
    wrapped.__dict__.update(gradtape.__dict__)
    wrapped._bps_base = base
    wrapped._bps_reducer = GradientReducer(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        check_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )
    return wrapped


def PartialDistributedGradientTape(  # noqa: N802 - the name that users know
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a :func:`DistributedGradientTape` that does not reduce the gradients of some layers.

    Args:
        local_layers (Layer or list, optional): layers whose gradients are not reduced. The other
            arguments are those of :func:`DistributedGradientTape`.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
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
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    asynchronous: bool | None = None,
    stale: int | None = None,
) -> Any:
    """Let an optimizer average gradients over all workers before each step.

    Args:
        optimizer (Optimizer): an optimizer of Keras 3 or of ``tf.compat.v1.train``.
        name (str, optional): name of the new optimizer; None: the name of the given one.
        use_locking (bool): lock a variable during its update. Only for ``tf.compat.v1.train``.
        device_dense, device_sparse (str): must be empty or a CPU, because bps exchanges values in
            host memory.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(tensor)`` and ``decompress(tensor, context)``.
        sparse_as_dense (bool): convert IndexedSlices to dense tensors and sum them, instead of
            summing only the rows that a worker has.
        backward_passes_per_step (int): number of calls whose gradients are added up before they
            are sent. Only for Keras.
        op (int): Average or Sum.
        gradient_predivide_factor (float): divisor f. Each worker divides its gradients by f before
            the sum. The sum over n workers is then divided by n / f. Only with Average.
        average_aggregated_gradients (bool): divide accumulated gradients by
            backward_passes_per_step.
        num_groups (int): number of groups; older form of `groups`.
        groups (int or list, optional): send the gradients in this number of calls, or in a call for
            each list of variables; None: in one call.
        process_set (ProcessSet): the workers over which gradients are averaged. A worker outside
            this set keeps its own gradients.
        scale_local_gradients (bool): divide the gradients of local variables by the number of
            workers. Local variables are those that were passed to ``register_local_var``.
        asynchronous, stale: see :func:`bps.keras.DistributedOptimizer`. An optimizer of
            ``tf.compat.v1.train`` sets the servers' values at its first update, and its
            ``pull_values()`` returns an operation in a graph.

    Returns:
        Optimizer: an optimizer of a new class. The new class is a subclass of the given optimizer's
            class, and both classes have the same name. It has the method
            ``register_local_var(variable)``.

    Raises:
        TypeError: bps cannot average the gradients of this optimizer's class.
    """
    check_devices(device_dense, device_sparse)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        import bps.keras

        if use_locking:
            raise NotImplementedError("use_locking=True needs an optimizer of tf.compat.v1.train")
        return bps.keras.DistributedOptimizer(
            optimizer,
            name,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            average_aggregated_gradients=average_aggregated_gradients,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            asynchronous=asynchronous,
            stale=stale,
        )
    if backward_passes_per_step != 1:
        raise NotImplementedError("backward_passes_per_step needs an optimizer of Keras")
    bound = choose_bound(asynchronous, stale)
    if bound is not None:
        options = {
            "compression": compression is not Compression.none,
            "sparse_as_dense": sparse_as_dense,
            "op": op != Average,
            "gradient_predivide_factor": gradient_predivide_factor != 1.0,
            "num_groups": bool(num_groups),
            "groups": groups is not None,
            "process_set": process_set is not global_process_set,
            "scale_local_gradients": not scale_local_gradients,
        }
        check_excluded(options)
        return _wrapped(optimizer, asynchronous_methods(type(optimizer), bound), name, use_locking)
    base = type(optimizer)
    reducer = GradientReducer(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        check_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )
    is_reduced = False

    def compute_gradients(self: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        nonlocal is_reduced
        is_reduced = True
        pairs = base.compute_gradients(self, *args, **kwargs)
        variables = [variable for _, variable in pairs]
        return list(zip(reducer.reduce([grad for grad, _ in pairs], variables), variables))

    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_reduced:
            raise RuntimeError(
                "apply_gradients: the gradients are not averaged over the workers: get them from "
                "compute_gradients() of this optimizer, or use the plain optimizer with a "
                "DistributedGradientTape"
            )
        return base.apply_gradients(self, *args, **kwargs)

    methods: dict[str, Any] = {
        "compute_gradients": compute_gradients,
        "apply_gradients": apply_gradients,
        "register_local_var": lambda self, variable: reducer.register_local(variable),
    }
    return _wrapped(optimizer, methods, name, use_locking)


def _wrapped(optimizer: Any, methods: dict[str, Any], name: str | None, use_locking: bool) -> Any:
    base = type(optimizer)
    wrapped: Any = object.__new__(type(base.__name__, (base,), methods))
    wrapped.__dict__.update(optimizer.__dict__)
    wrapped._name = name or optimizer._name
    wrapped._use_locking = use_locking or optimizer._use_locking
    return wrapped
