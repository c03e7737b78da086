"""Adapters to the array libraries: one small class for each library, with what a call needs from it.

A *view* of a device array is its address and its `Meta`. Nothing here imports a library that the caller has not
imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fastsgemm.call import checks
from fastsgemm.call.arrays.cuda_array_interface import CudaArrayInterface
from fastsgemm.call.arrays.cupy import CuPy
from fastsgemm.call.arrays.device_array import DeviceArray
from fastsgemm.call.arrays.jax import Jax
from fastsgemm.call.arrays.library import (
    HOST,
    IN_TRACE,
    Library,
    View,
    class_name,
    host_dtype,
    host_fault,
    message_of,
    misaligned,
    type_name,
)
from fastsgemm.call.arrays.numpy import NumPy
from fastsgemm.call.arrays.torch import Torch
from fastsgemm.errors import DTypeError, OperandError, ShapeError
from fastsgemm.geometry.layout import Meta, same_elements

if TYPE_CHECKING:
    from fastsgemm.device import Gpu
    from fastsgemm.request import Request

__all__ = [
    "HOST",
    "IN_TRACE",
    "DeviceArray",
    "Library",
    "View",
    "by_type",
    "host_dtype",
    "host_fault",
    "known",
    "library",
    "misaligned",
    "read",
    "traced",
]


_ARRAYS: tuple[tuple[str, str, type[Library]], ...] = (
    ("numpy", "ndarray", NumPy),
    ("torch", "Tensor", Torch),
    ("cupy", "ndarray", CuPy),
    ("jax", "Array", Jax),
    ("jax.core", "Tracer", Jax),  # no subclass of jax.Array; it has a value only when the traced program runs
)
_instances: dict[type[Library], Library] = {}
by_type: dict[type, Library] = {}  # classes of the libraries themselves, which are never freed
# By class of A: a function of request, A, B, C, alpha and beta that multiplies by a plan that an earlier call has made,
# and returns None, with nothing done, where it has none; see `fastsgemm.torch.cpp_launcher`.
known: dict[type, Callable[[Request, Any, Any, Any, float, float], Any]] = {}
_by_other_type: WeakKeyDictionary[type, Library] = WeakKeyDictionary()  # other classes, which can be freed


def library(x: Any) -> Library:
    """Return the library that `x` belongs to.

    Raises
    ------
    DTypeError
        It is not an array.
    OperandError
        It is an array of a class that redefines operations or has a mask, or its protocol returns nonsense.
    """
    known = by_type.get(type(x))
    return _other(x) if known is None else known


def traced() -> bool:
    """Whether PyTorch's compiler traces the call, for an operand of a class that has not been seen."""
    return "torch" in sys.modules and _instance(Torch).traced()


def read(
    of_result: Library,
    A: Any,
    B: Any,
    C: Any,
    out: Any,
    gpu: Gpu,
    handle: int,
    in_order: bool,
    new_shape: Callable[[Meta, Meta], tuple[int, ...]] | None = None,
) -> tuple[list[View], Any, list[Any]]:
    """Return the views of A, B, what is written and, if that is another array, C; and the array that is written.

    The last item is what must be kept until the stream has passed the call: nothing if all operands are of one library,
    on its current stream, whose own ordering and lifetimes suffice; else the arrays and their exports. `of_result` is
    the library of what is written, or of A where that is a new array. `handle` is the raw stream: it is `in_order` if
    it is the library's current one, or is being captured. A new array has the shape of A @ B, or that of `new_shape`.
    """
    target = C if out is None else out
    lead = A if target is None else target
    of_a = of_result if type(A) is type(lead) else library(A)
    of_b = of_result if type(B) is type(lead) else library(B)
    at_home = in_order and of_result.has_streams and of_a is of_result and of_b is of_result
    kept: list[Any] = []
    a = of_a.view(A, handle, at_home, kept)
    b = of_b.view(B, handle, at_home, kept)
    result = target
    if target is None or of_result.immutable:
        result = of_result.empty(lead, (new_shape or _product_shape)(a[1], b[1]), gpu, handle)
    written = result.view if type(result) is DeviceArray else of_result.view(result, handle, at_home, kept)
    operands = [a, b, written]
    if target is not C or (of_result.immutable and C is not None):
        at_home = at_home and (C is None or library(C) is of_result)
        operands += _source(C, out, of_result, written, handle, at_home, kept)
    if not at_home:
        kept += A, B, C, result
    return operands, result, kept


