"""The CUDA driver in Python: contexts, streams, events, captures and memory pools. Every call is recorded."""

import ctypes
import itertools
from types import SimpleNamespace

import numpy as np
from cuda.bindings import driver

OK = driver.CUresult.CUDA_SUCCESS
NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
NOT_PERMITTED = driver.CUresult.CUDA_ERROR_NOT_PERMITTED
NOT_SUPPORTED = driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

# Calls that end a capture of another thread in CUDA's default mode, unless they are made in relaxed mode.
UNSAFE = {
    "cuCtxSynchronize", "cuEventCreate", "cuEventDestroy", "cuEventQuery", "cuEventSynchronize", "cuLibraryLoadData",
    "cuLibraryUnload", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemPoolCreate", "cuMemPoolTrimTo", "cuStreamCreate",
    "cuStreamSynchronize",
}  # fmt: skip
SYNCHRONISING = {"cuCtxSynchronize", "cuEventSynchronize", "cuStreamSynchronize"}
FREED = 0xEE  # fills memory that was freed


class FakeDriver:
    """A machine with two devices, whose memory is that of the host."""

    def __init__(self):
        self.calls = []  # (name, arguments)
        self.ended = []  # calls that would have ended a capture of another thread
        self.mode = GLOBAL  # of captures, of this thread
        self.capturing = set()  # handles
        self.version = 13000
        self.contexts = {100: 0, 101: 1}  # ordinals, by context; the primary ones
        self.current = [0]  # contexts
        self.streams = {}  # contexts, by handle; 100 of those that are not in it
        self.gone = set()  # handles of streams that were destroyed
        self.waiting = set()  # handles of streams that wait for somebody
        self.events = {}  # by number: whether it is done is asked of this stream
        self.memory = []  # of pools
        self.room = 1 << 30  # bytes of one allocation
        self.has_pools = True
        self.pools = []
        self.loaded = {}  # libraries: machine code and whether they are loaded
        self._numbers = itertools.count(1000)

    def install(self, monkeypatch):
        for name in dir(self):
            if name.startswith("cu"):
                real = getattr(self, name) if callable(getattr(self, name)) else None
                if real is not None and name != "current":
                    monkeypatch.setattr(driver, name, self._recorded(name, real))
        return self

    def _recorded(self, name, real):
        def call(*given):
            self.calls.append((name, given))
            if name in UNSAFE and self.mode is not RELAXED:
                self.ended.append(name)
            return real(*given)

        return call

    def named(self, *names):
        """Return the arguments of the calls with one of these names."""
        return [given for name, given in self.calls if name in names]

    def new_stream(self, context=100):
        handle = next(self._numbers)
        self.streams[handle] = context
        return handle

    def _use(self, handle):
        assert handle not in self.gone, f"stream {handle} is gone: this ends the process"
        return handle

    # Devices and contexts.
    def cuDeviceGet(self, ordinal):
        return OK, ordinal

    def cuDeviceGetName(self, length, device):
        return OK, b"a device\0"

    def cuDeviceGetAttribute(self, which, device):
        major = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        minor = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        shared = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return OK, {major: 9, minor: 0, shared: 232448}.get(which, 132)

    def cuDriverGetVersion(self):
        return OK, self.version

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, 100 + device

    def cuCtxGetCurrent(self):
        return OK, self.current[-1]

    def cuCtxSetCurrent(self, context):
        self.current[-1] = context
        return (OK,)

    def cuCtxPushCurrent(self, context):
        self.current.append(context)
        return (OK,)

    def cuCtxPopCurrent(self):
        return OK, self.current.pop()

    def cuCtxGetDevice(self):
        return OK, self.contexts[self.current[-1]]

    # Streams, events and captures.
    def cuStreamCreate(self, flags):
        return OK, self.new_stream(self.current[-1])

    def cuStreamGetCtx(self, handle):
        return OK, self.streams.get(self._use(handle), 100)

    def cuStreamIsCapturing(self, handle):
        return OK, int(self._use(handle) in self.capturing)

    def cuStreamSynchronize(self, handle):
        assert self._use(handle) not in self.waiting
        return (OK,)

    def cuStreamWaitEvent(self, handle, event, flags):
        self._use(handle)
        if self.events[event] in self.waiting:
            self.waiting.add(handle)
        return (OK,)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.mode = self.mode, mode
        return OK, before

    def cuEventCreate(self, flags):
        event = next(self._numbers)
        self.events[event] = None
        return OK, event

    def cuEventRecord(self, event, handle):
        self.events[event] = self._use(handle)
        return (OK,)

    def cuEventQuery(self, event):
        return (NOT_READY if self.events[event] in self.waiting else OK,)

    def cuEventSynchronize(self, event):
        assert self.events[event] not in self.waiting
        return (OK,)

    def cuEventDestroy(self, event):
        del self.events[event]
        return (OK,)

    # Memory.
    def cuMemGetInfo(self):
        return OK, 1000, 4000

    def cuMemPoolCreate(self, properties):
        if not self.has_pools:
            return NOT_SUPPORTED, None
        self.pools.append(SimpleNamespace(ordinal=properties.location.id, attributes={}, kept=0))
        return OK, self.pools[-1]

    def cuMemPoolSetAttribute(self, pool, which, value):
        pool.attributes[which.name.removeprefix("CU_MEMPOOL_ATTR_")] = int(value)
        return (OK,)

    def cuMemPoolGetAttribute(self, pool, which):
        used = sum(each.size for each in self.memory if each.freed_on is None)
        return OK, pool.kept + used

    def cuMemPoolTrimTo(self, pool, size):
        pool.kept = size
        return (OK,)

    def cuMemAllocFromPoolAsync(self, size, pool, handle):
        if pool is None:
            return driver.CUresult.CUDA_ERROR_INVALID_VALUE, None
        if size > self.room:
            return OUT_OF_MEMORY, None
        values = np.full(-(-size // 4), np.nan, np.float32)
        made = SimpleNamespace(values=values, address=values.ctypes.data, size=size, handle=self._use(handle))
        made.freed_on = None
        self.memory.append(made)
        return OK, made.address

    def cuMemFreeAsync(self, address, handle):
        [found] = [each for each in self.memory if each.freed_on is None and each.address == address]
        assert self._use(handle) not in self.capturing or found.handle == handle
        found.freed_on = handle
        found.values.view(np.uint8)[...] = FREED
        self.pools[0].kept += found.size
        return (OK,)

    def cuMemcpyHtoDAsync(self, target, source, size, handle):
        ctypes.memmove(target, source, size)
        return (OK,)

    def cuMemcpyDtoHAsync(self, target, source, size, handle):
        ctypes.memmove(target, source, size)
        return (OK,)

    # Kernels: library n has kernel 10 n, which is function 100 n.
    def cuLibraryLoadData(self, code, *options):
        number = len(self.loaded) + 1
        self.loaded[number] = True
        return OK, number

    def cuLibraryGetKernel(self, library, name):
        return OK, 10 * library

    def cuKernelGetFunction(self, kernel):
        return OK, 10 * kernel

    def cuKernelSetAttribute(self, attribute, value, kernel, device):
        return (OK,)

    def cuKernelGetAttribute(self, attribute, kernel, device):
        return OK, 48

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, shared_bytes):
        return OK, 3

    def cuLibraryUnload(self, library):
        self.loaded[library] = False
        return (OK,)

    def cuLaunchKernelEx(self, config, kernel, pointers, extra):
        return (OK,)
