"""Matrices of our own on a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm import device
from fastsgemm.call import workspace
from fastsgemm.call.arrays.library import View
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import CaptureError
from fastsgemm.geometry.layout import ITEM, Meta, row_major
from fastsgemm.problem import DType

if TYPE_CHECKING:
    from fastsgemm.device import Gpu


class DeviceArray:
    """A row-major array in the device's memory pool, exported by DLPack if it is float32. It may outlive the call.

    It is allocated, written and freed on the stream with this raw handle.

    Raises
    ------
    DeviceMemoryError
        The device has no room for it.
    CaptureError
        The stream is being captured, and memory of a graph does not outlive a replay.
    """

    def __init__(self, shape: tuple[int, ...], gpu: Gpu, handle: int, dtype: DType = DType.F32) -> None:
        from cuda.core.utils import StridedMemoryView

        self.shape, self.dtype = shape, dtype
        self.stream = gpu.stream(handle)
        self.buffer = self._allocate(gpu, max(ITEM, dtype.item * math.prod(shape)))
        self._ordinal = gpu.ordinal
        numpy = np.dtype(np.uint16 if dtype else np.float32)  # DLPack gives results away, and these are float32
        self._view = StridedMemoryView.from_buffer(self.buffer, shape, row_major(shape), dtype=numpy)

    def _allocate(self, gpu: Gpu, size: int) -> Any:
        extents = " x ".join(map(str, self.shape)) or "one number"
        what = f"a new {'matrix' if len(self.shape) == 2 else 'array'} of {extents}"
        try:
            return gpu.device.allocate(size, stream=self.stream)
        except Exception as error:  # cuda.core's errors share no public base
            if device.is_capturing(int(self.stream.handle)):
                where = "inside a CUDA graph capture, whose memory does not outlive a replay"
                raise CaptureError(f"{what} cannot be made {where}; pass a C that is no JAX array") from error
            if "CUDA_ERROR_OUT_OF_MEMORY" in str(error):
                raise workspace.no_room(gpu, size, what) from error
            raise

    @property
    def pointer(self) -> int:
        """The address of the first element."""
        return int(self.buffer.handle)

    @property
    def view(self) -> View:
        """Address and meta, as `Library.view` gives them."""
        return self.pointer, Meta(self.shape, row_major(self.shape), self.dtype, self._ordinal)

    def upload(self, source: np.ndarray) -> None:
        """Fill it from a contiguous host array with the same number of elements."""
        from cuda.bindings import driver

        answer = driver.cuMemcpyHtoD(self.pointer, source.ctypes.data, source.nbytes)
        device.succeed("copying an operand to the device", answer)

    def download(self, target: np.ndarray) -> None:
        """Copy it into a contiguous host array with the same number of elements."""
        from cuda.bindings import driver

        answer = driver.cuMemcpyDtoH(target.ctypes.data, self.pointer, target.nbytes)
        device.succeed("copying C from the device", answer)

    def close(self) -> None:
        """Free the memory, in stream order."""
        self.buffer.close(self.stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._ordinal)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if stream is not None and stream != -1:
            from cuda.core import LEGACY_DEFAULT_STREAM, Stream

            consumer = LEGACY_DEFAULT_STREAM if stream == LEGACY_STREAM else Stream.from_handle(stream)
            consumer.wait(self.stream)
        return self._view.__dlpack__(stream=-1, **options)
