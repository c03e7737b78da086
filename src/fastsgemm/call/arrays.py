"""Adapters to the array libraries: one small class for each library, with what a call needs from it.

A *view* of a device array is the pair (address, meta) with meta = (shape, strides, device, fault, readonly). Strides
are in elements; `fault` is None or the reason why the array cannot be used. The meta is hashable, and together with the
alignment of the address it determines how a product is launched. Nothing here imports a library that the caller has not
imported.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

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
    """What `sgemm` needs from an array library. This base class handles any object with DLPack.

    An object of the caller may return or raise anything when a protocol is used. So each protocol is used in one place
    of this module, which turns a wrong answer into an `OperandError` that names the object's type and the answer.
    """

    immutable = False  # whether its arrays must never be written
    has_streams = False  # whether work on `current_stream` runs after the work that the library has queued

    def refusal(self, cls: type) -> str | None:
        """Return why no array of this class can be used, or None."""
        return None

    def device_of(self, x: Any) -> int:
        """Return the number of the CUDA device that holds `x`, or `HOST`."""
        kind, number = _dlpack_device(x)
        if kind in _DLPACK_HOST:
            return HOST
        if kind in _DLPACK_CUDA and number >= 0:  # a negative number could be mistaken for HOST
            return number
        if kind in _DLPACK_CUDA:
            raise DeviceMismatchError(f"{_type(x)} reports CUDA device {number}; device numbers begin at 0")
        raise DeviceMismatchError(f"{_type(x)} is on a device that is neither host nor CUDA (DLPack {kind})")

    def current_stream(self, device: int) -> int:
        """Return the raw handle of the caller's current stream."""
        return LEGACY_STREAM

    def view(self, x: Any, handle: int, ordered: bool) -> View:
        """Return address and meta of a device array for work on stream `handle`.

        If `ordered` is false, the stream is first made to wait for the work that the library has queued on `x`.
        """
        from cuda.core.utils import StridedMemoryView

        stream = -1 if ordered else handle or LEGACY_STREAM
        try:
            view = StridedMemoryView.from_any_interface(self._exporter(x), stream_ptr=stream)
        except FastsgemmError:
            raise
        except Exception as error:
            if self.device_of(x) == HOST:  # exports of host memory reject a stream
                place = f"a {_type(x)} on the host among arrays on a device"
                raise DeviceMismatchError(f"all operands must be on one device, got {place}") from error
            raise OperandError(f"{_type(x)} could not be exported: {_said(error)}") from error
        shape = view.shape
        strides = view.strides or _row_major(shape)
        fault = None if view.dtype == np.float32 else _wrong_dtype(view.dtype)
        return view.ptr, (shape, strides, view.device_id, fault, view.readonly)

    def _exporter(self, x: Any) -> Any:
        """Return the object through which cuda.core reads `x`."""
        return x

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        """Return a new array of the same library and on the same device as `like`."""
        namespace = _namespace(like)
        return namespace.empty(shape, dtype=namespace.float32, device=like.device)

    def finish(self, made: Any) -> Any:
        """Return the caller's array for one that `empty` made, once it has been written."""
        return made

    def written(self, x: Any) -> None:
        """Tell the library that the caller's array `x` has been written, or will be by work already in its stream."""

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        """Return host array `x` as a NumPy view of the same memory."""
        try:
            return np.from_dlpack(x)
        except Exception as error:
            raise OperandError(f"{name} ({_type(x)}) could not be read: {_said(error)}") from error

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        """Return a new host array as an array of the same library as `like`."""
        return _namespace(like).from_dlpack(result)


class _Pointers(Library):
    """Any object with the CUDA array interface but without DLPack."""

    def device_of(self, x: Any) -> int:
        from cuda.bindings import driver

        address = _interface(x)["data"][0]
        device.probe()
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        result, ordinal = driver.cuPointerGetAttribute(attribute, address)
        if int(result) != 0:
            raise OperandError(f"{_type(x)} does not point to CUDA memory: {result.name}")
        return int(ordinal)

    def _exporter(self, x: Any) -> Any:
        interface = _interface(x)
        return _Version3(interface) if interface["version"] < 3 else x


