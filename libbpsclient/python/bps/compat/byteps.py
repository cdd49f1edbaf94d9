"""Provide bps under the names of the modules of BytePS. Import this module before the first import
of such a name.

Example::

    import bps.compat.byteps
    import byteps.torch as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bps import _core
from bps.compat import _alias

LACKING = {
    "byteps_torch_set_num_grads": "remove the call: bps does not need the number of gradients",
    "get_pushpull_speed": "watch the job with bpsctl",
    "MirroredStrategy": "use tf.distribute.MirroredStrategy(cross_device_ops=CrossDeviceOps())",
    "BroadcastGlobalVariablesHook": "use broadcast_variables(model.variables, root_rank)",
}


def _init(lazy: bool = True) -> None:
    """Join the job.

    Args:
        lazy (bool): ignored; tensors are always declared at their first use.
    """
    _core.init()


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
    return {**names, "init": _init, "byteps_declare_tensor": names["declare"]}


def _tensorflow() -> dict[str, Any]:
    return {**_alias.names_of("bps.tensorflow"), "init": _init}


def _keras() -> dict[str, Any]:
    return {**_alias.names_of("bps.keras"), "init": _init, "callbacks": _module(_callbacks())}


def _callbacks() -> dict[str, Any]:
    from bps.compat._callbacks import NAMES

    return NAMES


def _module(names: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**names)


def _mxnet() -> dict[str, Any]:
    return {**_alias.names_of("bps.mxnet"), "init": _init}


MODULES = {
    "byteps": _alias.version,
    "byteps.common": dict,
    "byteps.keras": _keras,
    "byteps.keras.callbacks": _callbacks,
    "byteps.mxnet": _mxnet,
    "byteps.mxnet.ops": _mxnet,
    "byteps.tensorflow": _tensorflow,
    "byteps.tensorflow.compression": _tensorflow,
    "byteps.tensorflow.keras": _keras,
    "byteps.tensorflow.keras.callbacks": _callbacks,
    "byteps.tensorflow.ops": _tensorflow,
    "byteps.torch": _torch,
    "byteps.torch.compression": _torch,
    "byteps.torch.cross_barrier": _cross,
    "byteps.torch.ops": _torch,
    "byteps.torch.parallel": _torch,
}

_alias.install("byteps", MODULES, LACKING)
