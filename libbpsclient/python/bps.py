"""Thin binding of libbpsclient for Python and NumPy: one class per C struct, one method per call, see bpsclient(3).

    import bps
    with bps.open() as job:                       # place and agent from the environment
        t = job.declare("layer.0", "f32", 1000)
        t.input[:] = gradient                     # shared with the agent: no copy
        t.push_pull(bps.AVG)
        t.wait()
        use(t.output)

The library is found by $BPS_LIBRARY, else as libbpsclient.so.0 beside this file or where the loader looks. Calls that
wait release the interpreter lock.
"""

import collections
import ctypes
import errno
import os
import weakref

import numpy as np

SUM, PROD, MAX, MIN, AVG = range(5)
PRIORITY_AUTO = -(2**31)
ABI = 2  # of the structures below: BPS_ABI of bps.h

# Name: (number, NumPy type). bf16 has none there: its raw 16 bits are seen as uint16.
DTYPES = {
    "i8": (0, np.int8),
    "u8": (1, np.uint8),
    "i32": (2, np.int32),
    "i64": (4, np.int64),
    "f16": (6, np.float16),
    "f32": (7, np.float32),
    "f64": (8, np.float64),
    "bf16": (9, np.uint16),
}

_CODES = {
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
globals().update(_CODES)


class Error(Exception):
    """A call failed. code: negative, one of this module's E... or -errno; str() is the sentence."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Timeout(Error):
    """ETIMEDOUT: what was waited for is still in flight and may be waited for again."""


def _dtype(name):
    if not isinstance(name, str) or name not in DTYPES:
        raise Error(-errno.EINVAL, f"{name!r} is no element type, these are: {', '.join(DTYPES)}")
    return DTYPES[name][0]


def _uuid(gpu):
    """The 16 bytes of "GPU-8a2f...", as nvidia-smi -L and CUDA write it, of a uuid.UUID, or of what PyTorch's device
    properties have; None for None."""
    if gpu is None:
        return None
    value, raw = getattr(gpu, "bytes", gpu), b""
    try:
        if isinstance(value, str):
            raw = bytes.fromhex(value.removeprefix("GPU-").replace("-", ""))
        elif isinstance(value, (bytes, bytearray, memoryview, list)):
            raw = bytes(value)
    except (TypeError, ValueError):
        pass  # it is told below
    if len(raw) != 16:
        raise Error(-errno.EINVAL, "a GPU's UUID is 16 bytes, or as nvidia-smi -L prints it: GPU-8a2f...")
    return raw


class _Options(ctypes.Structure):
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


class _Worker(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("is_lost", ctypes.c_int32),
        ("is_new", ctypes.c_int32),
        ("is_missing", ctypes.c_int32),
        ("host", ctypes.c_char * 64),
        ("why", ctypes.c_char * 128),
    ]


class Worker(collections.namedtuple("Worker", "rank is_lost is_new is_missing host why")):
    """A worker of the job, also one that was lost. is_missing: not behind the whole of the tensor's last round."""


class _Info(ctypes.Structure):
    _fields_ = [
        ("round", ctypes.c_uint64),
        ("contributors", ctypes.c_uint32),
        ("contributors_most", ctypes.c_uint32),
    ]


class Info(collections.namedtuple("Info", "round contributors contributors_most")):
    """The last completed round, and how many workers are behind its partitions: the fewest, the most."""


class _Traffic(ctypes.Structure):
    _fields_ = [("instance", ctypes.c_uint64), ("sent_bytes", ctypes.c_uint64), ("received_bytes", ctypes.c_uint64)]


class Traffic(collections.namedtuple("Traffic", "instance sent_bytes received_bytes")):
    """What this machine's agent (its process of this instance) has moved over the network, for all of its jobs."""


class _Decl(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("n_elems", ctypes.c_uint64)]


def _load():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libbpsclient.so.0")
    path = os.environ.get("BPS_LIBRARY") or (beside if os.path.exists(beside) else "libbpsclient.so.0")
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise OSError(f"{e} (LD_LIBRARY_PATH names the library's folder, or BPS_LIBRARY the file)") from None
    ptr, u32, i32, size_t = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32, ctypes.c_size_t
    int_, str_ = ctypes.c_int, ctypes.c_char_p
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
        ("push_pull", int_, [ptr, int_, i32]),
        ("push_pull_copy", int_, [ptr, ptr, ptr, int_, i32]),
        ("push_pull_group", int_, [ptr, size_t, int_, i32]),
        ("poll", int_, [ptr]),
        ("wait", int_, [ptr, u32]),
        ("wait_group", int_, [ptr, size_t, u32]),
        ("contributors", int_, [ptr]),
        ("workers", int_, [ptr, ptr, size_t, ptr]),
        ("contributor_list", int_, [ptr, ptr, size_t]),
        ("tensor_info", int_, [ptr, ptr]),
        ("traffic", int_, [ptr, ptr]),
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
        ("version", str_, []),
    ]:
        f = getattr(lib, "bps_" + name)
        f.restype, f.argtypes = result, args
    return lib


