"""Optimizers and trainers that average gradients over all workers, and functions that broadcast
parameters."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from bps import _arrays
from bps._asynchronous import ArraySteps
from bps._compression import Compression, coding_of
from bps._compression_params import compressor_of_byteps
from bps._ops import Average, check_gradients, check_groups, in_groups
from bps._sets import ProcessSet, global_process_set
from bps._values import Bound, check_excluded, choose_bound
from bps.mxnet import _ops

# Largest number of gradients that MXNet passes in one call of the optimizer. The value is larger
# than the number of gradients of any model.
AGGREGATE = 1 << 20


def _place(name: str) -> list[tuple[bool, int, str]]:
    """Return the sort key of a parameter. MXNet numbers the layers of a process, so the same layer
    may be "dense9" at one worker and "dense10" at another. In the order of these keys, the layers
    have the same order at all workers."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def reduce_gradients(
    grads: Sequence[mx.nd.NDArray],
    name: str,
    op: int,
    predivide: float,
    compression: Any,
    groups: int,
    process_set: ProcessSet,
) -> None:
    """Reduce gradients over all workers, in place. All dense gradients of a group are reduced in
    one call. Of each sparse gradient, only the rows that a worker has are summed. A worker outside
    the process set keeps its gradients."""
    if not process_set.included():
        return
    for grad in grads:
        if grad.stype != "default":
            _ops.sum_sparse(grad, op, compression, process_set).copyto(grad)
    dense = [grad for grad in grads if grad.stype == "default"]
    parts = in_groups(groups, len(dense), ())
    for number, part in enumerate(parts if dense else ()):
        one = name if len(parts) == 1 else f"{name}.{number}"
        factors = (1 / predivide, predivide)
        chosen = [dense[i] for i in part]
        _ops.reduce_in_place(chosen, one, op, factors, compression, process_set)


class _Weights:
    """Weights that are exchanged for values of the servers.

    Args:
        bound (Bound): how far workers may be apart.
        root (int): rank of the worker whose weights become the first values.
    """

    def __init__(self, bound: Bound, root: int = 0) -> None:
        self._arrays = ArraySteps(bound, root)
        self._names: list[str] = []
        self._weights: list[mx.nd.NDArray] = []  # those of the last step

    def step(
        self, names: Sequence[str], weights: Sequence[mx.nd.NDArray], update: Callable[[], None]
    ) -> None:
        """Run an update of the weights, and exchange them."""
        self._names, self._weights = list(names), list(weights)
        before = [_ops.view(weight).copy() for weight in weights]
        update()
        after = [_ops.view(weight) for weight in weights]
        self._write(self._arrays.exchange(names, before, after))

    def _write(self, answers: Sequence[np.ndarray]) -> None:
        for weight, answer in zip(self._weights, answers):
            _ops.view(weight)[...] = answer

    def pull(self) -> None:
        """Wait until all workers have called this method, and write the servers' values to the
        weights of the last step."""
        if self._weights:
            self._write(self._arrays.pull(self._names, [_ops.view(w) for w in self._weights]))

    def reset(self) -> None:
        """Let the next step set the values."""
        self._arrays.reset()


