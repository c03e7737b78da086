"""From CUDA C++ to PTX, and to machine code for ptxas's report, by NVRTC alone: neither driver nor GPU is needed."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec.structs import replace

from fastsgemm.errors import CompileError
from fastsgemm.jit import compiler
from fastsgemm.jit.compiler import Compiled, Report

# NVRTC puts the current folder before a relative name, and fails where there is no such folder any more or its path has
# a quotation mark. So names begin with a slash while NVRTC has them.
_NAMED = re.compile(r'^#line \d+ "(?!/)', re.MULTILINE)
_SLASH = re.compile(r'(?:(?<=")|(?<=\s)|^)/(?=[\w./]+\.cuh?\b)', re.MULTILINE)


@lru_cache(maxsize=64)
def compile_source(source: str, arch: str, cubin: bool = False) -> Compiled:
    """Compile CUDA C++ for one architecture. The PTX names the files of the source as ``#line`` does.

    With `cubin`, ptxas makes machine code of the PTX, which takes half as long again, and the log has its report.

    Raises
    ------
    NoNvrtcError
        NVRTC is not installed.
    CompileError
        NVRTC refused the source; the message carries its log.
    """
    made_for = [f"-arch={arch}", *compiler.reporting()] if cubin else [f"-arch={arch.replace('sm_', 'compute_')}"]
    options = [*made_for, "--std=c++17", "-lineinfo"]
    try:
        made = compiler.compile_program(_NAMED.sub(r"\g<0>/", source), "/kernel.cu", options, ptx=True)
    except CompileError as error:
        raise CompileError(_SLASH.sub("", str(error))) from error
    return replace(made, ptx=_SLASH.sub("", made.ptx))


def report_on(kernel: str, log: str) -> Report:
    """Return what ptxas reports on one of the kernels of a log."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    return compiler.report_in(dict(zip(parts[1::2], parts[2::2], strict=True)).get(kernel, ""), kernel)
