"""Kernels ready to launch: compiled for a device and loaded once, then kept in its table.

The compiler is `fastsgemm.jit.compiler`; loading is a method of the device. Both can be exchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsgemm import device
from fastsgemm.config import Config
from fastsgemm.errors import CaptureError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import compiler, source
from fastsgemm.rungs import Rung, kernel_name

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

# Held while a kernel is compiled, so that threads that need it compile it once, even without a cache. Different kernels
# are compiled side by side, unless their keys happen to share a lock.
_locks = tuple(threading.Lock() for _ in range(64))


class Key(NamedTuple):
    """Identifies a kernel in the table of a device. A helper's key is its name, or its file and constants where
    these are not its defaults.
    """

    file: str
    config: Config
    variant: Variant


def key(rung: Rung, config: Config, variant: Variant) -> Key:
    """Return the key of a kernel in ``gpu.kernels``; rungs of one file and configs that differ in split-K share it."""
    return Key(rung.file, config.kernel, variant)


def get(gpu: Gpu, rung: Rung, config: Config, variant: Variant, handle: int) -> Kernel:
    """Return the kernel of `rung` for this device, compiling and loading it on first use.

    Raises
    ------
    CaptureError
        It is not loaded yet and the stream is being captured into a graph.
    CompileError, NoNvrtcError
        See `fastsgemm.jit.compiler.cubin`.
    """
    known = key(rung, config, variant)
    kernel = gpu.kernels.get(known)
    if kernel is None:
        _refuse_in_capture(rung.name, handle)
        text = source.generate(rung, config, variant)
        kernel = _load(
            gpu, known, lambda: compiler.cubin(text, rung.kernel, gpu.arch), rung.kernel, config.shared_bytes
        )
    return kernel


def load(gpu: Gpu, rung: Rung, config: Config, variant: Variant, cubin: bytes) -> Kernel:
    """Load a kernel that has been compiled, so that `get` finds it."""
    return _load(gpu, key(rung, config, variant), lambda: cubin, rung.kernel, config.shared_bytes)


def helper(gpu: Gpu, name: str, handle: int, **changed: int) -> Kernel:
    """Return a kernel that has no config; `name`, that of its file, is one of `fastsgemm.jit.source.HELPERS`.

    Its constants are the defaults, but for those that are changed.

    Raises
    ------
    CaptureError, CompileError, NoNvrtcError
        As `get`.
    """
    if changed:
        return with_constants(gpu, f"{name}.cu", source.HELPERS[name] | changed, handle)
    kernel = gpu.kernels.get(name)
    if kernel is None:
        _refuse_in_capture(name, handle)
        text, entry = source.helper(name), kernel_name(name)
        kernel = _load(gpu, name, lambda: compiler.cubin(text, entry, gpu.arch), entry, 0)
    return kernel


def with_constants(gpu: Gpu, file: str, constants: Mapping[str, int], handle: int, shared_bytes: int = 0) -> Kernel:
    """Return the kernel in `file` with these constants, compiling and loading it on first use."""
    known = (file, tuple(constants.items()))
    kernel = gpu.kernels.get(known)
    if kernel is None:
        entry = kernel_name(file)
        _refuse_in_capture(entry, handle)
        text, arch = source.with_constants(file, constants), source.target(file, gpu.arch)
        kernel = _load(gpu, known, lambda: compiler.cubin(text, entry, arch), entry, shared_bytes)
    return kernel


def _refuse_in_capture(name: str, handle: int) -> None:
    if device.is_capturing(handle):
        raise CaptureError(
            f"kernel {name} is not loaded yet and the stream is being captured into a CUDA graph, where nothing "
            "can be compiled; call sgemm once on operands of these shapes before the capture"
        )


def _load(gpu: Gpu, known: Any, cubin: Callable[[], bytes], name: str, shared_bytes: int) -> Kernel:
    with _locks[hash(known) % len(_locks)]:
        if known not in gpu.kernels:
            gpu.kernels[known] = gpu.load(cubin(), name, shared_bytes)
    return gpu.kernels[known]


def load_key(gpu: Gpu, known: Any, cubin: bytes, name: str, shared_bytes: int) -> Kernel:
    """Load a kernel that has been compiled, so that the function that asks for this key finds it."""
    return _load(gpu, known, lambda: cubin, name, shared_bytes)
