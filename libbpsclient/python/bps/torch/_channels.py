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

import numpy as np
import torch

from bps._compression import RANDOMK, RAW, Coding
from bps._gpu_tensor import GpuTensor
from bps._job import Job
from bps._library import BLOCKS, CODES, Error
from bps._operation import Slot
from bps._picks import positions, take
from bps._residuals import residual_of
from bps._runtime import Runtime
from bps.torch._blocks import decode, encode
from bps.torch._memory import (
    NAMES,
    TYPES,
    Wire,
    host_floats,
    input_view,
    output_view,
    read_output,
    view,
    write_input,
)
from bps.torch._profile import waiting


class _SharedChannel:
    """Channel in memory that is shared with the agent.

    Args:
        slot (Slot): a declared tensor that only this channel uses.
    """

    is_in_place = False

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        # Raises an error if the job is closed, because the channel's memory is then unmapped.
        self.check = slot.tensor.job.check_mapped

    def push(self, op: int) -> None:
        """Submit the input."""
        self._slot.tensor.push_pull(op)

    def abstain(self, op: int) -> None:
        """Take part in the next exchange without values."""
        self._slot.tensor.abstain(op)

    @property
    def is_late(self) -> bool:
        """Whether the last exchange did not wait for this worker's machine."""
        return self._slot.tensor.info.is_late

    def poll(self) -> bool:
        """Return whether no exchange is in flight."""
        return self._slot.tensor.poll()

    def finish(self) -> None:
        """Wait for the result."""
        with waiting():
            self._slot.tensor.finish(is_interruptible=True)


class PickChannel(_SharedChannel):
    """Some values of one gradient (:mod:`bps._picks`). They are chosen in host memory. The last
    element of the tensor is not a value, so that it can be marked.

    Args:
        rt (Runtime): the workers that take part.
        slot (Slot): a declared tensor of f32, which only this channel uses.
        coding (Coding): how many values are sent.
        residual (str, optional): see :class:`BlockChannel`.
    """

    def __init__(self, rt: Runtime, slot: Slot, coding: Coding, residual: str | None) -> None:
        super().__init__(slot)
        self._runtime, self._coding, self._residual_name = rt, coding, residual
        self._steps = (0, 0)  # restarts of the runtime, number of exchanges since the last one
        self._input = input_view(slot).numpy()
        self._at = np.empty(0, np.int64)  # positions of the last encode()

    def encode(self, first: int, values: torch.Tensor, factor: float) -> None:
        """Write values, multiplied by a factor, to the input. `first` is 0."""
        n = self._n_values = values.numel()
        k = self._choose()
        name = self._residual_name
        residual = None if name is None else residual_of(name, n)
        array = values.detach().to("cpu", torch.float32).numpy()
        take(self._input[:k], array, factor, self._at, residual)

    def _choose(self) -> int:
        """Choose the positions of the next exchange. Return how many there are."""
        tensor = self._slot.tensor
        k = tensor.n_values - 1
        given = (self._coding.seed, tensor.name, self._n_steps())
        self._at = positions(*given, self._n_values, k, 0, k)
        return k

    def abstain(self, op: int) -> None:
        """Take part in the next exchange without values, after an earlier :meth:`encode`."""
        self._choose()
        super().abstain(op)
        self._steps = (self._runtime.n_restarts, self._n_steps() + 1)

    def _n_steps(self) -> int:
        """Return the number of exchanges, the same at all workers."""
        n_restarts, n = self._steps
        return n if n_restarts == self._runtime.n_restarts else 0

    def push(self, op: int) -> None:
        """Submit the input."""
        super().push(op)
        self._steps = (self._runtime.n_restarts, self._n_steps() + 1)

    def clear(self, first: int, n_values: int) -> None:
        """Write zeros to the input, without the residual."""
        self._input[:] = 0

    def decode(self, values: torch.Tensor, factor: float) -> None:
        """Write the result of the last exchange, multiplied by a factor, to a flat tensor without
        gaps."""
        at = torch.from_numpy(self._at).to(values.device)
        sent = output_view(self._slot)[: len(at)] * factor
        values.zero_()[at] = sent.to(values.device, values.dtype)

    def mark(self, value: int) -> None:
        """Write a value to the last element of the input."""
        self._input[-1] = value

    def last_is_zero(self) -> bool:
        """Return whether the last element of the result is zero."""
        return bool(output_view(self._slot)[-1] == 0)


