"""The array libraries: what a call asks of each, in one small class a library.

A *view* of a device array is the pair (address, meta); meta = (shape, strides, device, fault, readonly) is
hashable and decides everything but the address: strides are in elements, and `fault` is None or the reason why
the array cannot be used. Nothing here imports a library that the caller has not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm import device
from fastsgemm.call import workspace
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import CaptureError, DeviceMismatchError, DTypeError, FastsgemmError, OperandError
from fastsgemm.geometry.layout import ITEM

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

HOST = -1  # the device number of host memory
_FLOAT32 = np.dtype(np.float32)
_DLPACK_HOST = (1, 3)  # kDLCPU, kDLCUDAHost
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged

Meta = tuple[Any, Any, int, Callable[[str], FastsgemmError] | None, bool]
View = tuple[int, Meta]


class Library:
    """What `sgemm` needs of an array library. This one is for any object with DLPack."""

    immutable = False  # whether its arrays may never be written
    has_streams = False  # whether work queued on `current_stream` comes after the library's own

    def device_of(self, x: Any) -> int:
        """Return the number of the CUDA device that holds `x`, or `HOST`."""
        kind, number = x.__dlpack_device__()
        if int(kind) in _DLPACK_HOST:
            return HOST
        if int(kind) in _DLPACK_CUDA:
            return int(number)
        raise DeviceMismatchError(f"{_type(x)} is on a device that is neither host nor CUDA (DLPack {kind})")

    def current_stream(self, device: int) -> int:
        """Return the raw handle of the stream that the caller's work goes to."""
        return LEGACY_STREAM

    def view(self, x: Any, handle: int, ordered: bool) -> View:
        """Return address and meta of a device array for work on stream `handle`.

        Unless `ordered`, the stream is first made to wait for the work that the library has queued on `x`.
        """
        from cuda.core.utils import StridedMemoryView

        stream = -1 if ordered else handle or LEGACY_STREAM
        try:
            view = StridedMemoryView.from_any_interface(self._exporter(x), stream_ptr=stream)
        except (AssertionError, BufferError, TypeError, ValueError, RuntimeError) as error:
            if self.device_of(x) == HOST:  # which takes no stream
                place = f"a {_type(x)} on the host among arrays on a device"
                raise DeviceMismatchError(f"all operands must be on one device, got {place}") from error
            raise OperandError(f"{_type(x)} could not be exported: {error}") from error
        shape = view.shape
        strides = view.strides or _row_major(shape)
        fault = None if view.dtype == np.float32 else _wrong_dtype(view.dtype)
        return view.ptr, (shape, strides, view.device_id, fault, view.readonly)

    def _exporter(self, x: Any) -> Any:
        """Return the object through which cuda.core reads `x`."""
        return x

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        """Return a new array of `like`'s kind on its device."""
        namespace = getattr(like, "__array_namespace__", None)
        if namespace is None:
            raise OperandError(f"cannot make a new {_type(like)}; pass C")
        return namespace().empty(shape, dtype=namespace().float32, device=like.device)

    def finish(self, made: Any) -> Any:
        """Turn what `empty` returned, now written, into what the caller gets."""
        return made

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        """Return host array `x` as a NumPy view of the same memory."""
        try:
            return np.from_dlpack(x)
        except (BufferError, TypeError, RuntimeError) as error:
            raise OperandError(f"{name} ({_type(x)}) could not be read: {error}") from error

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        """Return a new host array as one of `like`'s kind."""
        namespace = getattr(like, "__array_namespace__", None)
        if namespace is None:
            raise OperandError(f"cannot make a new {_type(like)}; pass C")
        return namespace().from_dlpack(result)


class _Pointers(Library):
    """Any object with the CUDA array interface and no DLPack."""

    def device_of(self, x: Any) -> int:
        from cuda.bindings import driver

        device.probe()
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        result, ordinal = driver.cuPointerGetAttribute(attribute, x.__cuda_array_interface__["data"][0])
        if int(result) != 0:
            raise OperandError(f"{_type(x)} does not point to CUDA memory: {result.name}")
        return int(ordinal)

    def _exporter(self, x: Any) -> Any:
        return _Version3(x) if x.__cuda_array_interface__["version"] < 3 else x


class _Version3:
    """An older CUDA array interface as cuda.core reads it; what version 3 adds, a stream, may be left out."""

    def __init__(self, x: Any) -> None:
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, "version": 3}


