"""An opened device: its limits, its contexts, its memory, and the kernels that have been loaded on it."""

from __future__ import annotations

import copy
import gc
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from fastsgemm.driver import (
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    attribute,
    check_driver,
    described,
    device_at,
    is_capturing,
    relaxed_capture,
)
from fastsgemm.errors import DeviceError, DeviceMismatchError

_EARLY_IN_GRAPHS = 12030  # CUDA 12.3: the first driver that captures a programmatic dependent launch
_MOST_QUERIED = 64  # events of kept operands that one call asks for

# Called when every problem is to be prepared again: who else holds plans of a device forgets them, too.
when_forgotten: list[Callable[[], None]] = []

_opened: weakref.WeakSet[Gpu] = weakref.WeakSet()  # for `_release_at_collections`


class Kernel:
    """A kernel that has been loaded on a device.

    It stays loaded, because a CUDA graph that the caller captured may hold it; only what no call has launched, such as
    a candidate of the tuner, may be unloaded.
    """

    def __init__(self, gpu: Gpu, cubin: bytes, name: str, shared_bytes: int) -> None:
        from cuda.bindings import driver

        answer = driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
        check_driver(f"loading {name} on {gpu.name}", answer)
        self._library = answer[1]
        try:
            answer = driver.cuLibraryGetKernel(self._library, name.encode())
            check_driver(f"finding {name} in its machine code", answer)
            self.name = name  # the `extern "C"` name
            self.handle = answer[1]  # a CUkernel, which is launched in whatever context of the device is current
            self._device = device_at(gpu.ordinal)
            if shared_bytes:  # with the static shared memory it may be more than a block gets unasked
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                what = f"asking {gpu.name} for {shared_bytes} bytes of shared memory (limit {gpu.shared_limit})"
                check_driver(what, driver.cuKernelSetAttribute(attribute, shared_bytes, self.handle, self._device))
            self._function()  # else the driver would load it at the first launch, which may be in a capture
        except BaseException:
            self.unload()
            raise

    def _function(self) -> Any:
        """Return the kernel as a CUfunction of the current context."""
        from cuda.bindings import driver

        answer = driver.cuKernelGetFunction(self.handle)
        check_driver(f"loading {self.name}", answer)
        return answer[1]

    def unload(self) -> None:
        """Unload it. No launch of it is pending, and no graph has it."""
        from cuda.bindings import driver

        with relaxed_capture():
            driver.cuLibraryUnload(self._library)

    @property
    def local_bytes(self) -> int:
        """Local memory of a thread, in bytes."""
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        answer = driver.cuKernelGetAttribute(attribute, self.handle, self._device)
        check_driver(f"asking for the local memory of {self.name}", answer)
        return int(answer[1])

    def blocks_per_sm(self, threads: int, shared_bytes: int) -> int:
        """Return how many blocks of so many threads and bytes of dynamic shared memory one SM holds at a time."""
        from cuda.bindings import driver

        answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function(), threads, shared_bytes)
        check_driver(f"asking for the occupancy of {self.name}", answer)
        return int(answer[1])


class Event:
    """A point in the work of a stream, which may be gone later. Dropping an event neither waits nor ends a capture."""

    def __init__(self, handle: int) -> None:
        """Record the event on the stream with this raw handle, in the current context."""
        from cuda.bindings import driver

        with relaxed_capture():
            answer = driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            check_driver("making an event", answer)
            self._event, self._process = answer[1], os.getpid()
            self.record(handle)

    def __del__(self) -> None:
        if hasattr(self, "_event") and not (self.is_of_parent or sys.is_finalizing()):
            from cuda.bindings import driver

            with suppress(DeviceError), relaxed_capture():
                driver.cuEventDestroy(self._event)

    @property
    def is_of_parent(self) -> bool:
        """Whether it is of the process that this one was forked from, whose devices it cannot use."""
        return self._process != os.getpid()

    def record(self, handle: int) -> None:
        """Move the event behind the work that is now on a stream."""
        from cuda.bindings import driver

        check_driver("recording an event", driver.cuEventRecord(self._event, handle))

    @property
    def is_done(self) -> bool:
        """Whether the stream has passed the event; false, too, where the driver does not say."""
        from cuda.bindings import driver

        with relaxed_capture():  # else this would end a capture of another thread
            return int(driver.cuEventQuery(self._event)[0]) == 0

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        from cuda.bindings import driver

        with relaxed_capture():
            check_driver("waiting for an event", driver.cuEventSynchronize(self._event))

    def hold_back(self, handle: int) -> None:
        """Let later work on a stream wait for the event."""
        from cuda.bindings import driver

        check_driver("letting a stream wait for an event", driver.cuStreamWaitEvent(handle, self._event, 0))


