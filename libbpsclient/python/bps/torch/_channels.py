"""Channels. A channel is memory for one bucket (group) of gradients that all workers reduce.

The caller writes gradients to the flat tensor ``input``. ``push`` submits the tensor, ``finish``
waits for the result, and ``output`` is the result. A channel uses host memory or GPU memory. Host
memory is shared with the agent. GPU memory is shared with the executor, the agent's process that
drives the GPUs. In GPU memory, CUDA streams order the exchange, so the host does not wait. There,
the result replaces the gradients in ``input`` (``is_in_place``). In a job of one worker, GPU memory
is not shared.

The result in host memory can be used in two ways. ``read`` copies it. After ``map``, ``last``
returns it in memory that is mapped copy-on-write, so its values are used without a copy.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from bps._gpu_tensor import GpuTensor
from bps._job import Job
from bps._library import CODES, Error
from bps._operation import Slot
from bps._runtime import Runtime
from bps.torch._memory import NAMES, TYPES, input_view, output_view, read_output, view, write_input


class HostChannel:
    """Gradients in memory that is shared with the agent.

    Args:
        slot (Slot): a declared tensor that only this channel uses.
    """

    is_in_place = False

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.input = input_view(slot)
        # Raises an error if the job is closed, because the channel's memory is then unmapped.
        self.check = slot.tensor.job.check_mapped

    def push(self, op: int) -> None:
        """Submit the input."""
        self._slot.tensor.push_pull(op)

    def poll(self) -> bool:
        """Return whether no exchange is in flight."""
        return self._slot.tensor.poll()

    def finish(self) -> None:
        """Wait for the result."""
        self._slot.tensor.finish(is_interruptible=True)

    @property
    def output(self) -> torch.Tensor:
        """The result of the last exchange, read-only."""
        return output_view(self._slot)

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Copy values to `target`, a view of the input."""
        write_input(self._slot, target, values)

    def read(self, values: torch.Tensor) -> None:
        """Copy the beginning of the result of the last exchange to `values`."""
        read_output(self._slot, self.output[: values.numel()], values)

    def map(self) -> bool:
        """Map the results copy-on-write, so that :meth:`last` can be called. Return False in a job
        of one worker, whose results cannot be mapped."""
        try:
            self._results = self._slot.tensor.map_results()
        except Error as error:
            if error.code != -errno.EOPNOTSUPP:
                raise
            return False
        return True

    def last(self) -> tuple[torch.Tensor, bool]:
        """Get the result of the last exchange. The caller may write to the memory of the result.
        The result stays valid until the second :meth:`push` after this exchange.

        Returns:
            tuple: the result, and a flag. The flag is true if an earlier call of this method
                returned the same memory and the caller then wrote to the memory. If the flag is
                true, the caller should use :meth:`read` from now on, because writing to the memory
                costs more than copying the result.
        """
        address, was_written = self._results.last()
        seen = self._slot.views.get(("mapped", address))
        if seen is None:
            t = self._slot.tensor
            seen = view(address, TYPES[t.dtype], t.n_elems, self._results.mapping)
            self._slot.views["mapped", address] = seen
        return seen, was_written


class Cuda:
    """Memory and streams of an NVIDIA GPU."""

    @staticmethod
    def open(job: Job, device: torch.device) -> None:
        """Connect a job to the executor, for tensors on this GPU."""
        with torch.cuda.device(device):
            # Create the CUDA context, in which gpu_open() finds the GPU.
            torch.zeros(1, device=device)
            job.gpu_open()

    @staticmethod
    def view(address: int, dtype: torch.dtype, n_elems: int, device: torch.device) -> torch.Tensor:
        """Return a flat tensor of the device memory at an address."""

        class Memory:
            __cuda_array_interface__ = {
                "shape": (n_elems * dtype.itemsize,),
                "typestr": "|u1",
                "data": (address, False),
                "strides": None,
                "version": 3,
            }

        return torch.as_tensor(Memory(), device=device).view(dtype)

    @staticmethod
    def stream(device: torch.device) -> int:
        """Return the handle of the device's current stream."""
        return torch.cuda.current_stream(device).cuda_stream


KINDS: dict[str, Any] = {"cuda": Cuda}
# The GPU that each job uses. None: the job has one worker, and so no executor.
_gpus: weakref.WeakKeyDictionary[Job, torch.device | None] = weakref.WeakKeyDictionary()


