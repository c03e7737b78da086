"""Wheel, sdist and editable install: each carries, or finds, the device code, the launcher and the tuning data."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fastsgemm import resources

ROOT = Path(__file__).resolve().parent.parent
CARRIED = {
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "cuda_src").rglob("*.cu*")),
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "host_src").iterdir()),
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "tuning_db").rglob("*.json")),
    "docs/data/benchmarks.json",
    "docs/data/ratios.json",
}
MODULES = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist of this checkout, built with what is installed: no network."""
    for tool in ("build", "hatchling"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_checkout_has_what_is_looked_for():
    assert "host_src/launcher.h" in CARRIED and "host_src/torch_kernels.cpp" in CARRIED
    assert "cuda_src/01_naive.cu" in CARRIED and "cuda_src/device/epilogue.cuh" in CARRIED
    assert "tuning_db/generic.json" in CARRIED and "fastsgemm/gemm.py" in MODULES


def test_this_installation_finds_its_folders():
    assert (resources.folder("cuda_src") / "01_naive.cu").is_file()
    assert (resources.folder("host_src") / "launcher.h").is_file()
    assert (resources.folder("tuning_db") / "generic.json").is_file()
    assert (resources.folder("docs/data") / "benchmarks.json").is_file()


def test_the_wheel_is_pure_and_carries_everything(built):
    wheel, _ = built
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"fastsgemm/{name}" for name in CARRIED} <= names
    assert names >= MODULES
    assert "fastsgemm/py.typed" in names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"fastsgemm"}
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_the_wheel_asks_for_no_cuda_major_version_but_the_extras_do(built):
    wheel, _ = built
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        lines = archive.read(name).decode().splitlines()
    required = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist")]
    base = [line for line in required if "extra ==" not in line]
    assert any(line.startswith("cuda-bindings") and "<14" in line and ">=12.9.1" in line for line in base)
    assert not [line for line in base if "nvrtc" in line or "torch" in line or "cupy" in line]
    for extra, package in (("cu12", "nvidia-cuda-nvrtc-cu12"), ("cu13", "nvidia-cuda-nvrtc")):
        assert any(line.startswith(package) and f"extra == '{extra}'" in line for line in required)


def test_the_sdist_carries_everything_to_build_and_test(built):
    _, sdist = built
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= CARRIED
    assert names >= {f"src/{name}" for name in MODULES}
    assert names >= {"src/fastsgemm/py.typed", "pyproject.toml", "README.md", "LICENSE", "tests/conftest.py"}


def test_an_unpacked_wheel_finds_its_folders_and_makes_a_kernel(built, tmp_path):
    wheel, _ = built
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = (
        "import fastsgemm\n"
        "from fastsgemm import resources\nfrom fastsgemm.jit import compiler, source\n"
        "from fastsgemm.geometry.variants import Variant\n"
        "print(*map(resources.folder, ('cuda_src', 'host_src', 'tuning_db')))\n"
        "text = source.rung_spec(fastsgemm.RUNGS[0], fastsgemm.BlockConfig(32, 32), Variant()).text\n"
        "compiler.report(text, 'naive', 'sm_90')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    inside = tmp_path / "fastsgemm"
    assert done.stdout.split() == [str(inside / name) for name in ("cuda_src", "host_src", "tuning_db")]


def test_the_lowest_versions_are_those_that_are_tested():
    try:
        allowed = [Requirement(line) for line in metadata.requires("fastsgemm")]
    except metadata.PackageNotFoundError:
        pytest.skip("fastsgemm is not installed")
    lowest = {}
    for extra in ("", "cu12", "test"):
        for each in allowed:
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                lowest[each.name] = [one.version for one in each.specifier if one.operator == ">="]
    lines = (ROOT / "tests" / "lowest.txt").read_text().splitlines()
    tested = {each.name: each.specifier for each in map(Requirement, lines[1:])}
    assert tested.keys() == lowest.keys() - {"build", "hatchling", "cuda-pathfinder"}
    assert all(specifier.contains(version) for name, specifier in tested.items() for version in lowest[name])
