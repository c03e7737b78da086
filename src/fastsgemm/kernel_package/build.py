"""Build a package of kernels for one architecture: choose them, compile them on all cores, and write the wheel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastsgemm.device import DeviceInfo, info_of, nvrtc_text
from fastsgemm.jit import compiler, kernel, packs
from fastsgemm.jit.source import KernelSpec
from fastsgemm.kernel_package import census, wheel
from fastsgemm.known_devices import find, known
from fastsgemm.preparation import kernels_of
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.request import Request


@dataclass(frozen=True)
class Built:
    """A package of kernels; as text it is one line."""

    wheel: str  # path
    arch: str
    devices: tuple[str, ...]  # those that it was made for
    nvrtc: str  # version
    kernels: int
    bytes: int  # of the wheel; what is installed is as large
    coverage: Mapping[str, float]  # share of random calls of each kind; empty if problems were given

    def __str__(self) -> str:
        kernels = f"{self.kernels} kernel{'s' * (self.kernels != 1)}"
        text = f"{self.wheel}: {kernels} for {self.arch}, {self.bytes / 1e6:.1f} MB"
        if self.coverage:
            shares = (self.coverage[kind] for kind in (census.REGULAR, census.ALL))
            text += "; {:.0%} of regular random calls find theirs, {:.0%} of all".format(*shares)
        return text


def devices_of(arch: str) -> list[DeviceInfo]:
    """Return the known devices of an architecture; raise `DeviceError` if there are none."""
    names = [name for name, of_name in known().items() if of_name == arch]
    return [info_of(find(name)) for name in names or [arch]]


def build(
    devices: Sequence[DeviceInfo],
    folder: Path,
    asked: Sequence[tuple[Request, Sequence[Problem]]] = (),
    source: str = "",
    progress: bool = True,
) -> Built:
    """Build the wheel for devices of one architecture, into a folder; no GPU is needed.

    It has the kernels of the problems that are asked for, with this `source`, see `fastsgemm.prepare`; without them,
    those of a census.

    Raises
    ------
    MissingExtraError
        hatchling is not installed.
    NoNvrtcError, CompileError
        NVRTC is not installed, or does not know the architecture.
    DeviceError
        The wheel cannot be written.
    """
    from fastsgemm import __version__

    wheel.require(folder)  # before minutes of compilation
    arch, nvrtc, bar = devices[0].arch, nvrtc_text(), Bar(progress)
    specs: list[KernelSpec]
    coverage: dict[str, float] = {}
    try:
        if asked:
            each = (kernels_of(one, *wanted, source, bar) for one in devices for wanted in asked)
            specs = [*dict.fromkeys(spec for needed in each for spec in needed)]
        else:
            specs, coverage = census.census(devices, bar)
        bar.begin("compile", len(specs))
        files = {}
        for _, (name, content) in compiler.on_all_cores(lambda spec: _file(spec, arch), specs):
            files[name] = content
            bar.step()
    finally:
        bar.end()
    path = wheel.write(packs.Pack(__version__, arch, nvrtc, len(specs)), files, folder)
    names = tuple(one.name for one in devices)
    return Built(str(path), arch, names, nvrtc, len(specs), path.stat().st_size, coverage)


def _file(spec: KernelSpec, arch: str) -> tuple[str, bytes]:
    """Return the name and the content of the file of a kernel."""
    key = kernel.pack_key(spec, arch)
    return packs.file_name(key), packs.packed(key, kernel.compiled(spec, arch))
