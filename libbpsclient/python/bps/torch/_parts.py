"""Sum memory over all workers. The memory consists of parts of tensors.

Collectives that only move values also use such a sum. Each worker fills its own parts of the memory
with values, and the rest with zeros. So the sum consists of the workers' values. The memory is sent
in pieces. A worker abstains from the pieces that have none of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bps._library import BLOCKS, CODES, PRIORITY_AUTO, Error
from bps._operation import Operation, Slot
from bps._runtime import PRIORITY_MOST, Runtime
from bps.torch._memory import (
    NAMES,
    Wire,
    host_floats,
    input_view,
    output_view,
    read_output,
    write_input,
)

# Options of sum_parts() for collectives whose callers wait for the result. The priority is that of
# bps_broadcast(3). A broadcast of 64 MiB took 32 to 34 ms in pieces of 1 MiB, and 38 ms in pieces
# of 4 MiB (debug build, two workers, two agents, loopback).
MOVE: dict[str, Any] = {"priority": PRIORITY_MOST, "piece_values": 1 << 20}

# Collectives that move values use pieces of their own for at least this many values of a worker.
# Smaller values of several workers share a piece, in which each worker sends zeros for the others.
OWN_PIECE_VALUES = 32 << 10

# Offset of a flat tensor in the memory of an operation, as a number of elements, and the tensor.
Part = tuple[int, torch.Tensor]
# Rank of a worker, and the first element and the end of its values in the memory of an operation.
Owner = tuple[int, int, int]


def consecutive(tensors: Sequence[torch.Tensor]) -> list[Part]:
    """Return parts for flat tensors that lie in the memory one after the other."""
    parts, at = [], 0
    for flat in tensors:
        parts.append((at, flat))
        at += flat.numel()
    return parts


def length(parts: Sequence[Part]) -> int:
    """Return the number of elements up to the end of the last part."""
    return max((at + flat.numel() for at, flat in parts), default=0)


def as_bytes(flat: torch.Tensor) -> torch.Tensor:
    """Return a flat tensor as bytes that share its memory."""
    return flat.view(torch.uint8)


def overlap(parts: Sequence[Part], start: int, n: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Find the tensor elements that belong to [start, start + n) of an operation's memory. For each
    tensor with such elements, yield a slice and a view of these elements. The slice has the
    positions of the elements in the memory, counted from `start`."""
    for at, flat in parts:
        first, last = max(at, start), min(at + flat.numel(), start + n)
        if first < last:
            yield slice(first - start, last - start), flat[first - at : last - at]


def _check_contributors(rt: Runtime, slot: Slot, needed: Sequence[int]) -> None:
    """Check that the result in a slot has the values of the needed workers; all others abstain. In
    a job that may shrink, a sum can be complete without a lost worker, whose values are then
    missing.

    Raises:
        Error: a needed worker's values are missing. All workers raise this error, or none does.
    """
    if slot.tensor.contributors == len(needed):
        return
    for worker in slot.tensor.contributor_list():
        if worker.is_missing and worker.rank in needed:
            rank = rt.shown(worker.rank)
            text = f"rank {rank} is lost, or has not joined, so no worker has its values"
            raise Error(CODES["EWORKER_LOST"], text, rank, worker.host)


def _write(
    slot: Slot, pieces: Sequence[tuple[slice, torch.Tensor]], n: int, first: int = 0
) -> None:
    """Do what :func:`_encode` does for a slot of a type that PyTorch has."""
    target = input_view(slot)[first : first + n]
    if sum(piece.numel() for _, piece in pieces) < n:
        target.zero_()
    for where, piece in pieces:
        write_input(slot, target[where], piece)


def _is_array(flat: torch.Tensor) -> bool:
    """Return whether the library can access a flat tensor as an array of f32."""
    return flat.dtype == torch.float32 and flat.device.type == "cpu"


def _encode(
    slot: Slot, pieces: Sequence[tuple[slice, torch.Tensor]], n: int, first: int = 0
) -> None:
    """Write n values to the input of a slot of a block type, from value `first` on, where a block
    begins. Values that are in none of the pieces are zeros."""
    flat = pieces[0][1] if len(pieces) == 1 else host_floats(0)
    if flat.numel() < n or not _is_array(flat):
        flat = host_floats(n)
        for where, piece in pieces:
            flat[where] = piece
    slot.tensor.fill_memory(first, flat.data_ptr(), n, 1.0)


def _decode(slot: Slot, where: slice, piece: torch.Tensor) -> None:
    """Copy some values of the result of a slot of a block type to a flat tensor."""
    skipped = where.start % BLOCKS[slot.tensor.dtype][0]
    if not skipped and _is_array(piece):
        flat = piece
    else:
        flat = host_floats(skipped + piece.numel())
    slot.tensor.read_values(where.start - skipped, flat.data_ptr(), flat.numel(), 1.0)
    if flat is not piece:
        piece.copy_(flat[skipped:])


