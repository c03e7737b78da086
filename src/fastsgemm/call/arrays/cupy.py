"""CuPy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.call.arrays.library import F32, Library, View, dtype_of, misaligned, offsets_meta, wrong_dtype
from fastsgemm.geometry.layout import Meta

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_FLOAT32 = np.dtype(np.float32)


class CuPy(Library):
    has_streams = True

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]

    def device_of(self, x: Any) -> int:
        return int(x.device.id)

    def current_stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def view(self, x: Any, handle: int, ordered: bool, kept: list[Any]) -> View:
        """Read attribute by attribute, because DLPack in CuPy 14 divides a negative stride as an unsigned number."""
        if not ordered:
            super().view(x, handle, ordered, kept)
        dtype = F32 if x.dtype == _FLOAT32 else dtype_of(x.dtype)
        fault = wrong_dtype(x.dtype) if dtype is None else None
        dtype = dtype or F32
        in_bytes, item = x.strides, dtype.item
        strides = tuple([step // item for step in in_bytes])
        for step in in_bytes:
            if step % item and fault is None:
                fault = misaligned(0, x.shape, in_bytes, item)  # a plan has the address
        return x.data.ptr, Meta(x.shape, strides, dtype, x.device.id, fault)

    def offsets_view(self, x: Any, handle: int, ordered: bool, kept: list[Any]) -> View:
        if not ordered:
            super().offsets_view(x, handle, ordered, kept)
        strides = tuple([step // x.dtype.itemsize for step in x.strides])
        return x.data.ptr, offsets_meta(x.dtype, x.shape, strides, x.device.id)

    def empty(self, like: Any, shape: tuple[int, ...], gpu: Gpu, handle: int) -> Any:
        with like.device:
            return self._cupy.empty(shape, dtype=np.float32)
