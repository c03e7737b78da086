"""Adapters to the array libraries: one small class for each library, with what a call needs from it.

A *view* of a device array is the pair (address, meta) with meta = (shape, strides, device, fault, readonly,
dtype). Strides are in elements; `fault` is None or the reason why the array cannot be used. The meta is hashable, and
together with the alignment of the address it determines how a product is launched. Nothing here imports a library that
the caller has not imported.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

from fastsgemm.call.arrays.cuda_array_interface import CudaArrayInterface
from fastsgemm.call.arrays.cupy import CuPy
from fastsgemm.call.arrays.device_array import DeviceArray
from fastsgemm.call.arrays.jax import Jax
from fastsgemm.call.arrays.library import (
    HOST,
    IN_TRACE,
    Library,
    Meta,
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
from fastsgemm.errors import DTypeError, OperandError

__all__ = [
    "HOST",
    "IN_TRACE",
    "DeviceArray",
    "Library",
    "Meta",
    "View",
    "by_type",
    "host_dtype",
    "host_fault",
    "is_traced_by_jax",
    "library",
    "misaligned",
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


def is_traced_by_jax(*values: Any) -> bool:
    """Return whether JAX traces this call: one of its arrays or numbers has no value yet."""
    core = sys.modules.get("jax.core")
    if core is not None:
        for x in values:
            if isinstance(x, core.Tracer):
                return True
    return False


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
                f"__cuda_array_interface__), got {given}"
            )
    found = _instance(kind)
    reason = found.refusal(type(x))
    if reason is not None:
        raise OperandError(f"{type_name(x)} {reason}")
    return found


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
