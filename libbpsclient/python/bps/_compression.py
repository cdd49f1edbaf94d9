"""Compressions, which choose how floating-point tensors are sent.

All front-ends share the compressors below. A compressor only names a type. The tensors are
converted to this type where they are copied into the job's memory, and the results are converted
back where they are copied out. A script can also pass a class of its own, with the methods of
Horovod's compressors (see :func:`through`).

To add a compression, add its class and its attribute of :class:`Compression`.
"""

from __future__ import annotations

import ctypes
import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bps._library import AVG, BLOCKS, MAX, OPS, SUM

if TYPE_CHECKING:
    from bps._operation import Slot
    from bps._runtime import Runtime

BLOCK_BYTES_MIN = 64 << 10  # smaller tensors gain little from blocks
RANDOMK = "randomk"  # some values of each tensor (bps._picks)
CODED = (*BLOCKS, RANDOMK)
SHARED_AGENT = (
    "Compression.sign needs machines of one worker each, because the sum of a machine's workers "
    "would be encoded without a residual: use Compression.int4"
)


class Coding(NamedTuple):
    """Choice of a compressor, for the functions that send tensors.

    Attributes:
        wire (str, optional): name of the type in which floating-point tensors are sent, or one of
            CODED. None: each tensor is sent in its own type.
        min_bytes (int): tensors of fewer bytes are sent in their own type.
        has_residual (bool): add the error of the last step to each step's values (error feedback).
            Only for CODED.
        k (float): for RANDOMK, the number of values that are sent of each tensor. Below 1: the
            fraction.
        seed (int): for RANDOMK, determines the positions of the values.
    """

    wire: str | None = None
    min_bytes: int = 0
    has_residual: bool = False
    k: float = 0
    seed: int = 0

    def n_sent(self, n_values: int) -> int:
        """Return how many values RANDOMK sends of a tensor."""
        k = math.ceil(self.k * n_values) if self.k < 1 else int(self.k)
        return min(max(k, 1), n_values)

    def block_of(self, name: str, n_bytes: int) -> str | None:
        """Return which of CODED sends a tensor, or None.

        Args:
            name (str): name of the tensor's type, such as "float32".
            n_bytes (int): size of the tensor, the same at all workers.
        """
        is_small = n_bytes < self.min_bytes
        is_float = name.startswith(("float", "bfloat"))
        return self.wire if self.wire in CODED and is_float and not is_small else None

    def type_of(self, name: str, n_bytes: int | None = None) -> str:
        """Return the type in which a tensor is sent that is not encoded (:meth:`block_of`).
        Integers and small tensors are sent in their own type.

        Args:
            name (str): name of the tensor's type, such as "float32".
            n_bytes (int, optional): size of the tensor, the same at all workers. None: the size is
                not known, or differs, so the type alone decides.
        """
        if self.wire is None or self.wire in CODED or not name.startswith(("float", "bfloat")):
            return name
        return name if n_bytes is not None and n_bytes < self.min_bytes else self.wire

    def __str__(self) -> str:
        """Return text that the workers compare, such as " sent as float16"."""
        limit = f" from {self.min_bytes} bytes" if self.min_bytes else ""
        if self.wire == RANDOMK:
            limit = f" (k {self.k!r}, seed {self.seed}){limit}"
        return f" sent as {self.wire}{limit}" if self.wire else ""


RAW = Coding()


