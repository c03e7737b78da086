"""PyTorch's products where there is no launcher: one warning, the way through Python, and a line of the report."""

import sysconfig
import warnings

import pytest

torch = pytest.importorskip("torch")

import fastsgemm.torch  # noqa: E402
from fastsgemm.jit import torch_library  # noqa: E402
from fastsgemm.torch import cpp_launcher, kernel_switch  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_host")

A = torch.eye(3)


def wrong_value(monkeypatch, folder):
    monkeypatch.setenv("FASTSGEMM_LAUNCHER", "perhaps")
    return "FASTSGEMM_LAUNCHER must be auto or off, got 'perhaps'"


def untested_version(monkeypatch, folder):
    other = torch_library.installed()._replace(version="2.99.0")
    monkeypatch.setattr(torch_library, "installed", lambda: other)
    return "the launcher was tested with PyTorch 2.9 to 2.15, this is 2.99.0"


def no_headers(monkeypatch, folder):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    return "Python.h is not in /nowhere; install the headers of Python (Debian: python3-dev)"


def no_compiler(monkeypatch, folder):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(folder / "kernels"))  # a stored library needs no compiler
    return "no C++ compiler was found (looked for CXX=no-such-compiler)"


def scripted(monkeypatch, folder, text):
    compiler = folder / "compiler"
    compiler.write_text(f"#!/bin/sh\n{text}\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(folder / "kernels"))
    return compiler


def compiler_that_fails(monkeypatch, folder):
    compiler = scripted(monkeypatch, folder, "echo 'error: no such header' >&2; exit 1")
    return (
        f"{compiler} could not compile the launcher for PyTorch {torch.__version__} (exit status 1): "
        "error: no such header"
    )


def unusable_library(monkeypatch, folder):
    scripted(monkeypatch, folder, 'while [ $# -gt 0 ]; do [ "$1" = -o ] && printf x > "$2"; shift; done')
    return "the compiled launcher cannot be loaded: "


def another_build(monkeypatch, folder):
    """PyTorch's library has not the function that says its current stream."""

    def connect(module):
        raise RuntimeError("libtorch_cuda.so has no aoti_torch_get_current_cuda_stream\nException raised from ...")

    monkeypatch.setattr(cpp_launcher, "_connect", connect)
    monkeypatch.setattr(cpp_launcher.host_compiler, "load", lambda *given: None)
    return "libtorch_cuda.so has no aoti_torch_get_current_cuda_stream"


@pytest.fixture
def nothing_tried_yet(monkeypatch):
    monkeypatch.setattr(cpp_launcher, "_module", None)
    monkeypatch.setattr(cpp_launcher, "_reason", None)
    monkeypatch.setattr(kernel_switch, "_LAUNCHER_DEVICES", ("cpu",))


def multiplied():
    """Return the report of a switch that was on twice, and the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            with fastsgemm.torch.enabled(device="cpu") as turned:
                for _ in range(2):
                    assert torch.equal(torch.mm(A, 2 * A), 2 * A)
    ours = [str(each.message) for each in seen if "Python" in str(each.message)]
    return turned.report(), ours


@pytest.mark.usefixtures("nothing_tried_yet")
@pytest.mark.parametrize(
    "cause",
    [wrong_value, untested_version, no_headers, no_compiler, compiler_that_fails, unusable_library, another_build],
    ids=lambda cause: cause.__name__,
)
def test_why_there_is_none(monkeypatch, tmp_path, cause):
    reason = cause(monkeypatch, tmp_path)
    report, [warning] = multiplied()
    assert warning.startswith(f"PyTorch's products take the slower way through Python: {reason}")
    assert report.slower.startswith(reason) and "\n" not in report.slower
    assert repr(report).splitlines()[-1] == f"each call took some microseconds more in Python: {report.slower}"
    assert report.calls == 2


@pytest.mark.usefixtures("nothing_tried_yet")
def test_it_is_turned_off(monkeypatch):
    """Users who asked for that need no warning; the report says it."""
    monkeypatch.setenv("FASTSGEMM_LAUNCHER", "off")
    report, seen = multiplied()
    assert seen == [] and report.slower == "FASTSGEMM_LAUNCHER is off" and report.calls == 2
