"""Kernels ready to launch: compiled for a device and loaded once, then kept in its table.

The compiler is `fastsgemm.jit.compiler`; loading is a method of the device. Both can be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastsgemm import log
from fastsgemm.jit import compiler
from fastsgemm.jit.locks import Locks
from fastsgemm.jit.source import KernelSpec, target

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

# Threads compile each kernel once, even without a cache. Different kernels are compiled concurrently.
_locks = Locks(64)


def ready(gpu: Gpu, spec: KernelSpec, shared_bytes: int) -> Kernel:
    """Return a kernel for this device, compiling and loading it on first use, which may be inside a capture.

    The blocks of a launch have `shared_bytes` of dynamic shared memory.

    Raises
    ------
    CompileError, NoNvrtcError
        See `fastsgemm.jit.compiler.cubin`.
    """
    loaded = gpu.kernels.get(spec)
    return loaded or _load(gpu, spec, shared_bytes, lambda: cubin(spec, gpu.arch))


def load(gpu: Gpu, spec: KernelSpec, shared_bytes: int, code: bytes) -> Kernel:
    """Load a compiled kernel, so that `ready` finds it."""
    return _load(gpu, spec, shared_bytes, lambda: code)


def cubin(spec: KernelSpec, arch: str, stored: bool = False) -> bytes:
    """Return the machine code of a kernel for a device of this architecture; see `fastsgemm.jit.compiler.cubin`."""
    return compiler.cubin(spec.text, spec.name, target(spec.file, arch), stored)


def stored(spec: KernelSpec, arch: str) -> compiler.Stored | None:
    """Return the machine code of a kernel that is in the cache or in an installed package, or None."""
    return compiler.stored(spec.text, spec.name, target(spec.file, arch))


def compiled(spec: KernelSpec, arch: str) -> bytes:
    """Return the machine code of a kernel, newly compiled and not stored."""
    return compiler.compiled(spec.text, spec.name, target(spec.file, arch))


def pack_key(spec: KernelSpec, arch: str) -> bytes:
    """Return the key of a kernel in a package of kernels."""
    return compiler.pack_key(spec.text, spec.name, target(spec.file, arch))


def _load(gpu: Gpu, spec: KernelSpec, shared_bytes: int, code: Callable[[], bytes]) -> Kernel:
    with _locks.of(spec):
        loaded = gpu.kernels.get(spec)
        if loaded is None:
            loaded = gpu.kernels.setdefault(spec, gpu.load(code(), spec.name, shared_bytes))
            log.debug(lambda: f"loaded {spec.name} on cuda:{gpu.ordinal}")
    return loaded
