"""Compile CUDA C++ to a cubin for one architecture, with NVRTC through cuda.core."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastsgemm.device import nvrtc_version
from fastsgemm.errors import CompileError
from fastsgemm.jit import cache

if TYPE_CHECKING:
    from cuda.core import ProgramOptions

# A second thread that needs the same kernel waits for the first and finds the kernel in the cache. Different kernels
# compile in parallel, unless their keys happen to share a lock.
_locks = tuple(threading.Lock() for _ in range(256))
_importing = threading.Lock()  # importing cuda.core selects its build for CUDA 12 or 13, which is not thread-safe

CACHING = (12, 9)  # the first NVRTC with a cache of its own, whose hits come without a report


@dataclass(frozen=True)
class Report:
    """The resources of a kernel, as ptxas reports them.

    Attributes
    ----------
    registers : int
        Registers per thread.
    stack_bytes, spill_stores, spill_loads : int
        Local memory per thread, in bytes. All are zero for every kernel that is shipped.
    """

    registers: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int


def cubin(source: str, name: str, arch: str) -> bytes:
    """Return the machine code of `source` for `arch` (``"sm_90"``), from the cache or newly compiled.

    Raises
    ------
    NoNvrtcError
        NVRTC is not installed.
    CompileError
        NVRTC rejected the source or does not support the architecture; the message has its log.
    """
    nvrtc_version()
    options = _options(name, arch)
    from cuda.core.utils import make_program_cache_key

    key = make_program_cache_key(code=source, code_type="c++", options=options, target_type="cubin")
    with _locks[hash(key) % len(_locks)]:
        code = cache.read(key)
        if code is None:
            code = _compile(source, options)
            cache.write(key, code)
    return code


def compiled(source: str, name: str, arch: str) -> bytes:
    """Return the machine code as `cubin` does, but without the cache."""
    nvrtc_version()
    return _compile(source, _options(name, arch))


def report(source: str, name: str, arch: str) -> Report:
    """Compile without the cache and return what ptxas reports. This needs NVRTC but neither driver nor GPU."""
    no_cache = True if nvrtc_version() >= CACHING else None
    log = io.StringIO()
    _compile(source, _options(name, arch, ptxas_options=["-v"], no_cache=no_cache), log)
    text = log.getvalue()
    registers = re.search(r"Used (\d+) registers", text)
    memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
    if registers is None or memory is None:
        raise CompileError(f"ptxas printed no report for {name} on {arch}:\n{text}")
    return Report(int(registers[1]), int(memory[1]), int(memory[2]), int(memory[3]))


def _options(name: str, arch: str, **more: Any) -> ProgramOptions:
    with _importing:
        from cuda.core import ProgramOptions

    return ProgramOptions(name=name, arch=arch, std="c++17", **more)


def _compile(source: str, options: ProgramOptions, log: io.StringIO | None = None) -> bytes:
    from cuda.core import Program

    try:
        program = Program(source, "c++", options)
        return bytes(program.compile("cubin", logs=log).code)
    except Exception as error:  # cuda.core's errors carry NVRTC's log but share no public base
        raise CompileError(f"NVRTC {nvrtc_version()} refused {options.name} for {options.arch}:\n{error}") from error
