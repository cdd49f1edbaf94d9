"""The dictionaries with which BytePS's users choose a compression (compression_params)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from bps import _core
from bps._compression import BlockCompressor, Compression
from bps._library import Worker
from bps._sets import ProcessSet

KNOWN_KEYS = "compressor ef momentum k seed scaling partition normalize fp16".split()
# Keys that have an effect, by compressor. With onebit, bps always scales.
KEYS = {"onebit": ("ef", "scaling"), "dithering": ("ef",), "randomk": ("ef", "k", "seed")}


def shares_machine(workers: Sequence[Worker]) -> bool:
    """Return whether two workers are on one machine."""
    hosts = [worker.host for worker in workers if not worker.is_lost]
    return len(set(hosts)) < len(hosts)


def compressor_of_byteps(
    params: Mapping[str, Any] | None, compression: Any, process_set: ProcessSet
) -> Any:
    """Return the compressor that BytePS's argument ``compression_params`` chooses, or
    `compression` if it chooses none.

    ``onebit`` becomes sign, or int4 if two workers are on one machine. ``dithering`` becomes int8.
    Tensors of fewer than BYTEPS_MIN_COMPRESS_BYTES bytes are sent in their own type.

    Args:
        params (dict, optional): keys and values of BytePS.
        compression: compressor of the argument `compression`.
        process_set (ProcessSet): the workers that take part.

    Raises:
        NotImplementedError: bps has no equivalent. The text says what to use.
        ValueError: a key lacks another key, or a value is wrong.
    """
    given = {key: v for key, v in (params or {}).items() if v is not None and v is not False}
    if unknown := [str(key) for key in given if key not in KNOWN_KEYS]:
        raise NotImplementedError(
            f"compression_params: bps does not support {', '.join(unknown)}: use some of "
            f"{', '.join(KNOWN_KEYS)}"
        )
    if "momentum" in given:
        raise NotImplementedError(
            "compression_params: bps does not support momentum: use the momentum of the optimizer, "
            "which updates the parameters with the averages"
        )
    kind = given.pop("compressor", None)
    if kind is None:
        if given.keys() - {"fp16"}:
            raise ValueError(f"compression_params: {', '.join(given)} need the key compressor")
        return Compression.fp16 if given else compression
    if "fp16" in given:
        raise ValueError("compression_params: fp16 and compressor exclude each other: pass one")
    chosen = _byteps_compressor(kind, given, process_set)
    if useless := [key for key in given if key not in KEYS[kind]]:
        text = f"compression_params: {', '.join(useless)} have no effect with {kind}"
        warnings.warn(text, stacklevel=3)
    ef = given.get("ef")
    if ef not in (None, "vanilla"):
        raise NotImplementedError(f"compression_params: ef must be 'vanilla', not {ef!r}")
    chosen = chosen.with_residual() if ef else chosen
    raw = os.environ.get("BYTEPS_MIN_COMPRESS_BYTES", "")
    if raw and not raw.isdecimal():
        raise ValueError(f"BYTEPS_MIN_COMPRESS_BYTES={raw} is not a number of bytes")
    return type(chosen.__name__, (chosen,), {"min_bytes": int(raw)}) if raw else chosen


def _byteps_compressor(
    kind: Any, given: Mapping[str, Any], process_set: ProcessSet
) -> type[BlockCompressor]:
    """Return the compressor in place of one of BytePS, without a residual."""
    if kind == "onebit":
        workers, ranks = _core.runtime().job.workers(), process_set.ranks
        if not shares_machine([worker for worker in workers if worker.rank in ranks]):
            return Compression.sign
        warnings.warn(
            "compression_params: onebit needs machines of one worker each: int4 is used in its "
            "place, which sends four times the bytes",
            stacklevel=4,
        )
        return Compression.int4
    if kind == "dithering":
        warnings.warn(
            "compression_params: int8 is used in place of dithering: it rounds to the nearest "
            "value, where dithering rounds at random",
            stacklevel=4,
        )
        return Compression.int8
    if kind == "randomk":
        if "k" not in given:
            raise ValueError("compression_params: randomk needs k, the number of values to send")
        return Compression.randomk(given["k"], given.get("seed", 0))
    if kind == "topk":
        raise NotImplementedError(
            "compression_params: bps does not support topk, because the largest values are at "
            "other places at each worker: use randomk with ef, or Compression.int4"
        )
    raise NotImplementedError(
        f"compression_params: bps does not support the compressor {kind!r}: use onebit, dithering "
        "or randomk"
    )