class _NumPy(Library):
    def device_of(self, x: Any) -> int:
        return HOST

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        return np.asarray(x)

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return result


class _Torch(Library):
    """PyTorch, read attribute by attribute: quicker than any protocol, and the protocols miss the negative bit."""

    has_streams = True

    def __init__(self) -> None:
        self._torch = torch = sys.modules["torch"]
        self._float32 = torch.float32
        self._current = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # absent in CPU builds

    def device_of(self, x: Any) -> int:
        if x.is_cuda:
            return int(x.get_device())
        if x.device.type != "cpu":
            raise DeviceMismatchError(f"a torch tensor on {x.device} is neither on the host nor on a CUDA device")
        return HOST

    def current_stream(self, device: int) -> int:
        return self._current(device)  # type: ignore[no-any-return, misc]

    def view(self, x: Any, handle: int, ordered: bool) -> View:
        if x.dtype is not self._float32 or x.requires_grad or x.is_neg():
            return 0, (x.shape, (), x.get_device(), self._fault(x), False)
        if not ordered:
            self._order(x, handle)
        return x.data_ptr(), (x.shape, x.stride(), x.get_device(), None, False)

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        return self._torch.empty(shape, dtype=self._float32, device=like.device)

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        fault = self._fault(x)
        if fault is not None:
            raise fault(name)
        return x.numpy()  # type: ignore[no-any-return]

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return self._torch.from_numpy(result)

    def _fault(self, x: Any) -> Callable[[str], FastsgemmError] | None:
        if x.dtype is not self._float32:
            return _wrong_dtype(x.dtype)
        if x.layout is not self._torch.strided:
            return _Fault(OperandError, f"is stored as {x.layout}; only strided tensors can be used")
        if x.requires_grad:
            return _Fault(OperandError, "requires grad, and sgemm computes no gradient; pass .detach()")
        if x.is_neg():
            return _Fault(OperandError, "has the negative bit set (a lazy -x); pass .resolve_neg()")
        return None

    def _order(self, x: Any, handle: int) -> None:
        current = self._torch.cuda.current_stream(x.device)
        if current.cuda_stream != (0 if handle == LEGACY_STREAM else handle):
            self._torch.cuda.ExternalStream(handle, device=x.device).wait_stream(current)