class _Library:
    """The library, loaded at the first call: the numbers above can be used without it."""

    def __getattr__(self, name):
        if name == "loaded":
            self.loaded = _load()
            return self.loaded
        return getattr(self.loaded, name)


_lib = _Library()


def _check(rc):
    if rc >= 0:
        return rc
    text = _lib.bps_last_error().decode(errors="replace") or _lib.bps_strerror(rc).decode()
    raise (Timeout if rc == _CODES["ETIMEDOUT"] else Error)(rc, text)


def _ms(seconds):
    """Seconds as milliseconds; None is 0, the library's default. What rounds to 0 is 1."""
    return 0 if seconds is None else max(1, int(seconds * 1000))


def _text(value):
    return None if value is None else os.fsencode(value)


def version():
    return _lib.bps_version().decode()


def _people(call):
    n = _check(call(None, 0))
    while True:
        raw = (_Worker * max(n, 1))()
        had, n = n, _check(call(raw, n))
        if n <= had:
            return [
                Worker(w.rank, bool(w.is_lost), bool(w.is_new), bool(w.is_missing), w.host.decode(), w.why.decode()) for w in raw[:n]
            ]


class Tensor:
    """A declared tensor. It keeps its job's Python object alive, not the job: views of closed jobs must not be used."""

    def __init__(self, job, handle, name, dtype, shape):
        self.job, self.name, self.dtype, self.shape = job, name, dtype, shape
        self._handle = handle
        self._copied = None
        self._attach()
        job._tensors.add(self)

    def _attach(self):
        self.input = self._view(_lib.bps_input(self._handle))

    def _view(self, address):
        kind = np.dtype(DTYPES[self.dtype][1])
        n_elems = int(np.prod(self.shape, dtype=np.int64))
        raw = (ctypes.c_char * (n_elems * kind.itemsize)).from_address(address)
        return np.frombuffer(raw, dtype=kind).reshape(self.shape)

    @property
    def handle(self):
        if self.job._handle is None:
            raise Error(_CODES["ECLOSED"], "the job is closed")
        return self._handle

    @property
    def output(self):
        """The last completed round's values, read-only; None before the first. It stays until the round after the next."""
        address = _lib.bps_output(self.handle)
        if not address:
            return None
        view = self._view(address)
        view.flags.writeable = False
        return view

    @property
    def contributors(self):
        return _lib.bps_contributors(self.handle)

    @property
    def info(self):
        """The last completed round and who is behind it: an Info."""
        raw = _Info()
        _check(_lib.bps_tensor_info(self.handle, ctypes.byref(raw)))
        return Info(raw.round, raw.contributors, raw.contributors_most)

    def contributor_list(self):
        """All workers of the job, with is_missing: not behind the whole of the last round."""
        return _people(lambda raw, n: _lib.bps_contributor_list(self.handle, raw, n))

    def push_pull(self, op=SUM, priority=PRIORITY_AUTO):
        _check(_lib.bps_push_pull(self.handle, op, priority))

    def push_pull_copy(self, src, dst=None, op=SUM, priority=PRIORITY_AUTO):
        """Submit the array src, which is copied at once; dst is written by the wait or poll that finds it complete."""
        kind = np.dtype(DTYPES[self.dtype][1])
        src = np.ascontiguousarray(src, dtype=kind)
        if src.size != self.input.size:
            raise ValueError(f"{self.name}: {src.size} values for {self.input.size}")
        if dst is not None and (
            dst.dtype != kind or dst.size != src.size or not dst.flags.c_contiguous or not dst.flags.writeable
        ):
            raise ValueError(f"{self.name}: dst must be a contiguous writable {kind} array of {src.size}")
        _check(
            _lib.bps_push_pull_copy(
                self.handle, src.ctypes.data, dst.ctypes.data if dst is not None else None, op, priority
            )
        )
        self._copied = dst  # alive until it is written

    def poll(self):
        """True when complete or nothing is in flight, False when in flight."""
        return _check(_lib.bps_poll(self.handle)) == 1

    def wait(self, timeout=None):
        """Wait at most timeout seconds (None: the job's) and return the output."""
        _check(_lib.bps_wait(self.handle, _ms(timeout)))
        return self.output


