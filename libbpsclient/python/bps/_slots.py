"""Slots: reusable tensors, in which the values of unnamed operations are sent.

The first unnamed tensor of each size is sent in pieces of fixed sizes. Later tensors of this size
can get a slot of exactly this size.
"""

from __future__ import annotations

import collections
import errno
from typing import TYPE_CHECKING

from bps._library import BLOCKS, DTYPES, OPS, Error
from bps._operation import Slot

if TYPE_CHECKING:
    from bps._runtime import Runtime

# PIECES lists the sizes of the pieces in bytes. At most pieces_in_flight() pieces of a size may be
# in flight. They are declared in groups of PIECES_IN_FLIGHT.
PIECES = tuple(1 << n for n in range(8, 23))
PIECES_IN_FLIGHT = 4
# Tensors can get slots of exactly their size if they have at least OWN_SLOT_BYTES bytes. The sizes
# of all these slots add up to at most OWN_SLOTS_BYTES bytes.
OWN_SLOT_BYTES, OWN_SLOTS_BYTES = 64 << 10, 1 << 30
# Element type, reduction (SUM, PROD, ...), size, and number of shards. Two workers whose operations
# differ in one of these must not submit the same slot, because that would fail the job.
Key = tuple[str, int, int, int]


def pieces_in_flight(size: int) -> int:
    """Return how many pieces of a size may be in flight. In a gather, each may come from another
    worker, and with few in flight the network cards of most workers are idle."""
    many = (8 << 20) // size if size >= OWN_SLOT_BYTES else PIECES_IN_FLIGHT
    return max(PIECES_IN_FLIGHT, min(many, 4 * PIECES_IN_FLIGHT))


def _shard_values(dtype: str, n_values: int) -> int:
    """Return the number of values of a shard that holds n_values values: whole blocks."""
    block = BLOCKS[dtype][0] if dtype in BLOCKS else 1
    return -(-n_values // block) * block


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
        # Whether the job may have tensors in shards; None: not known yet
        self._has_shards: bool | None = None

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
        if not epoch:
            self._has_shards = None  # the job may have another number of workers now
        return stale

    def _name(self, kind: str, key: Key, i: int) -> str:
        dtype, op, size, n_shards = key
        epoch = f"e{self._epoch}/" if self._epoch else ""
        kind = f"{kind}{n_shards}" if n_shards > 1 else kind
        return f"{self._runtime.prefix}{epoch}{kind}/{dtype}.{OPS[op]}.{size}.{i}"

    def may_shard(self) -> bool:
        """Return whether the job may have tensors in shards: it has several workers, and ends when
        a machine is lost. The answer is the same at all workers."""
        rt = self._runtime
        with rt.lock:
            if self._has_shards is None and rt.job.size == 1:
                self._has_shards = False
            if self._has_shards is None:
                try:
                    n = rt.job.size
                    rt.job.declare(f"{rt.prefix}shards{n}", "u8", n, sharded=True)
                    self._has_shards = True
                except Error as error:
                    if error.code != -errno.EINVAL:
                        raise
                    self._has_shards = False
            return self._has_shards

    def piece(self, dtype: str, op: int, n_values: int, n_shards: int = 1) -> Slot:
        """Return the next slot of the smallest size in PIECES that holds n_values values. If no
        size is large enough, use the largest one. If an operation still uses the slot, finish that
        operation first.

        Args:
            n_shards (int): 1, or the number of workers: the slot is a tensor in shards. Each shard
                has the size of a piece, and holds n_values values. All shards together have at
                most PIECES[-1] bytes, or each has PIECES[0].
        """
        item = int(DTYPES[dtype][1][1:])
        sizes = [p for p in PIECES if p * n_shards <= PIECES[-1]] or [PIECES[0]]
        with self._runtime.lock:
            size = next((p for p in sizes if p >= n_values * item), sizes[-1])
            key = (dtype, op, size, n_shards)
            ring = self._rings.setdefault(key, [])
            at = self._turns[key] % pieces_in_flight(size)
            if at == len(ring):
                n = _shard_values(dtype, size // item) if n_shards > 1 else size // item
                decls = [
                    (self._name("p", key, i), dtype, n * n_shards, 0, 0, 0, int(n_shards > 1))
                    for i in range(at, at + PIECES_IN_FLIGHT)
                ]
                ring += [Slot(t) for t in self._runtime.job.declare_group(decls)]
            slot = ring[at]
            if slot.owner is not None:
                slot.owner.settle()
            self._turns[key] += 1
            return slot

    def own(self, dtype: str, op: int, n_values: int, n_shards: int = 1) -> Slot | None:
        """Return the next slot of exactly this size. If an operation still uses the slot, finish
        that operation first.

        Args:
            n_shards (int): 1, or the number of workers: the slot is a tensor in shards, each of
                which holds n_values values.

        Returns:
            Slot: the slot. None if this size is used for the first time, or is below
                OWN_SLOT_BYTES. Also None if the slots of this size, added to the slots of other
                sizes, would exceed OWN_SLOTS_BYTES. After None, the caller uses pieces.
        """
        if n_shards > 1:
            n_values = _shard_values(dtype, n_values)
        n_bytes = n_values * n_shards * int(DTYPES[dtype][1][1:])
        key = (dtype, op, n_values, n_shards)
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
                name, n = self._name("s", key, at), n_values * n_shards
                tensor = self._runtime.job.declare(name, dtype, n, sharded=n_shards > 1)
                ring.append(Slot(tensor))
            owner = ring[at].owner
            if owner is not None:
                owner.settle()
            self._own_turns[key] += 1
            return ring[at]