def type_name(dtype: Any) -> str:
    """Return the name of a type, such as "float32".

    Args:
        dtype: a type of NumPy or of a framework, or its name.
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.removeprefix("torch.")


@functools.singledispatch
def cast(tensor: Any, dtype: Any) -> Any:
    """Return a tensor in another type.

    A front-end registers its function if its tensors, unlike arrays, have no method ``astype``.
    """
    return tensor.astype(type_name(dtype))


class Compressor:
    """Sends tensors in their own type. The base class of all compressors.

    Attributes:
        wire (str, optional): name of the type in which floating-point tensors are sent. If None,
            each tensor is sent in its own type. PyTorch's types are also allowed.
        min_bytes (int): tensors of fewer bytes are sent in their own type.
    """

    wire: Any = None
    min_bytes: int = 0

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in the type in which it is sent, and the argument for
        :meth:`decompress`."""
        if cls.wire is None:
            return tensor, None
        own = type_name(tensor.dtype)
        wire = coding_of(cls).type_of(own, getattr(tensor, "nbytes", None))
        return (tensor, None) if wire == own else (cast(tensor, wire), tensor.dtype)

    @classmethod
    def decompress(cls, tensor: Any, context: Any) -> Any:
        """Return the tensor in the type that it had before :meth:`compress`, which returned
        ``context``."""
        return tensor if context is None else cast(tensor, context)


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16; servers add in float32."""

    wire = "float16"


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16; servers add in float32."""

    wire = "bfloat16"


class BlockCompressor(Compressor):
    """Sends floating-point tensors of 64 KiB or more in blocks, of which each value has few bits.

    Each worker encodes its values, and servers decode them, add in float32 and encode the sum. The
    other compressors of this kind derive from this class.

    Attributes:
        has_residual (bool): add the error of the last step to each step's values (error feedback).
    """

    min_bytes = BLOCK_BYTES_MIN
    has_residual = False
    _derived: type[BlockCompressor]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Raise an error: there are no tensors of blocks.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{cls.__name__} encodes values where they are sent, so it has no compress(): pass the "
            "class as the argument `compression`"
        )

    @classmethod
    def with_residual(cls) -> type[BlockCompressor]:
        """Return this compressor with error feedback. The residuals are part of
        ``compression_state_dict()``.

        Example:
            >>> compression = bps.torch.Compression.int4.with_residual()
        """
        if "_derived" not in cls.__dict__:
            name = f"{cls.__name__}WithResidual"
            cls._derived = type(name, (cls,), {"has_residual": True})
        return cls._derived


class Int8Compressor(BlockCompressor):
    """Sends 8 bits per value and a scale per 256 values: 0.25 of the bytes of float32."""

    wire = "q8"


class Int4Compressor(BlockCompressor):
    """Sends 4 bits per value and a scale per 64 values: 0.13 of the bytes of float32."""

    wire = "q4"


class SignCompressor(BlockCompressor):
    """Sends the signs of values and a scale per 1,024 values, with a residual: 0.03 of the bytes of
    float32. It is refused if a machine has several workers, because the sum of a machine would be
    encoded without a residual."""

    wire = "sign"
    has_residual = True


class RandomKCompressor(BlockCompressor):
    """Sends some values of each tensor, at random positions that are the same at all workers. The
    other values of the result are zeros. :meth:`Compression.randomk` returns a subclass.

    Attributes:
        k (float): number of values of each tensor; below 1: their fraction.
        seed (int): determines the positions.
    """

    wire = RANDOMK
    k: float = 0.01
    seed: int = 0


class Compression:
    """Compressors, as values for the argument ``compression`` of functions in this package."""

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    int4 = Int4Compressor
    sign = SignCompressor

    @staticmethod
    def randomk(k: float, seed: int = 0) -> type[RandomKCompressor]:
        """Return a compressor that sends k values of each large tensor. With ``with_residual()``,
        later steps send the others.

        Args:
            k (float): number of values of each tensor; below 1: their fraction.
            seed (int): determines the positions of the values, the same at all workers.

        Raises:
            ValueError: k is neither a fraction from 0 to 1 nor a number of values.

        Example:
            >>> compression = bps.torch.Compression.randomk(0.05).with_residual()
        """
        is_number = isinstance(k, numbers.Real) and not isinstance(k, bool)
        if not (is_number and (0 < k < 1 or (1 <= k < math.inf and k == int(k)))):
            raise ValueError(
                "randomk: k must be a fraction between 0 and 1, or a whole number of values, "
                f"not {k!r}"
            )
        name = f"RandomKCompressor({k}, {seed})"
        return type(name, (RandomKCompressor,), {"k": k, "seed": seed})


