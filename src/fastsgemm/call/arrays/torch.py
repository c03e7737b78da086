"""PyTorch, read attribute by attribute: this is faster than a protocol, and the protocols omit the negative bit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm.call.arrays.library import (
    F32,
    HAS_TANGENT,
    HOST,
    IN_TRANSFORM,
    KINDS,
    NO_MEMORY,
    REQUIRES_GRAD,
    Fault,
    Library,
    View,
    at_address,
    offsets_meta,
    wrong_dtype,
)
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import DeviceMismatchError, OperandError
from fastsgemm.geometry.layout import Meta
from fastsgemm.problem import DType

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

MAX_STORAGE_BYTES = 1 << 40  # a tensor whose address is this or higher was not `freed`, which gives it an offset


class Torch(Library):
    """Tensors of PyTorch."""

    has_launcher = True
    has_streams = True

    def __init__(self) -> None:
        self._torch = torch = sys.modules["torch"]
        self._float32 = torch.float32
        self._current = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # absent in CPU builds
        self._dtypes = dtypes_of(torch)
        self._kinds = dict(zip((torch.float32, torch.bfloat16, torch.float16), KINDS, strict=True))
        self._forward_ad = torch.autograd.forward_ad
        self._transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
        self._increment_version = _version_counter(torch)
        compiler = getattr(torch, "compiler", None)  # since PyTorch 2.1
        self._is_compiling = getattr(compiler, "is_compiling", lambda: False)

    def refusal(self, cls: type) -> str | None:
        """Refuse subclasses that redefine operations: fake, nested, masked and distributed tensors."""
        plain = {"__torch_dispatch__": [], "__torch_function__": [self._torch._C._disabled_torch_function_impl]}
        for method, harmless in plain.items():
            if _function(cls, method) not in (_function(self._torch.Tensor, method), *harmless):
                return f"redefines operations ({method}); pass the torch.Tensor that it wraps"
        return None

    def device_of(self, x: Any) -> int:
        if x.is_cuda:
            return x.get_device()  # type: ignore[no-any-return]
        if x.device.type != "cpu":
            raise DeviceMismatchError(f"a torch tensor on {x.device} is neither on the host nor on a CUDA device")
        return HOST

    def current_stream(self, device: int) -> int:
        return self._current(device)  # type: ignore[no-any-return, misc]

    def view(self, x: Any, handle: int, ordered: bool, kept: list[Any]) -> View:
        if x.dtype is not self._float32 or x.requires_grad or x.is_neg() or self._forward_ad._current_level >= 0:
            fault = self._fault(x)
            if fault is not None:
                return self._unusable(x, fault)
        try:
            address, meta = x.data_ptr(), Meta(x.shape, x.stride(), self._dtypes[x.dtype], x.get_device())
        except RuntimeError:
            return self._unusable(x, self._fault(x) or self._no_memory())
        if address < MAX_STORAGE_BYTES and freed(x, address):
            return self._unusable(x, self._no_memory())
        if not ordered and x.is_cuda:  # else it is refused, with the others' devices
            self._order(x, handle)
        return address, meta

    def offsets_view(self, x: Any, handle: int, ordered: bool, kept: list[Any]) -> View:
        if x.is_nested or x.layout is not self._torch.strided:
            return self._unusable(x, Fault(OperandError, "must be a strided tensor"))
        try:
            address, meta = x.data_ptr(), offsets_meta(x.dtype, x.shape, x.stride(), x.get_device())
        except RuntimeError:
            return self._unusable(x, self._no_memory())
        if freed(x, address):
            return self._unusable(x, self._no_memory())
        if not ordered and x.is_cuda:
            self._order(x, handle)
        return address, meta

    def _unusable(self, x: Any, fault: Fault) -> View:
        shape = () if x.is_nested else x.shape  # a nested tensor has no shape
        return 0, Meta(shape, (), F32, x.get_device(), fault)

    def traced(self) -> bool:
        return self._is_compiling()

    def needs_dispatcher(self, *operands: Any) -> bool:
        tensors = [x for x in operands if x is not None]
        if not all(isinstance(x, self._torch.Tensor) for x in tensors):
            return False
        requires_grad = self._torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        return requires_grad or self._transforms_active() or any(map(self._has_tangent, tensors))

    def _has_tangent(self, x: Any) -> bool:
        return self._forward_ad._current_level >= 0 and self._forward_ad.unpack_dual(x).tangent is not None

    def empty(self, like: Any, shape: tuple[int, ...], gpu: Gpu, handle: int) -> Any:
        return self._torch.empty(shape, dtype=self._float32, device=like.device)

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        fault = self._fault(x)
        if fault is not None:
            raise fault(name)
        try:
            address, strides = x.data_ptr(), x.stride()
        except RuntimeError as error:
            raise self._no_memory()(name) from error
        if freed(x, address):
            raise self._no_memory()(name)
        return at_address(address, x.shape, strides, x, self._kinds[x.dtype])

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return self._torch.from_numpy(result)

    def _fault(self, x: Any) -> Fault | None:
        if x.dtype not in self._dtypes:
            return wrong_dtype(x.dtype)
        if x.is_nested:
            return Fault(OperandError, "is a nested tensor; pass its tensors one by one")
        if x.layout is not self._torch.strided:
            return Fault(OperandError, f"is stored as {x.layout}; only strided tensors can be used; pass .to_dense()")
        if x.requires_grad and self._torch.is_grad_enabled():
            return REQUIRES_GRAD
        if x.is_neg():
            return Fault(OperandError, "has the negative bit set (a lazy -x); pass .resolve_neg()")
        return HAS_TANGENT if self._has_tangent(x) else None

    def _no_memory(self) -> Fault:
        return IN_TRANSFORM if self._transforms_active() else NO_MEMORY

    def written(self, x: Any) -> None:
        """Increment the version counter, so that autograd refuses to use the overwritten value."""
        self._increment_version((x,))

    def _order(self, x: Any, handle: int) -> None:
        current = self._torch.cuda.current_stream(x.device)
        if current.cuda_stream != (0 if handle == LEGACY_STREAM else handle):
            self._torch.cuda.ExternalStream(handle, device=x.device).wait_stream(current)


def dtypes_of(torch: Any) -> dict[Any, DType]:
    """Return the types of tensors that kernels read."""
    return {torch.float32: DType.F32, torch.bfloat16: DType.BF16, torch.float16: DType.F16}


def freed(x: Any, address: int) -> bool:
    """Return whether a tensor has elements but no memory. The address is its `data_ptr`.

    That is the address of its storage plus an offset. A storage that was freed has address 0, so a slice of it still
    has an address that is not 0.
    """
    return bool(address == x.itemsize * x.storage_offset() and x.numel())


def _version_counter(torch: Any) -> Callable[[tuple[Any]], None]:
    """Return a function that increments the version counter of the tensor in a tuple.

    It is the C function that `torch.autograd.graph.increment_version` calls since PyTorch 2.5, which takes half the
    time, or that function in older versions.
    """
    try:
        torch._C._increment_version((torch.empty(0),))
    except (AttributeError, TypeError):
        return partial(_increment_older_version, torch)
    return torch._C._increment_version  # type: ignore[no-any-return]


def _increment_older_version(torch: Any, tensors: tuple[Any]) -> None:
    [x] = tensors
    try:
        torch.autograd.graph.increment_version(x)
    except RuntimeError:  # inference tensors have no counter, and autograd does not save them
        if not x.is_inference():
            raise


def _function(cls: type, method: str) -> Any:
    """Return the function of a method; it is the same object for every class that inherits the method."""
    attribute = getattr(cls, method)
    return getattr(attribute, "__func__", attribute)
