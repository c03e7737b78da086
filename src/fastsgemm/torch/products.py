"""One product of tensors' memory, below PyTorch's dispatcher: on their device, or on the host for CPU tensors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastsgemm import device, host
from fastsgemm.call import checks, driver
from fastsgemm.call.arrays import HOST, View
from fastsgemm.call.arrays.library import KINDS, at_address
from fastsgemm.call.arrays.torch import dtypes_of
from fastsgemm.call.driver import LoadedPlan
from fastsgemm.errors import DeviceMemoryError, FastsgemmError
from fastsgemm.geometry.layout import Meta
from fastsgemm.request import Request, of_call
from fastsgemm.tuning import first_use

if TYPE_CHECKING:
    from torch import Tensor

    from fastsgemm.device import Gpu

DTYPES = dtypes_of(torch)  # of operands
_USUAL = {0.0: 0.0, 1.0: 1.0}  # alpha and beta that need no check; 0, 1 and True are found, too

# Returns the raw handle of PyTorch's current stream on a device; absent in CPU builds.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class OutOfMemoryError(DeviceMemoryError, torch.OutOfMemoryError):
    """The device has no memory for a packed operand or workspace, although PyTorch's cache was emptied.

    It is also a ``torch.OutOfMemoryError``, and its message begins as PyTorch's does, because programs that then try a
    smaller batch look for one or the other.
    """


def scalar(name: str, value: Any) -> float:
    """Return alpha or beta, rounded to float32; see `fastsgemm.call.checks.scalar`."""
    usual = _USUAL.get(value)
    return checks.scalar(name, value) if usual is None else usual


def gpu_of(ordinal: int) -> Gpu | None:
    """Return the device with this number, opened, or None for `HOST`."""
    if ordinal == HOST:
        return None
    return first_use.opened.get(ordinal) or first_use.open_device(ordinal, lambda: current_stream(ordinal))


def run(ordinal: int, views: Sequence[View], alpha: float, beta: float, request: Request) -> LoadedPlan | None:
    """Compute C <- alpha * A @ B + beta * C on the device with this number, and return the plan; None on the host.

    The views are those of A, B, what is written and, if that is another array, C.
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
    address, of = x
    return at_address(address, of.shape, of.strides, kind=KINDS[of.dtype])


def on_device(gpu: Gpu, views: Sequence[View], alpha: float, beta: float, request: Request) -> LoadedPlan:
    """Compute a product on PyTorch's current stream of a device, and return the plan; see `run`."""
    with device.current(gpu):
        try:
            return driver.multiply(gpu, stream_of(gpu), request, views, alpha, beta)
        except DeviceMemoryError:
            empty_cache(gpu.ordinal)
            return driver.multiply(gpu, stream_of(gpu), request, views, alpha, beta)


def multiply(
    a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, request: Request, out: Tensor
) -> LoadedPlan | None:
    """Compute out <- alpha * A @ B + beta * C for plain tensors that have memory, of which `out` is new.

    Return the plan; None on the host.
    """
    views = [view(x) for x in (a, b, out, *([] if c is None else [c]))]
    return run(out.get_device(), views, alpha, beta, request)


def empty_cache(ordinal: int) -> None:
    """Let PyTorch return the device memory that it keeps but does not use, as it does when it runs out itself.

    Nothing happens while the current stream is captured, because freeing would end the capture.
    """
    if ordinal == HOST or not device.is_capturing(current_stream(ordinal)):
        torch.cuda.empty_cache()


_prepared = threading.local()


def prepare_to_pass_on(ordinal: int) -> None:
    """Make cuBLAS ready for the first call of this thread that is passed on.

    PyTorch's own products make it ready while a program warms up for a capture, which the switch's do not. Within a
    capture it can only be made ready in relaxed mode.
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
    """Return the address and the rest of a plain tensor that kernels read; see `fastsgemm.call.arrays`."""
    return x.data_ptr(), meta(x)


def meta(x: Tensor) -> Meta:
    """Return what a plan needs to know of a plain tensor that kernels read, beside its address."""
    return Meta(x.shape, x.stride(), DTYPES[x.dtype], x.get_device())


def named(error: FastsgemmError, product: str) -> FastsgemmError:
    """Return the same kind of error, which also names the product; where memory is missing, it is also PyTorch's."""
    if isinstance(error, DeviceMemoryError):
        return OutOfMemoryError(f"CUDA out of memory. {product}: {error}")  # many programs look for these words
    return type(error)(f"{product}: {error}")