class _Version3:
    """An older CUDA array interface as version 3, which cuda.core reads. Version 3 adds a stream, which is optional."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = {**interface, "version": 3}


class _NumPy(Library):
    def refusal(self, cls: type) -> str | None:
        """Refuse subclasses whose elements are not plain numbers: masked arrays, and arrays with a unit.

        NumPy has two protocols with which a class redefines operations (NEP 13 and NEP 18). Unit libraries such as
        astropy and unyt use them. A class that uses neither, such as `numpy.matrix` or `numpy.memmap`, holds plain
        numbers.
        """
        if issubclass(cls, np.ma.MaskedArray):
            return "has a mask, which would be ignored; pass .filled(value), or .data to use the values under the mask"
        for method in ("__array_ufunc__", "__array_function__"):
            if getattr(cls, method) is not getattr(np.ndarray, method):
                return f"redefines operations ({method}), for example for units; pass .view(numpy.ndarray)"
        return None

    def device_of(self, x: Any) -> int:
        return HOST

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        return np.asarray(x)

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return result


class _Torch(Library):
    """PyTorch, read attribute by attribute: this is faster than a protocol, and the protocols omit the negative bit."""

    has_streams = True

    def __init__(self) -> None:
        self._torch = torch = sys.modules["torch"]
        self._float32 = torch.float32
        self._current = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # absent in CPU builds
        self._forward_ad = torch.autograd.forward_ad
        self._increment_version = _version_counter(torch)

    def refusal(self, cls: type) -> str | None:
        """Refuse subclasses that redefine operations: fake, nested, masked and distributed tensors."""
        plain = {"__torch_dispatch__": [], "__torch_function__": [self._torch._C._disabled_torch_function_impl]}
        for method, harmless in plain.items():
            if _function(cls, method) not in (_function(self._torch.Tensor, method), *harmless):
                return f"redefines operations ({method}); pass the torch.Tensor that it wraps"
        return None

    def device_of(self, x: Any) -> int:
        if x.is_cuda:
            return int(x.get_device())
        if x.device.type != "cpu":
            raise DeviceMismatchError(f"a torch tensor on {x.device} is neither on the host nor on a CUDA device")
        return HOST

    def current_stream(self, device: int) -> int:
        return self._current(device)  # type: ignore[no-any-return, misc]

    def view(self, x: Any, handle: int, ordered: bool) -> View:
        if x.dtype is not self._float32 or x.requires_grad or x.is_neg() or self._forward_ad._current_level >= 0:
            fault = self._fault(x)
            if fault is not None:
                return self._unusable(x, fault)
        try:
            address, meta = x.data_ptr(), (x.shape, x.stride(), x.get_device(), None, False)
        except RuntimeError:
            return self._unusable(x, self._fault(x) or _NO_MEMORY)
        if not address and x.numel():
            return self._unusable(x, _NO_MEMORY)
        if not ordered:
            self._order(x, handle)
        return address, meta

    def _unusable(self, x: Any, fault: _Fault) -> View:
        shape = () if x.is_nested else x.shape  # a nested tensor has no shape
        return 0, (shape, (), x.get_device(), fault, False)

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        return self._torch.empty(shape, dtype=self._float32, device=like.device)

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        fault = self._fault(x)
        if fault is not None:
            raise fault(name)
        try:
            address = x.data_ptr()
            values = x.numpy()
        except RuntimeError as error:
            raise _NO_MEMORY(name) from error
        if not address and values.size:  # the storage was freed; NumPy would read whatever is at address 0
            raise _NO_MEMORY(name)
        return values  # type: ignore[no-any-return]

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return self._torch.from_numpy(result)

    def _fault(self, x: Any) -> _Fault | None:
        if x.dtype is not self._float32:
            return _wrong_dtype(x.dtype)
        if x.is_nested:
            return _Fault(OperandError, "is a nested tensor; pass its tensors one by one")
        if x.layout is not self._torch.strided:
            return _Fault(OperandError, f"is stored as {x.layout}; only strided tensors can be used")
        if x.requires_grad:
            return _Fault(OperandError, "requires grad, and sgemm computes no gradient; pass .detach()")
        if x.is_neg():
            return _Fault(OperandError, "has the negative bit set (a lazy -x); pass .resolve_neg()")
        if self._forward_ad._current_level >= 0 and self._forward_ad.unpack_dual(x).tangent is not None:
            return _Fault(OperandError, "has a tangent (forward-mode AD), and sgemm computes none; pass its primal")
        return None

    def written(self, x: Any) -> None:
        """Increment the version counter, so that autograd refuses to use the overwritten value."""
        try:
            self._increment_version((x,))
        except RuntimeError:  # PyTorch before 2.5: inference tensors have no counter, and autograd does not save them
            if not x.is_inference():
                raise

    def _order(self, x: Any, handle: int) -> None:
        current = self._torch.cuda.current_stream(x.device)
        if current.cuda_stream != (0 if handle == LEGACY_STREAM else handle):
            self._torch.cuda.ExternalStream(handle, device=x.device).wait_stream(current)


def _version_counter(torch: Any) -> Callable[[tuple[Any]], None]:
    """Return a function that increments the version counter of the tensor in a tuple.

    It is the C function that `torch.autograd.graph.increment_version` calls since PyTorch 2.5, which takes half the
    time, or that function in older versions.
    """
    try:
        torch._C._increment_version((torch.empty(0),))
    except (AttributeError, TypeError):
        return lambda tensors: torch.autograd.graph.increment_version(*tensors)
    return torch._C._increment_version  # type: ignore[no-any-return]


class _CuPy(Library):
    has_streams = True

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]

    def device_of(self, x: Any) -> int:
        return int(x.device.id)

    def current_stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def view(self, x: Any, handle: int, ordered: bool) -> View:
        """Read attribute by attribute, because DLPack in CuPy 14 divides a negative stride as an unsigned number."""
        if not ordered:
            super().view(x, handle, ordered)
        fault = None if x.dtype == _FLOAT32 else _wrong_dtype(x.dtype)
        strides = tuple([step // ITEM for step in x.strides])
        return x.data.ptr, (x.shape, strides, x.device.id, fault, False)

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        with like.device:
            return self._cupy.empty(shape, dtype=np.float32)


class _Jax(Library):
    """JAX: its arrays are immutable, so a result is always a new array, handed over by DLPack."""

    immutable = True

    def __init__(self) -> None:
        self._jax = sys.modules["jax"]

    def device_of(self, x: Any) -> int:
        if isinstance(x, self._jax.core.Tracer):
            raise OperandError("a JAX tracer has no memory; call sgemm outside jit, grad and vmap")
        if x.is_deleted():
            raise OperandError("a JAX array was deleted (or donated to a jit function) and has no memory")
        if self._jax.dtypes.issubdtype(x.dtype, self._jax.dtypes.extended):
            raise DTypeError(f"a JAX array must be float32, got {x.dtype}")
        if len(x.devices()) != 1:
            raise DeviceMismatchError(f"a JAX array must be on one device, got {len(x.devices())}")
        return super().device_of(x)

    def empty(self, like: Any, shape: tuple[int, int], gpu: Gpu, handle: int) -> Any:
        return DeviceArray(shape, gpu, handle)

    def finish(self, made: Any) -> Any:
        return self._jax.dlpack.from_dlpack(made)

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        try:
            return np.asarray(x)
        except Exception as error:
            raise OperandError(f"{name} ({_type(x)}) could not be read: {_said(error)}") from error

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return self._jax.device_put(result, next(iter(like.devices())))


class DeviceArray:
    """A row-major float32 matrix in the device's memory pool, exported by DLPack. It may outlive the call.

    Parameters
    ----------
    shape : (int, int)
    gpu : Gpu
    handle : int
        The raw stream on which it is allocated, written and freed.

    Raises
    ------
    DeviceMemoryError
        The device has no room for it.
    CaptureError
        The stream is being captured, and memory of a graph does not outlive a replay.
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
            if device.is_capturing(int(self.stream.handle)):
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
        """Fill it from a contiguous host array with the same number of elements."""
        from cuda.bindings import driver

        answer = driver.cuMemcpyHtoD(self.pointer, source.ctypes.data, source.nbytes)
        device.succeed("copying an operand to the device", answer)

    def download(self, target: np.ndarray) -> None:
        """Copy it into a contiguous host array with the same number of elements."""
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


