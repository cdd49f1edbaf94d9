"""An optimizer of Keras that averages gradients over all workers.

The optimizer's class is replaced by a subclass, which overrides the method that clips gradients. On
every back-end, Keras calls this method once for each update, after it has accumulated gradients. If
the class has an ``apply`` method of its own, which may never clip, the subclass overrides ``apply``
instead. The subclass has the name and module of its base class, so that a saved model names the
base class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from bps import _arrays
from bps._compression import Compression, coding_of, through
from bps._ops import (
    Average,
    Min,
    check_devices,
    check_gradients,
    check_groups,
    in_groups,
)
from bps._sets import ProcessSet, global_process_set
from bps._values import Bound, check_excluded, choose_bound

# Takes gradients, none of which is None, the name of the operation, and the names of the gradients'
# variables for the text of an error, or None.
Reduce = Callable[[Sequence[Any], str, Sequence[str] | None], list[Any]]
# Methods from which Keras reaches _clip_gradients().
STEPS = ("apply_gradients", "stateless_apply", "_backend_apply_gradients")


def _on_tensorflow(
    op: int, factors: tuple[float, float], compression: Any, options: tuple[bool, ProcessSet]
) -> Reduce:
    from bps.tensorflow._tape import reduce_gradients

    def reduce(grads: Sequence[Any], name: str, labels: Sequence[str] | None) -> list[Any]:
        return reduce_gradients(grads, name, op, *factors, compression, *options, labels)

    return reduce


def _on_jax(
    op: int, factors: tuple[float, float], compression: Any, options: tuple[bool, ProcessSet]
) -> Reduce:
    from bps.jax._ops import reduce_leaves

    def reduce(grads: Sequence[Any], name: str, labels: Sequence[str] | None) -> list[Any]:
        return reduce_leaves(list(grads), name, op, factors, compression, options[1], labels)

    return reduce


def _on_torch(
    op: int, factors: tuple[float, float], compression: Any, options: tuple[bool, ProcessSet]
) -> Reduce:
    coding = coding_of(compression)

    def send(grads: list[Any], name: str, labels: Sequence[str] | None) -> list[Any]:
        given = [grad.detach().contiguous() for grad in grads]
        arrays = [grad.numpy() for grad in given]
        rt, chosen = options[1].runtime(), (name, op, *factors, coding)
        _arrays.reduce(rt, arrays, arrays, *chosen, labels=labels)
        return given

    def reduce(grads: Sequence[Any], name: str, labels: Sequence[str] | None) -> list[Any]:
        for grad in grads:
            if grad.device.type != "cpu":
                raise NotImplementedError(
                    f"a gradient must be in host memory, not on {grad.device}: keep the model on "
                    "the CPU"
                )
        return through(compression, grads, lambda given: send(given, name, labels))

    return reduce


BACKENDS = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}


def _reducer(
    op: int,
    factors: tuple[float, float],
    compression: Any,
    sparse_as_dense: bool,
    process_set: ProcessSet,
) -> Reduce:
    """Return a function that reduces gradients over the workers of the set. At a worker outside the
    set, the function returns the gradients as they are."""
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise NotImplementedError(
            f"Keras runs on {name}: set KERAS_BACKEND to one of {', '.join(BACKENDS)}"
        )
    coding_of(compression)  # check it now, not at the first update
    reduce = BACKENDS[name](op, factors, compression, (sparse_as_dense, process_set))

    def reduce_in_set(grads: Sequence[Any], name: str, labels: Sequence[str] | None) -> list[Any]:
        return reduce(grads, name, labels) if process_set.included() else list(grads)

    return reduce_in_set


def _labels(variables: Sequence[Any]) -> list[str] | None:
    """Return the names of variables of Keras, or None if a variable is not known."""
    names = [getattr(v, "path", getattr(v, "name", None)) for v in variables]
    return None if None in names else [str(name) for name in names]


def _divided(grad: Any, n: float) -> Any:
    """Return a gradient divided by n. On TensorFlow, the gradient may be IndexedSlices."""
    if type(grad).__name__ == "IndexedSlices":
        return type(grad)(grad.values / n, grad.indices, grad.dense_shape)
    return grad / n


class _Averager:
    """Reduces the gradients of an optimizer over the workers, except those of local variables.

    Args:
        reduce (callable): see :func:`_reducer`.
        groups: result of :func:`bps._ops.check_groups`.
        process_set (ProcessSet): the workers that take part.
        local_layers (sequence): layers whose variables are local.
        scales_local (bool): divide the gradients of local variables by the number of workers.

    Attributes:
        needs_variables (bool): True if :meth:`average` must know the variables of the gradients.
    """

    def __init__(
        self,
        reduce: Reduce,
        groups: Any,
        process_set: ProcessSet,
        local_layers: Sequence[Any],
        scales_local: bool,
    ) -> None:
        self._reduce, self._groups, self._process_set = reduce, groups, process_set
        self._layers, self._scales_local = list(local_layers), scales_local
        self._registered: list[Any] = []
        self.needs_variables = bool(self._layers) or not isinstance(groups, int)

    def register_local(self, variable: Any) -> None:
        """Exclude the gradient of a variable from the reduction."""
        self._registered.append(variable)

    def average(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of the variables, reduced over the workers. A gradient that is None
        stays None."""
        local = {id(v) for layer in self._layers for v in layer.trainable_variables}
        local |= {id(v) for v in self._registered}
        outputs = list(grads)
        kept = [i for i, grad in enumerate(grads) if grad is not None]
        shared = [i for i in kept if id(variables[i]) not in local]
        parts = in_groups(self._groups, len(shared), [variables[i] for i in shared])
        for number, part in enumerate(parts):
            places = [shared[i] for i in part]
            name = "grad" if len(parts) == 1 else f"grad.{number}"
            labels = _labels([variables[i] for i in places])
            for i, total in zip(places, self._reduce([grads[i] for i in places], name, labels)):
                outputs[i] = total
        if self._scales_local and self._process_set.included():
            for i in {*kept} - {*shared}:
                outputs[i] = _divided(grads[i], self._process_set.size())
        return outputs

    def average_update(
        self, optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Do :meth:`average` when Keras is about to update the variables."""
        steps = optimizer.gradient_accumulation_steps
        if not steps or keras.backend.backend() != "jax":
            return self.average(grads, variables)
        import jax

        # On JAX, Keras computes an update in every step, but applies it only in every n-th step. So
        # reduce the gradients only in these steps.
        is_update = (optimizer._iterations + 1) % steps == 0
        average = lambda given: self.average(given, variables)  # noqa: E731
        return jax.lax.cond(is_update, average, lambda given: given, list(grads))


def _is_keras_2(optimizer: Any) -> bool:
    """Return whether the optimizer is one of the package tf_keras, not of its module ``legacy``."""
    known = sys.modules.get("tf_keras")
    return known is not None and isinstance(optimizer, known.optimizers.Optimizer)


def _check_class(optimizer: Any) -> None:
    """Check that Keras calls the methods that a subclass of the optimizer's class overrides.

    Raises:
        TypeError: gradients of such an optimizer would not be averaged.
    """
    cls, known = type(optimizer), keras.optimizers.Optimizer
    if not isinstance(optimizer, known):
        raise TypeError(
            f"{cls.__module__}.{cls.__qualname__} is not an optimizer of Keras 3: use one of "
            "keras.optimizers, or average the gradients with DistributedGradientTape of "
            "bps.tensorflow"
        )
    own = [name for name in STEPS if getattr(cls, name) is not getattr(known, name)]
    if own:
        raise TypeError(
            f"{cls.__qualname__} has a method {own[0]}() of its own, which may not average the "
            "gradients: override apply() or update_step() instead"
        )


def _subclass(base: type, methods: Mapping[str, Any]) -> type:
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), {**methods, **names, "_bps_base": base})


def _wrapped(optimizer: Any, methods: Mapping[str, Any]) -> Any:
    wrapped: Any = object.__new__(_subclass(type(optimizer), methods))
    wrapped.__dict__.update(optimizer.__dict__)
    return wrapped


def is_distributed(optimizer: Any) -> bool:
    """Return whether the optimizer is a DistributedOptimizer."""
    return hasattr(type(optimizer), "_bps_base")


def is_asynchronous(optimizer: Any) -> bool:
    """Return whether the optimizer is a DistributedOptimizer that trains asynchronously."""
    return hasattr(type(optimizer), "pull_values")


def agreeing(optimizer: Any, process_set: ProcessSet = global_process_set) -> Any:
    """Return a LossScaleOptimizer that skips a step at all workers if the gradients of one worker
    overflow."""
    reduce = _reducer(Min, (1.0, 1.0), Compression.none, False, process_set)

    if is_asynchronous(optimizer.inner_optimizer):
        raise ValueError(
            "a LossScaleOptimizer cannot be combined with asynchronous training, because workers "
            "would skip different steps: use the policy mixed_bfloat16"
        )

    def check_finite(self: Any, grads: Sequence[Any]) -> Any:
        is_finite = self._bps_base.check_finite(self, grads)
        # The reducer takes a list of tensors, so convert the boolean to an int32 tensor.
        flag = keras.ops.reshape(keras.ops.cast(is_finite, "int32"), (1,))
        return keras.ops.reshape(reduce([flag], "finite", None)[0], ()) > 0

    return _wrapped(optimizer, {"check_finite": check_finite})


def DistributedOptimizer(  # noqa: N802 - the name that users know
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    asynchronous: bool | None = None,
    stale: int | None = None,
) -> Any:
    """Let an optimizer average gradients over all workers before each update.

    Args:
        optimizer (Optimizer): an optimizer of Keras 3. A LossScaleOptimizer skips a step at all
            workers if the gradients of one worker overflow.
        name (str, optional): name of the new optimizer; None: the name of the given one.
        device_dense, device_sparse (str): must be empty or a CPU, because bps exchanges values in
            host memory.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(tensor)`` and ``decompress(tensor, context)`` for tensors of the back-end.
        sparse_as_dense (bool): convert IndexedSlices of TensorFlow to dense tensors and sum them,
            instead of summing only the rows that a worker has.
        gradient_predivide_factor (float): divisor f of the gradients before the sum. The sum over
            n workers is then divided by n / f. Only with Average.
        op (int): Average or Sum.
        backward_passes_per_step (int): sets the optimizer's ``gradient_accumulation_steps``.
        average_aggregated_gradients (bool): divide accumulated gradients by
            backward_passes_per_step.
        num_groups (int): number of groups; older form of `groups`.
        groups (int or list, optional): send the gradients in this number of calls, or in a call for
            each list of variables; None: in one call.
        process_set (ProcessSet): the workers over which gradients are averaged. A worker outside
            this set keeps its own gradients.
        scale_local_gradients (bool): divide the gradients of local variables by the number of
            workers. Local variables are those that were passed to ``register_local_var``.
        asynchronous (bool, optional): gradients are not averaged. The optimizer updates the
            variables with the gradients of this worker, sends the update, and overwrites the
            variables with the servers' values, which have the updates that have arrived so far. The
            first update sets these values to the variables of rank 0. None: True if BPS_STALE or
            BYTEPS_ENABLE_ASYNC is set. See the guide "Asynchronous training".
        stale (int, optional): with `asynchronous`, the number of updates by which a worker may be
            behind without being waited for; None: that of BPS_STALE, or any number.

    Returns:
        Optimizer: an optimizer of a new class. The new class is a subclass of the given optimizer's
            class, and both classes have the same name. It has the method
            ``register_local_var(variable)``, or with `asynchronous` the methods ``pull_values()``
            and ``reset_values()``.

    Raises:
        ValueError: op, the factor or the state of the optimizer is not allowed.
        TypeError: bps cannot average the gradients of this optimizer's class.
        NotImplementedError: Keras uses a back-end that bps does not support.

    Example::

        >>> bps.keras.init()
        >>> optimizer = bps.keras.DistributedOptimizer(keras.optimizers.Adam(1e-3))
        >>> model.compile(optimizer, "mse")
    """
    return PartialDistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        None,
        scale_local_gradients,
        asynchronous,
        stale,
    )


def PartialDistributedOptimizer(  # noqa: N802 - the name that users know
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    asynchronous: bool | None = None,
    stale: int | None = None,
) -> Any:
    """Make a :func:`DistributedOptimizer` that does not average the gradients of some layers.

    Args:
        local_layers (Layer or list, optional): layers whose gradients are not averaged. The other
            arguments are those of :func:`DistributedOptimizer`.
    """
    check_gradients(op, gradient_predivide_factor)
    check_devices(device_dense, device_sparse)
    if is_distributed(optimizer):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    bound = choose_bound(asynchronous, stale)
    if bound is not None:
        options = {
            "compression": compression is not Compression.none,
            "sparse_as_dense": sparse_as_dense,
            "gradient_predivide_factor": gradient_predivide_factor != 1.0,
            "op": op != Average,
            "num_groups": bool(num_groups),
            "groups": groups is not None,
            "process_set": process_set is not global_process_set,
            "local_layers": bool(local_layers),
            "scale_local_gradients": not scale_local_gradients,
        }
        check_excluded(options)
        scale = 1 if average_aggregated_gradients else max(1, backward_passes_per_step)
        return _asynchronous(optimizer, name, backward_passes_per_step, scale, bound)
    steps, post = backward_passes_per_step, gradient_predivide_factor
    if steps > 1 and not average_aggregated_gradients:
        post *= steps  # undo Keras's division by backward_passes_per_step
    factors = (1 / gradient_predivide_factor, post)
    layers = [] if local_layers is None else local_layers
    averager = _Averager(
        _reducer(op, factors, compression, sparse_as_dense, process_set),
        check_groups(num_groups, groups),
        process_set,
        layers if isinstance(layers, (list, tuple)) else [layers],
        scale_local_gradients,
    )
    return _distributed(optimizer, name, steps, averager, process_set)


def _set_accumulation(optimizer: Any, steps: int) -> None:
    """Let an optimizer add up the gradients of a number of steps.

    Raises:
        ValueError: the optimizer has been used.
    """
    if steps > 1:
        if optimizer.built:
            raise ValueError(
                "backward_passes_per_step > 1 needs a new optimizer, but this one has been used"
            )
        optimizer.gradient_accumulation_steps = steps


def _distributed(
    optimizer: Any, name: str | None, steps: int, averager: _Averager, process_set: ProcessSet
) -> Any:
    """Return the optimizer of a new class, whose methods call the averager."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        outer = agreeing(optimizer, process_set)
        inner = optimizer.inner_optimizer
        outer.inner_optimizer = _distributed(inner, name, steps, averager, process_set)
        return outer
    if _is_keras_2(optimizer):
        return _distributed_keras_2(optimizer, name, steps, averager)
    _check_class(optimizer)
    _set_accumulation(optimizer, steps)
    updated: list[Any] = []  # variables of the update that Keras makes

    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> Any:
        updated[:] = trainable_variables
        return self._bps_base._backend_apply_gradients(self, grads, trainable_variables)

    def _clip_gradients(self: Any, grads: Sequence[Any]) -> Any:
        given = averager.average_update(self, grads, updated)
        return self._bps_base._clip_gradients(self, given)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        has_variables = trainable_variables is not None
        variables = list(trainable_variables if has_variables else self._trainable_variables)
        averages = averager.average(list(grads), variables)
        return self._bps_base.apply(self, averages, variables if has_variables else None)

    hooks: dict[str, Any] = {
        "_backend_apply_gradients": _backend_apply_gradients,
        "_clip_gradients": _clip_gradients,
    }
    if type(optimizer).apply is not keras.optimizers.Optimizer.apply:
        hooks = {"apply": apply}
    hooks["register_local_var"] = lambda self, variable: averager.register_local(variable)
    wrapped = _wrapped(optimizer, hooks)
    if name is not None:
        wrapped.name = name
    return wrapped


def _asynchronous(optimizer: Any, name: str | None, steps: int, scale: float, bound: Bound) -> Any:
    """Return the optimizer of a new class, which exchanges the variables after each update.

    Args:
        optimizer, name, steps: those of :func:`_distributed`.
        scale (float): factor of the gradients.
        bound (Bound): how far workers may be apart.
    """
    from bps.keras._asynchronous import VariableSteps

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "a LossScaleOptimizer cannot be combined with asynchronous training, because workers "
            "would skip different steps: use the policy mixed_bfloat16"
        )
    if _is_keras_2(optimizer):
        raise NotImplementedError("asynchronous training needs an optimizer of Keras 3")
    _check_class(optimizer)
    _set_accumulation(optimizer, steps)
    exchanger = VariableSteps(bound)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        given = self._trainable_variables if self.built else trainable_variables
        variables = list(given or ())
        if scale != 1:
            grads = [None if grad is None else _divided(grad, 1 / scale) for grad in grads]
        with exchanger.step(self, variables):
            return self._bps_base.apply(self, grads, trainable_variables)

    hooks = {
        "apply": apply,
        "pull_values": lambda self: exchanger.pull(self._trainable_variables),
        "reset_values": lambda self: exchanger.reset(),
    }
    wrapped = _wrapped(optimizer, hooks)
    if name is not None:
        wrapped.name = name
    return wrapped


def _distributed_keras_2(optimizer: Any, name: str | None, steps: int, averager: _Averager) -> Any:
    """Do :func:`_distributed` for an optimizer of tf_keras, which clips all gradients, too."""
    if steps > 1 or averager.needs_variables:
        raise NotImplementedError(
            "backward_passes_per_step, local_layers and lists of variables as groups need an "
            "optimizer of Keras 3"
        )

    def _clip_gradients(self: Any, grads: Sequence[Any]) -> Any:
        averages = averager.average(grads, [None] * len(grads))
        return self._bps_base._clip_gradients(self, averages)

    wrapped = _wrapped(optimizer, {"_clip_gradients": _clip_gradients})
    if name is not None:
        wrapped._name = name
    return wrapped


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
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