def _open_gpu(job: Job, device: torch.device) -> bool:
    """Connect a job to the executor, unless the job is already connected. A job of one worker has
    no executor: return False for such a job, else True.

    Raises:
        NotImplementedError: the job already uses a GPU other than `device`.
    """
    if job not in _gpus:
        try:
            KINDS[device.type].open(job, device)
            _gpus[job] = device
        except Error as error:
            if error.code != -errno.EOPNOTSUPP or job.size > 1:
                raise
            _gpus[job] = None
    if _gpus[job] not in (None, device):
        raise NotImplementedError(
            f"this worker has gradients on {device} and on {_gpus[job]}, but a worker uses one "
            "GPU: start a worker for each GPU"
        )
    return _gpus[job] is not None


class GpuChannel:
    """Gradients in GPU memory that the executor allocates.

    Args:
        job (Job): a job for which :func:`_open_gpu` has returned True.
        name (str): name of the tensor, the same at all workers.
        dtype (torch.dtype): a type that servers sum.
        n_elems (int): number of elements.
        device (torch.device): the GPU that has the gradients.
    """

    is_in_place = True

    def __init__(
        self, job: Job, name: str, dtype: torch.dtype, n_elems: int, device: torch.device
    ) -> None:
        address = job.gpu_alloc(n_elems * dtype.itemsize)
        self._device, self._kind = device, KINDS[device.type]
        self._tensor: GpuTensor = job.gpu_declare(name, NAMES[dtype], n_elems, address)
        self.input = self.output = self._kind.view(address, dtype, n_elems, device)
        # Raises an error if the job is closed, because the channel's memory is then unmapped.
        self.check = job.check_mapped

    def push(self, op: int) -> None:
        """Submit the values that the channel will have when the current stream has completed all
        earlier work."""
        stream = self._kind.stream(self._device)
        try:
            self._tensor.push_pull(op, stream=stream)
        except Error as error:
            if error.code != CODES["EBUSY"]:
                raise
            self._tensor.wait()  # eight exchanges are in flight, which is the limit
            self._tensor.push_pull(op, stream=stream)

    def poll(self) -> bool:
        """Return True: a new exchange may be submitted at any time, because streams keep the
        exchanges in order."""
        return True

    def finish(self) -> None:
        """Make the current stream wait for the result. Raise an error if an earlier exchange has
        failed."""
        self._tensor.wait_stream(self._kind.stream(self._device))
        self._tensor.poll()

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Copy values to `target`, a view of the input."""
        target.copy_(values)

    def read(self, values: torch.Tensor) -> None:
        """Copy the beginning of the result to `values`."""
        values.copy_(self.output[: values.numel()])


class LonelyChannel:
    """Channel of gradients on a GPU in a job of one worker. The worker's own values are the result.

    Args:
        dtype, n_elems, device: see :class:`GpuChannel`.
    """

    is_in_place = True

    def __init__(self, dtype: torch.dtype, n_elems: int, device: torch.device) -> None:
        self.input = self.output = torch.zeros(n_elems, dtype=dtype, device=device)

    def check(self) -> None:
        """Do nothing, because PyTorch has allocated the memory, and the memory stays valid."""

    def push(self, op: int) -> None:
        """Do nothing, because the average or the sum over one worker is the worker's own values."""

    def poll(self) -> bool:
        """Return True: no exchange is ever in flight."""
        return True

    def finish(self) -> None:
        """Do nothing: the result is complete."""

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Copy values to `target`, a view of the input."""
        target.copy_(values)

    def read(self, values: torch.Tensor) -> None:
        """Copy the beginning of the result to `values`."""
        values.copy_(self.output[: values.numel()])


Channel = HostChannel | GpuChannel | LonelyChannel
Declaration = tuple[str, torch.dtype, int, torch.device]


def check_gradient(param: torch.Tensor) -> None:
    """Check that a channel can carry the gradient of this parameter.

    Raises:
        NotImplementedError: the parameter is neither in host memory nor on a CUDA device.
    """
    if param.device.type != "cpu" and param.device.type not in KINDS:
        raise NotImplementedError(
            f"a parameter must be in host memory or on a CUDA device, not on {param.device}: move "
            "the model to one of them"
        )


def open_channels(rt: Runtime, decls: Sequence[Declaration]) -> list[Channel]:
    """Declare tensors for buckets, and return a channel for each.

    Args:
        rt (Runtime): the workers that take part.
        decls: for each bucket, its name, the type in which its values are sent, its number of
            elements, and its device.
    """
    with rt.lock:
        on_host = [(name, NAMES[dtype], n) for name, dtype, n, d in decls if d.type not in KINDS]
        slots = iter([Slot(t) for t in rt.job.declare_group(on_host)] if on_host else [])
        channels: list[Channel] = []
        for name, dtype, n, device in decls:
            if device.type not in KINDS:
                channels.append(HostChannel(next(slots)))
            elif _open_gpu(rt.job, device):
                channels.append(GpuChannel(rt.job, name, dtype, n, device))
            else:
                channels.append(LonelyChannel(dtype, n, device))
    return channels
