"""An optimizer of Keras that averages gradients over all workers.

The optimizer's class is replaced by a subclass, which overrides the method that clips gradients. On
every back-end, Keras calls this method once for each update, after it has accumulated gradients.
The subclass has the name and module of its base class, so that a saved model names the base class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from bps import _arrays
from bps._ops import Average, Min, check_gradients
from bps._sets import ProcessSet, global_process_set
from bps.keras._ops import Compression, Compressor

Reduce = Callable[[Any, Sequence[Any]], list[Any]]


def _on_tensorflow(op: int, factors: tuple[float, float], wire: Any, options: Any) -> Reduce:
    from bps.tensorflow._tape import reduce_gradients

    def reduce(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        return reduce_gradients(grads, "grad", op, *factors, wire, *options)

    return reduce


def _on_jax(op: int, factors: tuple[float, float], wire: Any, options: Any) -> Reduce:
    import jax

    from bps.jax._ops import reduce_leaves

    def reduce(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        def over_workers(given: list[Any]) -> list[Any]:
            return reduce_leaves(given, "grad", op, factors, wire, options[1])

        steps = optimizer.gradient_accumulation_steps
        if not steps:
            return over_workers(list(grads))
        # On JAX, Keras computes an update in every step, but applies it only in every n-th step. So
        # reduce the gradients only in these steps.
        is_update = (optimizer._iterations + 1) % steps == 0
        return jax.lax.cond(is_update, over_workers, lambda given: given, list(grads))

    return reduce


def _on_torch(op: int, factors: tuple[float, float], wire: Any, options: Any) -> Reduce:
    def reduce(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        for grad in grads:
            if grad.device.type != "cpu":
                raise NotImplementedError(
                    f"a gradient must be in host memory, not on {grad.device}: keep the model on "
                    "the CPU"
                )
        given = [grad.detach().contiguous() for grad in grads]
        arrays = [grad.numpy() for grad in given]
        _arrays.reduce(options[1].runtime(), arrays, arrays, "grad", op, *factors, wire)
        return given

    return reduce


BACKENDS = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}


def _reducer(*given: Any) -> Reduce:
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise NotImplementedError(
            f"Keras runs on {name}: set KERAS_BACKEND to one of {', '.join(BACKENDS)}"
        )
    return BACKENDS[name](*given)


def _subclass(base: type, methods: Mapping[str, Any]) -> type:
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), {**methods, **names, "_bps_base": base})


def _wrapped(optimizer: Any, methods: Mapping[str, Any]) -> Any:
    wrapped = object.__new__(_subclass(type(optimizer), methods))
    wrapped.__dict__.update(optimizer.__dict__)
    return wrapped


def is_distributed(optimizer: Any) -> bool:
    """Return whether the optimizer is a DistributedOptimizer."""
    return hasattr(type(optimizer), "_bps_base")


def agreeing(optimizer: Any, process_set: ProcessSet = global_process_set) -> Any:
    """Return a LossScaleOptimizer that skips a step at all workers if the gradients of one worker
    overflow."""
    reduce = _reducer(Min, (1.0, 1.0), None, (False, process_set))

    def check_finite(self: Any, grads: Sequence[Any]) -> Any:
        is_finite = self._bps_base.check_finite(self, grads)
        # The reducer takes a list of tensors, so convert the boolean to an int32 tensor.
        flag = keras.ops.reshape(keras.ops.cast(is_finite, "int32"), (1,))
        return keras.ops.reshape(reduce(self, [flag])[0], ()) > 0

    return _wrapped(optimizer, {"check_finite": check_finite})


def DistributedOptimizer(  # noqa: N802 - the name that users know
    optimizer: Any,
    name: str | None = None,
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
) -> Any:
    """Let an optimizer average gradients over all workers before each update.

    Args:
        optimizer (Optimizer): an optimizer of Keras 3. A LossScaleOptimizer skips a step at all
            workers if the gradients of one worker overflow.
        name (str, optional), device_dense, device_sparse (str): ignored; kept for scripts of BytePS
            and Horovod.
        compression (Compressor): type in which the tensors are sent.
        sparse_as_dense (bool): convert IndexedSlices of TensorFlow to dense tensors and sum them,
            instead of gathering their rows.
        backward_passes_per_step (int): sets the optimizer's ``gradient_accumulation_steps``.
        op (int): Average or Sum.
        gradient_predivide_factor (float): divisor f of the gradients before the sum. The sum over
            n workers is then divided by n / f. Only with Average.
        average_aggregated_gradients (bool): divide accumulated gradients by
            backward_passes_per_step.
        num_groups (int), groups: ignored; kept for scripts of Horovod. Buckets have a fixed size in
            bytes.
        process_set (ProcessSet): the workers over which gradients are averaged.

    Returns:
        Optimizer: an optimizer of a new class. The new class is a subclass of the given optimizer's
            class, and both classes have the same name.

    Raises:
        ValueError: op, the factor or the state of the optimizer is not allowed.
        NotImplementedError: Keras uses a back-end that bps does not support.

    Example::

        >>> bps.keras.init()
        >>> optimizer = bps.keras.DistributedOptimizer(keras.optimizers.Adam(1e-3))
        >>> model.compile(optimizer, "mse")
    """
    check_gradients(op, gradient_predivide_factor)
    if is_distributed(optimizer):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = DistributedOptimizer(
            optimizer.inner_optimizer,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            average_aggregated_gradients=average_aggregated_gradients,
            process_set=process_set,
        )
        outer = agreeing(optimizer, process_set)
        outer.inner_optimizer = inner
        return outer
    post = gradient_predivide_factor
    if backward_passes_per_step > 1:
        if optimizer.built:
            raise ValueError(
                "backward_passes_per_step > 1 needs a new optimizer, but this one has been used"
            )
        optimizer.gradient_accumulation_steps = backward_passes_per_step
        if not average_aggregated_gradients:
            post *= backward_passes_per_step  # undo Keras's division by backward_passes_per_step
    factors = (1 / gradient_predivide_factor, post)
    reduce = _reducer(op, factors, _wire(compression), (sparse_as_dense, process_set))

    def _clip_gradients(self: Any, grads: Sequence[Any]) -> Any:
        return self._bps_base._clip_gradients(self, reduce(self, grads))

    return _wrapped(optimizer, {"_clip_gradients": _clip_gradients})


def _wire(compression: Any) -> str | None:
    return None if compression.wire is None else str(compression.wire).removeprefix("torch.")


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Load a model and let its optimizer average gradients over all workers.

    Args:
        filepath (str): a file of ``model.save``. The saved optimizer may be a DistributedOptimizer.
        custom_optimizers (list of type, optional): optimizer classes that the file may name.
        custom_objects (dict, optional): further classes that the file may name; the keys are the
            names.
        compression (Compressor): type in which the tensors are sent.
    """
    known = {one.__name__: one for one in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