def _product_shape(a: Meta, b: Meta) -> tuple[int, ...]:
    if len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0] and a.fault is b.fault is None:
        return a.shape[0], b.shape[1]
    try:
        return checks.result_shape(a.shape, b.shape)
    except ShapeError:
        for name, meta in (("A", a), ("B", b)):
            if meta.fault is not None:  # why the array cannot be used matters more than its shape
                raise meta.fault(name) from None
        raise


def _source(
    C: Any, out: Any, of_result: Library, written: View, handle: int, at_home: bool, kept: list[Any]
) -> list[View]:
    """Return the view of C where that is not what is written, after checking it."""
    address, meta = written
    if out is not None and of_result.immutable:
        of_out = of_result.view(out, handle, False, kept)[1]
        if of_out.fault is not None:
            raise of_out.fault("out")
        if of_out.dtype:
            raise checks.immutable_out(of_out.dtype)
        checks.exact_shape("out", of_out.shape, meta.shape)
    if C is None:
        return []
    place, source = library(C).view(C, handle, at_home, kept)
    if out is None and source.fault is None:
        checks.exact_shape("C", source.shape, meta.shape)
    same = place == address and source.dtype is meta.dtype and same_elements(source, meta)
    return [] if same else [(place, source)]


def _other(x: Any) -> Library:
    cls = type(x)
    known = _by_other_type.get(cls)
    if known is None:
        known = _recognise(x)
        table = by_type if _is_of_library(cls) else _by_other_type
        table[cls] = known
    return known


def _is_of_library(cls: type) -> bool:
    """Whether a module of a library holds this class, which therefore lives as long as the process."""
    module = str(cls.__module__)
    if module.partition(".")[0] not in ("numpy", "torch", "cupy", "jax", "jaxlib") or module not in sys.modules:
        return False
    return vars(sys.modules[module]).get(cls.__qualname__) is cls


def _recognise(x: Any) -> Library:
    kind = next((kind for module, name, kind in _ARRAYS if _is_a(type(x), module, name)), None)
    if kind is None:
        if _has(x, "__dlpack__") and _has(x, "__dlpack_device__"):
            kind = Library
        elif _has(x, "__cuda_array_interface__"):
            kind = CudaArrayInterface
        else:
            given = f"the class {class_name(x)}" if isinstance(x, type) else type_name(x)
            raise DTypeError(
                "operands must be arrays (NumPy, CuPy, PyTorch, JAX, or any with __dlpack__ or "
                f"__cuda_array_interface__), got {given}; numpy.asarray(x, 'float32') makes one of numbers"
            )
    recognised = _instance(kind)
    reason = recognised.refusal(type(x))
    if reason is not None:
        raise OperandError(f"{type_name(x)} {reason}")
    return recognised


def _instance(kind: type[Library]) -> Library:
    if kind not in _instances:
        _instances[kind] = kind()
    return _instances[kind]


def _is_a(cls: type, module: str, name: str) -> bool:
    """Whether `cls` is the array class of a library that has been imported, or derived from it."""
    arrays = getattr(sys.modules.get(module), name, None)
    return arrays is not None and issubclass(cls, arrays)


def _has(x: Any, protocol: str) -> bool:
    if isinstance(x, type):  # a class has the methods of its instances but is no array
        return False
    try:
        return hasattr(x, protocol)
    except Exception as error:
        raise OperandError(f"{type_name(x)}.{protocol} failed: {message_of(error)}") from error
