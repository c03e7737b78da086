"""`Library`: what a call needs from an array library, here for any object with DLPack; and why an array is refused."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import DeviceMismatchError, DTypeError, FastsgemmError, OperandError
from fastsgemm.geometry.layout import ITEM, Meta, row_major
from fastsgemm.problem import DType

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

HOST = -1  # the device number of host memory
F32 = DType.F32
BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # of host memory: NumPy has no such type without ml_dtypes
KINDS = ("<f4", "|V2", "<f2")  # of NumPy's array interface, by type; a bfloat16 is a structure of two bytes
_BFLOAT16_KIND = KINDS[DType.BF16]
_OFFSET_WORDS = {"int32": 1, "int64": 2}
_BY_NAME = {each.numpy_name: each for each in DType}
_DLPACK_HOST = (1, 3)  # kDLCPU, kDLCUDAHost
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged

View = tuple[int, Meta]  # the address of an array, and the rest


class Library:
    """What `sgemm` needs from an array library. This base class handles any object with DLPack.

    An object of the caller may return or raise anything when a protocol is used. So each protocol is used in one place
    of this module, which turns a wrong answer into an `OperandError` that names the object's type and the answer.
    """

    immutable = False  # whether its arrays must never be written
    has_runtime = False  # whether a runtime of its own can compute products, and knows what still uses an array
    has_launcher = False  # whether a launcher can compute later calls like one that was computed
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
            raise DeviceMismatchError(f"{type_name(x)} reports CUDA device {number}; device numbers begin at 0")
        raise DeviceMismatchError(f"{type_name(x)} is on a device that is neither host nor CUDA (DLPack {kind})")

    def current_stream(self, device: int) -> int:
        """Return the raw handle of the caller's current stream."""
        return LEGACY_STREAM

    def view(self, x: Any, handle: int, ordered: bool, kept: list[Any]) -> View:
        """Return address and meta of a device array for work on stream `handle`.

        If `ordered` is false, the stream is first made to wait for the work that the library has queued on `x`. What
        must live until that work is done, beside `x` itself, is appended to `kept`: an export, which may hold a copy,
        and while it exists, its owner neither donates nor deletes the memory.
        """
        view = self._exported(x, handle, ordered)
        kept.append(view)
        shape = view.shape
        strides = view.strides or row_major(shape)
        dtype = dtype_of(view.dtype)
        fault = wrong_dtype(view.dtype) if dtype is None else None
        return view.ptr, Meta(shape, strides, dtype or F32, view.device_id, fault, view.readonly)

    def _exported(self, x: Any, handle: int, ordered: bool) -> Any:
        """Return a device array as cuda.core reads it; see `view`."""
        from cuda.core.utils import StridedMemoryView

        stream = -1 if ordered else handle or LEGACY_STREAM
        try:
            return StridedMemoryView.from_any_interface(self._exporter(x), stream_ptr=stream)
        except FastsgemmError:
            raise
        except Exception as error:
            if self.device_of(x) == HOST:  # exports of host memory reject a stream
                place = f"a {type_name(x)} on the host among arrays on a device"
                raise DeviceMismatchError(f"all operands must be on one device, got {place}") from error
            raise OperandError(f"{type_name(x)} could not be exported: {message_of(error)}") from error

    def offsets_view(self, x: Any, handle: int, ordered: bool, kept: list[Any]) -> View:
        """Return address and meta, in 32-bit words, of a vector of whole numbers; see `view` for the other arguments.

        An array of another type has a fault.
        """
        view = self._exported(x, handle, ordered)
        kept.append(view)
        return view.ptr, offsets_meta(view.dtype, view.shape, view.strides or row_major(view.shape), view.device_id)

    def _exporter(self, x: Any) -> Any:
        """Return the object through which cuda.core reads `x`."""
        return x

    def traced(self) -> bool:
        """Whether the library's compiler traces the call instead of running it."""
        return False

    def needs_dispatcher(self, *operands: Any) -> bool:
        """Whether only PyTorch's dispatcher can compute a product of these operands, of which each may be None.

        So it is for tensors with gradients or tangents, and inside a transform of torch.func.
        """
        return False

    def empty(self, like: Any, shape: tuple[int, ...], gpu: Gpu, handle: int) -> Any:
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
            raise OperandError(f"{name} ({type_name(x)}) could not be read: {message_of(error)}") from error

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        """Return a new host array as an array of the same library as `like`."""
        return _namespace(like).from_dlpack(result)


def _dlpack_device(x: Any) -> tuple[int, int]:
    answer = "nothing"
    try:
        answer = x.__dlpack_device__()
        kind, number = answer
        return operator.index(kind), operator.index(number)
    except Exception as error:
        rule = "must return a device type and a device number"
        raise OperandError(f"{type_name(x)}.__dlpack_device__ {rule}, got {answer!r} ({message_of(error)})") from error


def _namespace(like: Any) -> Any:
    try:
        return like.__array_namespace__()
    except Exception as error:
        raise OperandError(f"cannot make a new {type_name(like)}; pass C") from error


