"""A kernel ready to launch: compiled for the device, loaded, and allowed the shared memory it needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastsgemm import device
from fastsgemm.config import STATIC_SHARED, Config
from fastsgemm.errors import CaptureError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import compiler, source
from fastsgemm.rungs import Rung, kernel_name

if TYPE_CHECKING:
    from cuda.core import Kernel

    from fastsgemm.device import Gpu

_lock = threading.Lock()


def get(gpu: Gpu, rung: Rung, config: Config, variant: Variant, stream: Any) -> Kernel:
    """Return the kernel of `rung` for this device, compiling and loading it on first use.

    Raises
    ------
    CaptureError
        It is not loaded yet and `stream` is being captured into a graph.
    CompileError, NoNvrtcError
        See `fastsgemm.jit.compiler.cubin`.
    """
    key = (rung.file, config.kernel, variant)
    found = gpu.kernels.get(key)
    if found is None:
        _refuse_in_capture(rung.kernel, stream)
        text = source.generate(rung, config, variant)
        found = _load(gpu, key, lambda: compiler.cubin(text, rung.kernel, gpu.arch), rung.kernel, config.shared_bytes)
    return found


def load(gpu: Gpu, rung: Rung, config: Config, variant: Variant, cubin: bytes) -> Kernel:
    """Load a kernel that was compiled elsewhere, for `get` to find."""
    return _load(gpu, (rung.file, config.kernel, variant), lambda: cubin, rung.kernel, config.shared_bytes)


def helper(gpu: Gpu, name: str, stream: Any) -> Kernel:
    """Return a kernel that has no config: ``copy_strided`` or ``reduce_parts``, by the name of its file."""
    found = gpu.kernels.get(name)
    if found is None:
        _refuse_in_capture(name, stream)
        text, entry = source.helper(name), kernel_name(name)
        found = _load(gpu, name, lambda: compiler.cubin(text, entry, gpu.arch), entry, 0)
    return found


def with_constants(gpu: Gpu, file: str, constants: Mapping[str, int], stream: Any, shared_bytes: int = 0) -> Kernel:
    """Return the kernel in `file` with these constants, compiling and loading it on first use."""
    key = (file, tuple(constants.items()))
    found = gpu.kernels.get(key)
    if found is None:
        entry = kernel_name(file)
        _refuse_in_capture(entry, stream)
        text, arch = source.with_constants(file, constants), source.target(file, gpu.arch)
        found = _load(gpu, key, lambda: compiler.cubin(text, entry, arch), entry, shared_bytes)
    return found


def _refuse_in_capture(name: str, stream: Any) -> None:
    if device.is_capturing(stream):
        raise CaptureError(
            f"kernel {name} is not loaded yet and the stream is being captured into a CUDA graph, where nothing "
            "may be compiled; call sgemm once on operands of these shapes before the capture"
        )


def _load(gpu: Gpu, key: Any, cubin: Callable[[], bytes], name: str, shared_bytes: int) -> Kernel:
    from cuda.core import ObjectCode

    with _lock:  # compiling too: threads that need the same kernel do it once, also without a cache
        if key not in gpu.kernels:
            kernel = ObjectCode.from_cubin(cubin(), name=name).get_kernel(name)
            if shared_bytes > STATIC_SHARED:
                _allow_shared(gpu, kernel, shared_bytes)
            gpu.kernels[key] = kernel
    return gpu.kernels[key]


def _allow_shared(gpu: Gpu, kernel: Kernel, shared_bytes: int) -> None:
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    answer = driver.cuKernelSetAttribute(attribute, shared_bytes, int(kernel.handle), gpu.ordinal)
    device.succeed(f"asking {gpu.name} for {shared_bytes} bytes of shared memory (limit {gpu.shared_limit})", answer)
