"""Process group of the back-end "bps".

The class `Group` has two variants. With PyTorch 2.14 and later, `Group` derives from PyTorch's base
class for back-ends written in Python. With an older PyTorch, `Group` derives from PyTorch's
ProcessGroup.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from bps.torch._c10d_collectives import Collectives
from bps.torch._c10d_work import GroupWork

# Largest number of operations of one group that are kept alive until a caller waits for them. Used
# with PyTorch before 2.14.
KEPT_WORKS = 1024

if torch.__version__ >= (2, 14):

    class Group(Collectives, torch._C._distributed_c10d.Backend):
        """A back-end of PyTorch. A process group of PyTorch calls the methods of this class."""

        # The properties of the base class would call themselves without end. With True, PyTorch
        # would start to collect sends, and not end after the error that refuses them.
        supports_coalescing = False
        supports_splitting = False
        supports_reconfigure = False

else:  # older PyTorch has no base class for back-ends in Python: derive from ProcessGroup

    class Group(Collectives, dist.ProcessGroup):  # type: ignore[no-redef] # the variant
        """A process group of bps, with the method names that older releases of PyTorch call."""

        _allgather_base = Collectives.all_gather_single
        _reduce_scatter_base = Collectives.reduce_scatter_single
        alltoall_base = Collectives.all_to_all_single
        allgather_into_tensor_coalesced = Collectives.all_gather_single_coalesced
        reduce_scatter_tensor_coalesced = Collectives.reduce_scatter_single_coalesced
        _group_name = _group_desc = ""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._kept: dict[int, GroupWork] = {}

        def keep(self, work: GroupWork) -> None:
            """Keep the Python object of an operation alive. Before PyTorch 2.7, callers in C++
            hold no reference to this object. Drop the oldest operation if there are more than
            KEPT_WORKS, which happens when callers never wait."""
            self._kept[id(work)] = work
            if len(self._kept) > KEPT_WORKS:
                self._kept.pop(next(iter(self._kept)), None)

        def release(self, work: GroupWork) -> None:
            """Drop the reference to an operation, because its caller has waited for it."""
            self._kept.pop(id(work), None)

        def getGroupName(self) -> str:  # noqa: N802
            """Return the name that PyTorch has given to the group."""
            return self._group_name

        def setGroupName(self, name: str) -> None:  # noqa: N802
            """Set the group's name."""
            self._group_name = name

        def getGroupDesc(self) -> str:  # noqa: N802
            """Return the description that PyTorch has given to the group."""
            return self._group_desc

        def setGroupDesc(self, desc: str) -> None:  # noqa: N802
            """Set the group's description."""
            self._group_desc = desc