_ARRAYS: tuple[tuple[str, str, type[Library]], ...] = (
    ("numpy", "ndarray", _NumPy),
    ("torch", "Tensor", _Torch),
    ("cupy", "ndarray", _CuPy),
    ("jax", "Array", _Jax),
    ("jax.core", "Tracer", _Jax),  # no subclass of jax.Array; it is refused by a message of its own
)
_instances: dict[type[Library], Library] = {}
_by_type: dict[type, Library] = {}  # classes of the libraries themselves, which are never freed
_by_other_type: WeakKeyDictionary[type, Library] = (
    WeakKeyDictionary()
)  # other classes, held weakly so that they can be freed


def library(x: Any) -> Library:
    """Return the library that `x` belongs to.

    Raises
    ------
    DTypeError
        It is not an array.
    OperandError
        It is an array of a class that redefines operations or has a mask, or its protocol returns nonsense.
    """
    found = _by_type.get(type(x))
    return _other(x) if found is None else found


def _other(x: Any) -> Library:
    cls = type(x)
    found = _by_other_type.get(cls)
    if found is None:
        found = _recognise(x)
        known = _by_type if _is_of_library(cls) else _by_other_type
        known[cls] = found
    return found


def _is_of_library(cls: type) -> bool:
    """Whether a module of a library holds this class, which therefore lives as long as the process."""
    module = str(cls.__module__)
    if module.partition(".")[0] not in ("numpy", "torch", "cupy", "jax", "jaxlib") or module not in sys.modules:
        return False
    return vars(sys.modules[module]).get(cls.__qualname__) is cls


