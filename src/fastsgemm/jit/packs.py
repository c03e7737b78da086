"""Installed packages of compiled kernels: data only, found by their entry points, and never imported.

Such a package is a folder with `pack.json`, which says what it was made for, and a file per kernel, compressed and
named by the digest of its key. `fastsgemm.kernel_package` makes them. Their kernels are read like entries of the cache:
the folder and the file must be safe from other users, and the digest must fit. NVRTC's version is no part of a key: a
package with another is as good, if the driver can load it.

LZMA leaves 21 % of a kernel's bytes and reads it in about a millisecond; zlib leaves 29 % and takes half as long. Of 16
kernels in one archive, 14 % would be left, but 16 must be read for one.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from fastsgemm import private_files, strict_json
from fastsgemm.device import driver_version
from fastsgemm.errors import RecordError
from fastsgemm.jit import cache as kernel_cache
from fastsgemm.progress import warn

GROUP = "fastsgemm.kernels"  # of entry points
DESCRIPTION = "pack.json"
_MOST_BYTES = 16 * 1024 * 1024  # of a kernel, and of its file
_MOST_MEMORY = 64 * 1024 * 1024  # bytes, to unpack a kernel
_MOST_DESCRIPTION = 64 * 1024  # bytes

_warned = False


class Pack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a package of kernels was made for."""

    fastsgemm: str  # the version whose sources they are
    arch: str  # such as `sm_90`
    nvrtc: Annotated[str, msgspec.Meta(pattern=r"^\d{1,4}\.\d{1,4}$")]  # the version that compiled them
    kernels: int

    @property
    def cuda(self) -> int:
        """The CUDA version that a driver must have at least."""
        return int(self.nvrtc.partition(".")[0])


class Installed(msgspec.Struct, frozen=True):
    """An installed package that can be used."""

    name: str
    folder: Path
    pack: Pack

    def __str__(self) -> str:
        count = self.pack.kernels
        return f"{self.name}: {count} kernel{'s' * (count != 1)} for {self.pack.arch}, NVRTC {self.pack.nvrtc}"


def key(source: str, name: str, options: list[str]) -> bytes:
    """Return the key of a kernel: all that it follows from, but for NVRTC's version."""
    return repr((name, options, source)).encode()


def file_name(key: bytes) -> str:
    """Return the name of the file of a kernel."""
    return f"{hashlib.sha256(key).hexdigest()}.xz"


def packed(key: bytes, cubin: bytes) -> bytes:
    """Return the content of the file of a kernel."""
    import lzma  # imported late: most processes find their kernels in the cache

    return lzma.compress(kernel_cache.sealed(key, cubin))


def read(key: bytes) -> bytes | None:
    """Return a kernel that an installed package has, or None if it is missing, damaged or unsafe."""
    for one in installed():
        path = one.folder / file_name(key)
        try:
            cubin = _unpacked(key, private_files.read(path, _MOST_BYTES))
        except FileNotFoundError:
            continue
        except OSError as error:
            _warn(f"a kernel of {one.name} cannot be read ({error})")
            continue
        if cubin is not None:
            return cubin
        _warn(f"{one.name} has a damaged kernel, which is not used; install it again")
    return None


def _unpacked(key: bytes, content: bytes) -> bytes | None:
    import lzma

    stream = lzma.LZMADecompressor(memlimit=_MOST_MEMORY)
    try:
        entry = stream.decompress(content, _MOST_BYTES)
    except lzma.LZMAError:
        return None
    return kernel_cache.opened(key, entry) if stream.eof else None


@cache
def installed() -> tuple[Installed, ...]:
    """Return the packages that can be used, looked for once; each of the others is one warning."""
    from importlib import metadata  # imported late: it takes longer than a kernel of the cache

    found = []
    for name in sorted({entry.value for entry in metadata.entry_points(group=GROUP)}):
        try:
            found.append(_checked(name))
        except (OSError, ValueError, ImportError) as error:  # `RecordError` among them
            warn(f"the package {name} of compiled kernels is not used: {error}")
    return tuple(found)


def _checked(name: str) -> Installed:
    """Return a package; raise `OSError`, `ValueError` or `ImportError` if it cannot be used."""
    import lzma  # noqa: F401  # Python can be built without it

    from fastsgemm import __version__

    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.origin:
        raise FileNotFoundError(f"there is no package {name}")
    folder = Path(spec.origin).parent
    private_files.check_folder(folder)
    pack: Pack = strict_json.decode(private_files.read(folder / DESCRIPTION, _MOST_DESCRIPTION), Pack)
    if pack.fastsgemm != __version__:
        raise RecordError(f"it is for fastsgemm {pack.fastsgemm}, this is {__version__}")
    driver = driver_version()
    if driver and driver // 1000 < pack.cuda:
        raise RecordError(f"its kernels need a driver for CUDA {pack.cuda}, this one is for CUDA {driver // 1000}")
    return Installed(name, folder, pack)


def _warn(problem: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warn(problem)
