"""Names of operations, each of which one operation in flight may have."""

from __future__ import annotations

import weakref

from bps._runtime import Runtime
from bps._sets import ProcessSet
from bps.torch._handle import Handle, Named, NameUse

# Uses of names by operations, by the kind of the operation and the name.
named_operations: weakref.WeakKeyDictionary[Runtime, dict[tuple[str, str], NameUse]] = (
    weakref.WeakKeyDictionary()
)


def check_name(kind: str, name: str | None, process_set: ProcessSet) -> None:
    """Check that no operation of this kind with this name is in flight.

    Raises:
        ValueError: the caller has not waited for such an operation yet.
    """
    if name is not None:
        use = named_operations.get(process_set.runtime(), {}).get((kind, name))
        if use is not None and not use.is_free():
            raise ValueError(
                f"tensor '{name}' is in flight already: synchronize the first operation, or use "
                "another name"
            )


def with_name(kind: str, name: str | None, process_set: ProcessSet, handle: Handle) -> Handle:
    """Remember that an operation with this name is in flight. Return a handle for the caller."""
    if name is None:
        return handle
    use = named_operations.setdefault(process_set.runtime(), {})[kind, name] = NameUse(handle)
    return Named(handle, use)
