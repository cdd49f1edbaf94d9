"""Objects of Python as bytes. The object of a worker that cannot pickle it is the error's text."""

from __future__ import annotations

import pickle
from typing import Any

from bps._library import CODES, Error

_GOOD, _BAD = b"+", b"-"


def pack_object(obj: Any) -> bytes:
    """Pickle an object. If pickling fails, return the error instead of the object, because the
    other workers wait for this worker's bytes."""
    try:
        return _GOOD + pickle.dumps(obj)
    except Exception as error:
        return _BAD + f"{type(error).__name__}: {error}".encode()


def is_object(data: bytes) -> bool:
    """Return whether the bytes are a pickled object, not an error."""
    return data[:1] == _GOOD


def unpack_object(data: bytes, rank: int) -> Any:
    """Return the object that :func:`pack_object` has packed at a worker.

    Args:
        data (bytes): the packed object; empty if the worker is lost.
        rank (int): rank of the worker, for the text of an error.

    Raises:
        ValueError: the worker cannot pickle its object.
        Error: EWORKER_LOST if the worker is lost.
    """
    if is_object(data):
        return pickle.loads(data[1:])
    if data:
        raise ValueError(f"rank {rank} cannot pickle its object: {data[1:].decode()}")
    raise Error(CODES["EWORKER_LOST"], f"rank {rank} is lost, so its object is missing", rank)
