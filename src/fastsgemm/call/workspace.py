"""Workspace: device memory that a call allocates and frees in the order of its stream, so that nothing waits.

Inside a graph capture, allocation and free become nodes of the graph, and each replay repeats them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsgemm import device
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import DeviceError, DeviceMemoryError

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def allocate(gpu: Gpu, handle: int, size: int, what: str) -> int:
    """Allocate device memory, aligned to at least 256 bytes and uninitialised, and return its address.

    Parameters
    ----------
    gpu : Gpu
        The device, current in this thread.
    handle : int
        The raw stream that uses the memory; it may be capturing.
    size : int
        In bytes.
    what : str
        Its purpose, for the error message.

    Raises
    ------
    DeviceMemoryError
        The device is out of memory.
    """
    result, address = gpu.allocate(size or 1, handle or LEGACY_STREAM)
    if int(result) == _OUT_OF_MEMORY:
        raise no_room(gpu, size, what)
    if int(result) != 0:
        raise DeviceError(f"allocating {size} bytes for {what} failed: {result.name}")
    return int(address)


def free(gpu: Gpu, handle: int, address: int) -> None:
    """Free what `allocate` returned, once the work now on this stream is done."""
    device.succeed("freeing workspace", gpu.free(address, handle or LEGACY_STREAM))


def no_room(gpu: Gpu, size: int, what: str) -> DeviceMemoryError:
    """Return the error for a failed allocation of `size` bytes."""
    from cuda.bindings import driver

    _, free, total = driver.cuMemGetInfo()
    return DeviceMemoryError(
        f"{gpu.name} has no room for {what}: {size} bytes are needed, {free} of {total} are free. Free some, or let "
        "the array library do so (torch.cuda.empty_cache(), cupy.get_default_memory_pool().free_all_blocks())"
    )
