"""From CUDA C++ to PTX and ptxas's report, by NVRTC alone: neither driver nor GPU is needed."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from msgspec.structs import replace

from fastsgemm.jit import compiler
from fastsgemm.jit.compiler import Compiled, Report


@lru_cache(maxsize=64)
def compile_source(source: str, arch: str) -> Compiled:
    """Compile CUDA C++ for one architecture. The PTX names the files of the source as ``#line`` does.

    Raises
    ------
    NoNvrtcError
        NVRTC is not installed.
    CompileError
        NVRTC refused the source; the message carries its log.
    """
    options = [f"-arch={arch}", "--std=c++17", "-lineinfo", *compiler.reporting()]
    made = compiler.compile_program(source, "kernel.cu", options, ptx=True)
    folder = os.getcwd().rstrip("/") + "/"  # NVRTC puts it before every name
    return replace(made, ptx=made.ptx.replace(f'"{folder}', '"'))


def report_on(kernel: str, log: str) -> Report:
    """Return what ptxas reports on one of the kernels of a log."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    return compiler.report_in(dict(zip(parts[1::2], parts[2::2], strict=True)).get(kernel, ""), kernel)