class _CuPy(Library):
    has_streams = True

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]

    def device_of(self, x: Any) -> int:
        return int(x.device.id)

    def current_stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def view(self, x: Any, handle: int, ordered: bool) -> View:
        """Read attribute by attribute: the DLPack of CuPy 14 divides a negative stride as an unsigned number."""
        if not ordered:
            super().view(x, handle, ordered)
        fault = None if x.dtype == _FLOAT32 else _wrong_dtype(x.dtype)
        strides = tuple([step // ITEM for step in x.strides])
        return x.data.ptr, (x.shape, strides, x.device.id, fault, False)

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        with like.device:
            return self._cupy.empty(shape, dtype=np.float32)


class _Jax(Library):
    """JAX: its arrays are values, so a result is always a new array, handed over by DLPack."""

    immutable = True

    def __init__(self) -> None:
        self._jax = sys.modules["jax"]

    def device_of(self, x: Any) -> int:
        if isinstance(x, self._jax.core.Tracer):
            raise OperandError("a JAX tracer has no memory; call sgemm outside jit, grad and vmap")
        if len(x.devices()) != 1:
            raise DeviceMismatchError(f"a JAX array must be on one device, got {len(x.devices())}")
        return super().device_of(x)

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        return DeviceArray(shape, gpu, handle)

    def finish(self, made: Any) -> Any:
        return self._jax.dlpack.from_dlpack(made)

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        return np.asarray(x)

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return self._jax.device_put(result, next(iter(like.devices())))


class DeviceArray:
    """A row-major float32 matrix in memory of the device's pool, exported by DLPack. It may outlive the call.

    Parameters
    ----------
    shape : (int, int)
    gpu : Gpu
    handle : int
        The raw stream in whose order it is allocated, written and freed.

    Raises
    ------
    DeviceMemoryError
        The device has no room for it.
    CaptureError
        The stream is being captured: a graph's memory does not outlive its replay.
    """

    def __init__(self, shape: tuple[int, int], gpu: Gpu, handle: int) -> None:
        from cuda.core.utils import StridedMemoryView

        self.shape = shape
        self.stream = gpu.stream(handle)
        self.buffer = self._allocate(gpu, max(ITEM, ITEM * shape[0] * shape[1]))
        self._ordinal = gpu.ordinal
        self._view = StridedMemoryView.from_buffer(self.buffer, shape, _row_major(shape), dtype=np.dtype(np.float32))

    def _allocate(self, gpu: Gpu, size: int) -> Any:
        what = f"a new matrix of {self.shape[0]} x {self.shape[1]}"
        try:
            return gpu.device.allocate(size, stream=self.stream)
        except Exception as error:  # cuda.core's errors share no public base
            if device.is_capturing(self.stream):
                where = "inside a CUDA graph capture, whose memory does not outlive a replay"
                raise CaptureError(f"{what} cannot be made {where}; pass a C that is no JAX array") from error
            if "CUDA_ERROR_OUT_OF_MEMORY" in str(error):
                raise workspace.no_room(gpu, size, what) from error
            raise

    @property
    def pointer(self) -> int:
        """The address of element (0, 0)."""
        return int(self.buffer.handle)

    @property
    def view(self) -> View:
        """Address and meta, as `Library.view` gives them."""
        return self.pointer, (self.shape, _row_major(self.shape), self._ordinal, None, False)

    def upload(self, source: np.ndarray) -> None:
        """Fill it from a contiguous host array of as many elements."""
        from cuda.bindings import driver

        answer = driver.cuMemcpyHtoD(self.pointer, source.ctypes.data, source.nbytes)
        device.succeed("copying an operand to the device", answer)

    def download(self, target: np.ndarray) -> None:
        """Copy it into a contiguous host array of as many elements."""
        from cuda.bindings import driver

        answer = driver.cuMemcpyDtoH(target.ctypes.data, self.pointer, target.nbytes)
        device.succeed("copying C from the device", answer)

    def close(self) -> None:
        """Free the memory, in stream order."""
        self.buffer.close(self.stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._ordinal)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if stream is not None and stream != -1:
            from cuda.core import LEGACY_DEFAULT_STREAM, Stream

            consumer = LEGACY_DEFAULT_STREAM if stream == LEGACY_STREAM else Stream.from_handle(stream)
            consumer.wait(self.stream)
        return self._view.__dlpack__(stream=-1, **options)


_LIBRARIES: dict[str, type[Library]] = {"numpy": _NumPy, "torch": _Torch, "cupy": _CuPy, "jax": _Jax, "jaxlib": _Jax}
_instances: dict[type[Library], Library] = {}
_by_type: dict[type, Library] = {}


def library(x: Any) -> Library:
    """Return the library that `x` belongs to.

    Raises
    ------
    DTypeError
        It is not an array.
    """
    found = _by_type.get(type(x))
    return _recognise(x) if found is None else found


def _recognise(x: Any) -> Library:
    roots = [cls.__module__.partition(".")[0] for cls in type(x).__mro__]
    kind = next((_LIBRARIES[root] for root in roots if root in _LIBRARIES), Library)
    if kind is _NumPy and not isinstance(x, np.ndarray):
        kind = Library  # a NumPy scalar
    if kind is Library and not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        kind = _Pointers
    if kind is _Pointers and not hasattr(x, "__cuda_array_interface__"):
        raise DTypeError(
            f"operands must be arrays (NumPy, CuPy, PyTorch, JAX, or any with __dlpack__ or "
            f"__cuda_array_interface__), got {_type(x)}"
        )
    if kind not in _instances:
        _instances[kind] = kind()
    _by_type[type(x)] = _instances[kind]
    return _instances[kind]


class _Fault:
    """Why an array cannot be used: makes the error once the operand's name is known."""

    def __init__(self, error: type[FastsgemmError], reason: str) -> None:
        self._error, self._reason = error, reason

    def __call__(self, name: str) -> FastsgemmError:
        return self._error(f"{name} {self._reason}")


def _wrong_dtype(dtype: Any) -> _Fault:
    hint = "; float64 is not converted silently, cast it yourself" if "float64" in str(dtype) else ""
    return _Fault(DTypeError, f"must be float32, got {dtype}{hint}")


def host_fault(x: np.ndarray) -> _Fault | None:
    """Return why a host array cannot be used, or None."""
    return None if x.dtype == np.float32 and x.dtype.isnative else _wrong_dtype(x.dtype)


def _row_major(shape: Any) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _type(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"
