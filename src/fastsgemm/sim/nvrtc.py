"""From CUDA C++ to PTX, cubin and ptxas's report, by NVRTC alone: neither driver nor GPU is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fastsgemm import device
from fastsgemm.errors import CompileError, NoNvrtcError
from fastsgemm.jit import compiler


@dataclass(frozen=True)
class Binary:
    """What one compilation gives.

    Attributes
    ----------
    arch : str
        For example ``sm_90``.
    ptx : str
    cubin : bytes
    log : str
        Of NVRTC and ptxas, with ptxas's report on every kernel.
    """

    arch: str
    ptx: str
    cubin: bytes
    log: str

    def resources(self, kernel: str) -> Resources:
        """Return what ptxas says of one kernel."""
        parts = re.split(r"Compiling entry function '(\w+)'", self.log)
        text = dict(zip(parts[1::2], parts[2::2], strict=True)).get(kernel, "")
        registers = re.search(r"Used (\d+) registers", text)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        shared = re.search(r"(\d+) bytes smem", text)
        if registers is None:
            raise CompileError(f"ptxas reports nothing on kernel {kernel}:\n{self.log}")
        spilled = int(spills[1]) + int(spills[2]) if spills else 0
        return Resources(int(registers[1]), int(shared[1]) if shared else 0, spilled)


@dataclass(frozen=True)
class Resources:
    """What a kernel needs, as ptxas counts it.

    Attributes
    ----------
    registers : int
        Of a thread.
    static_shared : int
        Shared memory that the source declares with its size, in bytes.
    spilled : int
        Bytes of spill stores and loads of a thread.
    """

    registers: int
    static_shared: int
    spilled: int


@lru_cache(maxsize=64)
def compile_source(source: str, arch: str) -> Binary:
    """Compile CUDA C++ for one architecture.

    Raises
    ------
    NoNvrtcError
        NVRTC is not installed.
    CompileError
        NVRTC refused the source; the message carries its log.
    """
    try:
        from cuda.bindings import nvrtc

        made, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    except Exception as error:  # the loader raises whatever the platform's dlopen made of it
        raise NoNvrtcError("NVRTC, which compiles the kernels, was not found; install 'fastsgemm[cu13]'") from error
    if int(made) != 0:
        raise CompileError(f"NVRTC gives no program: {made.name}")
    try:
        options = [f"-arch={arch}".encode(), b"-std=c++17", b"-lineinfo", b"--ptxas-options=-v"]
        if device.nvrtc_version() >= compiler.CACHING:
            options.append(b"--no-cache")  # a hit has no report
        (done,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if int(done) != 0:
            raise CompileError(f"NVRTC refused the source for {arch}: {done.name}\n{log}")
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        return Binary(arch, ptx, _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bytes(size_of: Any, read: Any, program: Any) -> bytes:
    _, size = size_of(program)
    buffer = bytes(size)
    read(program, buffer)
    return buffer


def _text(size_of: Any, read: Any, program: Any) -> str:
    return _bytes(size_of, read, program).rstrip(b"\0").decode()
