"""One product of tensors' memory, below PyTorch's dispatcher: on their device, or on the host for CPU tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastsgemm import host
from fastsgemm.call import checks, fp16x3
from fastsgemm.call.arrays import HOST, View
from fastsgemm.call.product import multiply
from fastsgemm.errors import FastsgemmError
from fastsgemm.geometry.layout import ITEM
from fastsgemm.tuning import first_use

if TYPE_CHECKING:
    from torch import Tensor

    from fastsgemm.device import Gpu

ONE, ZERO = np.float32(1.0), np.float32(0.0)
_FLOAT32 = {0.0: ZERO, 1.0: ONE}  # the usual alpha and beta, converted once; 0, 1 and True are found, too

_current: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # absent in CPU builds


def scalar(name: str, value: Any) -> np.float32:
    """Return alpha or beta as float32; see `fastsgemm.call.checks.scalar`."""
    found = _FLOAT32.get(value)
    return checks.scalar(name, value) if found is None else found


def gpu_of(ordinal: int) -> Gpu | None:
    """Return the device with this number, opened, or None for `HOST`."""
    if ordinal == HOST:
        return None
    return first_use.opened.get(ordinal) or first_use.open_device(ordinal, lambda: current_stream(ordinal))


def current_stream(ordinal: int) -> int:
    """Return the raw handle of PyTorch's current stream on a device."""
    return _current(ordinal)


def on_device(gpu: Gpu, a: View, b: View, c: View, alpha: np.float32, beta: np.float32, precision: str) -> None:
    """Compute C <- alpha * A @ B + beta * C on PyTorch's current stream. All views are of 2-D float32 matrices."""
    switched = gpu.enter()
    try:
        handle = current_stream(gpu.ordinal)
        if precision == "ieee":
            multiply(gpu, handle, a, b, c, alpha, beta)
        else:
            fp16x3.multiply(gpu, handle, a, b, c, alpha, beta, None)
    finally:
        if switched:
            gpu.leave()


def on_host(a: View, b: View, c: View, alpha: np.float32, beta: np.float32, precision: str) -> None:
    """Do the same on host memory, as `fastsgemm.sgemm` does with host arrays."""
    arrays = [_array(x) for x in (a, b, c)]
    host.sgemm(arrays[0], arrays[1], alpha, beta, arrays[2], None, None, None, precision)


def _array(x: View) -> np.ndarray:
    """Return a view of host memory as a NumPy array.

    `Tensor.numpy` would make the tensor's storage one that cannot be resized, which FSDP does between its uses.
    """
    address, (shape, strides, *_) = x
    steps = tuple(ITEM * stride for stride in strides)
    interface = {"version": 3, "typestr": "<f4", "data": (address, False), "shape": tuple(shape), "strides": steps}
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def multiply_tensors(a: Tensor, b: Tensor, c: Tensor, alpha: np.float32, beta: np.float32, precision: str) -> None:
    """Compute C <- alpha * A @ B + beta * C for plain 2-D float32 tensors that have memory."""
    gpu = gpu_of(c.get_device())
    if gpu is None:
        on_host(view(a), view(b), view(c), alpha, beta, precision)
    else:
        on_device(gpu, view(a), view(b), view(c), alpha, beta, precision)


def view(x: Tensor) -> View:
    """Return address and meta of a plain float32 tensor; see `fastsgemm.call.arrays`."""
    return x.data_ptr(), (x.shape, x.stride(), x.get_device(), None, False)


def named(error: FastsgemmError, product: str) -> FastsgemmError:
    """Return the same kind of error, which also names the product that failed."""
    return type(error)(f"{product}: {error}")
