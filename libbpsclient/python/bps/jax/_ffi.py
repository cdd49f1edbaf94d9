"""Calls of Python functions from compiled JAX code. The functions use XLA's own memory.

XLA's foreign-function interface (FFI) calls a C function with the addresses of arguments and
results. Here ctypes makes this C function from a Python function, so nothing is compiled or linked.
The Python function reads arguments and writes results in XLA's memory.
``jax.experimental.io_callback`` would be slower, because it copies each argument and each result.

The structures are those of ``xla/ffi/api/c_api.h``, version 0.3. XLA supports each version of this
interface for at least 12 months.

To run such calls in the order of the program, JAX needs an "effect" that orders them. This effect
has no public name. In a release of JAX where the private name is missing, :func:`call` uses
``io_callback``.

Threads: XLA calls :func:`_handle` in one of its own threads; ctypes takes the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

try:
    from jax._src import callback as _callback
    from jax._src import core as _core
    from jax._src import dispatch as _dispatch
    from jax.interpreters import mlir as _mlir

    _EFFECT = _callback._OrderedIOEffect
except (ImportError, AttributeError):
    _EFFECT = None

API_VERSION = (0, 3)
METADATA, EXECUTE = 1, 3  # XLA's codes of the extension "metadata" and of the stage "execute"
INTERNAL = 13  # XLA's code of an internal error
TARGET = "bps_call"
_p, _size, _i64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("type", ctypes.c_int), ("next", _p)]


class _Version(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("extension", _p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", _size), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("extension", _p),
        ("dtype", ctypes.c_int),
        ("data", _p),
    ]


class _Buffers(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("extension", _p),
        ("size", _i64),
        ("types", _p),
        ("items", ctypes.POINTER(_p)),
    ]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", ctypes.POINTER(_i64))]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("extension", _p),
        ("size", _i64),
        ("types", _p),
        ("names", _p),
        ("items", ctypes.POINTER(ctypes.POINTER(_Scalar))),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("extension", _p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    ]


_CreateError = ctypes.CFUNCTYPE(_p, ctypes.POINTER(_ErrorArguments))


class _Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("extension", _p),
        ("version", _Version),
        ("internal", _p),
        ("create_error", _CreateError),
    ]


class _Frame(ctypes.Structure):
    _fields_ = [
        ("struct_size", _size),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", _p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


class _Call:
    """A function that compiled code calls. The code refers to the function by a random number.
    JAX may load code from a cache that another process has filled. The random number ensures that
    such code does not call a wrong function of this process.

    Args:
        function (callable): takes two sequences of flat arrays: the arguments of the call, and
            the arrays into which the function writes the results.
        leaves: shapes and types of the arguments.
        results: shapes and types of the results.
    """

    def __init__(
        self,
        function: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None],
        leaves: Sequence[Any],
        results: Sequence[Any],
    ) -> None:
        self._function = function
        self._leaves, self._results = _kinds(leaves), _kinds(results)
        self.number = secrets.randbits(63)
        _calls[self.number] = self

    def run(self, frame: _Frame) -> None:
        """Call the function with arrays in XLA's memory."""
        arguments = _views(frame.arguments, self._leaves)
        self._function(arguments, _views(frame.results, self._results))


def _kinds(leaves: Sequence[Any]) -> list[tuple[np.dtype, Any]]:
    """Return the type of each leaf, and the ctypes type of the leaf's memory. The ctypes type is
    None if the leaf has no elements."""
    kinds = []
    for leaf in leaves:
        dtype = np.dtype(leaf.dtype)
        n_bytes = math.prod(leaf.shape) * dtype.itemsize
        kinds.append((dtype, ctypes.c_char * n_bytes if n_bytes else None))
    return kinds


def _views(buffers: _Buffers, kinds: Sequence[tuple[np.dtype, Any]]) -> list[np.ndarray]:
    """Return the memory of XLA's buffers as flat arrays. Leave out the first buffer, which
    is a token that only orders the calls."""
    first = buffers.size - len(kinds)
    arrays = []
    for i, (dtype, memory) in enumerate(kinds, first):
        if memory is None:
            arrays.append(np.empty(0, dtype))
        else:
            address = _p.from_address(buffers.items[i] + _Buffer.data.offset).value
            arrays.append(np.frombuffer(memory.from_address(address), dtype))
    return arrays


