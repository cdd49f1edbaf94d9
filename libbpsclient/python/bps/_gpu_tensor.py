"""Tensors in GPU memory, see bps_gpu(3)."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING, Any

from bps._library import (
    PRIORITY_AUTO,
    SUM,
    Error,
    InfoStruct,
    check,
    lib,
    milliseconds,
)

if TYPE_CHECKING:
    from bps._job import Job


def uuid_bytes(gpu: Any) -> bytes | None:
    """Return the 16 bytes of a GPU's UUID; None for None.

    The argument may be a string as nvidia-smi -L prints it ("GPU-8a2f..."), a uuid.UUID, or the
    UUID of PyTorch's device properties.

    Raises:
        Error: the argument is none of these.
    """
    if gpu is None:
        return None
    value, raw = getattr(gpu, "bytes", gpu), b""
    try:
        if isinstance(value, str):
            raw = bytes.fromhex(value.removeprefix("GPU-").replace("-", ""))
        elif isinstance(value, (bytes, bytearray, memoryview, list)):
            raw = bytes(value)
    except (TypeError, ValueError):
        pass  # `raw` stays empty, and the check below raises an error
    if len(raw) != 16:
        raise Error(
            -errno.EINVAL,
            "the argument is not a GPU's UUID: pass 16 bytes, or GPU-8a2f... as nvidia-smi -L "
            "prints it",
        )
    return raw


class GpuTensor:
    """A tensor in device memory at ``address``. The result of a push_pull replaces the
    tensor's values. Methods take the address of a CUDA stream as a number. 0 is the default
    stream."""

    def __init__(
        self, job: Job, handle: ctypes.c_void_p, name: str, dtype: str, n_values: int, address: int
    ) -> None:
        self.job, self.name, self.dtype, self.n_values, self.address = (
            job,
            name,
            dtype,
            n_values,
            address,
        )
        self._handle = handle

    @property
    def handle(self) -> ctypes.c_void_p:
        """Return the handle for calls of the C library."""
        self.job.handle  # noqa: B018 - raises an error if the job cannot be used
        return self._handle

    @property
    def contributors(self) -> int:
        """Number of workers whose values are in the last completed round."""
        return lib.bps_contributors(self.handle)

    @property
    def is_late(self) -> bool:
        """Whether the last completed round did not wait for this worker's machine."""
        raw = InfoStruct()
        check(lib.bps_tensor_info(self.handle, ctypes.byref(raw)))
        return bool(raw.is_late)

    def push_pull(self, op: int = SUM, priority: int = PRIORITY_AUTO, stream: int = 0) -> None:
        """Submit for reduction the values that the tensor will have when the stream has completed
        all earlier work. Return at once, without waiting for this work.

        Args:
            op (int): SUM, AVG or another operation, the same at all workers.
            priority (int): tensors with a higher priority travel first.
            stream (int): address of the CUDA stream that writes the values. 0: the default stream.

        Raises:
            Error: -EOPNOTSUPP for AVG of integers; EBUSY while 8 rounds are in flight.
        """
        check(lib.bps_gpu_push_pull(self.handle, op, priority, stream))

    def wait_stream(self, stream: int = 0) -> None:
        """Make later work of the stream wait for the result of the last push_pull. Return at
        once."""
        check(lib.bps_gpu_wait_stream(self.handle, stream))

    def poll(self) -> bool:
        """Return whether the last submitted round is complete."""
        return check(lib.bps_poll(self.handle)) == 1

    def wait(self, timeout: float | None = None) -> None:
        """Block this thread until the last submitted round is complete.

        Args:
            timeout (float, optional): seconds to wait. None: the job's time-out.
        """
        check(lib.bps_wait(self.handle, milliseconds(timeout)))