class GpuTensor:
    """A tensor in device memory at `address`; its sum replaces its values. Streams are numbers, 0 the default one."""

    def __init__(self, job, handle, name, dtype, n_elems, address):
        self.job, self.name, self.dtype, self.n_elems, self.address = job, name, dtype, n_elems, address
        self._handle = handle

    @property
    def handle(self):
        if self.job._handle is None:
            raise Error(_CODES["ECLOSED"], "the job is closed")
        return self._handle

    @property
    def contributors(self):
        return _lib.bps_contributors(self.handle)

    def push_pull(self, op=SUM, priority=PRIORITY_AUTO, stream=0):
        """Submit what the stream will have written by then."""
        _check(_lib.bps_gpu_push_pull(self.handle, op, priority, stream))

    def wait_stream(self, stream=0):
        """What is queued on the stream from now on sees the sum."""
        _check(_lib.bps_gpu_wait_stream(self.handle, stream))

    def poll(self):
        return _check(_lib.bps_poll(self.handle)) == 1

    def wait(self, timeout=None):
        """Wait, with this thread, until the last submitted round is done."""
        _check(_lib.bps_wait(self.handle, _ms(timeout)))


class Job:
    """A worker's place in a job; made by open(). As a context manager it closes, or aborts when an exception passes."""

    def __init__(self, handle):
        self._handle = handle
        self._tensors = weakref.WeakSet()

    @property
    def handle(self):
        if self._handle is None:
            raise Error(_CODES["ECLOSED"], "the job is closed")
        return self._handle

    rank = property(lambda self: _lib.bps_rank(self.handle))
    size = property(lambda self: _lib.bps_size(self.handle))
    local_rank = property(lambda self: _lib.bps_local_rank(self.handle))
    local_size = property(lambda self: _lib.bps_local_size(self.handle))

    def declare_group(self, decls):
        """Declare [(name, dtype, shape), ...] in one round trip; returns the tensors in that order."""
        decls = [(name, dtype, (shape,) if np.isscalar(shape) else tuple(shape)) for name, dtype, shape in decls]
        raw = (_Decl * len(decls))(
            *[(_text(n), _dtype(d), int(np.prod(s, dtype=np.int64))) for n, d, s in decls]
        )
        handles = (ctypes.c_void_p * len(decls))()
        _check(_lib.bps_declare_group(self.handle, raw, len(decls), handles))
        return [Tensor(self, h, n, d, s) for h, (n, d, s) in zip(handles, decls)]

    def declare(self, name, dtype, shape):
        return self.declare_group([(name, dtype, shape)])[0]

    def push_pull(self, tensors, op=SUM, priority=PRIORITY_AUTO):
        """Submit several tensors with one wake-up; all or none."""
        handles = (ctypes.c_void_p * len(tensors))(*[t.handle for t in tensors])
        _check(_lib.bps_push_pull_group(handles, len(tensors), op, priority))

    def wait(self, tensors, timeout=None):
        handles = (ctypes.c_void_p * len(tensors))(*[t.handle for t in tensors])
        _check(_lib.bps_wait_group(handles, len(tensors), _ms(timeout)))

    def workers(self):
        """Who is in the job, by rank, also those that were lost: a list of Worker."""
        return _people(lambda raw, n: _lib.bps_workers(self.handle, raw, n, None))

    def traffic(self):
        """Bytes that this machine's agent has sent and received, of all its jobs: a Traffic, see bps_traffic(3)."""
        raw = _Traffic()
        _check(_lib.bps_traffic(self.handle, ctypes.byref(raw)))
        return Traffic(raw.instance, raw.sent_bytes, raw.received_bytes)

    def gpu_open(self, uuid=None):
        """Use a GPU; all workers of a machine do. uuid: 16 bytes or "GPU-8a2f...", None: of this thread's current device."""
        _check(_lib.bps_gpu_open(self.handle, _uuid(uuid)))

    gpu_route = property(lambda self: _lib.bps_gpu_route(self.handle).decode())

    def gpu_alloc(self, n_bytes):
        """The address of device memory, zeroed, which the job's executor has made."""
        address = ctypes.c_void_p()
        _check(_lib.bps_gpu_alloc(self.handle, n_bytes, ctypes.byref(address)))
        return address.value

    def gpu_import(self, address, n_bytes):
        """Let tensors lie in device memory of this process's own."""
        _check(_lib.bps_gpu_import(self.handle, address, n_bytes))

    def gpu_release(self, address):
        _check(_lib.bps_gpu_release(self.handle, address))

    def gpu_declare(self, name, dtype, n_elems, address):
        handle = ctypes.c_void_p()
        _check(
            _lib.bps_gpu_declare(
                self.handle, _text(name), _dtype(dtype), n_elems, address, ctypes.byref(handle)
            )
        )
        return GpuTensor(self, handle, name, dtype, n_elems, address)

    def barrier(self, timeout=None):
        _check(_lib.bps_barrier(self.handle, _ms(timeout)))

    def checkpoint_barrier(self, timeout=None):
        """Wait for all with nothing in flight; returns how many workers were let in at it."""
        return _check(_lib.bps_checkpoint_barrier(self.handle, _ms(timeout)))

    @property
    def is_new(self):
        """This worker has joined while the job ran, and has to get what the others have."""
        return bool(_lib.bps_is_new(self.handle))

    @property
    def root(self):
        """The lowest rank that was there before the last others joined."""
        return _lib.bps_root(self.handle)

    def broadcast(self, array, root=0, timeout=None):
        """Overwrite a contiguous array with root's, in place."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError("broadcast: the array must be contiguous and writable")
        _check(_lib.bps_broadcast(self.handle, array.ctypes.data, array.nbytes, root, _ms(timeout)))
        return array

    def allgather(self, array, timeout=None):
        """An array with one more dimension in front: worker r's array at [r]."""
        array = np.ascontiguousarray(array)
        out = np.empty((self.size,) + array.shape, dtype=array.dtype)
        _check(_lib.bps_allgather(self.handle, array.ctypes.data, array.nbytes, out.ctypes.data, _ms(timeout)))
        return out

    def close(self, timeout=None):
        """Leave the job, when all workers do. The handle is gone in any case, but in a forked child."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            _check(_lib.bps_close(handle, _ms(timeout)))

    def suspend(self, timeout=None):
        """Leave the job when all do, and keep what was declared. Inputs and outputs are gone until resume()."""
        _check(_lib.bps_suspend(self.handle, _ms(timeout)))
        for t in self._tensors:
            t.input = None

    def resume(self, size, rank=-1):
        """Join the job again with another number of workers; inputs are zero, and there is no output yet."""
        _check(_lib.bps_resume(self.handle, rank, size))
        for t in self._tensors:
            t._attach()

    def abort(self):
        """Leave without waiting."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            _lib.bps_abort(handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.close()
        else:
            self.abort()


