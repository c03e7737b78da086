"""The machine: whether it has a usable driver, which devices it has, and what one device can do once opened."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from fastsgemm import arguments
from fastsgemm.errors import DeviceError, DeviceMismatchError, DriverTooOldError, NoDriverError, NoNvrtcError

if TYPE_CHECKING:
    from cuda.core import Stream

_RELEASE = Path("/proc/driver/nvidia/version")  # on Linux

_PRESENT = re.compile(r"(?:cuda:)?([0-9]{1,4})|cuda")

BACKENDS = ("cuda", "host", "sim")  # what can multiply host arrays

LEGACY_STREAM = 1  # CUDA's and DLPack's number for the legacy default stream, which torch and CuPy call 0
PER_THREAD_STREAM = 2  # CUDA's number for the default stream of each thread, of whatever device is current

gpus: dict[int, Gpu] = {}  # the devices opened so far
_lock = threading.Lock()


class Kernel:
    """A kernel that has been loaded on a device, until nothing refers to it.

    Attributes
    ----------
    name : str
        The ``extern "C"`` name.
    function : cuda.bindings.driver.CUfunction
        What is launched.
    """

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
        self.name, self.function = name, answer[1]

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


class Gpu:
    """One device, opened: its limits, its context, and what has been prepared and loaded for it.

    Kernels are loaded and launched by the driver's own functions, because importing cuda.core takes longer than
    everything else in the first call of a process.

    Attributes
    ----------
    ordinal : int
        CUDA's number of the device.
    name : str
        As the driver gives it, for example ``NVIDIA H200``.
    arch : str
        For example ``sm_90``.
    shared_limit : int
        Shared memory that a block may opt in to, in bytes.
    multiprocessors : int
    prepared : dict
        The problems seen so far; see `fastsgemm.call.product`.
    recognised : dict
        How PyTorch's tensors are known to be operands of one of them; see `fastsgemm.call.arrays.torch`.
    kernels : dict
        The kernels loaded so far; see `fastsgemm.jit.kernel`.
    streams : set of int
        Raw handles of the streams that are known to be of this device; see `adopt`.
    launch, allocate, free : callable
        The driver's ``cuLaunchKernelEx``, ``cuMemAllocAsync`` and ``cuMemFreeAsync``, held here because an import in
        each call costs time.
    """

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        self.ordinal = ordinal
        previous = driver.cuCtxGetCurrent()[1]
        answer = driver.cuDevicePrimaryCtxRetain(_device_at(ordinal))
        succeed(f"opening cuda:{ordinal}", answer)
        self._context = answer[1]
        if int(previous) == 0:  # else the caller's device stays the current one
            succeed(f"opening cuda:{ordinal}", driver.cuCtxSetCurrent(self._context))
        self.name, self.arch = described(ordinal)
        limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        self.shared_limit = _attribute(limit, ordinal)
        self.multiprocessors = _attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal)
        self.prepared: dict[Any, Any] = {}
        self.recognised: dict[Any, list[Any]] = {}
        self.kernels: dict[Any, Kernel] = {}
        self.streams = {0, LEGACY_STREAM, PER_THREAD_STREAM}
        self._core_streams: dict[int, Stream] = {}
        self._kept: deque[tuple[Any, Any]] = deque()
        self._spare_events: list[Any] = []
        self._keeping = threading.Lock()
        self.launch = driver.cuLaunchKernelEx
        self.allocate = driver.cuMemAllocAsync
        self.free = driver.cuMemFreeAsync
        self._get_current = driver.cuCtxGetCurrent
        self._push = driver.cuCtxPushCurrent
        self._pop = driver.cuCtxPopCurrent
        self._keep_freed_memory()

    @cached_property
    def device(self) -> Any:
        """The ``cuda.core.Device``, for what is not on the way of a known call: events, buffers, properties."""
        from cuda.bindings import driver
        from cuda.core import Device

        found = Device(self.ordinal)
        previous = driver.cuCtxGetCurrent()[1]
        found.set_current()  # without this it refuses everything else
        driver.cuCtxSetCurrent(previous)
        return found

    def _keep_freed_memory(self) -> None:
        """Set the driver's pool to keep freed memory; else each call with a workspace would map new pages.

        A call with a workspace fails on a device without a pool; until then nothing does.
        """
        from cuda.bindings import driver

        error, pool = driver.cuDeviceGetMemPool(_device_at(self.ordinal))
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

    def stream(self, handle: int) -> Stream:
        """Return cuda.core's object for a raw stream handle of this device; see `adopt`."""
        found = self._core_streams.get(handle)
        if found is None:
            from cuda.core import LEGACY_DEFAULT_STREAM, Stream

            if handle not in self.streams:
                self.adopt(handle)
            legacy = handle in (0, LEGACY_STREAM)
            found = self._core_streams[handle] = LEGACY_DEFAULT_STREAM if legacy else Stream.from_handle(handle)
        return found

    def launch_config(self, grid: tuple[int, ...], threads: int, shared_bytes: int, early: bool) -> Any:
        """Return the driver's description of a launch, but for the stream, which is its `hStream`.

        Parameters
        ----------
        grid : tuple of int
            Blocks, in one to three dimensions.
        threads : int
            Of a block.
        shared_bytes : int
            Dynamic shared memory of a block.
        early : bool
            Whether the kernel may begin before the one launched before it has ended (programmatic dependent launch,
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

        Parameters
        ----------
        cubin : bytes
            Machine code for this architecture.
        name : str
            The ``extern "C"`` name.
        shared_bytes : int
            Dynamic shared memory of a block. With the static one, more than 48 KiB must be requested from the driver.

        Raises
        ------
        DeviceError
            The device refuses the machine code or that much shared memory.
        """
        with relaxed_capture():  # another thread may be capturing: loading would end its capture
            return Kernel(self, cubin, name, shared_bytes)


