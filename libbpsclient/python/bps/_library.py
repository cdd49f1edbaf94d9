"""Access to the C library libbpsclient with ctypes: its functions, structs, constants and errors.

The library is the file ``$BPS_LIBRARY``, else ``libbpsclient.so.0`` in this folder, in the folder
above, or where the loader of the system finds it. All calls release the interpreter lock.
"""

import ctypes
import errno
import math
import os
from typing import Any, NamedTuple

SUM, PROD, MAX, MIN, AVG, BAND, BOR, BXOR = range(8)
# Names of the reductions, indexed by SUM, PROD, ...
OPS = ("sum", "prod", "max", "min", "avg", "band", "bor", "bxor")
PRIORITY_AUTO = -(2**31)
MODES = ("sum", "value")  # names of the modes of a tensor, indexed by BPS_MODE_SUM, BPS_MODE_VALUE
STALE_UNBOUNDED = 2**32 - 1
ABI = 4  # version of the structures below, equal to BPS_ABI in bps.h

# Maps the name of an element type to the number that the library uses and to a NumPy type. NumPy
# has no bf16, so each bf16 value is accessed as a uint16. For q8, q4 and sign see BLOCKS.
DTYPES: dict[str, tuple[int, str]] = {
    "i8": (0, "i1"),
    "u8": (1, "u1"),
    "i32": (2, "i4"),
    "i64": (4, "i8"),
    "f16": (6, "f2"),
    "f32": (7, "f4"),
    "f64": (8, "f8"),
    "bf16": (9, "u2"),
    "q8": (32, "u1"),
    "q4": (33, "u1"),
    "sign": (34, "u1"),
}

# Maps the name of a block type to the number of values and the number of bytes of a block. The
# bytes are accessed as uint8.
BLOCKS = {"q8": (256, 260), "q4": (64, 34), "sign": (1024, 132)}

CODES = {
    "ETIMEDOUT": -10001,
    "EBUSY": -10002,
    "EMISMATCH": -10003,
    "ENOSERVER": -10004,
    "ENOSCHED": -10005,
    "ENOAGENT": -10006,
    "EWORKER_LOST": -10007,
    "EAGENT_LOST": -10008,
    "EEVICTED": -10009,
    "EINPUT_CHANGED": -10010,
    "EDIVERGED": -10011,
    "EQUOTA": -10012,
    "EPROTO": -10013,
    "EVERSION": -10014,
    "EAUTH": -10015,
    "ENOTFOUND": -10016,
    "EDUP": -10017,
    "ECLOSED": -10018,
    "EFORKED": -10019,
    "ENOTDURABLE": -10020,
    "EJOB_FAILED": -10021,
    "EROUND_LOST": -10022,
    "EDRAINED": -10023,
    "EDEVICE": -10024,
    "EISOLATED": -10025,
}


class Error(RuntimeError):
    """A call of the library failed, or the calls of the workers differ. The text says what failed,
    why, and what to do.

    Attributes:
        code (int): a negative number: one of this package's ``E...`` constants, or ``-errno``.
        rank (int, optional): the worker that caused the failure; None if a machine caused it, or if
            the cause is not known.
        host (str, optional): the machine of that worker, or the machine that failed.
        tensor (str, optional): the tensor of the call.

    Example:
        >>> try:
        ...     t.wait()
        ... except bps.Error as error:
        ...     if error.code == bps.EWORKER_LOST:
        ...         report(error.rank, error.host)
    """

    def __init__(
        self,
        code: int,
        text: str,
        rank: int | None = None,
        host: str | None = None,
        tensor: str | None = None,
    ) -> None:
        super().__init__(text)
        self.code, self.rank, self.host, self.tensor = code, rank, host, tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, str(self), self.rank, self.host, self.tensor)


class Timeout(Error):
    """Error ``ETIMEDOUT``: the operation is still in flight, and the caller may wait again."""


