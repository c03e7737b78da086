"""Workspace: device memory that the launches of a call share.

Each stream keeps one, up to 64 MiB. It grows with the largest call, and `release` gives it back. Some calls have one of
their own: those that need more, those that are captured into a graph, and those that come while another one launches on
the same stream. Theirs is allocated and freed in the order of the stream, so nothing waits, and each replay of a graph
repeats both.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastsgemm import device
from fastsgemm.device import LEGACY_STREAM, OUT_OF_MEMORY
from fastsgemm.errors import DeviceError, DeviceMemoryError

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

MOST_KEPT = 64 << 20  # bytes; where more is needed, a product takes so long that the host does not wait for memory
_MOST_STREAMS = 64  # that keep a workspace: streams that are gone leave theirs behind


class StreamWorkspace:
    """The workspace that a stream keeps."""

    def __init__(self, gpu: Gpu, handle: int) -> None:
        self._gpu, self._handle = gpu, handle
        # Held from the look-up of the address to the last launch that uses it, so that no other call launches between
        # or makes the workspace grow. Never waited for: a finaliser that multiplies may interrupt the call that has it.
        self.lock = threading.Lock()
        self._address = self.size = 0  # the size is in bytes

    def address_of(self, size: int, what: str) -> int:
        """Return the address, after growing to at least `size` bytes for this purpose; the caller holds the lock.

        Raises
        ------
        DeviceMemoryError
            The device is out of memory.
        """
        if size > self.size:
            self._free()
            self._address = allocate(self._gpu, self._handle, size, what)
            self.size = size
        return self._address

    def _free(self, handle: int | None = None) -> None:
        address, self._address, self.size = self._address, 0, 0
        if address:
            free(self._gpu, self._handle if handle is None else handle, address)

    def give_back(self) -> int:
        """Wait until the device is idle, free it, and return its size in bytes; 0 if a call is using it.

        No other thread launches between: on a stream that the legacy one does not wait for, its kernels would still use
        what is freed.
        """
        if not self.lock.acquire(blocking=False):
            return 0
        try:
            if not (self.size and self._gpu.synchronize()):
                return 0
            size = self.size
            self._free(LEGACY_STREAM)  # its own stream may be gone
        finally:
            self.lock.release()
        return size


def of_stream(gpu: Gpu, handle: int) -> StreamWorkspace:
    """Return the workspace that the stream with this raw handle keeps."""
    number = gpu.stream_number(handle)
    kept: StreamWorkspace | None = gpu.workspaces.get(number)
    if kept is None:
        if len(gpu.workspaces) >= _MOST_STREAMS:
            release(gpu)
            for gone, each in list(gpu.workspaces.items()):
                if not each.size:  # else it could not be freed yet, because of a capture
                    gpu.workspaces.pop(gone, None)
        kept = gpu.workspaces.setdefault(number, StreamWorkspace(gpu, handle))
    return kept


def release(gpu: Gpu) -> int:
    """Wait until the device is idle and free what its streams keep; return how many bytes that was.

    While a stream is being captured, the device cannot be waited for, and nothing is freed.
    """
    return sum(kept.give_back() for kept in list(gpu.workspaces.values()))


def release_workspace() -> int:
    """Free the workspace that streams keep on all devices, after waiting for the work on them.

    A call that needs workspace allocates it again. What another thread's call is using stays, and so does that of a
    device on which a stream is being captured into a CUDA graph. `torch.cuda.empty_cache` does not reach this memory.

    Returns
    -------
    int
        How many bytes were freed.

    Examples
    --------
    >>> fastsgemm.release_workspace()  # doctest: +SKIP
    67108864
    """
    freed = 0
    for gpu in list(device.gpus.values()):
        with device.current(gpu):
            freed += release(gpu)
    return freed


def allocate(gpu: Gpu, handle: int, size: int, what: str) -> int:
    """Allocate device memory, aligned to at least 256 bytes and uninitialised, and return its address.

    The device is current in this thread. The stream with this raw handle, which uses the memory, may be capturing.
    `what` is the purpose, for the error message.

    Raises
    ------
    DeviceMemoryError
        The device is out of memory.
    """
    result, address = gpu.allocate(size or 1, handle or LEGACY_STREAM)
    if int(result) == OUT_OF_MEMORY:
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
        "the array library do so (torch.cuda.empty_cache(), cupy.get_default_memory_pool().free_all_blocks()) or "
        "fastsgemm.release_workspace()"
    )