_calls: weakref.WeakValueDictionary[int, _Call] = weakref.WeakValueDictionary()


@ctypes.CFUNCTYPE(_p, ctypes.POINTER(_Frame))
def _handle(pointer: Any) -> int | None:
    """Run the call whose number XLA passes as an attribute. Return an error object of XLA, or
    None."""
    frame = pointer.contents
    if frame.extension and frame.extension.contents.type == METADATA:
        extension = ctypes.cast(frame.extension, ctypes.POINTER(_MetadataExtension))
        version = extension.contents.metadata.contents.version
        version.major, version.minor = API_VERSION
        return None
    if frame.stage != EXECUTE:
        return None
    try:
        number = frame.attributes.items[0].contents.value[0]
        _calls[number].run(frame)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode()
        given = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text, INTERNAL)
        return frame.api.contents.create_error(ctypes.byref(given))
    return None


def _check_devices(context: Any) -> None:
    """Check that the compiled code runs on one device.

    Raises:
        NotImplementedError: the code runs on several devices. Each device would call bps, and in an
            order of its own.
    """
    mesh = getattr(context, "mesh", None)
    n_devices = getattr(context, "num_devices", 0) or getattr(mesh, "size", 1)
    if n_devices > 1:
        raise NotImplementedError(
            f"bps cannot run inside code that jit compiles for {n_devices} devices: call bps "
            "outside of jit, or start one worker for each device"
        )


def _lower(ctx: Any, *operands: Any, one: _Call, results: Any) -> Any:
    """Add a call of the function `one` to a module that JAX compiles. XLA runs such calls in the
    order in which they were added."""
    _check_devices(ctx.module_context.axis_context)
    # If the results have the same shapes and types as the arguments, XLA may write the results
    # into the memory of the arguments.
    is_alike = results == tuple(ctx.avals_in)
    aliases = {i + 1: i + 1 for i in range(len(operands))} if is_alike else None
    token = ctx.tokens_in.get(_EFFECT)
    inner = dataclasses.replace(
        ctx,
        avals_in=[_core.abstract_token, *ctx.avals_in],
        avals_out=[_core.abstract_token, *ctx.avals_out],
    )
    ctx.module_context.add_keepalive(one)
    rule = jax.ffi.ffi_lowering(TARGET, has_side_effect=True, operand_output_aliases=aliases)
    token, *outputs = rule(inner, token, *operands, number=np.int64(one.number))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(_mlir.TokenSet({_EFFECT: token})))
    return outputs


def _register() -> Any:
    """Return a primitive of JAX that compiles to a call of :func:`_handle`. Return None if this
    version of JAX lacks a private name that the primitive needs."""
    if _EFFECT is None:
        return None
    try:
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handle), platform="cpu")
        primitive = _core.Primitive("bps_call")
        primitive.multiple_results = True
        primitive.def_impl(lambda *args, **kw: _dispatch.apply_primitive(primitive, *args, **kw))
        primitive.def_effectful_abstract_eval(lambda *args, one, results: (results, {_EFFECT}))
        _mlir.register_lowering(primitive, _lower, platform="cpu", cacheable=False)
    except (AttributeError, TypeError):
        return None
    return primitive


_primitive = _register()


def call(
    function: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None],
    leaves: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
) -> list[jax.Array]:
    """Make the compiled code call a Python function whenever the code runs. The calls run in the
    order of the program.

    Args:
        function (callable): takes two sequences of flat arrays: the leaves, and the arrays into
            which the function writes the results. If leaves and results have the same shapes and
            types, the arrays may share memory.
        leaves: input arrays.
        results: shapes and types of the results.
    """
    if _primitive is not None and jax.default_backend() == "cpu":
        shapes = tuple(_core.ShapedArray(r.shape, r.dtype) for r in results)
        return list(_primitive.bind(*leaves, one=_Call(function, leaves, results), results=shapes))

    def on_host(*arrays: Any) -> list[np.ndarray]:
        outputs = [np.empty(r.shape, r.dtype) for r in results]
        function([np.asarray(a).reshape(-1) for a in arrays], [o.reshape(-1) for o in outputs])
        return outputs

    return io_callback(on_host, list(results), *leaves, ordered=True)
