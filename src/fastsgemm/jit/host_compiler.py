"""C++ for the host: compiled once by the C++ compiler of the machine, and kept in the cache beside the kernels.

A library is named by the digest of all that it depends on: its sources, the options, and the compiler's own file. The
digest of its own content stands behind it, where the loader does not look.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from fastsgemm import private_files, resources, settings
from fastsgemm.errors import CompileError, DeviceError
from fastsgemm.jit import cache
from fastsgemm.progress import say, warn

T = TypeVar("T")

_COMPILERS = ("g++", "c++", "clang++")  # looked for in this order where CXX is not set
_SECONDS = 600  # after which a compilation, or that of another process, is given up
_MOST_BYTES = 64 * 1024 * 1024  # of a library
_DIGEST = 32  # bytes of SHA-256


def compiler() -> str | None:
    """Return the path of the C++ compiler: that of ``CXX``, as for PyTorch's inductor, or the first that is found."""
    asked = settings.CXX.read()
    found = (shutil.which(name) for name in ((asked,) if asked else _COMPILERS))
    return next((path for path in found if path), None)


class Library(NamedTuple):
    """What a shared library is made of."""

    sources: tuple[Path, ...]
    headers: tuple[Path, ...]  # of ours, which the sources include
    options: tuple[str, ...]  # of the compiler
    links: tuple[str, ...]  # options of the linker


def source(name: str) -> Path:
    """Return the path of a file of ``host_src``."""
    return resources.folder("host_src") / name


def is_kept(library: Library) -> bool:
    """Return whether the cache has a library; raise `DeviceError` if there is no compiler."""
    place, name = cache.folder(), _found()
    try:
        return place is not None and _is_intact(place / _name(name, library))
    except OSError:
        return False


def _found() -> str:
    """Return the path of the compiler, or raise `DeviceError`."""
    path = compiler()
    if path is None:
        asked = settings.CXX.read()
        looked = f"{settings.CXX.name}={asked}" if asked else ", ".join(_COMPILERS)
        raise DeviceError(f"no C++ compiler was found (looked for {looked})")
    return path


def load(library: Library, what: str, use: Callable[[Path], T]) -> T:
    """Compile a library, unless the cache has it, and return what `use` makes of its path.

    One process compiles at a time; the others wait for it. If the cache cannot be written, the library is compiled for
    this process alone. `what` it is stands in messages.

    Raises
    ------
    DeviceError
        There is no compiler.
    CompileError
        The compiler fails.
    """
    name = _found()
    place = cache.folder()
    if place is not None:
        path = place / _name(name, library)
        try:
            private_files.make_folder(place)
            if not _is_intact(path):
                from filelock import FileLock

                with FileLock(place / "host.lock", timeout=_SECONDS):
                    if not _is_intact(path):
                        code = _compiled(name, library, what)
                        private_files.replace(path, code + hashlib.sha256(code).digest())
        except OSError as error:  # filelock's Timeout among them
            warn(f"the kernel cache {place} cannot be used ({error}); {what} is compiled for this process alone")
        else:
            return use(path)
    with tempfile.TemporaryDirectory(prefix="fastsgemm-") as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(_compiled(name, library, what))
        return use(path)


def _is_intact(path: Path) -> bool:
    """Return whether the library is there as it was written; raise `OSError` if other users can write it."""
    try:
        content = private_files.read(path, _MOST_BYTES)
    except FileNotFoundError:
        return False
    if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        return False
    with suppress(OSError):  # the folder may be read-only
        os.utime(path)
    return True


def _name(compiler: str, library: Library) -> str:
    real = os.path.realpath(compiler)
    status = os.stat(real)
    key = (real, status.st_size, status.st_mtime_ns, library.options, library.links)
    digest = hashlib.sha256(repr(key).encode())
    for file in (*library.sources, *library.headers):
        digest.update(file.read_bytes())
    return f"{digest.hexdigest()}.so"


def _compiled(compiler: str, library: Library, what: str) -> bytes:
    """Return the library as the compiler writes it; its sources are compiled side by side."""
    say(f"fastsgemm compiles {what}, once; this takes about 10 s")
    with tempfile.TemporaryDirectory(prefix="fastsgemm-") as folder:
        objects = [Path(folder) / f"{file.stem}.o" for file in library.sources]
        common = [compiler, "-fPIC", "-fvisibility=hidden", *library.options]
        _run(
            [[*common, "-c", str(file), "-o", str(to)] for file, to in zip(library.sources, objects, strict=True)], what
        )
        output = Path(folder) / "library.so"
        _run([[compiler, "-shared", "-o", str(output), *map(str, objects), *library.links]], what)
        return output.read_bytes()


def _run(commands: Sequence[Sequence[str]], what: str) -> None:
    """Run commands of the compiler side by side, and raise `CompileError` if one fails."""
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        for process in running:
            _, messages = process.communicate(timeout=_SECONDS)
            if process.returncode != 0:
                lines = messages.splitlines()
                reason = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
                status = f"exit status {process.returncode}"
                raise CompileError(f"{commands[0][0]} could not compile {what} ({status}): {reason.strip()}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{commands[0][0]} could not compile {what}: {error}") from error
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
