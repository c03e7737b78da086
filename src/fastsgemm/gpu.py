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
_MOST_QUERIED = 64  # most events of kept operands that one call queries

# Called when every problem is to be prepared again, so that other holders of plans drop them, too.
when_forgotten: list[Callable[[], None]] = []

_opened: weakref.WeakSet[Gpu] = weakref.WeakSet()  # for `_release_at_collections`


class Kernel:
    """A kernel loaded on a device.

    It stays loaded, because a CUDA graph that the caller captured may hold it; only kernels that no call has launched,
    such as candidates of the tuner, may be unloaded.
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
            self.handle = answer[1]  # a CUkernel, launched in the current context of the device
            self._device = device_at(gpu.ordinal)
            if shared_bytes:  # together with the static shared memory it may exceed the default limit
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                action = f"asking {gpu.name} for {shared_bytes} bytes of shared memory (limit {gpu.shared_limit})"
                check_driver(action, driver.cuKernelSetAttribute(attribute, shared_bytes, self.handle, self._device))
            self._function()  # else the driver would load it at the first launch, maybe in a capture
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
        """Unload the kernel. No launch of it is pending, and no graph has it."""
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
        """Return the resident blocks per SM with these threads and bytes of dynamic shared memory per block."""
        from cuda.bindings import driver

        answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function(), threads, shared_bytes)
        check_driver(f"asking for the occupancy of {self.name}", answer)
        return int(answer[1])


class Event:
    """A point in the work of a stream, which may not outlive it. Dropping it neither waits nor ends a capture."""

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
        """Whether it belongs to the process that this one was forked from, whose devices cannot be used."""
        return self._process != os.getpid()

    def record(self, handle: int) -> None:
        """Record the event again, after the work now on a stream."""
        from cuda.bindings import driver

        check_driver("recording an event", driver.cuEventRecord(self._event, handle))

    @property
    def is_done(self) -> bool:
        """Whether the stream has passed the event; false if the driver does not say."""
        from cuda.bindings import driver

        with relaxed_capture():  # else this would end a capture of another thread
            return int(driver.cuEventQuery(self._event)[0]) == 0

    def synchronize(self) -> None:
        """Make the host wait for the event."""
        from cuda.bindings import driver

        with relaxed_capture():
            check_driver("waiting for an event", driver.cuEventSynchronize(self._event))

    def hold_back(self, handle: int) -> None:
        """Make later work on a stream wait for the event."""
        from cuda.bindings import driver

        check_driver("letting a stream wait for an event", driver.cuStreamWaitEvent(handle, self._event, 0))


class Gpu:
    """An opened device: its limits, primary context, memory pool, prepared plans and loaded kernels.

    Kernels are loaded and launched through the driver API, because importing cuda.core takes longer than everything
    else in the first call of a process.
    """

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        self.ordinal = ordinal  # CUDA's number of the device
        self._device = device_at(ordinal)
        answer = driver.cuDevicePrimaryCtxRetain(self._device)
        check_driver(f"opening cuda:{ordinal}", answer)
        self.context = answer[1]
        # Without a current context, CUDA's runtime takes the first device; making another device current would change
        # PyTorch's current device.
        if ordinal == 0 and int(driver.cuCtxGetCurrent()[1]) == 0:
            check_driver(f"opening cuda:{ordinal}", driver.cuCtxSetCurrent(self.context))
        self.name, self.arch = described(ordinal)
        limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        self.shared_limit = attribute(limit, ordinal)  # bytes
        self.multiprocessors = attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal)
        # Captures support programmatic dependent launch since CUDA 12.3; with older drivers, kernels do not overlap.
        self.launches_early = int(driver.cuDriverGetVersion()[1]) >= _EARLY_IN_GRAPHS
        self.prepared: dict[Any, Any] = {}  # the plans loaded so far; see `fastsgemm.call.driver`
        self.kernels: dict[Any, Kernel] = {}  # see `fastsgemm.jit.kernel`
        self.streams = {0, LEGACY_STREAM, PER_THREAD_STREAM}  # raw handles known to belong to this device
        # What running work reads and writes: an event after that work, and the objects that own the memory. There is no
        # lock, because a finaliser that multiplies may run anywhere: whoever takes an entry out owns it.
        self._kept: deque[tuple[Event, Any]] = deque()
        # Stored here, because an import in each call costs time.
        self.launch = driver.cuLaunchKernelEx
        self._free = driver.cuMemFreeAsync
        self._allocate = driver.cuMemAllocFromPoolAsync
        self._get_current = driver.cuCtxGetCurrent
        self._get_current_device = driver.cuCtxGetDevice
        self._push = driver.cuCtxPushCurrent
        self._pop = driver.cuCtxPopCurrent
        self._push(self.context)  # even if a green context is current, which may end before the process
        with relaxed_capture():  # the call that opens the device may be in a capture
            # Private to this package, so that its memory can be given back; None if the device has no pools.
            self.pool = _make_pool(ordinal)
            # For copies of host arrays, and for freeing memory that outlives its stream; the caller's work never waits.
            self.copying, self.freeing = _make_stream(), _make_stream()
        self._pop()
        _opened.add(self)

    @cached_property
    def device(self) -> Any:
        """The ``cuda.core.Device``, for use off the fast path: events, properties."""
        from cuda.bindings import driver
        from cuda.core import Device

        opened = Device(self.ordinal)
        previous = driver.cuCtxGetCurrent()[1]
        opened.set_current()  # which cuda.core requires first
        driver.cuCtxSetCurrent(previous)
        return opened

    def with_own_tables(self) -> Gpu:
        """Return the same device with separate tables of kernels and plans, which calls on this one do not see.

        It starts with the kernels that are loaded here.
        """
        copied = copy.copy(self)
        copied.prepared, copied.kernels = {}, dict(self.kernels)
        return copied

    def forget_problems(self) -> None:
        """Let every problem be prepared again at its next call."""
        self.prepared.clear()
        for forget in when_forgotten:
            forget()

    def enter(self) -> bool:
        """Make this device current in the calling thread. Return whether `leave` must be called to undo it.

        Another context of the device stays current, such as a green context, whose default stream has handle 0.
        """
        current = self._get_current()[1]
        if current == self.context:
            return False
        if int(current) and int(self._get_current_device()[1]) == int(self._device):
            return False
        self._push(self.context)
        return True

    def leave(self) -> None:
        """Undo `enter`: make the device current that was current before it."""
        self._pop()

    def adopt(self, handle: int) -> None:
        """Add a stream to `streams`.

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
        """Return the driver's description of a launch, without the stream, which is its `hStream`.

        The grid has one to three dimensions; `shared_bytes` is dynamic shared memory per block. An `early` kernel may
        begin before the previous one has ended (programmatic dependent launch, from sm_90 on).
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
        """Allocate device memory in stream order, and return the driver's answer: a result and the address.

        In a capture it is memory of the graph. Captures of other threads are not affected.
        """
        with relaxed_capture():
            return self._allocate(size, self.pool, handle)  # type: ignore[no-any-return]

    def free(self, address: int, handle: int) -> tuple[Any]:
        """Free memory in stream order, and return the driver's answer. Captures of other threads are not affected."""
        with relaxed_capture():
            return self._free(address, handle)  # type: ignore[no-any-return]

    def trim_pool(self) -> int:
        """Return memory that no stream uses any more to the device; return the number of bytes."""
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

        They are operands whose library does not know of the stream and might reuse their memory too early, and their
        exports. Nothing waits. Later calls on any stream release them, as do garbage collections and
        `release_workspace`.
        """
        if is_capturing(handle):
            return  # a graph outlives any event; its owner keeps the operands alive, as for every captured kernel
        self.release_passed(_MOST_QUERIED)
        self._kept.append((Event(handle), objects))

    def release_passed(self, limit: int | None = None) -> None:
        """Release what `keep_alive` holds for finished work, checking the `limit` oldest entries, or all.

        Unfinished entries go to the end, so they do not hold up those of other streams.
        """
        count = len(self._kept)
        for _ in range(count if limit is None else min(count, limit)):
            try:
                entry = self._kept.popleft()
            except IndexError:  # another thread took the last ones
                return
            if not entry[0].is_done:
                self._kept.append(entry)
            # Else it is dropped here, which may run a destructor that multiplies.
            del entry

    def load(self, cubin: bytes, name: str, shared_bytes: int) -> Kernel:
        """Load a kernel and allow it the dynamic shared memory that it is launched with.

        The name is the ``extern "C"`` one. A block has `shared_bytes` of dynamic shared memory, which must be requested
        from the driver if it has more than 48 KiB together with static shared memory.

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
    """Return a new memory pool that keeps freed memory, or None if the device has no pools.

    It never makes one stream wait for another in order to reuse memory.
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
    attributes, unlimited = driver.CUmemPool_attribute, driver.cuuint64_t(2**64 - 1)
    result = driver.cuMemPoolSetAttribute(answer[1], attributes.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, unlimited)
    check_driver("letting the memory pool keep what is freed", result)
    result = driver.cuMemPoolSetAttribute(answer[1], attributes.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0)
    check_driver("keeping streams of the memory pool independent", result)
    return answer[1]


def _make_stream() -> int:
    """Return the raw handle of a new stream of the current context that does not wait for the legacy stream."""
    from cuda.bindings import driver

    answer = driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    check_driver("making a stream", answer)
    return int(answer[1])


def _release_at_collections(phase: str, info: dict[str, int]) -> None:
    """Release objects of `Gpu.keep_alive` at each garbage collection, as far as work is done."""
    if phase == "start" and not sys.is_finalizing():
        for gpu in list(_opened):
            if gpu._kept:
                with current(gpu):  # the thread may never have used CUDA
                    gpu.release_passed(_MOST_QUERIED)


gc.callbacks.append(_release_at_collections)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_opened.clear)  # a child that was forked cannot use its parent's devices