def _check_master(optimizer: mx.optimizer.Optimizer, weights: Sequence[mx.nd.NDArray]) -> None:
    """Check that the optimizer keeps no copies of the weights in f32.

    Raises:
        ValueError: it does. The copies would lack the updates of other workers.
    """
    if optimizer.multi_precision and any(np.dtype(w.dtype) == np.float16 for w in weights):
        raise ValueError(
            "multi_precision cannot be combined with asynchronous training, in which the servers "
            "keep the weights in float32: pass multi_precision=False"
        )


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that averages gradients over all workers before each update.

    Args:
        optimizer (Optimizer): an optimizer of MXNet.
        gradient_predivide_factor (float): divisor f of the gradients before the sum. The sum over
            n workers is then divided by n / f. Only with Average.
        num_groups (int): send the gradients in this number of calls; 0: in one call.
        process_set (ProcessSet): the workers over which gradients are averaged. A worker outside
            this set keeps its own gradients.
        op (int): Average or Sum.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(tensor)`` and ``decompress(tensor, context)``.
        asynchronous (bool, optional): gradients are not averaged. An update uses the gradients of
            this worker, is sent, and overwrites the weights with the servers' values, which have
            the updates that have arrived so far. The first update sets these values to the weights
            of rank 0. None: True if BPS_STALE or BYTEPS_ENABLE_ASYNC is set. See the guide
            "Asynchronous training".
        stale (int, optional): with `asynchronous`, the number of updates by which a worker may be
            behind without being waited for; None: that of BPS_STALE, or any number.

    Raises:
        ValueError: op or the factor is not allowed, or options exclude each other.

    Example::

        >>> optimizer = mx.optimizer.create("sgd", learning_rate=0.1)
        >>> optimizer = bps.mxnet.DistributedOptimizer(optimizer)
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        op: int = Average,
        compression: Any = Compression.none,
        asynchronous: bool | None = None,
        stale: int | None = None,
    ) -> None:
        check_gradients(op, gradient_predivide_factor)
        self._bound = choose_bound(asynchronous, stale)
        if self._bound is not None:
            options = {
                "op": op != Average,
                "gradient_predivide_factor": gradient_predivide_factor != 1.0,
                "num_groups": bool(num_groups),
                "process_set": process_set is not global_process_set,
                "compression": compression is not Compression.none,
            }
            check_excluded(options)
        self._values: dict[tuple[int, ...], _Weights] = {}  # by the indices of the weights
        self._optimizer = optimizer
        self._factor, self._op = gradient_predivide_factor, op
        coding_of(compression)  # check it now, not at the first step
        self._compression, self._process_set = compression, process_set
        self._groups = check_groups(num_groups, None)
        # Let MXNet pass all gradients in one call.
        self.aggregate_num = AGGREGATE

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # copy.copy() reads the attribute before it is set
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def create_state(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the wrapped optimizer's state for a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the wrapped optimizer's state for a weight. The state has an f32 copy of the
        weight."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def _reduce(self, index: Any, grad: Any) -> None:
        grads = grad if isinstance(index, (list, tuple)) else [grad]
        name = "grad" if isinstance(index, (list, tuple)) else f"grad.{index}"
        options = (self._compression, self._groups, self._process_set)
        reduce_gradients(grads, name, self._op, self._factor, *options)

    def _each(self, update: Any, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update all weights. Each call of `update` gets as many weights as the wrapped optimizer
        accepts."""
        if not isinstance(index, (list, tuple)):
            update(index, weight, grad, state)
            return
        step = max(1, self._optimizer.aggregate_num)
        for at in range(0, len(index), step):
            parts = [one[at : at + step] for one in (index, weight, grad, state)]
            update(*(parts if self._optimizer.aggregate_num else [one[0] for one in parts]))

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average a gradient, or a list of gradients, over all workers, and update the weights."""
        if self._bound is not None:
            self._exchange(self._optimizer.update, index, weight, grad, state)
            return
        self._reduce(index, grad)
        self._each(self._optimizer.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Do the same as :meth:`update`, for weights that have a copy in f32."""
        if self._bound is not None:
            weights = weight if isinstance(weight, (list, tuple)) else [weight]
            _check_master(self._optimizer, weights)
            self._exchange(self._optimizer.update_multi_precision, index, weight, grad, state)
            return
        self._reduce(index, grad)
        self._each(self._optimizer.update_multi_precision, index, weight, grad, state)

    def _exchange(self, update: Any, index: Any, weight: Any, grad: Any, state: Any) -> None:
        is_list = isinstance(index, (list, tuple))
        indices, weights = (tuple(index), weight) if is_list else ((index,), [weight])
        if indices not in self._values:
            assert self._bound is not None
            self._values[indices] = _Weights(self._bound)
        names = [str(self._optimizer.idx2name.get(i, i)) for i in indices]
        mine = lambda: self._each(update, index, weight, grad, state)  # noqa: E731
        self._values[indices].step(names, weights, mine)

    def pull_values(self) -> None:
        """With ``asynchronous=True``, wait until all workers have called this method, and overwrite
        the weights with the servers' values, which then are the same at all workers. Otherwise do
        nothing."""
        for values in self._values.values():
            values.pull()

    def reset_values(self) -> None:
        """With ``asynchronous=True``, let the next update set the servers' values to the weights of
        rank 0. All workers must call this method before the same update, after the weights were
        changed otherwise."""
        for values in self._values.values():
            values.reset()

    def set_learning_rate(self, lr: float) -> None:
        """Set the wrapped optimizer's learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Set the wrapped optimizer's learning-rate factors of individual model parameters."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Set the wrapped optimizer's weight-decay factors of individual model parameters."""
        self._optimizer.set_wd_mult(args_wd_mult)


class DistributedTrainer(gluon.Trainer):
    """A Gluon trainer that averages gradients over all workers before each update.

    Each gradient is divided by the batch size of :meth:`step`, and by the number of workers. The
    first step broadcasts the parameters of rank ``root_rank`` to all workers.

    Args:
        params (ParameterDict): ``net.collect_params()``.
        optimizer (str or Optimizer): name of an optimizer of MXNet, or an optimizer.
        optimizer_params (dict, optional): arguments of an optimizer that is given by its name.
        root_rank (int): rank of the worker whose parameters are broadcast at the first step.
        compression_params (dict, optional): BytePS's way to choose a compression, for example
            ``{"compressor": "randomk", "k": 0.01, "ef": "vanilla"}`` or ``{"fp16": True}``.
        compression (Compressor): type in which the tensors are sent, or a class with the methods
            ``compress(tensor)`` and ``decompress(tensor, context)``.
        gradient_predivide_factor (float): divisor f of the gradients before the sum. The sum over
            n workers is then divided by n / f.
        prefix (str, optional): part of the names of the tensors.
        num_groups (int): send the gradients in this number of calls; 0: in one call.
        process_set (ProcessSet): the workers over which gradients are averaged. A worker outside
            this set keeps its own gradients.
        asynchronous, stale: see :class:`DistributedOptimizer`. The first step sets the servers'
            values to the parameters of rank ``root_rank``.

    Example::

        >>> trainer = bps.mxnet.DistributedTrainer(net.collect_params(), "sgd")
        >>> trainer.step(batch_size)
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: Mapping[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        asynchronous: bool | None = None,
        stale: int | None = None,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages gradients itself: it uses the optimizer inside the "
                "DistributedOptimizer",
                stacklevel=2,
            )
            if asynchronous is None:
                asynchronous = optimizer._bound is not None
                if stale is None and optimizer._bound:
                    stale = optimizer._bound.stale
            optimizer = optimizer._optimizer
        bound = choose_bound(asynchronous, stale)
        if bound is not None:
            options = {
                "compression_params": bool(compression_params),
                "compression": compression is not Compression.none,
                "gradient_predivide_factor": gradient_predivide_factor != 1.0,
                "num_groups": bool(num_groups),
                "process_set": process_set is not global_process_set,
            }
            check_excluded(options)
        self._values = None if bound is None else _Weights(bound, root_rank)
        self._compression = compressor_of_byteps(compression_params, compression, process_set)
        coding_of(self._compression)  # check it now, not at the first step
        self._groups = check_groups(num_groups, None)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        if len(self._contexts) > 1:
            raise NotImplementedError(
                f"the model has parameters on {len(self._contexts)} devices: start one worker for "
                "each device"
            )
        self._root, self._factor = root_rank, gradient_predivide_factor
        self._name, self._process_set = f"grad.{prefix}" if prefix else "grad", process_set
        self._is_broadcast = False

    def skip_broadcast(self) -> None:
        """Do not broadcast the parameters at the first step, because all workers have the same
        values."""
        self._is_broadcast = True

    def pull_values(self) -> None:
        """Do what :meth:`DistributedOptimizer.pull_values` does."""
        if self._values is not None:
            self._values.pull()

    def reset_values(self) -> None:
        """Do what :meth:`DistributedOptimizer.reset_values` does, with the parameters of rank
        ``root_rank``."""
        if self._values is not None:
            self._values.reset()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._values is None:
            super()._update(ignore_stale_grad)
            return
        params = sorted(self._params, key=lambda p: _place(p.name))
        params = [p for p in params if p.grad_req != "null"]
        weights = [p.list_data()[0] for p in params]
        _check_master(self._optimizer, weights)
        update = lambda: super(DistributedTrainer, self)._update(ignore_stale_grad)  # noqa: E731
        self._values.step([p.name for p in params], weights, update)

    def _allreduce_grads(self) -> None:
        if self._values is not None:
            return
        if not self._process_set.included():
            return
        if not self._is_broadcast:
            known = {p.name: p for p in self._params}
            broadcast_parameters(known, self._root, process_set=self._process_set)
            self._is_broadcast = True
        params = sorted(self._params, key=lambda p: _place(p.name))
        grads = [p.list_grad()[0] for p in params if p.grad_req != "null"]
        options = (self._compression, self._groups, self._process_set)
        reduce_gradients(grads, self._name, Average, self._factor, *options)


def _broadcast_when_made(param: Any, root_rank: int, process_set: ProcessSet) -> None:
    """Broadcast a parameter at the time when MXNet initializes it.

    The shape of the parameter is not known before.
    """
    make = param._init_impl

    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        param._init_impl = make
        broadcast_parameters({param.name: param}, root_rank, process_set=process_set)

    param._init_impl = wrapper


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    prefix: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite parameters with the values of rank ``root_rank``, in place.

    Args:
        params (dict): ``net.collect_params()`` or ``module.get_params()[0]``. A parameter whose
            shape is not known yet is broadcast when MXNet initializes it.
        root_rank (int): rank of the worker that provides the values.
        prefix (str, optional): not needed, because the tensors of this call have no names.
        process_set (ProcessSet): the workers that take part.

    Raises:
        ValueError: ``params`` is not a dict.
        Error: EMISMATCH at all workers if their parameters differ in shape or type.
    """
    if not isinstance(params, Mapping) and not hasattr(params, "items"):
        raise ValueError(f"params must be a dict of parameters or tensors, not {type(params)}")
    tensors, names = [], []
    named = [(str(name), param) for name, param in params.items()]
    for name, param in sorted(named, key=lambda pair: _place(pair[0])):
        if isinstance(param, mx.nd.NDArray):
            tensors.append(param)
            names.append(name)
            continue
        try:
            new = param.list_data()
            tensors.extend(new)
            names.extend(name if i == 0 else f"{name}#{i}" for i in range(len(new)))
        except gluon.parameter.DeferredInitializationError:
            _broadcast_when_made(param, root_rank, process_set)
    arrays = [_ops.view(tensor) for tensor in tensors]
    root = process_set.place(root_rank)
    values = _arrays.broadcast(process_set.runtime(), arrays, root, labels=names)
    for array, value in zip(arrays, values):
        array[...] = value
