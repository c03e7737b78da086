"""C++ for the host: compiled once by the machine's C++ compiler, and cached beside the kernels.

A library is named by the digest of its sources and the options, and not by the compiler: where it is used, there may
be none. The digest of its content is appended, where the loader does not look.
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

_COMPILERS = ("g++", "c++", "clang++")  # searched in this order if CXX is not set
_SECONDS = 600  # limit of a compilation, or of waiting for that of another process
_MOST_BYTES = 64 * 1024 * 1024  # of a library
_DIGEST = 32  # bytes of SHA-256


def compiler() -> str | None:
    """Return the path of the C++ compiler: that of ``CXX``, as for PyTorch's inductor, or the first one found."""
    requested = settings.CXX.read()
    paths = (shutil.which(name) for name in ((requested,) if requested else _COMPILERS))
    return next((path for path in paths if path), None)


class Library(NamedTuple):
    """The inputs of a shared library."""

    sources: tuple[Path, ...]
    headers: tuple[Path, ...]  # ours, which the sources include
    options: tuple[str, ...]  # of the compiler
    links: tuple[str, ...]  # options of the linker
    obstacle: str = ""  # why it cannot be compiled here, if so


def source(name: str) -> Path:
    """Return the path of a file of ``host_src``."""
    return resources.folder("host_src") / name


def is_kept(library: Library) -> bool:
    """Return whether the cache has a library. No compiler is needed."""
    directory = cache.folder()
    try:
        return directory is not None and _is_intact(directory / _name(library))
    except OSError:
        return False


def required_compiler(library: Library) -> str:
    """Return the path of the compiler; raise `DeviceError` if there is none, or it cannot compile the library."""
    if library.obstacle:
        raise DeviceError(library.obstacle)
    path = compiler()
    if path is None:
        requested = settings.CXX.read()
        candidates = f"{settings.CXX.name}={requested}" if requested else ", ".join(_COMPILERS)
        raise DeviceError(f"no C++ compiler was found (looked for {candidates})")
    return path


def load(library: Library, label: str, use: Callable[[Path], T]) -> T:
    """Compile a library, unless it is cached, and return the result of `use` on its path.

    One process compiles at a time; the others wait. If the cache cannot be written, the library is compiled for this
    process alone. Messages name it by its `label`.

    Raises
    ------
    DeviceError
        The library is not cached, and there is no compiler, or it cannot compile the library.
    CompileError
        The compiler fails.
    """
    directory = cache.folder()
    if directory is not None:
        path = directory / _name(library)
        try:
            private_files.make_folder(directory)
            if not _is_intact(path):
                name = required_compiler(library)
                from filelock import FileLock

                with FileLock(directory / "host.lock", timeout=_SECONDS):
                    if not _is_intact(path):
                        code = _compiled(name, library, label)
                        private_files.replace(path, code + hashlib.sha256(code).digest())
        except OSError as error:  # filelock's Timeout among them
            warn(f"the kernel cache {directory} cannot be used ({error}); {label} is compiled for this process alone")
        else:
            return use(path)
    with tempfile.TemporaryDirectory(prefix="fastsgemm-") as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(_compiled(required_compiler(library), library, label))
        return use(path)


def _is_intact(path: Path) -> bool:
    """Return whether the library exists undamaged; raise `OSError` if other users can write it."""
    try:
        content = private_files.read(path, _MOST_BYTES)
    except FileNotFoundError:
        return False
    if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        return False
    with suppress(OSError):  # the folder may be read-only
        os.utime(path)
    return True


def _name(library: Library) -> str:
    digest = hashlib.sha256(repr((library.options, library.links)).encode())
    for file in (*library.sources, *library.headers):
        digest.update(file.read_bytes())
    return f"{digest.hexdigest()}.so"


def _compiled(compiler: str, library: Library, label: str) -> bytes:
    """Return the compiled library; its sources are compiled concurrently."""
    say(f"fastsgemm compiles {label}, once; this takes about 10 s")
    with tempfile.TemporaryDirectory(prefix="fastsgemm-") as folder:
        objects = [Path(folder) / f"{file.stem}.o" for file in library.sources]
        common = [compiler, "-fPIC", "-fvisibility=hidden", *library.options]
        _run(
            [[*common, "-c", str(file), "-o", str(o)] for file, o in zip(library.sources, objects, strict=True)], label
        )
        output = Path(folder) / "library.so"
        _run([[compiler, "-shared", "-o", str(output), *map(str, objects), *library.links]], label)
        return output.read_bytes()


def _run(commands: Sequence[Sequence[str]], label: str) -> None:
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
                raise CompileError(f"{commands[0][0]} could not compile {label} ({status}): {reason.strip()}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{commands[0][0]} could not compile {label}: {error}") from error
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
