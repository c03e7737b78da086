"""A package is built, installed and used where there is no NVRTC; what it ships is what the sources say."""

import json
import subprocess
import sys
import zipfile

import pytest
import subprocesses

from fastsgemm import __version__
from fastsgemm.command_line import main
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import DeviceError
from fastsgemm.jit import kernel, packs
from fastsgemm.kernel_package import build, census
from fastsgemm.preparation import kernels_of
from fastsgemm.problem import DType, Dtypes, Problem
from fastsgemm.progress import Bar
from fastsgemm.request import resolve

pytest.importorskip("hatchling")
H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
BF16 = Dtypes(DType.BF16, DType.BF16)
PROBLEMS = {"64,64,64": Problem(64, 64, 64), "1,64,64,NT,bf16xbf16": Problem(1, 64, 64, "NT", dtypes=BF16)}
NAME = f"fastsgemm_kernels_sm90-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that the command builds of the kernels of two problems."""
    folder = tmp_path_factory.mktemp("wheel")
    sizes = [f"--size={size}" for size in PROBLEMS]
    assert main(["pack", "--device", "H200", "--out", str(folder), *sizes]) == 0
    return folder / NAME


def assert_ships(path, specs):
    """See that a wheel has exactly these kernels, with the bytes that NVRTC makes of their sources now."""
    wanted = {}
    for spec in specs:
        key = kernel.pack_key(spec, "sm_90")
        wanted[packs.file_name(key)] = packs.packed(key, kernel.compiled(spec, "sm_90"))
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".xz")]
        assert {name.rpartition("/")[2]: archive.read(name) for name in names} == wanted


def test_what_is_shipped_is_what_the_sources_say(wheel):
    assert_ships(wheel, kernels_of(H200, resolve(precision="ieee"), [*PROBLEMS.values()], "", Bar(False)))


@pytest.mark.slow
def test_what_a_census_ships_is_what_the_sources_say(tmp_path, monkeypatch):
    monkeypatch.setattr(census, "_tuned", lambda devices: [])
    monkeypatch.setattr(census, "_COUNTED", (12, 1))
    monkeypatch.setattr(census, "_HELD_OUT", (6, 2))
    built = build.build([H200], tmp_path, progress=False)
    specs, coverage = census.census([H200], Bar(False))
    assert built.coverage == coverage and built.kernels == len(specs) > 8
    assert_ships(built.wheel, specs)


PROGRAM = """
import warnings
warnings.simplefilter("error")
from cuda.bindings import nvrtc
def missing(): raise RuntimeError("libnvrtc.so.13: cannot open shared object file")
nvrtc.nvrtcVersion = missing
from fastsgemm.command_line import main
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import NoNvrtcError
from fastsgemm.jit import kernel
from fastsgemm.preparation import kernels_of
from fastsgemm.problem import Problem
from fastsgemm.progress import Bar
from fastsgemm.request import resolve
device = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
def load(M, N, K):
    return [kernel.cubin(spec, "sm_90") for spec in kernels_of(device, resolve(), [Problem(M, N, K)], "", Bar(False))]
assert all(code.startswith(b"\\x7fELF") for code in load(64, 64, 64))
for size in ("64,64,64", "1,64,64,NT,bf16xbf16", "4096"):
    print(main(["prepare", "--check", "--device", "H200", "--size", size]))
main(["info"])
try:
    load(4096, 4096, 4096)
except NoNvrtcError as error:
    print(error)
"""


def test_an_installed_package_is_used_without_nvrtc_and_without_a_writable_folder(wheel, tmp_path):
    install = "umask 022; exec $0 -m pip install --quiet --no-deps --no-index --no-compile --target $1 $2"
    subprocess.run(["sh", "-c", install, sys.executable, str(tmp_path), str(wheel)], check=True)
    path = f"{subprocesses.environment()['PYTHONPATH']}:{tmp_path}"
    said = subprocesses.run(PROGRAM, PYTHONPATH=path, FASTSGEMM_CACHE_DIR="/proc/kernels", FASTSGEMM_DEVICE="host")
    lines = said.stdout.splitlines()
    for place in (0, 2):
        assert lines[place].endswith("0 in the cache, 1 in an installed package, none missing")
        assert lines[place + 1] == "0"
    assert lines[4].endswith("1 missing") and lines[5] == "1"
    assert "package       fastsgemm_kernels_sm90: 2 kernels for sm_90, NVRTC " in said.stdout
    assert "nor in an installed package of kernels. NVRTC" in lines[-1]
    assert "`fastsgemm prepare`" in lines[-1] and "`fastsgemm pack`" in lines[-1]


def test_the_command_says_what_it_built(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernel, "compiled", lambda spec, arch: b"code")
    monkeypatch.setattr(census, "_COUNTED", (40, 1))
    monkeypatch.setattr(census, "_HELD_OUT", (40, 2))
    assert main(["pack", "--arch", "sm_90", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path / NAME}: ") and "% of regular random calls find theirs, " in said
    assert main(["pack", "--device", "H100", "--out", str(tmp_path), "--size", "64", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["devices"], data["kernels"], data["coverage"]) == (["NVIDIA H100 80GB HBM3"], 1, {})
    assert data["bytes"] == (tmp_path / NAME).stat().st_size


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--arch", "sm_1"], "nothing is known of a device 'sm_1'"),
        (["--device", "sm_90", "--size", "x"], "a problem is"),
    ],
)
def test_what_cannot_be_built_is_one_line(given, said, capsys):
    assert main(["pack", *given]) == 2
    assert capsys.readouterr().err.startswith(f"fastsgemm: {said}")


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_compiled(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernel, "compiled", lambda *_: pytest.fail("compiled"))
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/new"):
        assert main(["pack", "--arch", "sm_90", "--size", "64", "--out", str(place)]) == 2
        assert f"the wheel cannot be written into {place}" in capsys.readouterr().err


def test_an_architecture_is_all_of_its_devices():
    assert [one.name for one in build.devices_of("sm_90")] == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    with pytest.raises(DeviceError, match="nothing is known of a device 'sm_91'"):
        build.devices_of("sm_91")
