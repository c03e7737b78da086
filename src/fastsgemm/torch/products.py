"""One product of tensors' memory, below PyTorch's dispatcher: on their device, or on the host for CPU tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastsgemm import host
from fastsgemm.call import checks, product
from fastsgemm.call.arrays import HOST, View
from fastsgemm.call.plan import Plan
from fastsgemm.call.product import Metas, prepare
from fastsgemm.errors import FastsgemmError
from fastsgemm.geometry.layout import ITEM
from fastsgemm.tuning import first_use

if TYPE_CHECKING:
    from torch import Tensor

    from fastsgemm.device import Gpu

_USUAL = {0.0: 0.0, 1.0: 1.0}  # alpha and beta that need no check; 0, 1 and True are found, too

# Returns the raw handle of PyTorch's current stream on a device; absent in CPU builds.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def scalar(name: str, value: Any) -> float:
    """Return alpha or beta, rounded to float32; see `fastsgemm.call.checks.scalar`."""
    found = _USUAL.get(value)
    return checks.scalar(name, value) if found is None else found


def gpu_of(ordinal: int) -> Gpu | None:
    """Return the device with this number, opened, or None for `HOST`."""
    if ordinal == HOST:
        return None
    return first_use.opened.get(ordinal) or first_use.open_device(ordinal, lambda: current_stream(ordinal))


def plan_of(gpu: Gpu, handle: int, metas: Metas, addresses: tuple[int, int, int], precision: str) -> Plan:
    """Return the plan of a product of 2-D float32 matrices in device memory, after checking them.

    Parameters
    ----------
    gpu : Gpu
        The device, current in this thread.
    handle : int
        The raw stream of the first call.
    metas : tuple of Meta
        Of A, B and C.
    addresses : tuple of int
        Of A, B and C in the first call. Later ones have the same alignment.
    precision : str
    """
    a, b, c = (address & 15 for address in addresses)
    return prepare(gpu, handle, metas, (a, b, c), None, None, precision, (False, False))


def check_overlap(plan: Plan, metas: Metas, addresses: tuple[int, int, int]) -> None:
    """Raise `OverlapError` if C shares an element with A or B."""
    a_low, a_high, b_low, b_high, c_low, c_high = plan.ranges
    pa, pb, pc = addresses
    for name, p, low, high, meta in (("A", pa, a_low, a_high, metas[0]), ("B", pb, b_low, b_high, metas[1])):
        if pc + c_low < p + high and p + low < pc + c_high:
            product.check_overlap(name, p - pc, metas[2], meta)


def on_host(a: View, b: View, c: View, alpha: float, beta: float, precision: str) -> None:
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


def multiply(a: Tensor, b: Tensor, c: Tensor, alpha: float, beta: float, precision: str) -> None:
    """Compute C <- alpha * A @ B + beta * C for plain 2-D float32 tensors that have memory."""
    views = view(a), view(b), view(c)
    gpu = gpu_of(c.get_device())
    if gpu is None:
        on_host(*views, alpha, beta, precision)
        return
    switched = gpu.enter()
    try:
        product.multiply(gpu, stream_of(gpu), *views, alpha, beta, precision=precision)
    finally:
        if switched:
            gpu.leave()


def stream_of(gpu: Gpu) -> int:
    """Return the raw handle of PyTorch's current stream on a device."""
    handle: int = current_stream(gpu.ordinal)
    if handle not in gpu.streams:
        gpu.adopt(handle)
    return handle


def view(x: Tensor) -> View:
    """Return address and meta of a plain float32 tensor; see `fastsgemm.call.arrays`."""
    return x.data_ptr(), (x.shape, x.stride(), x.get_device(), None, False)


def named(error: FastsgemmError, product: str) -> FastsgemmError:
    """Return the same kind of error, which also names the product that failed."""
    return type(error)(f"{product}: {error}")