def _new_event() -> Any:
    from cuda.bindings import driver

    answer = driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    succeed("making an event", answer)
    return answer[1]


def open_gpu(ordinal: int) -> Gpu:
    """Return the device with this number, opened once per process.

    Raises
    ------
    NoDriverError, DriverTooOldError
        See `probe`.
    DeviceError
        There is no such device, or ``FASTSGEMM_DEVICE=sim`` asks to use none.
    """
    with _lock:
        gpu = gpus.get(ordinal)
        if gpu is None:
            if wanted() == "sim":
                raise DeviceError(f"FASTSGEMM_DEVICE=sim accepts host arrays only, and this needs cuda:{ordinal}")
            count = probe()
            if not 0 <= ordinal < count:
                raise DeviceError(f"there is no cuda:{ordinal}, this machine has {count} device(s)")
            gpu = gpus[ordinal] = Gpu(ordinal)
    return gpu


def is_present(place: str) -> bool:
    """Whether `place` is spelled as a device of this machine: ``cuda``, ``cuda:1`` or ``1``."""
    return _PRESENT.fullmatch(place) is not None


def ordinal(place: int | str) -> int:
    """Return CUDA's number of the device in this machine that `place` names.

    Parameters
    ----------
    place : int or str
        The number, ``cuda`` (the first device), ``cuda:1``, or a name or architecture such as ``NVIDIA H200`` or
        ``sm_90``, which means the first such device.

    Raises
    ------
    ArgumentError
        It is neither a number nor a name.
    DeviceError
        This machine has no such device; see also `probe`.
    """
    place = arguments.place(place)
    if isinstance(place, int):
        return place
    found = _PRESENT.fullmatch(place.lower())
    if found is not None:
        return int(found[1] or 0)
    there = [described(number) for number in range(probe())]
    for number, known in enumerate(there):
        if place in known:
            return number
    names = ", ".join(f"{name} ({arch})" for name, arch in there)
    raise DeviceError(f"this machine has no device {place!r}; it has {names}")


def described(ordinal: int) -> tuple[str, str]:
    """Return name and architecture of a device without opening it."""
    from cuda.bindings import driver

    which = driver.CUdevice_attribute
    major = _attribute(which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal)
    minor = _attribute(which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal)
    return driver.cuDeviceGetName(256, _device_at(ordinal))[1].split(b"\0")[0].decode(), f"sm_{major}{minor}"


def _device_at(ordinal: int) -> Any:
    from cuda.bindings import driver

    answer = driver.cuDeviceGet(ordinal)
    succeed(f"asking for cuda:{ordinal}", answer)
    return answer[1]


