"""From CUDA C++ source to a cubin for one architecture, by NVRTC through cuda.core."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastsgemm.errors import CompileError
from fastsgemm.jit import cache

if TYPE_CHECKING:
    from cuda.core import ProgramOptions
from fastsgemm.device import nvrtc_version

# A second thread that wants the same kernel waits and finds it cached; different kernels compile side by side, unless
# they share one of these locks by chance.
_locks = tuple(threading.Lock() for _ in range(256))
_importing = threading.Lock()  # cuda.core picks its build for CUDA 12 or 13 while it is imported: one thread at a time

CACHING = (12, 9)  # the first NVRTC that keeps a cache of its own beside a driver; a hit there has nothing to report


@dataclass(frozen=True)
class Report:
    """What ptxas says of a kernel.

    Attributes
    ----------
    registers : int
        Of a thread.
    stack_bytes, spill_stores, spill_loads : int
        Local memory of a thread, in bytes; all zero for a kernel worth shipping.
    """

    registers: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int


def cubin(source: str, name: str, arch: str) -> bytes:
    """Return the machine code of `source` for `arch` (``"sm_90"``), from the cache or compiled now.

    Raises
    ------
    NoNvrtcError
        NVRTC is not installed.
    CompileError
        NVRTC refused the source or does not know the architecture; the message carries its log.
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
    """Compile without looking into the cache or adding to it; else as `cubin`."""
    nvrtc_version()
    return _compile(source, _options(name, arch))


def report(source: str, name: str, arch: str) -> Report:
    """Compile without the cache and return what ptxas says. Needs NVRTC but neither driver nor GPU."""
    no_cache = True if nvrtc_version() >= CACHING else None
    log = io.StringIO()
    _compile(source, _options(name, arch, ptxas_options=["-v"], no_cache=no_cache), log)
    text = log.getvalue()
    registers = re.search(r"Used (\d+) registers", text)
    memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
    if registers is None or memory is None:
        raise CompileError(f"ptxas gave no report for {name} on {arch}:\n{text}")
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