class BlockChannel(_SharedChannel):
    """Gradients in blocks (:data:`bps.BLOCKS`). The library encodes and decodes values in host
    memory. Values on a device are encoded there, so that fewer bytes are copied to host memory.

    Args:
        slot (Slot): a declared tensor of a block type, which only this channel uses.
        device (torch.device): the device that has the gradients.
        residual (str, optional): name of the residual, see :func:`bps._residuals.residual_of`.
            None: there is no residual.
    """

    def __init__(self, slot: Slot, device: torch.device, residual: str | None) -> None:
        super().__init__(slot)
        self.kind, self._device, self._residual_name = slot.tensor.dtype, device, residual
        self._values, self._block_bytes = BLOCKS[self.kind]

    def _residual(self, first: int, n_values: int) -> torch.Tensor | None:
        """Return the residuals of some values."""
        if self._residual_name is None:
            return None
        whole = residual_of(self._residual_name, self._slot.tensor.n_values, self._on_device)
        return whole[first : first + n_values]

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def encode(self, first: int, values: torch.Tensor, factor: float) -> None:
        """Write values, multiplied by a factor, to the input.

        Args:
            first (int): number of the first value, which begins a block.
            values (Tensor): a flat tensor without gaps.
        """
        values = values.to(torch.float32)
        if values.device.type != "cpu":
            self.encode_on_device(first, values, factor)
            return
        n, residual = values.numel(), self._residual(first, values.numel())
        at = None if residual is None else residual.data_ptr()
        self._slot.tensor.fill_memory(first, values.data_ptr(), n, factor, at)

    def encode_on_device(self, first: int, values: torch.Tensor, factor: float) -> None:
        """Do the same as :meth:`encode` with operations on the device of the values."""
        n, residual = values.numel(), self._residual(first, values.numel())
        wanted = values * factor
        if residual is not None:
            wanted += residual
        blocks = encode(self.kind, wanted)
        self._write(first, blocks.cpu())
        if residual is not None:
            error = wanted - decode(self.kind, blocks, n)
            residual.copy_(error.nan_to_num_(0, 0, 0))

    def clear(self, first: int, n_values: int) -> None:
        """Write zeros to the input, without the residual."""
        n_bytes = -(-n_values // self._values) * self._block_bytes
        self._write(first, torch.zeros(n_bytes, dtype=torch.uint8, device="cpu"))

    def _write(self, first: int, blocks: torch.Tensor) -> None:
        """Copy blocks in host memory to the input. The library refuses this during an exchange."""
        at = first // self._values * self._block_bytes
        self._slot.tensor.write_memory(at, blocks.data_ptr(), blocks.numel())

    def decode(self, values: torch.Tensor, factor: float) -> None:
        """Write the beginning of the result of the last exchange, multiplied by a factor, to a flat
        tensor without gaps."""
        if values.device.type != "cpu":
            self.decode_on_device(values, factor)
            return
        whole = values if values.dtype == torch.float32 else host_floats(values.numel())
        self._slot.tensor.read_values(0, whole.data_ptr(), whole.numel(), factor)
        if whole is not values:
            values.copy_(whole)

    def decode_on_device(self, values: torch.Tensor, factor: float) -> None:
        """Do the same as :meth:`decode` with operations on the device of the values."""
        n, n_blocks = values.numel(), -(-values.numel() // self._values)
        result = view(self._slot.tensor.result_address, torch.uint8, n_blocks * self._block_bytes)
        blocks = result.view(-1, self._block_bytes).to(values.device)
        values.copy_(decode(self.kind, blocks, n) * factor)

    def mark(self, value: int) -> None:
        """Write a value to the last element of the input."""
        last = self._slot.tensor.n_values - 1
        one = host_floats(1).fill_(value)
        self._slot.tensor.fill_memory(last, one.data_ptr(), 1, 1.0)

    def last_is_zero(self) -> bool:
        """Return whether the last element of the result is zero."""
        got = host_floats(1)
        self._slot.tensor.read_values(self._slot.tensor.n_values - 1, got.data_ptr(), 1, 1.0)
        return got.item() == 0


class HostChannel(_SharedChannel):
    """Gradients in memory that is shared with the agent, in their own type or in another one that
    PyTorch has."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot)
        self.input = input_view(slot)

    @property
    def output(self) -> torch.Tensor:
        """The result of the last exchange, read-only."""
        return output_view(self._slot)

    def mark(self, value: int) -> None:
        """Write a value to the last element of the input."""
        self.input[-1] = value

    def last_is_zero(self) -> bool:
        """Return whether the last element of the result is zero."""
        return bool(self.output[-1] == 0)

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
            seen = view(address, TYPES[t.dtype], t.n_values, self._results.mapping)
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
    def view(address: int, dtype: torch.dtype, n_values: int, device: torch.device) -> torch.Tensor:
        """Return a flat tensor of the device memory at an address."""

        class Memory:
            __cuda_array_interface__ = {
                "shape": (n_values * dtype.itemsize,),
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
        n_values (int): number of values.
        device (torch.device): the GPU that has the gradients.
    """

    is_in_place = True

    def __init__(
        self, job: Job, name: str, dtype: torch.dtype, n_values: int, device: torch.device
    ) -> None:
        address = job.gpu_alloc(n_values * dtype.itemsize)
        self._device, self._kind = device, KINDS[device.type]
        self._tensor: GpuTensor = job.gpu_declare(name, NAMES[dtype], n_values, address)
        self.input = self.output = self._kind.view(address, dtype, n_values, device)
        # Raises an error if the job is closed, because the channel's memory is then unmapped.
        self.check = job.check_mapped

    @property
    def is_late(self) -> bool:
        """Whether the last complete exchange did not wait for this worker's machine."""
        return self._tensor.is_late

    def abstain(self, op: int) -> None:
        """Raise an error: a worker cannot abstain from a sum in GPU memory.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a worker cannot abstain from sums of gradients in GPU memory")

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

    def mark(self, value: int) -> None:
        """Write a value to the last element of the input."""
        self.input[-1] = value

    def last_is_zero(self) -> bool:
        """Return whether the last element of the result is zero."""
        return bool(self.output[-1] == 0)

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Copy values to `target`, a view of the input."""
        target.copy_(values)

    def read(self, values: torch.Tensor) -> None:
        """Copy the beginning of the result to `values`."""
        values.copy_(self.output[: values.numel()])


class LonelyChannel:
    """Channel of gradients on a GPU in a job of one worker. The worker's own values are the result.

    Args:
        dtype, n_values, device: see :class:`GpuChannel`.
    """

    is_in_place = True

    def __init__(self, dtype: torch.dtype, n_values: int, device: torch.device) -> None:
        self.input = self.output = torch.zeros(n_values, dtype=dtype, device=device)

    def check(self) -> None:
        """Do nothing, because PyTorch has allocated the memory, and the memory stays valid."""

    is_late = False  # no other worker can be ahead

    def abstain(self, op: int) -> None:
        """Let the result be zeros, which is the sum of no worker."""
        self.input.zero_()

    def push(self, op: int) -> None:
        """Do nothing, because the average or the sum over one worker is the worker's own values."""

    def poll(self) -> bool:
        """Return True: no exchange is ever in flight."""
        return True

    def finish(self) -> None:
        """Do nothing: the result is complete."""

    def mark(self, value: int) -> None:
        """Write a value to the last element of the input."""
        self.input[-1] = value

    def last_is_zero(self) -> bool:
        """Return whether the last element of the result is zero."""
        return bool(self.output[-1] == 0)

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Copy values to `target`, a view of the input."""
        target.copy_(values)

    def read(self, values: torch.Tensor) -> None:
        """Copy the beginning of the result to `values`."""
        values.copy_(self.output[: values.numel()])


Channel = HostChannel | GpuChannel | LonelyChannel
EncodedChannel = BlockChannel | PickChannel  # encode() and decode() in place of write() and read()
Declaration = tuple[str, Wire, int, torch.device]


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


def open_channels(
    rt: Runtime, decls: Sequence[Declaration], coding: Coding = RAW
) -> list[Channel | EncodedChannel]:
    """Declare tensors for buckets, and return a channel for each.

    Args:
        rt (Runtime): the workers that take part.
        decls: for each bucket, its name, the type in which its values are sent, its number of
            elements, and its device. For RANDOMK, one more element is added, which can be marked.
        coding (Coding): how buckets are encoded whose type is not one of PyTorch.
    """
    with rt.lock:
        on_host = []
        for name, dtype, n, d in decls:
            if dtype == RANDOMK:
                on_host.append((name, "f32", coding.n_sent(n) + 1))
            elif isinstance(dtype, str) or d.type not in KINDS:
                on_host.append((name, dtype if isinstance(dtype, str) else NAMES[dtype], n))
        slots = iter([Slot(t) for t in rt.job.declare_group(on_host)] if on_host else [])
        channels: list[Channel | EncodedChannel] = []
        for name, dtype, n, device in decls:
            residual = rt.residual_name(name) if coding.has_residual else None
            if dtype == RANDOMK:
                channels.append(PickChannel(rt, next(slots), coding, residual))
            elif isinstance(dtype, str):
                channels.append(BlockChannel(next(slots), device, residual))
            elif device.type not in KINDS:
                channels.append(HostChannel(next(slots)))
            elif _open_gpu(rt.job, device):
                channels.append(GpuChannel(rt.job, name, dtype, n, device))
            else:
                channels.append(LonelyChannel(dtype, n, device))
    return channels
