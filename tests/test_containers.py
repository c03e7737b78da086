"""Kernels that root compiles are found by another user, who can write nothing and has no NVRTC, as in an image."""

import os
import stat
import sys
import traceback
import warnings
from pathlib import Path

import pytest

import fastsgemm
from fastsgemm.command_line import main
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import NoNvrtcError
from fastsgemm.jit import compiler, kernel
from fastsgemm.preparation import kernels_of
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.request import resolve

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = 65534
H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
ASKED = ["prepare", "--size", "64,64,64", "--size", "1,64,64,NT,bf16xbf16", "--precision", "fp16x3", "--device", "H200"]


@pytest.fixture
def image(tmp_path, monkeypatch):
    """A folder that is made where root has the usual umask, below one that others may enter."""
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    folder = tmp_path / "kernels"
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(folder))
    before = os.umask(0o022)
    yield folder
    os.umask(before)


def as_nobody(work):
    """Return what `work` returns in a process of another user, without groups and without NVRTC."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            compiler.compile_program = _no_nvrtc
            warnings.simplefilter("default")
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _no_nvrtc(*_, **__):
    raise NoNvrtcError("NVRTC, which compiles the kernels, was not found")


def test_another_user_finds_the_kernels_and_writes_nothing(image, capfd):
    assert as_nobody(lambda: main([*ASKED, "--check"])) == 1
    assert "missing" in capfd.readouterr().out
    assert main(ASKED) == 0
    assert main(ASKED) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if line.endswith("compiled")]
    assert [line.rpartition(", ")[2] for line in said[2:]] == ["0 of them compiled"] * 2
    assert "0 of them compiled" not in "".join(said[:2])
    written = {path: path.stat().st_mtime_ns for path in image.iterdir()}

    def found():
        needed = kernels_of(H200, resolve(precision="fp16x3"), [Problem(64, 64, 64)], "", Bar(False))
        assert all(kernel.cubin(spec, "sm_90") for spec in needed)
        return main([*ASKED, "--check"])

    assert as_nobody(found) == 0
    assert capfd.readouterr().out.count("none missing") == 2
    assert {path: path.stat().st_mtime_ns for path in image.iterdir()} == written


def test_what_is_missing_names_the_kernel_and_the_remedies(image, capfd):
    def missing():
        try:
            spec = next(iter(kernels_of(H200, resolve(), [Problem(64, 64, 64)], "", Bar(False))))
            kernel.cubin(spec, "sm_90")
        except NoNvrtcError as error:
            print(error)
            return 0
        return 1

    assert as_nobody(missing) == 0
    assert f"not in the kernel cache {image}" in (said := capfd.readouterr().out) and "`fastsgemm prepare`" in said


def test_a_umask_that_hides_them_is_said(image):
    os.umask(0o077)
    found = fastsgemm.prepare(64, 64, 64, device="H200", progress=False)
    assert found.hidden == str(image) and f"other users cannot read {image}" in str(found)
    assert as_nobody(lambda: main([*ASKED, "--check"])) == 1


def test_a_check_needs_a_truth_value():
    with pytest.raises(fastsgemm.ArgumentError, match="check"):
        fastsgemm.prepare(64, 64, 64, device="H200", check="yes")


def test_the_page_shows_the_dockerfile_that_is_there():
    root = Path(__file__).parents[1]
    if not (root / "docs").exists():
        pytest.skip("docs/ is part of a checkout only")
    assert (root / "examples" / "Dockerfile").read_text() in (root / "docs" / "containers.md").read_text()
