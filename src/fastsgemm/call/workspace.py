"""Device memory from the package's own pool.

The workspace of a call, which its launches share, is allocated and freed in the order of the call's stream, so nothing
waits, and each replay of a captured graph repeats both. The pool keeps what is freed for later calls;
`release_workspace` gives it back.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from fastsgemm import device
from fastsgemm.device import OUT_OF_MEMORY, Event
from fastsgemm.errors import DeviceError, DeviceMemoryError

if TYPE_CHECKING:
    from fastsgemm.device import Gpu


class DeviceMemory:
    """Device memory that outlives a call, and maybe the stream that it is allocated on.

    When it is dropped, on any thread and in the middle of a capture, too, it is freed behind `ready`. Whoever uses it
    on a stream keeps it until the stream has passed that; see `fastsgemm.gpu.Gpu.keep_alive`. The device is current in
    this thread, and the stream is not capturing.

    Raises
    ------
    DeviceMemoryError
        The device is out of memory.
    """

    def __init__(self, gpu: Gpu, handle: int, size: int, what: str) -> None:
        self._gpu, self._handle = gpu, handle
        self.address = allocate(gpu, handle, size, what)
        self.ready = Event(handle)  # moved behind what is written to it later on the same stream
        self._drop = weakref.finalize(self, _free_behind, gpu, self.address, self.ready)
        self._drop.atexit = False

    def close(self) -> None:
        """Free it now in the order of its stream, which still exists."""
        if self._drop.detach():
            free(self._gpu, self._handle, self.address)


def _free_behind(gpu: Gpu, address: int, ready: Event) -> None:
    if ready.is_of_parent:
        return
    with suppress(DeviceError), device.current(gpu), device.relaxed_capture():
        ready.hold_back(gpu.freeing)
        free(gpu, gpu.freeing, address)


def release_workspace() -> int:
    """Return the workspace of earlier calls to the devices.

    Calls keep it for later ones, because allocating it again takes time. This function does not wait: it keeps memory
    that a device still uses. It also releases operands that were held for work that is now done.
    `torch.cuda.empty_cache` does not reach this memory.

    Returns
    -------
    int
        How many bytes were given back.

    Examples
    --------
    >>> fastsgemm.release_workspace()  # doctest: +SKIP
    67108864
    """
    freed = 0
    for gpu in list(device.gpus.values()):
        with device.current(gpu):
            gpu.release_passed()
            freed += gpu.trim_pool()
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
    result, address = gpu.allocate(size or 1, handle)
    if result:
        if int(result) == OUT_OF_MEMORY:
            raise no_room(gpu, size, what)
        reason = "the device has no memory pools" if gpu.pool is None else result.name
        raise DeviceError(f"allocating {size} bytes for {what} failed: {reason}")
    return int(address)


def free(gpu: Gpu, handle: int, address: int) -> None:
    """Free what `allocate` returned, once the work now on this stream is done."""
    answer = gpu.free(address, handle)
    if answer[0]:
        device.check_driver("freeing workspace", answer)


def no_room(gpu: Gpu, size: int, what: str) -> DeviceMemoryError:
    """Return the error for a failed allocation of `size` bytes."""
    from cuda.bindings import driver

    _, free, total = driver.cuMemGetInfo()
    return DeviceMemoryError(
        f"{gpu.name} has no room for {what}: {size} bytes are needed, {free} of {total} are free. Free some, or let "
        "the array library do so (torch.cuda.empty_cache(), cupy.get_default_memory_pool().free_all_blocks()) or "
        "fastsgemm.release_workspace()"
    )
