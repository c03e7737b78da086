"""Time to the first result in a fresh process: `sgemm` with an empty kernel cache, with a warm one and on an unknown
device, and `torch.mm`.

The clock starts when the operands are on the device, so the start of CUDA and PyTorch is not included. The time of
`sgemm` includes importing fastsgemm.
"""

import os
import shutil
import subprocess
import sys

import pytest

from fastsgemm import resources

ON_DEVICE = """
import sys, time
import torch
a, b = torch.rand(256, 256, device="cuda"), torch.rand(256, 256, device="cuda")
torch.cuda.synchronize()
began = time.perf_counter()
{call}
torch.cuda.synchronize()
print(time.perf_counter() - began)
"""
SGEMM = ON_DEVICE.format(call="import fastsgemm; fastsgemm.sgemm(a, b)")
TORCH = ON_DEVICE.format(call="torch.mm(a, b)")
# The folder has no file of an architecture, so the first product tunes the device.
UNKNOWN = ON_DEVICE.format(
    call="""
import os, pathlib
from fastsgemm import resources, sgemm
shipped = resources.folder
resources.folder = lambda name: pathlib.Path(os.environ["EMPTY_DB"]) if name == "tuning_db" else shipped(name)
sgemm(a, b)"""
)
IMPORT = """
import time
began = time.perf_counter()
import fastsgemm
print(time.perf_counter() - began)
"""
ON_HOST = """
import time
began = time.perf_counter()
import numpy, fastsgemm
a = numpy.ones((256, 256), "float32")
fastsgemm.sgemm(a, a)
print(time.perf_counter() - began)
"""


def seconds(code, **environment):
    """Run `code` in a fresh process and return the last number it prints.

    The process may write bytecode, as for an installed package. Otherwise compiling the sources would double the time
    of the import.
    """
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=given | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def fill(reported, rounds, name, measure):
    benchmark = reported("first result", measure, rounds(5))
    benchmark.extra_info["first"] = name
    if benchmark.enabled:
        benchmark.extra_info["ms"] = benchmark.stats.stats.median * 1e3


@pytest.fixture
def cuda_torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch cannot use the device")


@pytest.mark.gpu
def test_cold_cache(cuda_torch, reported, rounds, tmp_path_factory):
    def measure():
        empty = str(tmp_path_factory.mktemp("empty"))
        return seconds(SGEMM, FASTSGEMM_CACHE_DIR=empty, CUDA_CACHE_PATH=empty)  # the latter is NVRTC's own cache

    fill(reported, rounds, "sgemm, empty cache", measure)


@pytest.mark.gpu
def test_warm_cache(cuda_torch, reported, rounds, tmp_path):
    seconds(SGEMM, FASTSGEMM_CACHE_DIR=str(tmp_path))
    fill(reported, rounds, "sgemm, warm cache", lambda: seconds(SGEMM, FASTSGEMM_CACHE_DIR=str(tmp_path)))


@pytest.mark.gpu
def test_unknown_device(cuda_torch, reported, measured, tmp_path):
    """Measured once, because it takes as long as a quick tuning run."""
    if not measured:
        pytest.skip("run by make bench")
    database = tmp_path / "tuning_db"
    database.mkdir()
    shutil.copy(resources.folder("tuning_db") / "generic.json", database)
    empty = {name: str(tmp_path / name) for name in ("FASTSGEMM_CACHE_DIR", "FASTSGEMM_DATA_DIR", "CUDA_CACHE_PATH")}
    tuned = {"FASTSGEMM_TUNE": "auto", "EMPTY_DB": str(database)}
    fill(reported, lambda wanted: 1, "sgemm, unknown device", lambda: seconds(UNKNOWN, **tuned, **empty))
    stored = list((tmp_path / "FASTSGEMM_DATA_DIR").rglob("*.json"))
    assert stored, "nothing was tuned: the database still knew the device"


@pytest.mark.gpu
def test_torch(cuda_torch, reported, rounds):
    fill(reported, rounds, "torch.mm", lambda: seconds(TORCH))


def test_import(reported, rounds):
    fill(reported, rounds, "import fastsgemm", lambda: seconds(IMPORT))


def test_host(reported, rounds):
    fill(reported, rounds, "sgemm on the host, import included", lambda: seconds(ON_HOST, FASTSGEMM_DEVICE="host"))
