"""Sums of sparse PyTorch tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from bps import _compare, _union
from bps._compression import RAW, Coding
from bps._library import OPS
from bps._ops import Average, Sum
from bps._runtime import Runtime
from bps._sets import ProcessSet, global_process_set
from bps.torch._handle import Handle
from bps.torch._memory import NAMES, TYPES, described_type, flatten, wire_dtype
from bps.torch._names import check_name
from bps.torch._profile import waiting


class Part(NamedTuple):
    """Rows of a sparse tensor at this worker.

    Attributes:
        table (Table): which rows these are.
        rows (Tensor, optional): the values of all rows, flat.
        shape (Size): shape of the whole tensor.
        n_dims (int): number of its sparse dimensions.
    """

    table: _union.Table
    rows: torch.Tensor | None
    shape: torch.Size
    n_dims: int

    def text(self, dtype: torch.dtype) -> str:
        """Return type and shape as text, which the workers compare."""
        dims = "" if self.n_dims == 1 else f", {self.n_dims} sparse dimensions"
        return f"{_compare.described(described_type(dtype), self.shape)}{dims}"


def real_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the two parts of a complex number. Return other types unchanged."""
    return torch.view_as_real(torch.empty(0, dtype=dtype)).dtype if dtype.is_complex else dtype


def part_of(tensor: torch.Tensor | None, like: torch.Tensor, coding: Coding = RAW) -> Part:
    """Return the rows of a tensor. Elements of the same index are added.

    Args:
        tensor (Tensor, optional): a sparse tensor. A dense tensor has all its rows that are not
            zeros. None: this worker adds nothing.
        like (Tensor): a tensor of the same shape and type.
        coding (Coding): how values are sent.

    Raises:
        TypeError: tensors of this type cannot be summed.
    """
    real = real_type(like.dtype)
    wire = wire_dtype(real, coding)
    one = None
    if tensor is not None:
        one = (tensor if tensor.is_sparse else tensor.to_sparse(1)).detach().coalesce().cpu()
    n_dims = 1 if one is None else one.sparse_dim()
    dims = like.shape[:n_dims]
    n_rows, row = math.prod(dims), math.prod(like.shape[n_dims:])
    row *= like.dtype.itemsize // real.itemsize
    index, rows = None, None
    if one is not None:
        index = np.zeros(one._nnz(), np.int64)
        for size, along in zip(dims, one.indices().numpy()):
            index = index * size + along
        rows = flatten(one.values().contiguous()).view(real)
    return Part(_union.Table(n_rows, row, NAMES[wire], index), rows, like.shape, n_dims)


def _scaled(total: torch.Tensor, factor: float, divisor: int) -> torch.Tensor:
    """Return a total, multiplied by a factor and divided. Averages of integers are rounded down, as
    those of servers are."""
    if factor == 1.0 and divisor == 1:
        return total
    if factor == 1.0:
        is_float = total.is_floating_point()
        return torch.div(total, divisor, rounding_mode=None if is_float else "floor")
    return (total * (factor / divisor)).to(total.dtype)


class SparseSum:
    """A sum of sparse tensors in flight.

    Args:
        rt (Runtime): the workers that take part.
        parts: this worker's rows of each tensor.
        like: for each tensor, a tensor of its shape and type, on the device of the result.
        op (int): Average or Sum.
        factor (float): factor for the results.
        text (str): what is sent, for the text of an error. The workers compare it.
        timeout (float, optional): longest wait for each of the first two rounds of the sum.

    Attributes:
        operations (list[Operation]): the operations to wait for before :meth:`results`.

    Raises:
        Error: EMISMATCH if the workers' tensors differ.
    """

    def __init__(
        self,
        rt: Runtime,
        parts: Sequence[Part],
        like: Sequence[torch.Tensor],
        op: int,
        factor: float,
        text: str,
        timeout: float | None = None,
    ) -> None:
        self._parts, self._like, self._op, self._factor = parts, like, op, factor
        kinds = _compare.unnamed([part.text(x.dtype) for part, x in zip(parts, like)])
        text = f"{text}, {_compare.List(kinds).text()}, {OPS[op]}"
        tables = [part.table for part in parts]
        self._sum = _union.begin(rt, text, tables, self._write, timeout)
        self.operations = self._sum.operations

    def _write(self, n_workers: int) -> list[np.ndarray | None]:
        """Return this worker's rows as they are sent."""
        sent: list[np.ndarray | None] = []
        for part in self._parts:
            rows, kind = part.rows, part.table.kind
            before = _union.factors(kind, self._op, self._factor, n_workers)[0]
            if rows is not None:
                rows = (rows if before == 1.0 else rows.float() * before).to(TYPES[kind])
            sent.append(None if rows is None else rows.view(torch.uint8).numpy())
        return sent

    def results(self) -> list[torch.Tensor | None]:
        """Return the sums, coalesced. None: no worker has passed a tensor."""
        return [self._result(i) for i in range(len(self._parts))]

    def _result(self, i: int) -> torch.Tensor | None:
        part, like, index = self._parts[i], self._like[i], self._sum.indices[i]
        if index is None:
            return None
        kind = part.table.kind
        after = _union.factors(kind, self._op, self._factor, self._sum.n_workers)[1:]
        sums = torch.from_numpy(self._sum.values[i].view(np.uint8)).view(TYPES[kind])
        values = _scaled(sums.to(real_type(like.dtype)), *after).view(like.dtype)
        along = []
        for size in reversed(part.shape[: part.n_dims]):
            along.append(index % size)
            index = index // size
        indices = torch.from_numpy(np.array(along[::-1], np.int64).reshape(part.n_dims, len(index)))
        return torch.sparse_coo_tensor(
            indices.to(like.device),
            values.reshape(len(index), *part.shape[part.n_dims :]).to(like.device),
            part.shape,
            check_invariants=False,
            is_coalesced=True,
        )


def sum_sparse(
    rt: Runtime,
    tensors: Sequence[torch.Tensor | None],
    like: Sequence[torch.Tensor],
    op: int,
    factor: float = 1.0,
    coding: Coding = RAW,
    what: str = "sparse tensors",
) -> list[torch.Tensor | None]:
    """Sum sparse tensors over the workers of a runtime (:mod:`bps._union`).

    Args:
        rt (Runtime): the workers that take part.
        tensors: tensors of this worker, or None for each tensor to which this worker adds nothing.
            A dense tensor adds all its rows that are not zeros.
        like: for each tensor, a tensor of its shape and type, on the device of the result.
        op (int): Average or Sum.
        factor (float): factor for the results.
        coding (Coding): how values are sent.
        what (str): says what is sent. The workers compare it.

    Returns:
        list: coalesced tensors; None where no worker has passed a tensor.
    """
    parts = [part_of(tensor, x, coding) for tensor, x in zip(tensors, like)]
    one = SparseSum(rt, parts, like, op, factor, f"{what}{coding}")
    with waiting():
        for operation in one.operations:
            operation.finish(is_interruptible=True)
    return one.results()


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Sum a sparse tensor over all workers.

    Args:
        tensor (Tensor): a tensor of layout torch.sparse_coo.
        name (str, optional): name of the operation, the same at all workers.
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
    return Handle(sum_sparse(process_set.runtime(), [tensor], [tensor], op, what=what)[0])