class Gpu:
    """One device, opened: its limits, its primary context, its memory pool, and what has been prepared and loaded.

    Kernels are loaded and launched by the driver's own functions, because importing cuda.core takes longer than
    everything else in the first call of a process.
    """

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        self.ordinal = ordinal  # CUDA's number of the device
        self._device = device_at(ordinal)
        answer = driver.cuDevicePrimaryCtxRetain(self._device)
        check_driver(f"opening cuda:{ordinal}", answer)
        self.context = answer[1]
        # Where nothing is current, CUDA's runtime takes the first device; making another one current would change
        # PyTorch's current device.
        if ordinal == 0 and int(driver.cuCtxGetCurrent()[1]) == 0:
            check_driver(f"opening cuda:{ordinal}", driver.cuCtxSetCurrent(self.context))
        self.name, self.arch = described(ordinal)
        limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        self.shared_limit = attribute(limit, ordinal)  # bytes
        self.multiprocessors = attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal)
        # A capture can hold a programmatic dependent launch since CUDA 12.3; before, kernels begin one after the other.
        self.launches_early = int(driver.cuDriverGetVersion()[1]) >= _EARLY_IN_GRAPHS
        self.prepared: dict[Any, Any] = {}  # the plans loaded so far; see `fastsgemm.call.driver`
        self.kernels: dict[Any, Kernel] = {}  # see `fastsgemm.jit.kernel`
        self.streams = {0, LEGACY_STREAM, PER_THREAD_STREAM}  # raw handles of those known to be of this device
        # What running work reads and writes: the event behind that work, and the objects that hold the memory. No lock
        # guards it, because a finaliser that multiplies may run anywhere: taking an entry out makes it one's own.
        self._kept: deque[tuple[Event, Any]] = deque()
        # Held here because an import in each call costs time.
        self.launch = driver.cuLaunchKernelEx
        self._free = driver.cuMemFreeAsync
        self._allocate = driver.cuMemAllocFromPoolAsync
        self._get_current = driver.cuCtxGetCurrent
        self._get_current_device = driver.cuCtxGetDevice
        self._push = driver.cuCtxPushCurrent
        self._pop = driver.cuCtxPopCurrent
        self._push(self.context)  # also where a green context is current, which may end before the process
        with relaxed_capture():  # the call that opens the device may be in a capture
            # Of this package alone, so that what it keeps can be given back; None where the device has no pools.
            self.pool = _make_pool(ordinal)
            # For copies of host arrays, and for freeing what outlives its stream: nothing of the caller waits for them.
            self.copying, self.freeing = _make_stream(), _make_stream()
        self._pop()
        _opened.add(self)

    @cached_property
    def device(self) -> Any:
        """The ``cuda.core.Device``, for what is not on the way of a known call: events, properties."""
        from cuda.bindings import driver
        from cuda.core import Device

        opened = Device(self.ordinal)
        previous = driver.cuCtxGetCurrent()[1]
        opened.set_current()  # without this it refuses everything else
        driver.cuCtxSetCurrent(previous)
        return opened

    def with_own_tables(self) -> Gpu:
        """Return the same device with tables of its own: what it loads and prepares, no call on this one meets.

        It begins with the kernels that are loaded here.
        """
        other = copy.copy(self)
        other.prepared, other.kernels = {}, dict(self.kernels)
        return other

    def forget_problems(self) -> None:
        """Let every problem be prepared again at its next call."""
        self.prepared.clear()
        for forget in when_forgotten:
            forget()

    def enter(self) -> bool:
        """Make this device current in the calling thread. Return whether `leave` must be called to undo it.

        Another context of the device stays current, such as a green context, whose default stream has handle 0.
        """
        now = self._get_current()[1]
        if now == self.context:
            return False
        if int(now) and int(self._get_current_device()[1]) == int(self._device):
            return False
        self._push(self.context)
        return True

    def leave(self) -> None:
        """Undo `enter`: make the device current that was current before it."""
        self._pop()

    def adopt(self, handle: int) -> None:
        """Take up a stream into `streams`.

        Raises
        ------
        DeviceMismatchError
            The stream belongs to another device.
        """
        from cuda.bindings import driver

        answer = driver.cuStreamGetCtx(handle)
        check_driver(f"asking for the device of stream {handle:#x}", answer)
        if answer[1] != self.context:
            self._push(answer[1])
            try:
                ordinal = int(driver.cuCtxGetDevice()[1])
            finally:
                self._pop()
            if ordinal != self.ordinal:
                raise DeviceMismatchError(f"the stream is on cuda:{ordinal}, the operands on cuda:{self.ordinal}")
        self.streams.add(handle)

    def launch_config(self, grid: tuple[int, ...], threads: int, shared_bytes: int, early: bool) -> Any:
        """Return the driver's description of a launch, but for the stream, which is its `hStream`.

        The grid has one to three dimensions, and a block `threads` and `shared_bytes` of dynamic shared memory. A
        kernel that is `early` may begin before the one launched before it has ended (programmatic dependent launch,
        from sm_90 on).
        """
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        if early and self.launches_early:
            attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def allocate(self, size: int, handle: int) -> tuple[Any, Any]:
        """Return the driver's answer: a result and the address of device memory, in the order of a stream.

        In a capture it is memory of the graph. Else a capture of another thread goes on.
        """
        with relaxed_capture():
            return self._allocate(size, self.pool, handle)  # type: ignore[no-any-return]

    def free(self, address: int, handle: int) -> tuple[Any]:
        """Free memory in the order of a stream, and return the driver's answer. A capture of another thread goes on."""
        with relaxed_capture():
            return self._free(address, handle)  # type: ignore[no-any-return]

    def trim_pool(self) -> int:
        """Give memory that no stream uses any more back to the device; return how many bytes that was."""
        from cuda.bindings import driver

        if self.pool is None:
            return 0
        reserved = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        sizes = []
        with relaxed_capture():
            for trim in (True, False):
                answer = driver.cuMemPoolGetAttribute(self.pool, reserved)
                check_driver("asking for the size of the memory pool", answer)
                sizes.append(int(answer[1]))
                if trim:
                    check_driver("trimming the memory pool", driver.cuMemPoolTrimTo(self.pool, 0))
        return max(0, sizes[0] - sizes[1])

    def keep_alive(self, handle: int, objects: Any) -> None:
        """Hold `objects` until the stream has passed the work that is now on it.

        They are the operands whose library does not know of the stream and might reuse their memory too early, and
        their exports. Nothing waits. Later calls on any stream release them, as does each collection of Python's
        garbage and `release_workspace`.
        """
        if is_capturing(handle):
            return  # a graph outlives any event; its owner keeps the operands alive, as for every captured kernel
        self.release_passed(_MOST_QUERIED)
        self._kept.append((Event(handle), objects))

    def release_passed(self, most: int | None = None) -> None:
        """Release what `keep_alive` holds of work that is done, looking at the `most` oldest entries, or at all.

        Entries of a stream that waits go to the end, so they do not hold up those of other streams.
        """
        count = len(self._kept)
        for _ in range(count if most is None else min(count, most)):
            try:
                entry = self._kept.popleft()
            except IndexError:  # another thread has looked at the last ones
                return
            if not entry[0].is_done:
                self._kept.append(entry)
            # Else it is dropped here, which may run a destructor that multiplies.
            del entry

    def load(self, cubin: bytes, name: str, shared_bytes: int) -> Kernel:
        """Load a kernel and allow it the dynamic shared memory that it is launched with.

        The name is the ``extern "C"`` one. A block has `shared_bytes` of dynamic shared memory: where these and the
        static ones are more than 48 KiB, they must be requested from the driver.

        Raises
        ------
        DeviceError
            The device refuses the machine code or that much shared memory.
        """
        with relaxed_capture():  # another thread may be capturing: loading would end its capture
            return Kernel(self, cubin, name, shared_bytes)