def size_of(dtype: str, n_values: int) -> int:
    """Return the number of bytes of a tensor of ``n_values`` values."""
    if dtype in BLOCKS:
        values, n_bytes = BLOCKS[dtype]
        return -(-n_values // values) * n_bytes
    return n_values * int(DTYPES[dtype][1][1:])


def dtype_number(name: str) -> int:
    """Return the number by which the library identifies an element type.

    Raises:
        Error: the type is unknown.
    """
    if not isinstance(name, str) or name not in DTYPES:
        known = ", ".join(DTYPES)
        raise Error(-errno.EINVAL, f"{name!r} is not an element type: use one of {known}")
    return DTYPES[name][0]


class Options(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_uint32),
        ("job", ctypes.c_char_p),
        ("agent_socket", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("local_rank", ctypes.c_int32),
        ("local_size", ctypes.c_int32),
        ("timeout_ms", ctypes.c_uint32),
        ("open_timeout_ms", ctypes.c_uint32),
        ("deterministic", ctypes.c_int32),
        ("part_bytes", ctypes.c_uint32),
        ("on_agent_loss", ctypes.c_int32),
        ("backup", ctypes.c_int32),
        ("backup_grace_ms", ctypes.c_uint32),
        ("elastic", ctypes.c_int32),
        ("max_size", ctypes.c_int32),
    ]


class FailureStruct(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("host", ctypes.c_char * 64),
        ("tensor", ctypes.c_char * 256),
    ]


class WorkerStruct(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("is_lost", ctypes.c_int32),
        ("is_new", ctypes.c_int32),
        ("is_missing", ctypes.c_int32),
        ("host", ctypes.c_char * 64),
        ("why", ctypes.c_char * 128),
    ]


class Worker(NamedTuple):
    """A worker of the job. ``is_lost``: the job continued without the worker.
    ``is_missing``: at least one partition of the tensor's last sum lacks the values of the worker's
    machine."""

    rank: int
    is_lost: bool
    is_new: bool
    is_missing: bool
    host: str
    why: str


class InfoStruct(ctypes.Structure):
    _fields_ = [
        ("round", ctypes.c_uint64),
        ("contributors", ctypes.c_uint32),
        ("contributors_most", ctypes.c_uint32),
        ("is_mine_missing", ctypes.c_int32),
        ("is_late", ctypes.c_int32),
    ]


class Info(NamedTuple):
    """The number of a tensor's last completed round, and how many workers contributed to the round.
    A tensor is summed in partitions. The number of workers that contributed can differ between the
    partitions. ``contributors`` is the smallest of these numbers, ``contributors_most`` is the
    largest. ``is_mine_missing``: this worker abstained, or at least one partition was complete
    without this worker's machine (backup machines). ``is_late``: at least one partition was being
    summed, or was complete, when this worker's machine took part, so the other workers are ahead.
    """

    round: int
    contributors: int
    contributors_most: int
    is_mine_missing: bool
    is_late: bool


class TrafficStruct(ctypes.Structure):
    _fields_ = [
        ("instance", ctypes.c_uint64),
        ("sent_bytes", ctypes.c_uint64),
        ("received_bytes", ctypes.c_uint64),
    ]


class Traffic(NamedTuple):
    """Bytes that this machine's agent has moved over the network, for all its jobs. ``instance``
    identifies the agent's process. A new process starts to count at 0."""

    instance: int
    sent_bytes: int
    received_bytes: int


class DeclStruct(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("n_values", ctypes.c_uint64),
        ("digest", ctypes.c_uint64),
        ("mode", ctypes.c_int),
        ("stale", ctypes.c_uint32),
        ("owner", ctypes.c_int),
        ("reserved", ctypes.c_uint32),
    ]


def load() -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        OSError: the file is not found, or cannot be loaded.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    beside = [os.path.join(folder, "libbpsclient.so.0") for folder in (here, os.path.dirname(here))]
    path = os.environ.get("BPS_LIBRARY") or next(
        filter(os.path.exists, beside), "libbpsclient.so.0"
    )
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise OSError(
            f"{e} (set LD_LIBRARY_PATH to the library's folder, or BPS_LIBRARY to the file)"
        ) from None
    ptr, u32, i32, size_t = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32, ctypes.c_size_t
    int_, str_, u64 = ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64
    for name, result, args in [
        ("options_init", None, [ptr]),
        ("open", int_, [ptr, ptr]),
        ("close", int_, [ptr, u32]),
        ("abort", None, [ptr]),
        ("suspend", int_, [ptr, u32]),
        ("resume", int_, [ptr, i32, i32]),
        ("rank", int_, [ptr]),
        ("size", int_, [ptr]),
        ("local_rank", int_, [ptr]),
        ("local_size", int_, [ptr]),
        ("declare_group", int_, [ptr, ptr, size_t, ptr]),
        ("input", ptr, [ptr]),
        ("output", ptr, [ptr]),
        ("outputs", int_, [ptr, ptr]),
        ("results_map", int_, [ptr, ptr]),
        ("results_last", int_, [ptr, ptr]),
        ("results_unmap", None, [ptr]),
        ("write", int_, [ptr, ctypes.c_uint64, ptr, ctypes.c_uint64]),
        ("read", int_, [ptr, ctypes.c_uint64, ptr, ctypes.c_uint64]),
        ("fill_f32", int_, [ptr, ptr, ctypes.c_float]),
        ("read_f32", int_, [ptr, ptr, ctypes.c_float]),
        ("fill_at_f32", int_, [ptr, u64, ptr, u64, ctypes.c_float, ptr]),
        ("read_at_f32", int_, [ptr, u64, ptr, u64, ctypes.c_float]),
        ("push_pull", int_, [ptr, int_, i32]),
        ("push_pull_copy", int_, [ptr, ptr, ptr, int_, i32]),
        ("push_pull_group", int_, [ptr, size_t, int_, i32]),
        ("abstain", int_, [ptr, int_, i32]),
        ("poll", int_, [ptr]),
        ("wait", int_, [ptr, u32]),
        ("wait_intr", int_, [ptr, u32, ptr]),
        ("wait_group", int_, [ptr, size_t, u32]),
        ("wait_some", int_, [ptr, size_t, u32, ptr]),
        ("shard", int_, [ptr, ptr, ptr]),
        ("contributors", int_, [ptr]),
        ("workers", int_, [ptr, ptr, size_t, ptr]),
        ("contributor_list", int_, [ptr, ptr, size_t]),
        ("tensor_info", int_, [ptr, ptr]),
        ("traffic", int_, [ptr, ptr]),
        ("trace", int_, [ptr, str_, u64]),
        ("barrier", int_, [ptr, u32]),
        ("checkpoint_barrier", int_, [ptr, u32]),
        ("is_new", int_, [ptr]),
        ("root", int_, [ptr]),
        ("broadcast", int_, [ptr, ptr, size_t, int_, u32]),
        ("allgather", int_, [ptr, ptr, size_t, ptr, u32]),
        ("gpu_open", int_, [ptr, ptr]),
        ("gpu_alloc", int_, [ptr, ctypes.c_uint64, ptr]),
        ("gpu_import", int_, [ptr, ptr, ctypes.c_uint64]),
        ("gpu_release", int_, [ptr, ptr]),
        ("gpu_declare", int_, [ptr, str_, int_, ctypes.c_uint64, ptr, ptr]),
        ("gpu_push_pull", int_, [ptr, int_, i32, ptr]),
        ("gpu_wait_stream", int_, [ptr, ptr]),
        ("gpu_route", str_, [ptr]),
        ("strerror", str_, [int_]),
        ("last_error", str_, []),
        ("last_failure", None, [ptr]),
        ("version", str_, []),
    ]:
        f = getattr(lib, "bps_" + name)
        f.restype, f.argtypes = result, args
    return lib


class _Library:
    """The library, which is loaded at the first call. Constants can be used without loading
    the library."""

    def __getattr__(self, name: str) -> Any:
        if name == "loaded":
            self.loaded = load()
            return self.loaded
        return getattr(self.loaded, name)


lib = _Library()


def check(rc: int) -> int:
    """Return the result ``rc`` of a call of the library. If ``rc`` is negative, raise an error
    that has the library's text."""
    if rc >= 0:
        return rc
    text = lib.bps_last_error().decode(errors="replace") or lib.bps_strerror(rc).decode()
    raw = FailureStruct()
    lib.bps_last_failure(ctypes.byref(raw))
    fields = (
        rc,
        text,
        raw.rank if raw.rank >= 0 else None,
        raw.host.decode(errors="replace") or None,
        raw.tensor.decode(errors="replace") or None,
    )
    # Store a copy of the error, not the object that is raised. That object gets a traceback, and a
    # stored traceback would keep the caller's arrays alive.
    _newest[:] = [Error(*fields)]
    raise (Timeout if rc == CODES["ETIMEDOUT"] else Error)(*fields)


_newest: list[Error] = []  # a copy of the last error that check() has raised


def cause_of(error: BaseException) -> Error | None:
    """Return the library's error that has caused another exception, or None.

    If compiled code calls Python code that raises an exception, TensorFlow and JAX replace this
    exception. The new exception has the text of the original exception, but does not refer to it.
    """
    for one in (error, error.__cause__):
        if isinstance(one, Error):
            return one
    return next((one for one in _newest if str(one) in str(error)), None)


def milliseconds(seconds: float | None) -> int:
    """Return seconds as milliseconds, rounded up, at least 1. For None return 0, which selects the
    library's default."""
    return 0 if seconds is None else math.ceil(min(max(seconds * 1000, 1), 0xFFFFFFFF))


def encode(value: str | os.PathLike[str] | None) -> bytes | None:
    """Return a string as bytes for the library; None stays None."""
    return None if value is None else os.fsencode(value)


def version() -> str:
    """Return the version of the library."""
    return lib.bps_version().decode()
