"""Provide bps under the names of the modules of BytePS. Import this module before the first import
of such a name.

Example::

    import bps.compat.byteps
    import byteps.torch as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from bps import _core
from bps.compat import _alias

LACKING = {
    "get_pushpull_speed": "watch the job with bpsctl",
    "MirroredStrategy": "use tf.distribute.MirroredStrategy(cross_device_ops=CrossDeviceOps())",
}


def _init(lazy: bool = True) -> None:
    """Join the job.

    Args:
        lazy (bool): BytePS connects later if this is True. Here, the process always connects at
            once. The tensors are declared at their first use in both cases.
    """
    _core.init()


def _resume(num_workers: int, num_servers: int, global_rank: int = -1, context: Any = None) -> None:
    """Do the same as :func:`bps.torch.resume`. BytePS does not use `context` either."""
    _core.resume(num_workers, num_servers, global_rank)


class _Group:
    """Counts the tensors of :meth:`push_pull_group_sync_inplace`, as BytePS's module wrapper needs
    it: when all gradients are submitted, the wrapper waits for them.

    Attributes:
        size (int): number of gradients; 0: not known.
    """

    def __init__(self) -> None:
        self.size, self._n = 0, 0

    def set_num_grads(self, num_grads_: int) -> None:
        """Set the number of gradients of a backward pass."""
        self.size, self._n = num_grads_, 0

    def push_pull_group_sync_inplace(
        self,
        tensor: Any,
        average: bool = True,
        name: str | None = None,
        version: int = 0,
        priority: int = 0,
    ) -> tuple[Any, int]:
        """Do the same as :func:`bps.torch.push_pull_async_inplace`.

        Returns:
            tuple: the handle, and the number of tensors that were submitted since the last group
                was complete.
        """
        import bps.torch

        self._n = 1 if self._n == self.size > 0 else self._n + 1
        call = bps.torch.push_pull_async_inplace
        return call(tensor, average, name, version, priority), self._n


_group = _Group()


def _broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Do the same as :func:`bps.torch.broadcast_parameters`. No name of a tensor needs the
    prefix."""
    import bps.torch

    bps.torch.broadcast_parameters(params, root_rank)


