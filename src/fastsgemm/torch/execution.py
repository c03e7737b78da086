"""Runs one product on tensors' memory, below PyTorch's dispatcher: on their device, or on the host for CPU tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastsgemm import device, host
from fastsgemm.call import checks, driver
from fastsgemm.call.arrays import HOST, View
from fastsgemm.call.arrays.library import KINDS, at_address, offsets_meta
from fastsgemm.call.arrays.torch import dtypes_of
from fastsgemm.call.driver import LoadedPlan
from fastsgemm.call.grouped import result_shape
from fastsgemm.errors import DeviceMemoryError, FastsgemmError
from fastsgemm.geometry.layout import Meta
from fastsgemm.request import Request, of_call
from fastsgemm.tuning import first_use

if TYPE_CHECKING:
    from torch import Tensor

    from fastsgemm.device import Gpu

DTYPES = dtypes_of(torch)  # of operands
_USUAL = {0.0: 0.0, 1.0: 1.0}  # alpha and beta that need no check; 0, 1 and True match, too

# Returns the raw handle of PyTorch's current stream on a device; absent in CPU builds.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class OutOfMemoryError(DeviceMemoryError, torch.OutOfMemoryError):
    """The device has no memory for a packed operand or workspace, even after PyTorch's cache was emptied.

    It is also a ``torch.OutOfMemoryError``, and its message begins like PyTorch's, because programs that retry with a
    smaller batch check either.
    """


def scalar(name: str, value: Any) -> float:
    """Return alpha or beta, rounded to float32; see `fastsgemm.call.checks.scalar`."""
    unchecked = _USUAL.get(value)
    return checks.scalar(name, value) if unchecked is None else unchecked


def gpu_of(ordinal: int) -> Gpu | None:
    """Return the device with this number, opened, or None for `HOST`."""
    if ordinal == HOST:
        return None
    return first_use.opened.get(ordinal) or first_use.open_device(ordinal, lambda: current_stream(ordinal))


def run(ordinal: int, views: Sequence[View], alpha: float, beta: float, request: Request) -> LoadedPlan | None:
    """Compute C <- alpha * A @ B + beta * C on the device with this number, and return the plan; None on the host.

    The views are those of A, B, the output and, if it is a separate array, C.
    """
    gpu = gpu_of(ordinal)
    if gpu is None:
        on_host(views, alpha, beta, request)
        return None
    return on_device(gpu, views, alpha, beta, request)


def on_host(views: Sequence[View], alpha: float, beta: float, request: Request) -> None:
    """Compute a product on host memory, as `fastsgemm.sgemm` does with host arrays; see `run`."""
    a, b, out, *source = map(_array, views)
    host.sgemm(of_call(request, output="out"), a, b, source[0] if source else out, alpha, beta, out)


def _array(x: View) -> np.ndarray:
    """Return a view of host memory as a NumPy array."""
    address, operand_meta = x
    return at_address(address, operand_meta.shape, operand_meta.strides, kind=KINDS[operand_meta.dtype])


def on_device(gpu: Gpu, views: Sequence[View], alpha: float, beta: float, request: Request) -> LoadedPlan:
    """Compute a product on PyTorch's current stream of a device, and return the plan; see `run`."""
    return _with_room(gpu, lambda: driver.multiply(gpu, stream_of(gpu), request, views, alpha, beta))


def _with_room(gpu: Gpu, multiply: Callable[[], LoadedPlan]) -> LoadedPlan:
    """Multiply on a device; if it is out of memory, once more after PyTorch has freed its cache."""
    with device.current(gpu):
        try:
            return multiply()
        except DeviceMemoryError:
            empty_cache(gpu.ordinal)
            return multiply()


def multiply(
    a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, request: Request, out: Tensor
) -> LoadedPlan | None:
    """Compute out <- alpha * A @ B + beta * C for plain tensors with memory; `out` is new.

    Return the plan; None on the host.
    """
    views = [view(x) for x in (a, b, out, *([] if c is None else [c]))]
    return run(out.get_device(), views, alpha, beta, request)


def multiply_groups(
    a: Tensor, b: Tensor, offsets: Tensor, alpha: float, beta: float, request: Request, out: Tensor
) -> LoadedPlan | None:
    """Compute out <- alpha * A @ B + beta * out for each group of plain tensors with memory; see `multiply`."""
    views, gpu = [view(x) for x in (a, b, out)], gpu_of(out.get_device())
    if gpu is None:
        ragged, _ = result_shape(a.shape, b.shape, len(offsets))
        of_a, of_b, written = map(_array, views)
        host.grouped_mm(request, ragged, of_a, of_b, offsets.numpy(), alpha, beta, written)
        return None
    ends = offsets.data_ptr(), offsets_meta(offsets.dtype, offsets.shape, offsets.stride(), offsets.get_device())
    return _with_room(gpu, lambda: driver.multiply_groups(gpu, stream_of(gpu), request, views, ends, alpha, beta))


def empty_cache(ordinal: int) -> None:
    """Let PyTorch free its cached device memory, as it does when it runs out itself.

    Nothing happens while the current stream is captured, because freeing would invalidate the capture.
    """
    if ordinal == HOST or not device.is_capturing(current_stream(ordinal)):
        torch.cuda.empty_cache()


_prepared = threading.local()


def prepare_to_pass_on(ordinal: int) -> None:
    """Initialise cuBLAS before the first call of this thread that is passed on.

    PyTorch's own products initialise it while a program warms up for a capture, the switch's do not. During a capture
    that needs relaxed mode.
    """
    ready: set[int] = _prepared.__dict__.setdefault("devices", set())
    if ordinal != HOST and ordinal not in ready:
        ready.add(ordinal)
        with torch.cuda.device(ordinal), device.relaxed_capture():
            torch.cuda.current_blas_handle()


def stream_of(gpu: Gpu) -> int:
    """Return the raw handle of PyTorch's current stream on a device."""
    handle: int = current_stream(gpu.ordinal)
    if handle not in gpu.streams:
        gpu.adopt(handle)
    return handle


def view(x: Tensor) -> View:
    """Return the address and the `Meta` of a plain tensor; see `fastsgemm.call.arrays`."""
    return x.data_ptr(), meta(x)


def meta(x: Tensor) -> Meta:
    """Return what a plan needs to know of a plain tensor except its address."""
    return Meta(x.shape, x.stride(), DTYPES[x.dtype], x.get_device())


def add_product(error: FastsgemmError, product: str) -> FastsgemmError:
    """Return an error of the same type that names the product; one about memory is also PyTorch's."""
    if isinstance(error, DeviceMemoryError):
        return OutOfMemoryError(f"CUDA out of memory. {product}: {error}")  # many programs search for these words
    return type(error)(f"{product}: {error}")
