"""The kernel cache under every kind of damage: the right kernel each time, and at most one warning."""

import errno
import hashlib
import os
import subprocess
import sys
import warnings

import pytest
from cuda.bindings import nvrtc
from in_threads import run_all

from fastsgemm.config import BlockConfig
from fastsgemm.errors import NoNvrtcError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import cache, compiler, source
from fastsgemm.rungs import find

TEXT = source.rung_spec(find("naive"), BlockConfig(32, 32), Variant()).text
OTHER = source.rung_spec(find("coalesced"), BlockConfig(32, 32), Variant()).text


@pytest.fixture
def folder(tmp_path, monkeypatch, fresh_machine):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that NVRTC has compiled."""
    seen, real = [], compiler.compile_program

    def count(source, name, options):
        seen.append(name)
        return real(source, name, options)

    monkeypatch.setattr(compiler, "compile_program", count)
    return seen


@pytest.fixture(scope="module")
def right():
    """The machine code as NVRTC gives it, without the cache."""
    return compiler.compiled(TEXT, "naive", "sm_90")


def fetch(expected_warning=None):
    """Ask for the kernel, twice, and see that there is one warning, or none."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        code = compiler.cubin(TEXT, "naive", "sm_90")
        assert compiler.cubin(TEXT, "naive", "sm_90") == code
    messages = [str(warning.message) for warning in seen]
    if expected_warning is None:
        assert messages == []
    else:
        assert len(messages) == 1 and expected_warning in messages[0], messages
        assert "first calls are slower" in messages[0] and "FASTSGEMM_CACHE_DIR" in messages[0]
        assert seen[0].category is RuntimeWarning
    return code


def entry(folder):
    """The one file in which a kernel is stored."""
    (found,) = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 1000]
    return found


def test_a_kernel_is_compiled_once(folder, compiled, right):
    assert fetch() == right
    assert compiled == ["naive"]
    assert cache.entries()[0] == 1 and cache.entries()[1] >= len(right)
    assert compiler.cubin(OTHER, "coalesced", "sm_90") != right
    assert compiled == ["naive", "coalesced"]
    cache.clear()
    assert cache.entries() == (0, 0)


def test_each_architecture_and_each_constant_is_its_own_kernel(folder, compiled):
    fetch()
    compiler.cubin(TEXT, "naive", "sm_80")
    compiler.cubin(source.rung_spec(find("naive"), BlockConfig(16, 32), Variant()).text, "naive", "sm_90")
    assert len(compiled) == 3


def test_the_key_has_all_that_a_kernel_follows_from(folder, compiled, monkeypatch):
    fetch()
    compiler.cubin(TEXT, "renamed", "sm_90")
    monkeypatch.setattr(compiler, "_options", lambda arch: [f"-arch={arch}", "--std=c++17", "--fmad=false"])
    compiler.cubin(TEXT, "naive", "sm_90")
    assert compiled == ["naive", "renamed", "naive"]
    assert cache.entries()[0] == 3


