"""The library of PyTorch's launcher, for a PyTorch that is only a folder."""

import sys
import sysconfig
import warnings

import pytest

from fastsgemm import preparation
from fastsgemm.jit import host_compiler, torch_library
from fastsgemm.jit.torch_library import PyTorch


@pytest.fixture
def install(tmp_path, monkeypatch, fresh_machine):
    """Install a PyTorch of a version, with CUDA or without, and a compiler that writes an empty library."""
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "kernels"))
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.delenv("FASTSGEMM_LAUNCHER", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('PyTorch was imported')")

    def write(version="2.13.0+cu130", cuda="13.0"):
        text = f"__version__ = {version!r}\ncuda = {cuda!r}\ngit_version = 'abc'\n"
        (tmp_path / "torch" / "version.py").write_text(text)

    write()
    return write


def test_it_is_found_without_importing_it(install, tmp_path):
    assert torch_library.installed() == PyTorch(tmp_path / "torch", "2.13.0+cu130", "abc", "13.0")
    (tmp_path / "torch" / "version.py").unlink()
    assert torch_library.installed() is None


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.9.0", "2.9.0, the launcher is compiled at first use"),
        ("2.15.1a0+git", "2.15.1a0+git, the launcher is compiled at first use"),
        ("2.8.1", "2.8.1, without the launcher: the launcher was tested with PyTorch 2.9 to 2.15, this is 2.8.1"),
        ("3.0.0", "3.0.0, without the launcher: the launcher was tested with PyTorch 2.9 to 2.15, this is 3.0.0"),
    ],
)
def test_versions(install, version, said):
    install(version)
    assert torch_library.described() == said


def test_what_is_said_of_it(install, monkeypatch):
    assert torch_library.described() == "2.13.0+cu130, the launcher is compiled at first use"
    assert torch_library.prepare() == "2.13.0+cu130"
    assert torch_library.described() == "2.13.0+cu130, the launcher is compiled"
    install("2.13.1+cu130")
    assert torch_library.described() == "2.13.1+cu130, the launcher is compiled at first use"
    monkeypatch.setenv("FASTSGEMM_LAUNCHER", "off")
    assert torch_library.described() == "2.13.1+cu130, without the launcher: FASTSGEMM_LAUNCHER is off"
    install(cuda=None)
    assert torch_library.described() == "2.13.0+cu130, a build without CUDA" and torch_library.prepare() == ""
    monkeypatch.setattr(torch_library, "installed", lambda: None)
    assert torch_library.described() is None and torch_library.prepare() == ""


REASONS = {
    "value": "FASTSGEMM_LAUNCHER must be auto or off, got 'perhaps'",
    "headers": "Python.h is not in /nowhere; install the headers of Python (Debian: python3-dev)",
    "compiler": "no C++ compiler was found (looked for CXX=no-such-compiler)",
    "off": "FASTSGEMM_LAUNCHER is off",
}


@pytest.mark.parametrize("why", REASONS)
def test_a_preparation_goes_on_without_it(install, monkeypatch, why):
    variable, value = {
        "value": ("FASTSGEMM_LAUNCHER", "perhaps"),
        "compiler": ("CXX", "no-such-compiler"),
        "off": ("FASTSGEMM_LAUNCHER", " OFF "),
        "headers": ("UNUSED", ""),
    }[why]
    monkeypatch.setenv(variable, value)
    if why == "headers":
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert torch_library.prepare() == ""
    warning = f"PyTorch's products take the slower way through Python: {REASONS[why]}"
    assert [str(each.message) for each in seen] == ([] if why == "off" else [warning])
    assert torch_library.described() == f"2.13.0+cu130, without the launcher: {REASONS[why]}"


@pytest.mark.parametrize("lacks", ["compiler", "headers"])
def test_where_it_is_kept_nothing_is_needed_to_compile_it(install, monkeypatch, lacks):
    assert torch_library.prepare() == "2.13.0+cu130"
    if lacks == "compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    else:
        headers = torch_library.Path(sysconfig.get_paths()["include"]) / "Python.h"
        real = torch_library.Path.exists
        monkeypatch.setattr(torch_library.Path, "exists", lambda path: path != headers and real(path))
    assert torch_library.prepare() == "2.13.0+cu130"
    assert torch_library.described() == "2.13.0+cu130, the launcher is compiled"
    install("2.13.1+cu130")
    assert "2.13.1+cu130, without the launcher: " in torch_library.described()


def test_prepare_compiles_it_for_later_processes(install):
    prepared = preparation.prepare(64, 64, 64, device="sm_90", progress=False)
    assert prepared.pytorch == "2.13.0+cu130" and ", and the launcher for PyTorch 2.13.0+cu130 in" in str(prepared)
    assert host_compiler.is_kept(torch_library.library(torch_library.installed()))
