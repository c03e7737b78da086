"""Compile CUDA C++ for one architecture, with NVRTC through cuda.bindings: to a cubin, or to PTX for XLA.

The key of the cache is the source, its name in messages, the options and the major version of NVRTC, which a driver
must not be older than. Sources have no includes, so the code depends on nothing else but NVRTC's minor version. What is
stored, there or in an installed package of kernels, needs no NVRTC.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from fastsgemm import log
from fastsgemm.device import nvrtc_lines, nvrtc_version
from fastsgemm.errors import CompileError, NoNvrtcError
from fastsgemm.jit import cache, packs
from fastsgemm.jit.locks import Locks

T = TypeVar("T")
R = TypeVar("R")

# A second thread that needs a kernel waits for the first, and finds it in the cache.
_locks = Locks(256)

_HINT = re.compile(r'^[ \t]*\.pragma "used_bytes_mask .*\n', re.MULTILINE)
_PTX_VERSION = re.compile(r"^\.version .*$", re.MULTILINE)
_OLDEST_PTX = {100: "8.6", 103: "8.8", 110: "9.0", 120: "8.7", 121: "8.8"}  # from sm_100 on; 8.0 before
_CACHING = (12, 9)  # the first NVRTC with a cache of its own, whose hits come without a report


class Compiled(Struct, frozen=True):
    """The output of NVRTC: `cubin` for an architecture such as ``sm_90``, and `ptx` if requested."""

    cubin: bytes
    log: str
    ptx: str


class Report(Struct, frozen=True):
    """The resources of a kernel, as ptxas reports them."""

    registers: int  # per thread
    stack_bytes: int  # local memory per thread, in bytes; these three are zero for all shipped kernels
    spill_stores: int
    spill_loads: int


def cubin(source: str, name: str, arch: str, stored: bool = False) -> bytes:
    """Return the machine code of `source` for `arch` (``"sm_90"``), as it is stored or newly compiled.

    Raises
    ------
    DeviceError
        The code must be `stored` in the cache, and cannot be.
    NoNvrtcError
        NVRTC is not installed.
    CompileError
        NVRTC rejected the source or does not support the architecture; the message has its log.
    """
    return _cached(lambda options: compile_program(source, name, options).cubin, source, name, arch, stored)


class Stored(NamedTuple):
    """Machine code that needs no compiler."""

    code: bytes
    packed: bool  # in an installed package of kernels, and not in the cache


def stored(source: str, name: str, arch: str) -> Stored | None:
    """Return the machine code that is in the cache or in an installed package, or None. NVRTC is not needed."""
    return _find(source, name, _options(arch))


def pack_key(source: str, name: str, arch: str) -> bytes:
    """Return the key of machine code in a package of kernels."""
    return packs.key(source, name, _options(arch))


def compiled(source: str, name: str, arch: str) -> bytes:
    """Return the machine code as `cubin` does, but newly compiled, and not stored."""
    return compile_program(source, name, _options(arch)).cubin


def ptx(source: str, name: str, arch: str) -> str:
    """Return the PTX of `source` for `arch`, from the cache or newly compiled, for a driver that compiles it.

    If known, it declares the oldest PTX version with all instructions of the architecture, and has no newer hints,
    because NVRTC may be newer than the driver, which refuses newer versions.
    """

    def make(options: list[str]) -> bytes:
        return compile_program(source, name, options, ptx=True).ptx.encode()

    text = _cached(make, source, name, arch.replace("sm_", "compute_")).decode()
    number = int("".join(filter(str.isdigit, arch)))
    oldest = "8.0" if number < 100 else _OLDEST_PTX.get(number)
    if oldest is not None:
        text = _PTX_VERSION.sub(f".version {oldest}", _HINT.sub("", text), count=1)
    return text


def _cached(make: Callable[[list[str]], bytes], source: str, name: str, arch: str, stored: bool = False) -> bytes:
    options = _options(arch)
    keys = _keys(source, name, options)
    with _locks.of(keys[0]):
        found = _find(source, name, options)
        if found is not None:
            code, place = found.code, "an installed package" if found.packed else "the kernel cache"
            log.debug(lambda: f"found {name} for {arch} in {place}")
        else:
            began = time.monotonic()
            try:
                code = make(options)
            except NoNvrtcError as error:
                raise NoNvrtcError(
                    f"{name} for {arch} is not in the kernel cache {cache.folder()}, nor in an installed package of "
                    f"kernels. {error}; or run `fastsgemm prepare` where NVRTC is, and let FASTSGEMM_CACHE_DIR name "
                    "the folder that it fills, or `fastsgemm pack`, and install the package that it makes"
                ) from error
            cache.write(keys[0], code, stored)
            log.info(lambda: f"compiled {name} for {arch} in {time.monotonic() - began:.2f} s")
    return code


def _find(source: str, name: str, options: list[str]) -> Stored | None:
    """Return what is stored: in the user's cache, else in an installed package."""
    for key in _keys(source, name, options):
        if (code := cache.read(key)) is not None:
            return Stored(code, False)
    code = packs.read(packs.key(source, name, options))
    return None if code is None else Stored(code, True)


