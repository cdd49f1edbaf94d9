"""Replace BytePS's modules: import this before ``byteps.torch``.

Example::

    import bps.compat.byteps
    import byteps.torch as bps

    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
"""

from __future__ import annotations

from typing import Any

from bps import _core
from bps.compat import _alias

LACKING = {
    "CrossBarrier": "use DistributedOptimizer",
    "suspend": "let the job shrink (bpsrun --on-agent-loss shrink)",
    "resume": "let the job shrink (bpsrun --on-agent-loss shrink)",
    "byteps_torch_set_num_grads": "leave the call out: buckets need no count",
    "get_pushpull_speed": "watch the job with bpsctl",
}


def _init(lazy: bool = True) -> None:
    """Join the job.

    Args:
        lazy (bool): accepted; tensors are declared at their first use.
    """
    _core.init()


def _torch() -> dict[str, Any]:
    names = _alias.torch_names()
    return {**names, "init": _init, "byteps_declare_tensor": names["declare"]}


MODULES = {
    "byteps": _alias.version,
    "byteps.common": dict,
    "byteps.torch": _torch,
    "byteps.torch.compression": _torch,
    "byteps.torch.ops": _torch,
    "byteps.torch.parallel": _torch,
}

_alias.install("byteps", MODULES, LACKING)
