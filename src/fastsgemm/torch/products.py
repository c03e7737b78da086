"""One product of tensors' memory, below PyTorch's dispatcher: on their device, or on the host for CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastsgemm import host
from fastsgemm.call import checks, fp16x3
from fastsgemm.call.arrays import HOST, Meta, View
from fastsgemm.call.product import multiply
from fastsgemm.errors import FastsgemmError
from fastsgemm.geometry.layout import ITEM
from fastsgemm.tuning import first_use

if TYPE_CHECKING:
    from torch import Tensor

    from fastsgemm.device import Gpu

ONE, ZERO = np.float32(1.0), np.float32(0.0)
_FLOAT32 = {0.0: ZERO, 1.0: ONE}  # the usual alpha and beta, converted once; 0, 1 and True are found, too

# Returns the raw handle of PyTorch's current stream on a device; absent in CPU builds.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def scalar(name: str, value: Any) -> np.float32:
    """Return alpha or beta as float32; see `fastsgemm.call.checks.scalar`."""
    found = _FLOAT32.get(value)
    return checks.scalar(name, value) if found is None else found


def gpu_of(ordinal: int) -> Gpu | None:
    """Return the device with this number, opened, or None for `HOST`."""
    if ordinal == HOST:
        return None
    return first_use.opened.get(ordinal) or first_use.open_device(ordinal, lambda: current_stream(ordinal))


def launch(a: Meta, b: Meta, c: Meta, precision: str) -> Callable[..., None]:
    """Return a function that multiplies 2-D float32 matrices in device memory which lie like these.

    It takes the device, which must be current in the thread, the raw stream, three addresses, alpha and beta.
    """
    if precision == "ieee":
        return lambda gpu, handle, pa, pb, pc, alpha, beta: multiply(
            gpu, handle, (pa, a), (pb, b), (pc, c), alpha, beta
        )
    return lambda gpu, handle, pa, pb, pc, alpha, beta: fp16x3.multiply(
        gpu, handle, (pa, a), (pb, b), (pc, c), alpha, beta, None
    )


def host_launch(a: Meta, b: Meta, c: Meta, precision: str) -> Callable[..., None]:
    """Return the same for host memory, which `fastsgemm.host` multiplies. It takes addresses, alpha and beta."""
    return lambda pa, pb, pc, alpha, beta: on_host((pa, a), (pb, b), (pc, c), alpha, beta, precision)


def on_host(a: View, b: View, c: View, alpha: np.float32, beta: np.float32, precision: str) -> None:
    """Compute C <- alpha * A @ B + beta * C on host memory, as `fastsgemm.sgemm` does with host arrays."""
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
    (pa, of_a), (pb, of_b), (pc, of_c) = map(view, (a, b, c))
    ordinal = c.get_device()
    gpu = gpu_of(ordinal)
    if gpu is None:
        host_launch(of_a, of_b, of_c, precision)(pa, pb, pc, alpha, beta)
        return
    switched = gpu.enter()
    try:
        launch(of_a, of_b, of_c, precision)(gpu, current_stream(ordinal), pa, pb, pc, alpha, beta)
    finally:
        if switched:
            gpu.leave()


def view(x: Tensor) -> View:
    """Return address and meta of a plain float32 tensor; see `fastsgemm.call.arrays`."""
    return x.data_ptr(), (x.shape, x.stride(), x.get_device(), None, False)


def named(error: FastsgemmError, product: str) -> FastsgemmError:
    """Return the same kind of error, which also names the product that failed."""
    return type(error)(f"{product}: {error}")
