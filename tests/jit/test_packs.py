"""Installed packages of kernels: found, checked and read; their kernels are a few bytes here."""

import lzma
import os
import subprocess
import sys
import warnings
import zipfile

import pytest
import subprocesses

from fastsgemm import __version__, device
from fastsgemm.jit import cache, compiler, packs

pytest.importorskip("hatchling")
from fastsgemm.kernel_package import wheel

SOURCE = 'extern "C" __global__ void packed() {}'
KEY, CUBIN = compiler.pack_key(SOURCE, "packed", "sm_90"), b"\x7fELF machine code" * 100
OTHER = compiler.pack_key(SOURCE, "packed", "sm_80")
NAME = "fastsgemm_kernels_sm90"


@pytest.fixture
def place(tmp_path, monkeypatch, fresh_machine):
    """A folder of packages, in which NVRTC is not to be had, with an empty cache."""
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "compile_program", lambda *_, **__: pytest.fail("compiled"))
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def install(place, tmp_path):
    """Return a function that installs a package with one kernel, and returns its folder."""

    def do(version=__version__, arch="sm_90", nvrtc="13.0", key=KEY):
        pack = packs.Pack(version, arch, nvrtc, 1)
        path = wheel.write(pack, {packs.file_name(key): packs.packed(key, CUBIN)}, tmp_path / "wheels")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(place)
        return place / f"fastsgemm_kernels_{arch.replace('_', '')}"

    return do


def find(arch="sm_90"):
    return compiler.stored(SOURCE, "packed", arch)


def misses(*said):
    """See that a kernel is missed, twice, and which warnings there are in all."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert find() is None and find() is None
    texts = [str(one.message) for one in seen]
    assert len(texts) == len(said) and all(map(str.__contains__, texts, said)), texts


def test_a_kernel_of_a_package_is_found_after_those_of_the_cache(install, place):
    install()
    assert find() == (CUBIN, True) and find("sm_80") is None
    assert compiler.cubin(SOURCE, "packed", "sm_90") == CUBIN
    assert not (place.parent / "cache").exists()
    cache.write(compiler._keys(SOURCE, "packed", compiler._options("sm_90"))[0], b"of the cache")
    assert find() == (b"of the cache", False)


def test_packages_are_listed_once_and_only_for_a_miss_of_the_cache(install, monkeypatch):
    from importlib import metadata

    install()
    listed, real = [], metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda **which: listed.append(which) or real(**which))
    cache.write(compiler._keys(SOURCE, "packed", compiler._options("sm_80"))[0], b"of the cache")
    find("sm_80")
    assert listed == []
    for _ in range(3):
        assert find() is not None and find("sm_75") is None
    assert listed == [{"group": "fastsgemm.kernels"}]


def test_several_packages(install):
    install()
    install(arch="sm_80", key=OTHER)
    assert find() == find("sm_80") == (CUBIN, True)
    assert list(map(str, packs.installed())) == [
        "fastsgemm_kernels_sm80: 1 kernel for sm_80, NVRTC 13.0", f"{NAME}: 1 kernel for sm_90, NVRTC 13.0",
    ]  # fmt: skip


def test_a_package_is_not_imported(install):
    (install() / "__init__.py").write_text("raise SystemExit('imported')")
    assert find() == (CUBIN, True) and NAME not in sys.modules


def test_another_version_is_skipped_with_one_line(install):
    install("0.0.9")
    misses(f"the package {NAME} of compiled kernels is not used: it is for fastsgemm 0.0.9, this is {__version__}")


@pytest.mark.parametrize(("driver", "found"), [(0, True), (12090, False), (13000, True), (14000, True)])
def test_a_driver_must_not_be_older_than_the_kernels(install, monkeypatch, driver, found):
    install()
    monkeypatch.setattr(packs, "driver_version", lambda: driver)
    if found:
        assert find() == (CUBIN, True)
    else:
        misses("need a driver for CUDA 13, this one is for CUDA 12")


def test_the_driver_is_asked_for_its_version(monkeypatch):
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (driver.CUresult.CUDA_SUCCESS, 12090))
    assert device.driver_version() == 12090


DAMAGE = {
    "a flipped byte": lambda data: data[:20] + bytes([data[20] ^ 4]) + data[21:],
    "a truncated file": lambda data: data[:-1],
    "an empty file": lambda data: b"",
    "foreign content": lambda data: lzma.compress(b"\x7fELF" + bytes(5000)),
    "another key's": lambda data: packs.packed(OTHER, CUBIN),
    "a bomb": lambda data: lzma.compress(bytes(packs._MOST_BYTES + 1)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_kernel_is_a_miss_with_one_warning(install, damage):
    path = install() / packs.file_name(KEY)
    path.write_bytes(damage(path.read_bytes()))
    misses(f"{NAME} has a damaged kernel")


@pytest.mark.parametrize("name", [packs.DESCRIPTION, "", packs.file_name(KEY)], ids=["description", "folder", "kernel"])
def test_what_others_can_write_is_not_used(install, name):
    path = install() / name
    path.chmod(path.stat().st_mode | 0o020)
    misses("other users can write")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"arch": "sm_90"}', '{"fastsgemm": "0.1.0", "arch": "sm_90", "nvrtc": "new", "kernels": 1}'],
)
def test_a_description_that_is_none(install, text):
    (install() / packs.DESCRIPTION).write_text(text)
    misses(f"the package {NAME} of compiled kernels is not used")


@pytest.mark.parametrize("value", ["fastsgemm_kernels_gone", "not.top.level", "no identifier", "__main__"])
def test_an_entry_point_that_leads_nowhere(place, value):
    folder = place / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[fastsgemm.kernels]\nsm_90 = {value}\n")
    misses(f"the package {value} of compiled kernels is not used")


def test_a_python_without_lzma(install, monkeypatch):
    install()
    monkeypatch.setitem(sys.modules, "lzma", None)
    misses(f"the package {NAME} of compiled kernels is not used: import of lzma halted")


def test_importing_lists_nothing(install, place):
    install()
    script = (
        "import sys; from fastsgemm.jit import kernel, packs; assert not packs.installed.cache_info().misses\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    environment = subprocesses.environment() | {"PYTHONPATH": os.pathsep.join([str(place), *sys.path])}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def test_a_check_counts_what_packages_have(place, tmp_path, monkeypatch):
    from fastsgemm import preparation

    monkeypatch.setattr(packs, "read", lambda key: CUBIN)
    found = preparation.prepare(64, 64, 64, device="sm_90", check=True)
    assert (found.kernels, found.compiled, found.packed) == (1, 0, 1)
    assert (
        str(found) == "1 kernel for 1 problem on NVIDIA H200: 0 in the cache, 1 in an installed package, none missing"
    )