def _attribute(which: Any, ordinal: int) -> int:
    from cuda.bindings import driver

    answer = driver.cuDeviceGetAttribute(which, _device_at(ordinal))
    succeed(f"asking cuda:{ordinal} for {which.name}", answer)
    return int(answer[1])


@cache
def probe() -> int:
    """Return the number of usable devices, asking the driver directly.

    This must succeed before cuda.core is used: without a driver some of its calls hang.

    Raises
    ------
    NoDriverError
        No driver, or no device.
    DriverTooOldError
        The driver is older than the CUDA line of the installed NVRTC.
    """
    from cuda.bindings import driver

    try:
        result = driver.cuInit(0)[0]
    except Exception as error:  # the type depends on how the platform's loader fails
        raise NoDriverError(
            "no NVIDIA driver was found; device arrays and rungs need one. Without it, NumPy multiplies host arrays "
            "(FASTSGEMM_DEVICE=host), or NVRTC and a simulated device do (FASTSGEMM_DEVICE=sim)"
        ) from error
    if int(result) != 0:
        raise NoDriverError(f"the NVIDIA driver has no usable device: cuInit returned {result.name}")
    require_driver(int(driver.cuDriverGetVersion()[1]), nvrtc_version())
    count = int(driver.cuDeviceGetCount()[1])
    if count == 0:
        raise NoDriverError("the NVIDIA driver reports no device (is CUDA_VISIBLE_DEVICES empty?)")
    return count


def is_capturing(handle: int) -> bool:
    """Whether work on the stream with this raw handle is being recorded into a CUDA graph."""
    from cuda.bindings import driver

    result, status = driver.cuStreamIsCapturing(handle or LEGACY_STREAM)
    return int(result) != 0 or int(status) != 0


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread call, during a capture, what a capture in CUDA's default mode would fail on.

    What is done inside happens once, now. It does not become part of the graph.
    """
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    answer = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    succeed("relaxing the capture mode of this thread", answer)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(answer[1])


def succeed(what: str, answer: tuple[Any, ...]) -> None:
    """Raise `DeviceError` unless a call of the driver API succeeded."""
    if int(answer[0]) != 0:
        raise DeviceError(f"{what} failed: {answer[0].name}")


def require_driver(driver_version: int, nvrtc: tuple[int, int]) -> None:
    """Raise `DriverTooOldError` if a driver (13000 is CUDA 13.0) cannot load what this NVRTC compiles."""
    major, minor = driver_version // 1000, driver_version % 1000 // 10
    if major < nvrtc[0]:
        message = (
            f"the driver is for CUDA {major}.{minor}, the installed NVRTC is {nvrtc[0]}.{nvrtc[1]} and needs a "
            f"driver for CUDA {nvrtc[0]}.0 or later; update the driver"
        )
        if major in _WHEELS:
            remove = f"pip uninstall {_WHEELS[nvrtc[0]][0]}, then " if nvrtc[0] in nvrtc_wheels() else ""
            message += f", or replace NVRTC: {remove}pip install 'fastsgemm[cu{major}]'"
        raise DriverTooOldError(message)


@cache
def host_backend() -> str:
    """Return what multiplies host arrays: ``cuda``, ``host`` or ``sim``. Decided once per process.

    ``FASTSGEMM_DEVICE`` selects one. By default it is ``cuda``, or ``host`` on a machine without a device.

    Raises
    ------
    DeviceError
        ``FASTSGEMM_DEVICE`` has an unknown value, or is ``cuda`` on a machine without a device.
    DriverTooOldError, NoNvrtcError
        There is a device, but it cannot be used; see `probe`.
    """
    asked = wanted()
    if asked in ("host", "sim"):
        return asked
    try:
        probe()
    except NoDriverError:
        if asked == "cuda":
            raise
        return "host"
    return "cuda"


def wanted() -> str:
    """Return ``FASTSGEMM_DEVICE``, empty where it is not set; another value than those of `BACKENDS` is an error."""
    wanted = os.environ.get("FASTSGEMM_DEVICE", "").strip().lower()
    if wanted not in ("", *BACKENDS):
        raise DeviceError(f"FASTSGEMM_DEVICE must be one of {', '.join(BACKENDS)}, got {wanted!r}")
    return wanted


def driver_text() -> str | None:
    """Return the driver's CUDA version, on Linux with its release, or None without a driver."""
    version = _driver_version()
    if version == 0:
        return None
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    try:
        release = re.search(r"\d+(\.\d+)+", _RELEASE.read_text(encoding="utf-8"))
    except OSError:
        release = None
    return f"{release[0]} ({cuda})" if release else cuda