def _keys(source: str, name: str, options: list[str]) -> list[bytes]:
    """Return the keys that this code may be stored under, of which the first is that of the installed NVRTC."""
    return [repr((line, name, options, source)).encode() for line in nvrtc_lines()]


def report(source: str, name: str, arch: str) -> Report:
    """Compile without the cache and return what ptxas reports. This needs NVRTC but neither driver nor GPU."""
    log = compile_program(source, name, [*_options(arch), *reporting()]).log
    return report_in(log, f"{name} on {arch}")


def report_in(log: str, kernel: str) -> Report:
    """Return ptxas's report from the part of a log on one kernel."""
    registers = re.search(r"Used (\d+) registers", log)
    memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or memory is None:
        raise CompileError(f"ptxas printed no report for {kernel}:\n{log}")
    return Report(int(registers[1]), int(memory[1]), int(memory[2]), int(memory[3]))


def _options(arch: str) -> list[str]:
    return [f"-arch={arch}", "--std=c++17"]


def reporting() -> list[str]:
    """Return the options that put ptxas's report on every kernel into the log."""
    return ["--ptxas-options=-v", *(["--no-cache"] if nvrtc_version() >= _CACHING else [])]


def compile_program(source: str, name: str, options: list[str], ptx: bool = False) -> Compiled:
    """Compile a source, which messages call `name`, without the cache; with `ptx`, return the PTX, too.

    NVRTC releases the GIL, so threads compile concurrently. The first of the options is the architecture.

    Raises
    ------
    NoNvrtcError, CompileError
        See `cubin`.
    """
    version = nvrtc_version()
    from cuda.bindings import nvrtc

    program = _value(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
        if int(status) != 0:
            refusal = f"NVRTC {version[0]}.{version[1]} refused {name} for {options[0].removeprefix('-arch=')}"
            raise CompileError(f"{refusal}:\n{status.name}\n{log}")
        real = options[0].startswith("-arch=sm_")
        code = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program) if real else b""
        text = _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode() if ptx else ""
        return Compiled(code, log, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def on_all_cores(compile: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Yield each item with the result of its compilation, when done. NVRTC releases the GIL."""
    from concurrent.futures import ThreadPoolExecutor, as_completed  # imported late: a call compiles few kernels

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(compile, item): item for item in items}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _read(size_of: Any, read: Any, program: Any) -> bytes:
    """Return what NVRTC writes into a buffer, after asking it for the size."""
    buffer = bytes(_value(size_of(program)))
    _value((*read(program, buffer), None))
    return buffer


def _value(answer: tuple[Any, Any]) -> Any:
    """Return the value of a call of NVRTC; raise `CompileError` if it failed."""
    result, value = answer
    if int(result) != 0:
        raise CompileError(f"NVRTC answers {result.name}")
    return value