class Fault:
    """The reason why an array cannot be used. Calling it with the operand's name returns the error."""

    def __init__(self, error: type[FastsgemmError], reason: str) -> None:
        self._error, self._reason = error, reason

    def __call__(self, name: str) -> FastsgemmError:
        return self._error(f"{name} {self._reason}")


def wrong_dtype(dtype: Any) -> Fault:
    name = str(dtype).removeprefix("torch.")
    real = name.startswith(("float", "bfloat", "int", "uint", ">"))
    hint = f"; {name} is not converted silently, cast it yourself" if real else ""
    if name.startswith("complex"):
        hint = (
            "; complex products are not computed: multiply the real and the imaginary parts, "
            "such as sgemm(A.real, B.real)"
        )
    return Fault(DTypeError, f"must be float32, got {dtype}{hint}")


def dtype_of(dtype: Any) -> DType | None:
    """Return the type of an array with this dtype of NumPy or another library, or None if no kernel reads it."""
    return F32 if dtype == np.float32 else _BY_NAME.get(str(dtype).removeprefix("torch."))


def offsets_meta(dtype: Any, shape: Sequence[int], strides: Sequence[int], device: int) -> Meta:
    """Return the meta, in 32-bit words, of whole numbers whose strides are in elements, with a fault if they are none.

    A kernel reads the low half of one of 64 bits.
    """
    words = _OFFSET_WORDS.get(str(dtype).removeprefix("torch."))
    fault = Fault(DTypeError, f"must be int32 or int64, got {dtype}") if words is None else None
    return Meta(tuple(shape), tuple(step * (words or 1) for step in strides), F32, device, fault)


def misaligned(address: int, shape: Sequence[int], strides: Sequence[int], item: int = ITEM) -> Fault | None:
    """Return why an array cannot be used some of whose elements lie between two elements, or None.

    The address may be its remainder modulo 16. Strides are in bytes; along an extent of 1 they may be any. Elements
    have `item` bytes.
    """
    if 0 in shape:
        return None
    if address % item:
        rule = f"must lie at an address divisible by {item}; its address modulo 16 is {address % 16}; pass a copy"
        return Fault(OperandError, rule)
    if any(step % item for extent, step in zip(shape, strides, strict=True) if extent > 1):
        return Fault(OperandError, f"must have strides that are multiples of {item} bytes, got {tuple(strides)}")
    return None


# Of tensors whose product only PyTorch's dispatcher can compute; see `Library.needs_dispatcher`.
_ALL_TENSORS = (
    "then all operands must be tensors, and rung=, config=, stream=, out= and split operands are not possible"
)
REQUIRES_GRAD = Fault(OperandError, f"requires grad; {_ALL_TENSORS}; or pass .detach()")
HAS_TANGENT = Fault(OperandError, f"has a tangent (forward-mode AD); {_ALL_TENSORS}; or pass its primal")
IN_TRANSFORM = Fault(OperandError, f"has no memory inside a transform (vmap, jvp, functionalize); {_ALL_TENSORS}")
IN_TRACE = Fault(OperandError, f"is in code that torch.compile or torch.export traces; {_ALL_TENSORS}")
NO_MEMORY = Fault(
    OperandError, "has no memory: it is lazy, was freed, or is seen from inside a transform (vmap, jvp, functionalize)"
)


def host_fault(x: np.ndarray) -> Fault | None:
    """Return why a host array cannot be used, or None."""
    dtype = host_dtype(x)
    if dtype is None:
        return wrong_dtype(x.dtype)
    return None if x.flags.aligned else misaligned(x.ctypes.data, x.shape, x.strides, dtype.item)


def host_dtype(x: np.ndarray) -> DType | None:
    """Return the type of a host array, or None if no kernel reads it. BFLOAT16 and that of ml_dtypes are one."""
    if x.dtype == BFLOAT16:
        return DType.BF16
    return dtype_of(x.dtype) if x.dtype.isnative else None


def at_address(
    address: int, shape: Sequence[int], strides: Sequence[int], owner: Any = None, kind: str = "<f4"
) -> np.ndarray:
    """Return host memory as a NumPy array that keeps `owner` alive, as the base of its base.

    Strides are in elements, of a type as NumPy's array interface spells it. A stride along an extent of 1 may be any
    number, also one that NumPy has no room for. For tensors: `Tensor.numpy` would make the tensor's storage one that
    cannot be resized, which FSDP does between its uses.
    """
    item = int(kind[-1])
    steps = tuple(item * step if extent > 1 else item for extent, step in zip(shape, strides, strict=True))
    interface = {"version": 3, "typestr": kind, "data": (address, False), "shape": tuple(shape), "strides": steps}
    if kind == _BFLOAT16_KIND:
        interface["descr"] = BFLOAT16.descr  # not by a view later, which PyTorch's compiler would trace
    return np.asarray(SimpleNamespace(__array_interface__=interface, base=owner))


def type_name(x: Any) -> str:
    return class_name(type(x))


def class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def message_of(error: Exception) -> str:
    """Return the message of another library's error, or its type if the message is empty."""
    return str(error) or type(error).__name__