def _driver_version() -> int:
    """Return the CUDA version of the driver (13000 is 13.0), or 0 without a driver."""
    from cuda.bindings import driver

    try:
        result, version = driver.cuDriverGetVersion()
    except Exception:  # the type depends on how the platform's loader fails
        return 0
    return int(version) if int(result) == 0 else 0


class DeviceInfo(Struct, frozen=True):
    """The properties of a device that configs depend on.

    Attributes
    ----------
    name, arch : str
    shared_limit : int
        Shared memory that a block may opt in to, in bytes.
    multiprocessors : int
    """

    name: str
    arch: str
    shared_limit: int
    multiprocessors: int


class DeviceTraits(Protocol):
    """What has the properties of a `DeviceInfo`: that itself, an opened `Gpu`, a simulated device."""

    @property
    def name(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def shared_limit(self) -> int: ...
    @property
    def multiprocessors(self) -> int: ...


def info_of(device: DeviceTraits) -> DeviceInfo:
    """Return the properties of a device that configs depend on, which compare equal and can be a key."""
    return DeviceInfo(device.name, device.arch, device.shared_limit, device.multiprocessors)


# NVRTC is loaded by the first call, which in cuda-bindings 12.9.1 fails if several threads make it at once.
_loading_nvrtc = threading.Lock()

# NVRTC by major version: the package of pip, and where in the folder `nvidia` it puts the library.
_WHEELS = {
    12: ("nvidia-cuda-nvrtc-cu12", "cuda_nvrtc/lib/libnvrtc.so.12"),
    13: ("nvidia-cuda-nvrtc", "cu13/lib/libnvrtc.so.13"),
}


def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's version, after loading the NVRTC that fits the driver.

    Raises
    ------
    NoNvrtcError
        The library is not installed; the message names the extra that installs it.
    """
    from cuda.bindings import nvrtc

    try:
        with _loading_nvrtc:
            _load_fitting_nvrtc()
            result, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the type depends on how the platform's loader fails
        raise NoNvrtcError(
            "NVRTC, which compiles the kernels, was not found; install it with "
            "pip install 'fastsgemm[cu13]' (or 'fastsgemm[cu12]' for a driver of the 12 line)"
        ) from error
    if int(result) != 0:
        raise NoNvrtcError(f"NVRTC is installed but returned {result.name}")
    return int(major), int(minor)


@cache
def _load_fitting_nvrtc() -> None:
    """Load the NVRTC that cuda.bindings shall use, if it would use another one.

    It takes the newest that pip has installed, whatever driver and bindings are, unless one is loaded already. The
    newest is left to it, because NVRTC 13.0 needs help that it gives.
    """
    there = nvrtc_wheels()
    if len(there) > 1:
        import cuda.bindings

        fitting = fitting_nvrtc(set(there), _driver_version() // 1000, int(cuda.bindings.__version__.split(".")[0]))
        if fitting != max(there):
            ctypes.CDLL(str(there[fitting]))  # locally: PyTorch's NVRTC may be the other one


def nvrtc_wheels() -> dict[int, Path]:
    """Return the libraries of NVRTC that pip has installed, by major version."""
    nvidia = find_spec("nvidia")
    folders = [] if nvidia is None else [Path(folder) for folder in nvidia.submodule_search_locations or ()]
    paths = [(major, folder / place) for major, (_, place) in _WHEELS.items() for folder in reversed(folders)]
    return {major: path for major, path in paths if path.exists()}


def fitting_nvrtc(there: set[int], driver: int, bindings: int) -> int:
    """Return which NVRTC fits best, by major versions.

    Parameters
    ----------
    there : set of int
        The installed ones, at least one.
    driver : int
        0 without a driver. It must not be older than NVRTC.
    bindings : int
        Those of cuda.bindings, which can use every NVRTC.
    """
    usable = {major for major in there if major <= driver} if driver else there
    return bindings if bindings in usable else max(usable or there)