def test_a_later_process_finds_the_kernel(folder, right):
    fetch()
    script = (
        "import sys, hashlib\nfrom fastsgemm.jit import compiler\n"
        "def never(*_): raise SystemExit('it was compiled again')\n"
        "compiler.compile_program = never\n"
        "print(hashlib.sha256(compiler.cubin(sys.stdin.read(), 'naive', 'sm_90')).hexdigest())\n"
        "assert 'cuda.core' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], input=TEXT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == hashlib.sha256(right).hexdigest()


def flip_a_byte(data):
    return data[:500] + bytes([data[500] ^ 0x40]) + data[501:]


DAMAGE = {
    "a flipped byte": flip_a_byte,
    "a flipped byte in the digest": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a truncated file": lambda data: data[: len(data) // 2],
    "a few bytes": lambda data: data[:10],
    "an empty file": lambda data: b"",
    "foreign content": lambda data: b"\x7fELF" + bytes(5000),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_compiled_again_with_one_warning(folder, compiled, right, damage):
    fetch()
    path = entry(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert fetch("holds a damaged entry, which is compiled again") == right
    assert compiled == ["naive"] * 2
    assert fetch() == right  # and it is mended
    assert compiled == ["naive"] * 2


def test_an_entry_that_is_a_folder(folder, compiled, right):
    fetch()
    path = entry(folder)
    path.unlink()
    path.mkdir()
    (path / "occupied").touch()
    assert fetch("cannot be") == right


def test_a_folder_that_cannot_be_made(folder, compiled, right, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", "/proc/kernels")
    assert fetch("the kernel cache /proc/kernels cannot be written") == right
    assert compiled == ["naive"] * 2


def test_a_folder_below_a_file(folder, right, monkeypatch):
    folder.write_text("this is no folder")
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(folder / "below"))
    assert fetch("cannot be read") == right


def test_a_path_that_is_a_file(folder, right):
    folder.write_text("this is no folder")
    assert fetch("cannot be read") == right
    assert folder.read_text() == "this is no folder"


def test_a_home_that_does_not_exist(folder, right, monkeypatch):
    folder.write_text("this is no folder")
    for name in ("FASTSGEMM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder / "nobody"))
    assert str(cache.folder()).startswith(str(folder / "nobody"))
    assert fetch("cannot be read") == right


def test_a_read_only_folder(folder, compiled, right, monkeypatch):
    """Entries are read, new ones cannot be written. (Permissions do not stop root: the refusal is injected.)"""
    fetch()

    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refused)
    assert fetch() == right
    with pytest.warns(RuntimeWarning, match=r"cannot be written .*Permission denied"):
        first = compiler.cubin(OTHER, "coalesced", "sm_90")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiler.cubin(OTHER, "coalesced", "sm_90") == first
    assert compiled == ["naive", "coalesced", "coalesced"]


def test_a_full_disk(folder, compiled, right, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert fetch("cannot be written ([Errno 28] No space left on device)") == right
        assert compiled == ["naive"] * 2
    assert [path for path in folder.rglob("*") if path.is_file() and path.suffix == ".part"] == []
    assert fetch() == right  # with space again it is stored
    assert compiled == ["naive"] * 3


def test_a_folder_that_is_removed_while_in_use(folder, compiled, right):
    import shutil

    fetch()
    shutil.rmtree(folder)
    assert fetch() == right
    assert compiled == ["naive"] * 2


@pytest.mark.parametrize(("major", "minor", "times"), [(13, 99, 1), (99, 0, 2)])
def test_an_nvrtc_of_another_major_version_compiles_anew(folder, compiled, right, monkeypatch, major, minor, times):
    """An older driver cannot load what it compiles."""
    success = nvrtc.nvrtcResult.NVRTC_SUCCESS
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (success, 13, 0))
    fetch()
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (success, major, minor))
    fetch()
    fetch()
    assert compiled == ["naive"] * times


def test_a_stored_kernel_needs_no_nvrtc(folder, compiled, right, monkeypatch):
    assert compiler.stored(TEXT, "naive", "sm_90") is None
    fetch()

    def missing():
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    assert fetch() == right and compiler.stored(TEXT, "naive", "sm_90") == (right, False)
    missed = rf"naive for sm_80 is not in the kernel cache {folder}. .*fastsgemm\[cu13\].*`fastsgemm prepare`"
    with pytest.raises(NoNvrtcError, match=missed):
        compiler.cubin(TEXT, "naive", "sm_80")


def test_an_upgraded_driver_keeps_the_kernels(folder, compiled, right, monkeypatch):
    from cuda.bindings import driver

    fetch()
    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (driver.CUresult.CUDA_SUCCESS, 99000))
    assert fetch() == right
    assert compiled == ["naive"]


def test_threads_that_want_one_kernel_compile_it_once(folder, compiled, right):
    found = []
    run_all(lambda i: found.append(compiler.cubin(TEXT, "naive", "sm_90")), 8)
    assert found == [right] * 8
    assert compiled == ["naive"]


def test_two_processes_that_compile_at_once_both_get_the_kernel(folder, tmp_path, right):
    """Each waits, its compiler loaded, until the other is as far; then both compile and store."""
    script = (
        "import sys, time, hashlib, pathlib\nfrom fastsgemm.jit import compiler\n"
        "compiler.report('extern \"C\" __global__ void k() {}', 'k', 'sm_90')\n"
        "text, here, ready, other = sys.stdin.read(), *map(pathlib.Path, sys.argv[1:])\n"
        "ready.touch()\n"
        "while not other.exists(): time.sleep(0.001)\n"
        "print(hashlib.sha256(compiler.cubin(text, 'naive', 'sm_90')).hexdigest())"
    )
    places = [str(tmp_path / name) for name in ("one", "two")]
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, str(tmp_path), ready, other],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for ready, other in (places, places[::-1])
    ]  # fmt: skip
    for process in running:
        process.stdin.write(TEXT)
        process.stdin.close()
    expected = hashlib.sha256(right).hexdigest()
    for process in running:
        assert process.wait(timeout=120) == 0, process.stderr.read()
        assert process.stdout.read().strip() == expected
        assert process.stderr.read() == ""
    assert fetch() == right