def _recognise(x: Any) -> Library:
    kind = next((kind for module, name, kind in _ARRAYS if _is_a(type(x), module, name)), None)
    if kind is None:
        if _has(x, "__dlpack__") and _has(x, "__dlpack_device__"):
            kind = Library
        elif _has(x, "__cuda_array_interface__"):
            kind = _Pointers
        else:
            raise DTypeError(
                f"operands must be arrays (NumPy, CuPy, PyTorch, JAX, or any with __dlpack__ or "
                f"__cuda_array_interface__), got {f'the class {_name(x)}' if isinstance(x, type) else _type(x)}"
            )
    if kind not in _instances:
        _instances[kind] = kind()
    reason = _instances[kind].refusal(type(x))
    if reason is not None:
        raise OperandError(f"{_type(x)} {reason}")
    return _instances[kind]


def _is_a(cls: type, module: str, name: str) -> bool:
    """Whether `cls` is the array class of a library that has been imported, or derived from it."""
    arrays = getattr(sys.modules.get(module), name, None)
    return arrays is not None and issubclass(cls, arrays)


def _has(x: Any, protocol: str) -> bool:
    if isinstance(x, type):  # a class has the methods of its instances but is no array
        return False
    try:
        return hasattr(x, protocol)
    except Exception as error:
        raise OperandError(f"{_type(x)}.{protocol} failed: {_said(error)}") from error


def _function(cls: type, method: str) -> Any:
    """Return the function of a method; it is the same object for every class that inherits the method."""
    found = getattr(cls, method)
    return getattr(found, "__func__", found)


def _dlpack_device(x: Any) -> tuple[int, int]:
    answer = "nothing"
    try:
        answer = x.__dlpack_device__()
        kind, number = answer
        return operator.index(kind), operator.index(number)
    except Exception as error:
        rule = "must return a device type and a device number"
        raise OperandError(f"{_type(x)}.__dlpack_device__ {rule}, got {answer!r} ({_said(error)})") from error


def _interface(x: Any) -> dict[str, Any]:
    """Return the CUDA array interface of `x`, after checking the entries that are used here."""
    found: Any = "nothing"
    try:
        found = x.__cuda_array_interface__
        address, _ = found["data"]
        operator.index(address), operator.index(found["version"])
    except Exception as error:
        rule = "must be a dictionary with a version and data: an address and whether it is read-only"
        raise OperandError(f"{_type(x)}.__cuda_array_interface__ {rule}, got {found!r} ({_said(error)})") from error
    return found  # type: ignore[no-any-return]


def _namespace(like: Any) -> Any:
    try:
        return like.__array_namespace__()
    except Exception as error:
        raise OperandError(f"cannot make a new {_type(like)}; pass C") from error


class _Fault:
    """The reason why an array cannot be used. Calling it with the operand's name returns the error."""

    def __init__(self, error: type[FastsgemmError], reason: str) -> None:
        self._error, self._reason = error, reason

    def __call__(self, name: str) -> FastsgemmError:
        return self._error(f"{name} {self._reason}")


def _wrong_dtype(dtype: Any) -> _Fault:
    hint = "; float64 is not converted silently, cast it yourself" if "float64" in str(dtype) else ""
    return _Fault(DTypeError, f"must be float32, got {dtype}{hint}")


_NO_MEMORY = _Fault(
    OperandError, "has no memory: it is lazy, was freed, or is seen from inside a transform (vmap, jvp, functionalize)"
)


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
    return _name(type(x))


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _said(error: Exception) -> str:
    """Return the message of another library's error, or its type if the message is empty."""
    return str(error) or type(error).__name__