def check_block_op(op: int) -> None:
    """Check that a reduction can be done in blocks.

    Raises:
        ValueError: the reduction is not Average or Sum.
    """
    if op not in (AVG, SUM):
        raise ValueError(f"{OPS[op]} needs the values themselves, not blocks: use Compression.none")


def check_machines(rt: Runtime, coding: Coding, name: str) -> None:
    """Check that the machines of the workers allow a block type. All workers must call this
    function, after they have compared their tensors and the coding. If the wait ends early, another
    call continues it.

    Args:
        rt (Runtime): the workers that take part.
        coding (Coding): chooses a block type.
        name (str): name of the tensors, the same at all workers. No other thread may use it.

    Raises:
        ValueError: the type is "sign", and a machine has several workers.
    """
    if coding.wire == "sign" and _has_shared_agent(rt, f"blocks/{name}"):
        raise ValueError(SHARED_AGENT)


def check_own_machine(rt: Runtime, coding: Coding) -> None:
    """Do what :func:`check_machines` does for a worker that joins a running job, without the other
    workers.

    Raises:
        ValueError: the type is "sign", and this worker's machine has several workers.
    """
    if coding.wire == "sign" and rt.job.local_size > 1:
        raise ValueError(SHARED_AGENT)


def _has_shared_agent(rt: Runtime, name: str) -> bool:
    """Return whether several workers have one agent, at any machine. All workers must call this
    function with the same name."""

    def fill(slot: Slot) -> None:
        ctypes.memset(slot.tensor.input_address, rt.job.local_size > 1, 1)

    slot = rt.begin_once(name, "u8", 1, MAX, fill)
    slot.tensor.finish(is_interruptible=True)
    is_shared = ctypes.string_at(slot.tensor.result_address, 1) != b"\0"
    rt.end_once(name)
    return is_shared


def own_methods(compression: Any) -> list[str]:
    """Return which of the methods ``compress`` and ``decompress`` a compressor does not have from
    :class:`Compressor`."""
    own = []
    for name in ("compress", "decompress"):
        method = getattr(compression, name, None)
        known = [getattr(cls, name).__func__ for cls in (Compressor, BlockCompressor)]
        if getattr(method, "__func__", method) not in known:
            own.append(name)
    return own


def coding_of(compression: Any) -> Coding:
    """Return how the tensors of a compressor are sent.

    Raises:
        TypeError: the object is not a compressor.
    """
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            f"{compression!r} is not a compressor: pass a value of Compression, or a class with "
            "the methods compress(tensor) and decompress(tensor, context)"
        )
    wire = getattr(compression, "wire", None)
    if wire is None:
        return RAW
    has_residual = bool(getattr(compression, "has_residual", False))
    if has_residual and wire not in CODED:
        raise TypeError(f"{compression!r}: only {', '.join(CODED)} have a residual, not {wire}")
    coding = Coding(type_name(wire), getattr(compression, "min_bytes", 0), has_residual)
    if wire == RANDOMK:
        coding = coding._replace(k=compression.k, seed=compression.seed)
    return coding


def through(
    compression: Any, tensors: Sequence[Any], reduce: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """Reduce tensors. If the compressor is a class of the user, compress each tensor before, and
    decompress the results.

    A compressor of bps only names a type (:func:`coding_of`), so its tensors are not converted
    here.

    Args:
        compression: a compressor of bps, or a class with ``compress(tensor)``, which returns a
            tensor and a context, and ``decompress(tensor, context)``.
        tensors: tensors of a framework.
        reduce (callable): takes and returns a list of tensors.
    """
    if not own_methods(compression):
        return list(reduce(list(tensors)))
    pairs = [compression.compress(tensor) for tensor in tensors]
    results = reduce([small for small, _ in pairs])
    return [compression.decompress(r, context) for r, (_, context) in zip(results, pairs)]
