"""Matrices of our own on a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm import device
from fastsgemm.call.arrays.library import View
from fastsgemm.call.workspace import DeviceMemory
from fastsgemm.device import LEGACY_STREAM, Event
from fastsgemm.errors import CaptureError
from fastsgemm.geometry.layout import ITEM, Meta, row_major
from fastsgemm.problem import DType

if TYPE_CHECKING:
    from fastsgemm.device import Gpu


class DeviceArray:
    """A row-major array in the package's memory pool, exported by DLPack if it is float32.

    It is allocated and written on the stream with this raw handle. It, and whoever imports it, may outlive the call and
    the stream.

    Raises
    ------
    DeviceMemoryError
        The device has no room for it.
    CaptureError
        The stream is being captured, and memory of a graph does not outlive a replay.
    """

    def __init__(self, shape: tuple[int, ...], gpu: Gpu, handle: int, dtype: DType = DType.F32) -> None:
        self.shape, self.dtype, self.handle, self._gpu = shape, dtype, handle, gpu
        extents = " x ".join(map(str, shape)) or "one number"
        what = f"a new {'matrix' if len(shape) == 2 else 'array'} of {extents}"
        if device.is_capturing(handle):
            where = "inside a CUDA graph capture, whose memory does not outlive a replay"
            raise CaptureError(f"{what} cannot be made {where}; pass a C that is no JAX array")
        self.nbytes = max(ITEM, dtype.item * math.prod(shape))
        self.memory = DeviceMemory(gpu, handle, self.nbytes, what)

    @property
    def pointer(self) -> int:
        """The address of the first element."""
        return self.memory.address

    @property
    def view(self) -> View:
        """Address and meta, as `Library.view` gives them."""
        return self.pointer, Meta(self.shape, row_major(self.shape), self.dtype, self._gpu.ordinal)

    def upload(self, source: np.ndarray) -> None:
        """Fill it from a contiguous host array with the same number of elements, and wait until that is done."""
        from cuda.bindings import driver

        with device.relaxed_capture():  # else waiting would end a capture of another thread
            answer = driver.cuMemcpyHtoDAsync(self.pointer, source.ctypes.data, source.nbytes, self.handle)
            device.check_driver("copying an operand to the device", answer)
            device.check_driver("copying an operand to the device", driver.cuStreamSynchronize(self.handle))

    def download(self, target: np.ndarray) -> None:
        """Copy it into a contiguous host array with the same number of elements, and wait until that is done."""
        from cuda.bindings import driver

        with device.relaxed_capture():
            answer = driver.cuMemcpyDtoHAsync(target.ctypes.data, self.pointer, target.nbytes, self.handle)
            device.check_driver("copying C from the device", answer)
            device.check_driver("copying C from the device", driver.cuStreamSynchronize(self.handle))

    def fill(self, byte: int) -> None:
        """Set every byte, in the order of the stream."""
        from cuda.bindings import driver

        device.check_driver("filling an array", driver.cuMemsetD8Async(self.pointer, byte, self.nbytes, self.handle))

    def close(self) -> None:
        """Free the memory in the order of its stream, which still exists."""
        self.memory.close()

    def export(self, shape: tuple[int, ...], strides: tuple[int, ...], **options: Any) -> Any:
        """Return a DLPack capsule of the memory as a float32 array; it keeps the memory alive."""
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        buffer = Buffer.from_handle(self.pointer, self.nbytes, owner=self.memory)
        view = StridedMemoryView.from_buffer(buffer, shape, strides, dtype=np.dtype(np.float32))
        return view.__dlpack__(stream=-1, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._gpu.ordinal)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Export it; `stream` waits for the work on the array's own: None is the legacy default stream, -1 is none."""
        with device.current(self._gpu):
            if stream != -1:
                written = Event(self.handle)
                written.hold_back(LEGACY_STREAM if stream is None else stream)
            self.memory.ready.record(self.handle)
            return self.export(self.shape, row_major(self.shape), **options)
