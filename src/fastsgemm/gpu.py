"""An opened device: its limits, its context, its streams, and the kernels that have been loaded on it."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastsgemm.driver import (
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    attribute,
    described,
    device_at,
    is_capturing,
    relaxed_capture,
    succeed,
)
from fastsgemm.errors import DeviceMismatchError

if TYPE_CHECKING:
    from cuda.core import Stream

_PROGRAMMATIC_PORT = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC


class Kernel:
    """A kernel that has been loaded on a device, until nothing refers to it."""

    def __init__(self, gpu: Gpu, cubin: bytes, name: str, shared_bytes: int) -> None:
        from cuda.bindings import driver

        answer = driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
        succeed(f"loading {name} on {gpu.name}", answer)
        weakref.finalize(self, driver.cuLibraryUnload, answer[1]).atexit = False
        answer = driver.cuLibraryGetKernel(answer[1], name.encode())
        succeed(f"finding {name} in its machine code", answer)
        if shared_bytes:  # with the static shared memory it may be more than a block gets unasked
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            what = f"asking {gpu.name} for {shared_bytes} bytes of shared memory (limit {gpu.shared_limit})"
            succeed(what, driver.cuKernelSetAttribute(attribute, shared_bytes, answer[1], gpu.ordinal))
        answer = driver.cuKernelGetFunction(answer[1])
        succeed(f"loading {name} on {gpu.name}", answer)
        self.name = name  # the `extern "C"` name
        self.function = answer[1]  # a CUfunction, which is launched

    @property
    def local_bytes(self) -> int:
        """Local memory of a thread, in bytes."""
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        answer = driver.cuFuncGetAttribute(attribute, self.function)
        succeed(f"asking for the local memory of {self.name}", answer)
        return int(answer[1])

    def blocks_per_sm(self, threads: int, shared_bytes: int) -> int:
        """Return how many blocks of so many threads and bytes of dynamic shared memory one SM holds at a time."""
        from cuda.bindings import driver

        answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, shared_bytes)
        succeed(f"asking for the occupancy of {self.name}", answer)
        return int(answer[1])


# A kernel of a graph, and what it is launched with: grid, threads of a block, bytes of dynamic shared memory, whether
# it may begin before the kernel before it has ended, and the address of an array of pointers to its arguments.
Node = tuple[Kernel, tuple[int, ...], int, int, bool, int]


class Graph:
    """An instantiated graph of kernels that follow each other, until nothing refers to it.

    The driver copies the arguments of the kernels when the graph is made and when `Gpu.set_node` is called.
    """

    def __init__(self, gpu: Gpu, nodes: Sequence[Node]) -> None:
        from cuda.bindings import driver

        answer = driver.cuGraphCreate(0)
        succeed("making a graph", answer)
        graph = answer[1]
        weakref.finalize(self, driver.cuGraphDestroy, graph).atexit = False
        self.nodes: list[tuple[Any, Any]] = []  # what `Gpu.set_node` needs for each kernel
        for kernel, grid, threads, shared_bytes, early, pointers in nodes:
            params = driver.CUDA_KERNEL_NODE_PARAMS()
            params.func, params.kernelParams, params.sharedMemBytes = kernel.function, pointers, shared_bytes
            params.gridDimX, params.gridDimY, params.gridDimZ = (*grid, 1, 1)[:3]
            params.blockDimX, params.blockDimY, params.blockDimZ = threads, 1, 1
            answer = driver.cuGraphAddKernelNode(graph, None, 0, params)
            succeed(f"adding {kernel.name} to a graph", answer)
            if self.nodes:
                edge = driver.CUgraphEdgeData()
                if early:
                    edge.from_port = _PROGRAMMATIC_PORT
                    edge.type = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
                connect = getattr(driver, "cuGraphAddDependencies_v2", driver.cuGraphAddDependencies)  # CUDA 12, 13
                connected = connect(graph, [self.nodes[-1][0]], [answer[1]], [edge], 1)
                succeed(f"putting {kernel.name} behind a kernel of a graph", connected)
            self.nodes.append((answer[1], params))
        answer = driver.cuGraphInstantiate(graph, 0)
        succeed("instantiating a graph", answer)
        # What is launched. If it is destroyed, what was launched before runs to its end.
        self.executable = answer[1]
        weakref.finalize(self, driver.cuGraphExecDestroy, self.executable).atexit = False
        gpu.graphs += 1
        weakref.finalize(self, gpu.forget_graph).atexit = False


class Gpu:
    """One device, opened: its limits, its context, and what has been prepared and loaded for it.

    Kernels are loaded and launched by the driver's own functions, because importing cuda.core takes longer than
    everything else in the first call of a process.
    """

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        self.ordinal = ordinal  # CUDA's number of the device
        answer = driver.cuDevicePrimaryCtxRetain(device_at(ordinal))
        succeed(f"opening cuda:{ordinal}", answer)
        self._context = answer[1]
        # Where nothing is current, CUDA's runtime takes the first device; making another one current would change
        # PyTorch's current device.
        if ordinal == 0 and int(driver.cuCtxGetCurrent()[1]) == 0:
            succeed(f"opening cuda:{ordinal}", driver.cuCtxSetCurrent(self._context))
        self.name, self.arch = described(ordinal)
        limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        self.shared_limit = attribute(limit, ordinal)  # bytes
        self.multiprocessors = attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal)
        self.prepared: dict[Any, Any] = {}  # the plans loaded so far; see `fastsgemm.call.driver`
        # How PyTorch's tensors are known to be operands of one of them; see `fastsgemm.call.arrays.torch`.
        self.recognised: dict[Any, list[Any]] = {}
        self.kernels: dict[Any, Kernel] = {}  # see `fastsgemm.jit.kernel`
        self.streams = {0, LEGACY_STREAM, PER_THREAD_STREAM}  # raw handles of those known to be of this device
        self.workspaces: dict[int, Any] = {}  # what streams keep, by `stream_number`; see `fastsgemm.call.workspace`
        self.graphs = 0  # how many `Graph` there are
        # Whether a graph can do all that single launches can: since CUDA 12.3 an edge can say that a kernel begins
        # before the one before it has ended.
        self.has_graphs = int(driver.cuDriverGetVersion()[1]) >= 12030
        self._core_streams: dict[int, Stream] = {}
        self._kept: deque[tuple[Any, Any]] = deque()
        self._spare_events: list[Any] = []
        self._keeping = threading.Lock()
        # Held here because an import in each call costs time.
        self.launch = driver.cuLaunchKernelEx
        self.allocate = driver.cuMemAllocAsync
        self.free = driver.cuMemFreeAsync
        self.launch_graph = driver.cuGraphLaunch
        self.set_node = driver.cuGraphExecKernelNodeSetParams
        self._capture_status = driver.cuStreamIsCapturing
        self._stream_id = driver.cuStreamGetId
        self._get_current = driver.cuCtxGetCurrent
        self._push = driver.cuCtxPushCurrent
        self._pop = driver.cuCtxPopCurrent
        self._keep_freed_memory()

    @cached_property
    def device(self) -> Any:
        """The ``cuda.core.Device``, for what is not on the way of a known call: events, buffers, properties."""
        from cuda.bindings import driver
        from cuda.core import Device

        opened = Device(self.ordinal)
        previous = driver.cuCtxGetCurrent()[1]
        opened.set_current()  # without this it refuses everything else
        driver.cuCtxSetCurrent(previous)
        return opened

    def _keep_freed_memory(self) -> None:
        """Set the driver's pool to keep freed memory; else each call with a workspace of its own would map new pages.

        A call with a workspace fails on a device without a pool; until then nothing does.
        """
        from cuda.bindings import driver

        error, pool = driver.cuDeviceGetMemPool(device_at(self.ordinal))
        if int(error) != 0:
            return
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        with relaxed_capture():  # the call that opens the device may be in a capture
            answer = driver.cuMemPoolGetAttribute(pool, threshold)
            succeed("asking how much freed memory is kept", answer)
            if int(answer[1]) == 0:  # else somebody has chosen a size
                everything = driver.cuuint64_t(2**64 - 1)
                succeed("keeping freed memory", driver.cuMemPoolSetAttribute(pool, threshold, everything))

    def forget_problems(self) -> None:
        """Let every problem be prepared again at its next call."""
        self.prepared.clear()
        self.recognised.clear()

    def enter(self) -> bool:
        """Make this device current in the calling thread. Return whether `leave` must be called to undo it."""
        if self._get_current()[1] == self._context:
            return False
        self._push(self._context)
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
        succeed(f"asking for the device of stream {handle:#x}", answer)
        if answer[1] != self._context:
            self._push(answer[1])
            try:
                ordinal = int(driver.cuCtxGetDevice()[1])
            finally:
                self._pop()
            if ordinal != self.ordinal:
                raise DeviceMismatchError(f"the stream is on cuda:{ordinal}, the operands on cuda:{self.ordinal}")
        self.streams.add(handle)

    def is_capturing(self, handle: int) -> bool:
        """Return whether work on the stream with this raw handle is being recorded into a CUDA graph."""
        result, status = self._capture_status(handle)
        return int(result) != 0 or int(status) != 0

    def stream_number(self, handle: int) -> int:
        """Return a number that no other stream of the process has or will have, unlike a raw handle."""
        if handle <= LEGACY_STREAM:
            return LEGACY_STREAM
        answer = self._stream_id(handle)
        if answer[0]:
            succeed(f"asking for the number of stream {handle:#x}", answer)
        return int(answer[1])

    def synchronize(self) -> bool:
        """Wait for all work on the device; return false where that is not possible, because of a capture."""
        from cuda.bindings import driver

        with relaxed_capture():
            return int(driver.cuCtxSynchronize()[0]) == 0

    def instantiate(self, nodes: Sequence[Node]) -> Graph:
        """Return a graph of kernels that follow each other; see `Graph`."""
        with relaxed_capture():
            return Graph(self, nodes)

    def forget_graph(self) -> None:
        """Count one graph less."""
        self.graphs -= 1

    def stream(self, handle: int) -> Stream:
        """Return cuda.core's object for a raw stream handle of this device; see `adopt`."""
        stream = self._core_streams.get(handle)
        if stream is None:
            from cuda.core import LEGACY_DEFAULT_STREAM, Stream

            if handle not in self.streams:
                self.adopt(handle)
            legacy = handle in (0, LEGACY_STREAM)
            stream = self._core_streams[handle] = LEGACY_DEFAULT_STREAM if legacy else Stream.from_handle(handle)
        return stream

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
        if early:
            attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def keep_alive(self, handle: int, objects: Any) -> None:
        """Hold `objects` until the work now on this stream is done.

        This is for arrays of a library that does not track the stream and might reuse their memory too early. Nothing
        waits: the next call releases the objects whose work is done.
        """
        from cuda.bindings import driver

        if is_capturing(handle):
            return  # a graph outlives any event; its owner keeps the operands alive, as for every captured kernel
        done = []  # released without the lock, because a destructor may call sgemm
        with self._keeping:  # else two threads could take the same entry for done, and one would drop the next entry
            if self._kept:
                with relaxed_capture():  # else this would end a capture of another thread
                    while self._kept and int(driver.cuEventQuery(self._kept[0][0])[0]) == 0:
                        done.append(self._kept.popleft())
                        self._spare_events.append(done[-1][0])
            event = self._spare_events.pop() if self._spare_events else _new_event()
            answer = driver.cuEventRecord(event, handle or LEGACY_STREAM)
            self._kept.append((event, objects))
        succeed("recording an event", answer)

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


def _new_event() -> Any:
    from cuda.bindings import driver

    answer = driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    succeed("making an event", answer)
    return answer[1]
