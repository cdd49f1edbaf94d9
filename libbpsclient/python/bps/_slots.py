"""Slots: reusable tensors, in which the values of unnamed operations are sent.

The first unnamed tensor of each size is sent in pieces of fixed sizes. Later tensors of this size
can get a slot of exactly this size.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from bps._library import DTYPES, OPS
from bps._operation import Slot

if TYPE_CHECKING:
    from bps._runtime import Runtime

# PIECES lists the sizes of the pieces in bytes. At most PIECES_IN_FLIGHT pieces of each size may be
# in flight.
PIECES = tuple(1 << n for n in range(8, 23))
PIECES_IN_FLIGHT = 4
# Tensors can get slots of exactly their size if they have at least OWN_SLOT_BYTES bytes. The sizes
# of all these slots add up to at most OWN_SLOTS_BYTES bytes.
OWN_SLOT_BYTES, OWN_SLOTS_BYTES = 64 << 10, 1 << 30
# Element type, reduction (SUM, PROD, ...) and size. Two workers whose operations differ in one of
# these must not submit the same slot, because that would fail the job.
Key = tuple[str, int, int]


class Slots:
    """The slots of a runtime.

    Which slot an operation gets depends only on the calls so far, which are the same at all
    workers.

    Args:
        rt (Runtime): the workers that take part.
    """

    def __init__(self, rt: Runtime) -> None:
        self._runtime, self._epoch = rt, 0
        self._rings: dict[Key, list[Slot]] = {}
        self._turns: collections.Counter[Key] = collections.Counter()
        self._own: dict[Key, list[Slot]] = {}
        self._own_turns: collections.Counter[Key] = collections.Counter()
        self._own_bytes = 0

    def all(self) -> list[Slot]:
        """Return all slots."""
        return [slot for ring in (*self._rings.values(), *self._own.values()) for slot in ring]

    def restart(self, epoch: int = 0) -> list[Slot]:
        """Forget all slots, and use new ones from now on.

        Args:
            epoch (int): number that the names of the new slots contain.

        Returns:
            list of Slot: the old slots whose tensors may still be in flight.
        """
        # An operation whose agreement fails later is stale, too.
        stale = [slot for slot in self.all() if slot.is_stale or slot.owner is not None]
        for known in (self._rings, self._turns, self._own, self._own_turns):
            known.clear()
        self._own_bytes, self._epoch = 0, epoch
        return stale

    def _name(self, kind: str, key: Key, i: int) -> str:
        dtype, op, size = key
        epoch = f"e{self._epoch}/" if self._epoch else ""
        return f"{self._runtime.prefix}{epoch}{kind}/{dtype}.{OPS[op]}.{size}.{i}"

    def piece(self, dtype: str, op: int, n_values: int) -> Slot:
        """Return the next slot of the smallest size in PIECES that holds n_values values. If no
        size is large enough, use the largest one. If an operation still uses the slot, finish that
        operation first."""
        item = int(DTYPES[dtype][1][1:])
        with self._runtime.lock:
            size = next((p for p in PIECES if p >= n_values * item), PIECES[-1])
            key = (dtype, op, size)
            ring = self._rings.get(key)
            if ring is None:
                decls = [
                    (self._name("p", key, i), dtype, size // item) for i in range(PIECES_IN_FLIGHT)
                ]
                ring = self._rings[key] = [Slot(t) for t in self._runtime.job.declare_group(decls)]
            slot = ring[self._turns[key] % PIECES_IN_FLIGHT]
            if slot.owner is not None:
                slot.owner.settle()
            self._turns[key] += 1
            return slot

    def own(self, dtype: str, op: int, n_values: int) -> Slot | None:
        """Return the next slot of exactly this size. If an operation still uses the slot, finish
        that operation first.

        Returns:
            Slot: the slot. None if this size is used for the first time, or is below
                OWN_SLOT_BYTES. Also None if the slots of this size, added to the slots of other
                sizes, would exceed OWN_SLOTS_BYTES. After None, the caller uses pieces.
        """
        n_bytes = n_values * int(DTYPES[dtype][1][1:])
        key = (dtype, op, n_values)
        if n_bytes < OWN_SLOT_BYTES:
            return None
        with self._runtime.lock:
            turn = self._own_turns[key]
            if turn == 0:
                self._own_turns[key] = 1
                return None
            many = 1 if n_bytes >= PIECES[-1] else PIECES_IN_FLIGHT
            ring = self._own.get(key)
            if ring is None:
                if self._own_bytes + many * n_bytes > OWN_SLOTS_BYTES:
                    return None
                self._own_bytes += many * n_bytes
                ring = self._own[key] = []
            at = (turn - 1) % many
            if at == len(ring):
                ring.append(
                    Slot(self._runtime.job.declare(self._name("s", key, at), dtype, n_values))
                )
            owner = ring[at].owner
            if owner is not None:
                owner.settle()
            self._own_turns[key] += 1
            return ring[at]
