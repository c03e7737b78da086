"""Tensor maps: what the copy engine (TMA) is told about an array, and launches of kernels that take some.

cuda.core's ``TensorMapDescriptor`` is made from an array object, and so is its every new address; here addresses are
workspace and change from call to call. So the driver is asked directly, and cuda.core's ``launch``, which takes no
such argument from other hands, is left out for these kernels.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm import device
from fastsgemm.geometry.fp16x3 import LINE_BYTES

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_BYTES, _ALIGNMENT = 128, 64  # of a tensor map
_HALVES = LINE_BYTES // 2  # FP16 numbers of a line
_C_TYPES = {np.int32: ctypes.c_int32, np.float32: ctypes.c_float, int: ctypes.c_int64}


class TensorMap:
    """The pairs of a split operand, [blocks][lines][64] FP16 numbers, read in boxes of a block of `box` lines.

    Lines past the end are read as zeros.

    Parameters
    ----------
    lines, blocks, box : int
    """

    def __init__(self, lines: int, blocks: int, box: int) -> None:
        self.lines, self.blocks, self.box = lines, blocks, box
        self._room = ctypes.create_string_buffer(_BYTES + _ALIGNMENT)
        self.place = -(-ctypes.addressof(self._room) // _ALIGNMENT) * _ALIGNMENT  # of the 128 bytes, on the host
        self._address = 0

    def point_to(self, address: int) -> None:
        """Let it describe the pairs at this device address, a multiple of 16.

        Raises
        ------
        DeviceError
            The driver refuses the map.
        """
        if address == self._address:
            return
        from cuda.bindings import driver

        u64, u32 = driver.cuuint64_t, driver.cuuint32_t
        answer = driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            3,
            address,
            [u64(_HALVES), u64(self.lines), u64(self.blocks)],
            [u64(LINE_BYTES), u64(LINE_BYTES * self.lines)],
            [u32(_HALVES), u32(self.box), u32(1)],
            [u32(1)] * 3,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        device.succeed(f"describing {self.blocks} blocks of {self.lines} lines to the copy engine", answer)
        ctypes.memmove(self.place, answer[1].getPtr(), _BYTES)
        self._address = address


class MappedLaunch:
    """A kernel whose first arguments are tensor maps, with its grid.

    Threads share it: the arguments of a call are filled in and handed to the driver, which copies them, under a lock.

    Parameters
    ----------
    kernel : cuda.core.Kernel
    grid, block, shared_bytes : int
    early : bool
        Whether it may begin before the kernel launched before it has ended (programmatic dependent launch).
    maps : sequence of TensorMap
    """

    def __init__(
        self, kernel: Any, grid: int, block: int, shared_bytes: int, early: bool, maps: Sequence[TensorMap]
    ) -> None:
        self.kernel, self.grid, self.block, self.shared_bytes = kernel, grid, block, shared_bytes
        self.early, self.maps = early, tuple(maps)
        self._lock = threading.Lock()
        self._config: Any = None
        self._values: list[Any] = []
        self._pointers: Any = None

    def __call__(self, gpu: Gpu, handle: int, addresses: Sequence[int], *arguments: Any) -> None:
        """Launch it.

        Parameters
        ----------
        gpu : Gpu
            The device, current in this thread.
        handle : int
            The raw stream.
        addresses : sequence of int
            What the maps point to.
        *arguments
            After the maps: numpy.int32, numpy.float32, or int for 64 bits.

        Raises
        ------
        DeviceError
            The driver refuses.
        """
        from cuda.bindings import driver

        with self._lock:
            for tensor_map, address in zip(self.maps, addresses, strict=True):
                tensor_map.point_to(address)
            if self._config is None:
                self._fill(driver, arguments)
            for value, argument in zip(self._values, arguments, strict=True):
                value.value = argument if type(argument) is int else argument.item()
            self._config.hStream = handle
            answer = driver.cuLaunchKernelEx(self._config, self._function, ctypes.addressof(self._pointers), 0)
        device.succeed("launching fp16x3", answer)

    def _fill(self, driver: Any, arguments: Sequence[Any]) -> None:
        self._function = driver.CUfunction(int(self.kernel.handle))
        self._values = [_C_TYPES[type(argument)]() for argument in arguments]
        places = [tensor_map.place for tensor_map in self.maps] + [ctypes.addressof(value) for value in self._values]
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.block, 1, 1
        config.sharedMemBytes = self.shared_bytes
        if self.early:
            attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        self._config = config
