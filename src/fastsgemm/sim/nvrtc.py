"""From CUDA C++ to PTX, cubin and ptxas's report, by NVRTC alone: neither driver nor GPU is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from fastsgemm.errors import CompileError
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
    options = [f"-arch={arch}", "--std=c++17", "-lineinfo", *compiler.reporting()]
    made = compiler.compile_program(source, "kernel.cu", options, ptx=True)
    return Binary(arch, made.ptx, made.cubin, made.log)
