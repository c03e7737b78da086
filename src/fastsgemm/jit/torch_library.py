"""The inputs of the library of PyTorch's launcher, for the installed PyTorch, which is not imported.

The launcher itself is `fastsgemm.torch.cpp_launcher`.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import sysconfig
from pathlib import Path
from typing import NamedTuple

from fastsgemm import settings
from fastsgemm.errors import DeviceError
from fastsgemm.jit import host_compiler
from fastsgemm.jit.host_compiler import Library
from fastsgemm.progress import warn

_TESTED = ((2, 9), (2, 15))  # the first and the last supported version of PyTorch


class PyTorch(NamedTuple):
    """An installed PyTorch."""

    folder: Path  # with its headers and libraries
    version: str
    revision: str
    cuda: str | None  # CUDA's version; None for a build without it

    @property
    def launcher(self) -> str:
        """The name of the launcher in messages."""
        return f"the launcher for PyTorch {self.version}"


def installed() -> PyTorch | None:
    """Return the installed PyTorch, or None."""
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.origin:
            return None
        folder = Path(spec.origin).parent
        module = runpy.run_path(str(folder / "version.py"))
        return PyTorch(folder, str(module["__version__"]), str(module.get("git_version")), module.get("cuda"))
    except (OSError, KeyError, ValueError):  # another package is called torch
        return None


def is_off() -> bool:
    """Return whether ``FASTSGEMM_LAUNCHER`` is ``off``."""
    return settings.LAUNCHER.given() == "off"


def check(pytorch: PyTorch) -> None:
    """Raise `DeviceError` if this PyTorch, this machine or the user's settings rule the launcher out."""
    if settings.LAUNCHER.read() == "off":
        raise DeviceError(f"{settings.LAUNCHER.name} is off")
    version = tuple(int(part) for part in re.findall(r"\d+", pytorch.version)[:2])
    first, last = _TESTED
    if not first <= version <= last:
        tested = " to ".join(f"{major}.{minor}" for major, minor in _TESTED)
        raise DeviceError(f"the launcher was tested with PyTorch {tested}, this is {pytorch.version}")


def library(pytorch: PyTorch) -> Library:
    """Return the inputs of the launcher for this PyTorch."""
    include, python = pytorch.folder / "include", Path(sysconfig.get_paths()["include"])
    missing = f"Python.h is not in {python}; install the headers of Python (Debian: python3-dev)"
    return Library(
        sources=(host_compiler.source("torch_kernels.cpp"), host_compiler.source("torch_python.cpp")),
        headers=(host_compiler.source("torch_launcher.h"), host_compiler.source("launcher.h")),
        options=(
            "-std=c++20", "-O1", "-DAT_PER_OPERATOR_HEADERS",
            # What no header says must still be part of the library's name in the cache.
            f"-DFOR_PYTORCH={pytorch.version}-{pytorch.revision}",
            f"-DFOR_PYTHON={sysconfig.get_config_var('SOABI')}",
            f"-isystem{include}", f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}",
            f"-isystem{python}",
        ),
        links=(f"-L{pytorch.folder / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"),
        obstacle="" if (python / "Python.h").exists() else missing,
    )  # fmt: skip


def prepare() -> str:
    """Compile the launcher into the cache if PyTorch is installed with CUDA.

    Return PyTorch's version; empty if nothing was done. A failure is a warning, because calls work without it.
    """
    pytorch = installed()
    if pytorch is None or pytorch.cuda is None:
        return ""
    try:
        check(pytorch)
        host_compiler.load(library(pytorch), pytorch.launcher, lambda path: None)
    except DeviceError as error:
        warn_of(error)
        return ""
    return pytorch.version


def warn_of(reason: Exception) -> None:
    """Warn why there is no launcher, unless the user turned it off."""
    if not is_off():
        warn(f"PyTorch's products take the slower way through Python: {reason}")


def described() -> str | None:
    """Return PyTorch's version and whether its launcher is compiled, or why not; None if PyTorch is not installed."""
    pytorch = installed()
    if pytorch is None:
        return None
    if pytorch.cuda is None:
        return f"{pytorch.version}, a build without CUDA"
    try:
        check(pytorch)
        inputs = library(pytorch)
        is_compiled = host_compiler.is_kept(inputs)
        if not is_compiled:
            host_compiler.required_compiler(inputs)
    except DeviceError as error:
        return f"{pytorch.version}, without the launcher: {error}"
    return f"{pytorch.version}, the launcher is {'compiled' if is_compiled else 'compiled at first use'}"
