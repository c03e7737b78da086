"""Kernels ready to launch: compiled for a device and loaded once, then kept in its table.

The compiler is `fastsgemm.jit.compiler`; loading is a method of the device. Both can be exchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastsgemm import device
from fastsgemm.errors import CaptureError
from fastsgemm.jit import compiler
from fastsgemm.jit.source import KernelSpec, target

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

# Held while a kernel is compiled, so that threads that need it compile it once, even without a cache. Different kernels
# are compiled side by side, unless their specs happen to share a lock.
_locks = tuple(threading.Lock() for _ in range(64))


def ready(gpu: Gpu, spec: KernelSpec, shared_bytes: int, handle: int) -> Kernel:
    """Return a kernel for this device, compiling and loading it on first use.

    The blocks of a launch have `shared_bytes` of dynamic shared memory. `handle` is the raw stream of the call, which
    may be capturing.

    Raises
    ------
    CaptureError
        It is not loaded yet and the stream is being captured into a graph.
    CompileError, NoNvrtcError
        See `fastsgemm.jit.compiler.cubin`.
    """
    loaded = gpu.kernels.get(spec)
    if loaded is not None:
        return loaded
    if device.is_capturing(handle):
        raise CaptureError(
            f"kernel {spec.name} is not loaded yet and the stream is being captured into a CUDA graph, where nothing "
            "can be compiled; call sgemm once on operands of these shapes before the capture"
        )
    return _load(gpu, spec, shared_bytes, lambda: cubin(spec, gpu.arch))


def load(gpu: Gpu, spec: KernelSpec, shared_bytes: int, code: bytes) -> Kernel:
    """Load a kernel that has been compiled, so that `ready` finds it."""
    return _load(gpu, spec, shared_bytes, lambda: code)


def cubin(spec: KernelSpec, arch: str, stored: bool = False) -> bytes:
    """Return the machine code of a kernel for a device of this architecture; see `fastsgemm.jit.compiler.cubin`."""
    return compiler.cubin(spec.text, spec.name, target(spec.file, arch), stored)


def _load(gpu: Gpu, spec: KernelSpec, shared_bytes: int, code: Callable[[], bytes]) -> Kernel:
    with _locks[hash(spec) % len(_locks)]:
        if spec not in gpu.kernels:
            gpu.kernels[spec] = gpu.load(code(), spec.name, shared_bytes)
    return gpu.kernels[spec]
