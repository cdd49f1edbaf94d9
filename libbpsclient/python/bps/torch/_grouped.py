"""Collectives that take several PyTorch tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bps._ops import group_names
from bps.torch._allgather import allgather, allgather_async
from bps.torch._allreduce import allreduce, allreduce_async, allreduce_async_
from bps.torch._handle import Handle, Several
from bps.torch._reducescatter import reducescatter, reducescatter_async


def make_grouped(
    name: str, call: Callable[..., Any], collect: Callable[[list[Any]], Any]
) -> Callable[..., Any]:
    """Return a function that applies a collective to each tensor of a sequence.

    The returned function has the arguments of the collective, with the sequence in place of the
    tensor.

    Args:
        name (str): name of the returned function.
        call (callable): the collective.
        collect (callable): makes the returned function's result from the list of the collective's
            results, one for each tensor.
    """
    signature = inspect.signature(call)

    def grouped(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> Any:
        bound = signature.bind(tensors, *args, **options)
        names = group_names(bound.arguments.get("name"), len(tensors))
        results = []
        for tensor, one in zip(tensors, names):
            bound.arguments.update(tensor=tensor, name=one)
            results.append(call(*bound.args, **bound.kwargs))
        return collect(results)

    what = "return one handle for all tensors" if collect is Several else "return the results"
    grouped.__doc__ = f"Apply :func:`{call.__name__}` to each tensor, and {what}."
    grouped.__name__ = grouped.__qualname__ = name
    first, *others = signature.parameters.values()
    first = first.replace(name="tensors", annotation="Sequence[torch.Tensor]")
    kind = "Handle" if collect is Several else "list[torch.Tensor]"
    grouped.__signature__ = signature.replace(  # type: ignore[attr-defined] # inspect reads it
        parameters=[first, *others], return_annotation=kind
    )
    return grouped


def _wait(handles: list[Handle]) -> list[torch.Tensor]:
    return Several(handles).wait()


grouped_allreduce = make_grouped("grouped_allreduce", allreduce, list)
grouped_allreduce_ = make_grouped("grouped_allreduce_", allreduce_async_, _wait)
grouped_allreduce_async = make_grouped("grouped_allreduce_async", allreduce_async, Several)
grouped_allreduce_async_ = make_grouped("grouped_allreduce_async_", allreduce_async_, Several)
grouped_allgather = make_grouped("grouped_allgather", allgather, list)
grouped_allgather_async = make_grouped("grouped_allgather_async", allgather_async, Several)
grouped_reducescatter = make_grouped("grouped_reducescatter", reducescatter, list)
grouped_reducescatter_async = make_grouped(
    "grouped_reducescatter_async", reducescatter_async, Several
)
