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
from typing import TypeVar

import msgspec
from filelock import FileLock

from fastsgemm import device
from fastsgemm.jit import compiler
from fastsgemm.sim import nvrtc

T = TypeVar("T")

FOLDER = Path(__file__).resolve().parents[2] / "build" / "compilations"
MAX_BYTES = 1 << 30  # of the folder; then the results that were read least recently go
LOCKS = 256

_report = compiler.report  # before a test puts `report` in its place
_OUR_CODE = b"".join(Path(module.__file__).read_bytes() for module in (compiler, nvrtc))


def kept(compile_: Callable[..., T], kind: type[T], folder: Path = FOLDER) -> Callable[..., T]:
    """Return `compile_`, looking into `folder` first.

    Parameters
    ----------
    compile_ : callable
        Takes strings and returns a `kind`. An error is raised again by the next call, which compiles again.
    kind : type
        A dataclass.
    folder : pathlib.Path
        Made if it is not there.
    """
    from cuda.core.utils import FileStreamProgramCache

    found = FileStreamProgramCache(folder, max_size_bytes=MAX_BYTES)
    locks = folder / "locks"
    locks.mkdir(exist_ok=True)

    @functools.wraps(compile_)
    def look(*texts: str) -> T:
        what = msgspec.msgpack.encode((kind.__name__, _OUR_CODE, device.nvrtc_version(), texts))
        key = hashlib.sha256(what).digest()
        with FileLock(locks / str(key[0] % LOCKS)):  # a second worker waits for the result of the first
            data = found.get(key)
            if data is None:
                data = zlib.compress(msgspec.msgpack.encode(compile_(*texts)), 1)
                found[key] = data
        return msgspec.msgpack.decode(zlib.decompress(data), type=kind)

    return look


def usual_report(source: str, name: str, arch: str) -> compiler.Report:
    """Compile a kernel that spills once more, and return the report with fewer spills.

    NVRTC 13.5 does not always give out registers alike: of 1,384 compilations of one kernel that needs all it may use,
    sixteen at a time, one spilled 8 bytes and the others none.
    """
    found = _report(source, name, arch)
    return min(found, _report(source, name, arch), key=lambda each: each.spill_stores) if found.spill_stores else found


@functools.cache
def _kept_report() -> Callable[[str, str, str], compiler.Report]:
    return kept(usual_report, compiler.Report)


def report(source: str, name: str, arch: str) -> compiler.Report:
    """Return what `fastsgemm.jit.compiler.report` usually returns."""
    return _kept_report()(source, name, arch)
