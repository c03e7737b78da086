"""JAX: its arrays are immutable, so a result is always a new array.

XLA computes products of JAX's arrays alone, see `fastsgemm.jax.primitive.eager`. With arrays of other libraries, or on
a stream of the caller's, operands and result are handed over by DLPack. Meanwhile JAX refuses to donate an operand.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.call.arrays.device_array import DeviceArray
from fastsgemm.call.arrays.library import Library, message_of, type_name
from fastsgemm.errors import DeviceMismatchError, DTypeError, OperandError

if TYPE_CHECKING:
    from fastsgemm.device import Gpu


class Jax(Library):
    """Arrays of JAX."""

    immutable = True
    has_runtime = True

    def __init__(self) -> None:
        self._jax = sys.modules["jax"]

    def device_of(self, x: Any) -> int:
        if isinstance(x, self._jax.core.Tracer):
            raise OperandError("a JAX tracer has no memory; only sgemm can be called inside jit, grad and vmap")
        if x.is_deleted():
            raise OperandError("a JAX array was deleted (or donated to a jit function) and has no memory")
        if self._jax.dtypes.issubdtype(x.dtype, self._jax.dtypes.extended):
            raise DTypeError(f"a JAX array must be float32, got {x.dtype}")
        if len(x.devices()) != 1:
            raise DeviceMismatchError(
                f"a JAX array must be on one device outside of jax.jit, got {len(x.devices())}; call "
                "jax.jit(fastsgemm.sgemm), which multiplies arrays that are divided over devices"
            )
        return super().device_of(x)

    def empty(self, like: Any, shape: tuple[int, ...], gpu: Gpu, handle: int) -> Any:
        return DeviceArray(shape, gpu, handle)

    def finish(self, made: Any) -> Any:
        return self._jax.dlpack.from_dlpack(made)

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        try:
            return np.asarray(x)
        except Exception as error:
            raise OperandError(f"{name} ({type_name(x)}) could not be read: {message_of(error)}") from error

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return self._jax.device_put(result, next(iter(like.devices())))
