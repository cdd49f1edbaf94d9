"""Sums of sparse PyTorch tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import bps
from bps._compression import RAW, Coding
from bps._ops import Average, Sum
from bps._runtime import Runtime
from bps._sets import ProcessSet, global_process_set
from bps.torch._handle import Handle
from bps.torch._memory import described_type, torch_type
from bps.torch._names import check_name


def gather_sparse(
    rt: Runtime,
    tensors: Sequence[torch.Tensor | None],
    op: int,
    factor: float = 1.0,
    coding: Coding = RAW,
    what: str = "sparse tensors",
) -> list[torch.Tensor | None]:
    """Sum sparse tensors over the workers of a runtime, by gathering their elements.

    Args:
        rt (Runtime): the workers that take part.
        tensors: tensors of this worker, or None for each tensor to which this worker adds nothing.
            A dense tensor adds all its rows.
        op (int): Average or Sum.
        factor (float): factor for the results.
        coding (Coding): how values are sent.
        what (str): says what is sent. The workers compare it.
    """
    mine: list[tuple[torch.Tensor, torch.Tensor, torch.Size] | None] = []
    for tensor in tensors:
        if tensor is None:
            mine.append(None)
            continue
        one = (tensor if tensor.is_sparse else tensor.to_sparse(1)).detach().coalesce().cpu()
        wire = torch_type(coding.type_of(described_type(one.dtype)))
        mine.append((one.indices(), one.values().to(wire), one.shape))
    totals: list[torch.Tensor | None] = []
    given = rt.allgather_present(mine, what)
    if op == Average:
        factor /= len(given)
    for parts, tensor in zip(zip(*given), tensors):
        there = [part for part in parts if part is not None]
        if not there:
            totals.append(None)
            continue
        shapes = {tuple(shape) for _, _, shape in there}
        if len(shapes) > 1:
            text = f"sparse tensors differ in shape: {', '.join(map(str, sorted(shapes)))}"
            raise bps.Error(bps.CODES["EMISMATCH"], text)
        kind = tensor.dtype if tensor is not None else there[0][1].dtype
        indices = torch.cat([indices for indices, _, _ in there], 1)
        values = torch.cat([values for _, values, _ in there]).to(kind) * factor
        total = torch.sparse_coo_tensor(indices, values, shapes.pop(), check_invariants=False)
        totals.append(total.coalesce() if tensor is None else total.to(tensor.device).coalesce())
    return totals


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Sum a sparse tensor over all workers, by gathering its elements.

    Args:
        tensor (Tensor): a tensor of layout torch.sparse_coo.
        op (int): Average or Sum.
        process_set (ProcessSet): the workers that take part.

    Returns:
        Handle: for :func:`synchronize`. Its operation is already complete, because this function
            waits for the result.
    """
    if op not in (Average, Sum):
        raise ValueError("op must be Average or Sum for sparse tensors")
    if not tensor.is_sparse:
        raise ValueError("the tensor is dense: use allreduce_async")
    check_name("allgather", name, process_set)
    what = "a sparse tensor" if name is None else f"sparse tensor '{name}'"
    return Handle(gather_sparse(process_set.runtime(), [tensor], op, what=what)[0])