def _broadcast_optimizer_state(optimizer: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Do the same as :func:`bps.torch.broadcast_optimizer_state`. No name of a tensor needs the
    prefix."""
    import bps.torch

    bps.torch.broadcast_optimizer_state(optimizer, root_rank)


@functools.cache
def _optimizers() -> dict[str, Any]:
    """Return functions that create optimizers, with BytePS's parameters."""
    import bps.torch

    def distributed_optimizer(
        optimizer: Any,
        named_parameters: Any = None,
        compression: Any = bps.torch.Compression.none,
        backward_passes_per_step: int = 1,
        staleness: int = 0,
        pipesgd_warmup_iter: int = 0,
        **options: Any,
    ) -> Any:
        """Do the same as :func:`bps.torch.DistributedOptimizer`.

        Args:
            staleness, pipesgd_warmup_iter (int): must be 0, because this staleness is that of sums.
            options: further arguments of :func:`bps.torch.DistributedOptimizer`.
        """
        if staleness or pipesgd_warmup_iter:
            raise NotImplementedError(
                "staleness: sums are synchronous; to let a step overlap with the next forward "
                "pass, remove the argument and set cross_barrier=True; to train asynchronously, "
                "set asynchronous=True, and stale for a bound"
            )
        options.setdefault("keeps_gradients", True)  # as BytePS does
        return bps.torch.DistributedOptimizer(
            optimizer, named_parameters, compression, backward_passes_per_step, **options
        )

    return {"DistributedOptimizer": distributed_optimizer}


def _cross_barrier(
    model: Any,
    optimizer: Any,
    named_parameters: Any = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Any:
    """Wrap an optimizer, and set the option ``cross_barrier``. With this option, the next forward
    pass waits for the gradients layer by layer. See :func:`bps.torch.DistributedOptimizer`.

    Args:
        model (Module): the trained model; its ``state_dict()`` will wait for all updates.
        optimizer (Optimizer): an optimizer of PyTorch.
        num_steps (int): ignored; bps need not know which step is the last one.
    """
    import bps.torch

    wrapped = bps.torch.DistributedOptimizer(
        optimizer,
        named_parameters or model.named_parameters(),
        compression or bps.torch.Compression.none,
        backward_passes_per_step,
        cross_barrier=True,
    )
    model.register_state_dict_pre_hook(lambda *_: wrapped.synchronize())
    return wrapped


def _cross() -> dict[str, Any]:
    return {**_torch(), "CrossBarrier": _cross_barrier}


def _torch() -> dict[str, Any]:
    names = _alias.names_of("bps.torch")
    return {
        **names,
        **_optimizers(),
        "broadcast_optimizer_state": _broadcast_optimizer_state,
        "broadcast_parameters": _broadcast_parameters,
        "byteps_declare_tensor": names["declare"],
        "byteps_push_pull": names["push_pull_async_inplace"],
        "byteps_push_pull_group": _group.push_pull_group_sync_inplace,
        "byteps_torch_set_num_grads": _group.set_num_grads,
        "init": _init,
        "push_pull_group_sync_inplace": _group.push_pull_group_sync_inplace,
        "resume": _resume,
    }


def _broadcast(
    tensor: Any,
    root_rank: int,
    scope: str = "",
    name: str | None = None,
    is_variable: bool = True,
) -> Any:
    """Do :func:`bps.tensorflow.broadcast` with BytePS's arguments.

    Args:
        scope (str): beginning of the name of the operation. The name is not part of other scopes.
        is_variable (bool): BytePS overwrites a variable with zeros before it sums. Here, all
            workers get the root's value in both cases, and the tensor keeps its value.
    """
    import bps.tensorflow

    full = f"{scope}{name or ''}" or None
    return bps.tensorflow.broadcast(tensor, root_rank, full, ignore_name_scope=bool(scope))


def _broadcast_variables(variables: Any, root_rank: int, scope: str = "") -> Any:
    """Do :func:`bps.tensorflow.broadcast_variables` with BytePS's arguments.

    Args:
        scope (str): name of the operation.
    """
    import tensorflow as tf

    import bps.tensorflow

    assigned = bps.tensorflow.broadcast_(variables, root_rank, scope or None)
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*assigned)


def _tensorflow() -> dict[str, Any]:
    return {
        **_alias.names_of("bps.tensorflow"),
        "broadcast": _broadcast,
        "broadcast_variables": _broadcast_variables,
        "init": _init,
        "resume": _resume,
    }


def _keras() -> dict[str, Any]:
    return {**_alias.names_of("bps.keras"), "init": _init, "callbacks": _module(_callbacks())}


def _callbacks() -> dict[str, Any]:
    from bps.compat._callbacks import NAMES

    return NAMES


def _module(names: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**names)


def _mxnet() -> dict[str, Any]:
    return {**_alias.names_of("bps.mxnet"), "init": _init, "resume": _resume}


MODULES = {
    "byteps": _alias.version,
    "byteps.common": dict,
    "byteps.keras": _keras,
    "byteps.keras.callbacks": _callbacks,
    "byteps.mxnet": _mxnet,
    "byteps.mxnet.ops": _mxnet,
    "byteps.tensorflow": _tensorflow,
    "byteps.tensorflow.compression": _alias.compressors,
    "byteps.tensorflow.keras": _keras,
    "byteps.tensorflow.keras.callbacks": _callbacks,
    "byteps.tensorflow.ops": _tensorflow,
    "byteps.torch": _torch,
    "byteps.torch.compression": _torch,
    "byteps.torch.cross_barrier": _cross,
    "byteps.torch.ops": _torch,
    "byteps.torch.parallel": _torch,
    "byteps.torch.parallel.distributed": _torch,
}

_alias.install("byteps", MODULES, LACKING)
