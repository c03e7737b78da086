"""Launches whose arguments are packed into one buffer.

A call of rung 11 launches up to five kernels of up to 20 arguments each, and one of them takes tensor maps, which
cuda.core's ``launch`` only takes as its own ``TensorMapDescriptor``. Here the grid and the places of the arguments are
settled when a problem is first seen, so a launch packs numbers and asks the driver.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastsgemm import device
from fastsgemm.call.tensor_map import TensorMap

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

EARLY = 90  # the first architecture on which a kernel can be launched before the one that it waits for has ended


class PackedLaunch:
    """A kernel with its grid, ready to be launched by many threads.

    Parameters
    ----------
    gpu : Gpu
    kernel : cuda.core.Kernel
    grid : tuple of int
    block : int
    arguments : str
        Their types as `struct` spells them: ``i`` int, ``f`` float, ``q`` long long, ``P`` address.
    early : bool
        Whether it may begin before the kernel launched before it has ended, where the device can do that (programmatic
        dependent launch).
    shared_bytes : int
    maps : sequence of TensorMap
        The arguments before the others.
    """

    def __init__(
        self,
        gpu: Gpu,
        kernel: Any,
        grid: tuple[int, ...],
        block: int,
        arguments: str,
        early: bool,
        shared_bytes: int = 0,
        maps: Sequence[TensorMap] = (),
    ) -> None:
        self.kernel, self.grid, self.block, self.shared_bytes = kernel, (*grid, 1, 1)[:3], block, shared_bytes
        self.early, self.maps = early and int(gpu.arch.removeprefix("sm_")) >= EARLY, tuple(maps)
        self.arguments = struct.Struct(arguments)
        self._lock = threading.Lock()  # threads share the buffer; the driver has copied it when a launch returns
        self._buffer = ctypes.create_string_buffer(self.arguments.size)
        first = ctypes.addressof(self._buffer)
        places = [each.place for each in self.maps]
        places += [first + struct.calcsize(arguments[:i] + "0" + arguments[i]) for i in range(len(arguments))]
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        self._handle = -1

    def __call__(self, gpu: Gpu, handle: int, *arguments: Any, to: Sequence[int] = ()) -> None:
        """Launch it.

        Parameters
        ----------
        gpu : Gpu
            The device, current in this thread.
        handle : int
            The raw stream.
        *arguments
            Those after the tensor maps.
        to : sequence of int
            The device addresses that the maps point to.

        Raises
        ------
        DeviceError
            The driver refuses.
        """
        with self._lock:
            for each, address in zip(self.maps, to, strict=True):
                each.point_to(address)
            self.arguments.pack_into(self._buffer, 0, *arguments)
            if handle != self._handle:
                self._settle(handle)
            answer = self._launch(self._config, self._function, ctypes.addressof(self._pointers), 0)
        if int(answer[0]) != 0:
            device.succeed(f"launching a kernel of fp16x3 with {self.grid} blocks of {self.block} threads", answer)

    def _settle(self, handle: int) -> None:
        """Make the driver's description of the launch, for this stream."""
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.block, 1, 1
        config.sharedMemBytes = self.shared_bytes
        config.hStream = handle
        if self.early:
            attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        self._launch, self._function = driver.cuLaunchKernelEx, driver.CUfunction(int(self.kernel.handle))
        self._config, self._handle = config, handle
