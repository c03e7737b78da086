"""What NVRTC made of a source, kept in ``build/`` for every test that wants the same, in all worker processes.

NVRTC takes up to seconds for one kernel, and hundreds of tests run or examine the same ones. A result is found again
only for the same source, architecture and NVRTC, and while the package's own code that calls NVRTC is the same.
`make clean` and a fresh clone start with nothing.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from filelock import FileLock

from fastsgemm import device
from fastsgemm.jit import compiler
from fastsgemm.jit.compiler import Compiled
from fastsgemm.sim import nvrtc

FOLDER = Path(__file__).resolve().parents[2] / "build" / "compilations"
MAX_BYTES = 1 << 30  # of the folder; then the results that were read least recently go
LOCKS = 256

_report = compiler.report  # before a test puts `report` in its place
_OUR_CODE = b"".join(Path(module.__file__).read_bytes() for module in (compiler, nvrtc))


def kept(compile_: Callable[..., Compiled], folder: Path = FOLDER) -> Callable[..., Compiled]:
    """Return `compile_`, which takes the arguments of `nvrtc.compile_source`, looking into `folder` first.

    An error is raised again by the next call, which compiles again.
    """
    from cuda.core.utils import FileStreamProgramCache

    found = FileStreamProgramCache(folder, max_size_bytes=MAX_BYTES)
    locks = folder / "locks"
    locks.mkdir(exist_ok=True)

    @functools.wraps(compile_)
    def look(source: str, arch: str, cubin: bool = False) -> Compiled:
        what = msgspec.msgpack.encode((_OUR_CODE, device.nvrtc_version(), source, arch, cubin))
        key = hashlib.sha256(what).digest()
        with FileLock(locks / str(key[0] % LOCKS)):  # a second worker waits for the result of the first
            data = found.get(key)
            if data is None:
                data = zlib.compress(msgspec.msgpack.encode(compile_(source, arch, cubin)), 1)
                found[key] = data
        return msgspec.msgpack.decode(zlib.decompress(data), type=Compiled)

    return look


def report(source: str, name: str, arch: str) -> compiler.Report:
    """Return what ptxas reports on a kernel.

    A kernel that spills is compiled once more, and the report is the one with fewer spills. NVRTC 13.5 does not always
    give out registers alike: of 1,384 compilations of one kernel that needs all it may use, sixteen at a time, one
    spilled 8 bytes and the others none.
    """
    found = nvrtc.report_on(name, nvrtc.compile_source(source, arch, cubin=True).log)
    return min(found, _report(source, name, arch), key=lambda each: each.spill_stores) if found.spill_stores else found