def _collector(
    rt: Runtime, slot: Slot, pieces: Sequence[tuple[slice, torch.Tensor]], needed: Sequence[int]
) -> Callable[[], None]:
    """Return a function that copies the result of a slot to the tensors in `pieces`."""

    def collect() -> None:
        if needed:
            _check_contributors(rt, slot, needed)
        for where, piece in pieces:
            if slot.tensor.dtype in BLOCKS:
                _decode(slot, where, piece)
            else:
                read_output(slot, output_view(slot)[where], piece)

    return collect


def _end_of_piece(owners: Sequence[Owner], start: int, n_values: int) -> int:
    """Return the end of the values that a piece from `start` on may have: where the next values of
    a worker begin or end that has at least OWN_PIECE_VALUES of them."""
    for _, first, end in owners:
        if end - first >= OWN_PIECE_VALUES and end > start:
            return first if first > start else end
    return n_values


def sum_parts(
    rt: Runtime,
    wire: Wire,
    op: int,
    given: Sequence[Part],
    taken: Sequence[Part],
    n_values: int,
    agreement: Operation | None,
    has_own_slot: bool = False,
    owners: Sequence[Owner] = (),
    priority: int = PRIORITY_AUTO,
    piece_values: int | None = None,
) -> list[Operation]:
    """Submit memory of n_values values for reduction. Call this in :meth:`Runtime.submission`.

    Args:
        rt (Runtime): the workers that take part.
        wire (torch.dtype or str): type of the values, one of NAMES, or a block type in which they
            are sent.
        op (int): the reduction, for example bps.SUM.
        given: parts of the memory that this worker fills. It adds nothing to all other parts.
        taken: parts of the memory to which the result is copied.
        n_values (int): number of values of the memory.
        agreement (Operation, optional): the operation of :meth:`Runtime.agree`. If it fails, the
            returned operations fail, too.
        has_own_slot (bool): use a slot of n_values values if :meth:`Slots.own` has one.
        owners: for a collective that moves values, whose values the memory consists of, in the
            order of the memory. Pieces end where large values of a worker end, so that only one
            worker sends bytes of such a piece. If the values of one of these workers are missing,
            the operations fail.
        priority (int): memory with a larger priority is sent first.
        piece_values (int, optional): largest number of values to request for one piece from
            :meth:`Slots.piece`; None: no limit except the largest of bps._slots.PIECES.

    Returns:
        list[Operation]: the operations. When all operations are finished, the result is in `taken`.
    """
    operations, start, kind = [], 0, wire if isinstance(wire, str) else NAMES[wire]
    while start < n_values:
        slot = rt.slots.own(kind, op, n_values) if has_own_slot and start == 0 else None
        end = _end_of_piece(owners, start, n_values)
        slot = slot or rt.slots.piece(kind, op, min(end - start, piece_values or n_values))
        n = min(end - start, slot.tensor.n_values)
        pieces = list(overlap(given, start, n))
        if not pieces:
            slot.tensor.abstain(op, priority)
        else:
            (_encode if kind in BLOCKS else _write)(slot, pieces, n)
            slot.tensor.push_pull(op, priority)
        needed = [rank for rank, first, end in owners if first < start + n and start < end]
        collect = _collector(rt, slot, list(overlap(taken, start, n)), needed)
        operations.append(Operation(slot, collect, agreement))
        start += n
    return operations


def scatter_sums(
    rt: Runtime,
    wire: Wire,
    op: int,
    given: Sequence[Part],
    taken: torch.Tensor,
    agreement: Operation | None,
) -> list[Operation]:
    """Submit memory for reduction, of which each worker takes an equal part (reduce-scatter). The
    memory is sent in tensors in shards, so a machine receives only the parts of its workers. The
    job must allow them (:meth:`Slots.may_shard`).

    Args:
        rt (Runtime): the workers that take part.
        wire (torch.dtype or str): type of the values, one of NAMES, or a block type in which they
            are sent.
        op (int): the reduction, for example bps.SUM.
        given: parts of the memory that this worker fills. It adds zeros to all other parts. The
            memory has as many values as all workers' parts of the result.
        taken (Tensor): a flat tensor that receives this worker's part.
        agreement (Operation, optional): see :func:`sum_parts`.

    Returns:
        list[Operation]: the operations. When all are finished, the result is in `taken`.
    """
    kind = wire if isinstance(wire, str) else NAMES[wire]
    fill = _encode if kind in BLOCKS else _write
    size, n_values = rt.job.size, taken.numel()
    operations, start = [], 0
    while start < n_values:
        slot = rt.slots.own(kind, op, n_values, size) if start == 0 else None
        slot = slot or rt.slots.piece(kind, op, n_values - start, size)
        shard = slot.tensor.n_values // size
        n = min(n_values - start, shard)
        if n == shard == n_values:  # the slot holds the whole memory
            fill(slot, list(overlap(given, 0, n * size)), n * size)
        else:
            for rank in range(size):
                pieces = list(overlap(given, rank * n_values + start, n))
                fill(slot, pieces, n, rank * shard)
        slot.tensor.push_pull(op)
        first = slot.tensor.shard.start
        result = [(slice(first, first + n), taken[start : start + n])]
        operations.append(Operation(slot, _collector(rt, slot, result, ()), agreement))
        start += n
    return operations
