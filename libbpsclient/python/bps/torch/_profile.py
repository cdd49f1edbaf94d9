"""Waits in traces of PyTorch's profiler."""

from __future__ import annotations

import contextlib

import torch
from torch.profiler import record_function

NO_RANGE = contextlib.nullcontext()
# PyTorch has no public function that returns whether a profiler records the calling thread.
_is_recorded = torch.autograd._profiler_enabled


def waiting() -> contextlib.AbstractContextManager[object]:
    """Return a context manager for a wait. If a profiler records the calling thread, the trace
    shows the wait as the range ``bps.wait``."""
    return record_function("bps.wait") if _is_recorded() else NO_RANGE