@contextmanager
def current(gpu: Gpu) -> Iterator[None]:
    """Make a device current in the calling thread for a block of code."""
    switched = gpu.enter()
    try:
        yield
    finally:
        if switched:
            gpu.leave()


def _make_pool(ordinal: int) -> Any:
    """Return a new memory pool that keeps freed memory, or None where the device has no pools.

    It never reuses memory by making one stream wait for another.
    """
    from cuda.bindings import driver

    location = driver.CUmemLocation()
    location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, ordinal
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location = location
    answer = driver.cuMemPoolCreate(properties)
    if int(answer[0]) == int(driver.CUresult.CUDA_ERROR_NOT_SUPPORTED):
        return None
    check_driver(f"making a memory pool on cuda:{ordinal}", answer)
    which, everything = driver.CUmemPool_attribute, driver.cuuint64_t(2**64 - 1)
    keeping = driver.cuMemPoolSetAttribute(answer[1], which.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, everything)
    check_driver("letting the memory pool keep what is freed", keeping)
    apart = driver.cuMemPoolSetAttribute(answer[1], which.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0)
    check_driver("keeping streams of the memory pool independent", apart)
    return answer[1]


def _make_stream() -> int:
    """Return the raw handle of a new stream of the current context that does not wait for the legacy stream."""
    from cuda.bindings import driver

    answer = driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    check_driver("making a stream", answer)
    return int(answer[1])


def _release_at_collections(phase: str, info: dict[str, int]) -> None:
    """Let each collection of Python's garbage release what `Gpu.keep_alive` need not hold any longer."""
    if phase == "start" and not sys.is_finalizing():
        for gpu in list(_opened):
            if gpu._kept:
                with current(gpu):  # the thread may never have used CUDA
                    gpu.release_passed(_MOST_QUERIED)


gc.callbacks.append(_release_at_collections)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_opened.clear)  # a child that was forked cannot use its parent's devices