def open(
    job=None,
    agent_socket=None,
    rank=-1,
    size=-1,
    local_rank=-1,
    local_size=-1,
    timeout=None,
    open_timeout=None,
    deterministic=None,
    part_bytes=0,
    on_agent_loss=None,
    backup=None,
    backup_grace=None,
    elastic=None,
    max_size=-1,
):
    """Join a job; what is not given comes from the environment. Times are in seconds."""
    opt = _Options()
    _lib.bps_options_init(ctypes.byref(opt))
    if opt.abi != ABI:
        raise Error(_CODES["EVERSION"], f"bps.py is for ABI {ABI}, libbpsclient has {opt.abi}: install both of one release")
    opt.job, opt.agent_socket = _text(job), _text(agent_socket)
    opt.rank, opt.size, opt.local_rank, opt.local_size = rank, size, local_rank, local_size
    opt.timeout_ms, opt.open_timeout_ms = _ms(timeout), _ms(open_timeout)
    opt.deterministic = -1 if deterministic is None else int(deterministic)
    opt.part_bytes = part_bytes
    opt.on_agent_loss = -1 if on_agent_loss is None else ("abort", "shrink").index(on_agent_loss)
    opt.backup = -1 if backup is None else backup
    opt.backup_grace_ms = _ms(backup_grace)
    opt.elastic = -1 if elastic is None else int(elastic)
    opt.max_size = max_size
    handle = ctypes.c_void_p()
    _check(_lib.bps_open(ctypes.byref(opt), ctypes.byref(handle)))
    return Job(handle)
