"""Time to the first result in fresh processes: with an empty kernel cache, with a warm one, and torch.mm's.

The clock starts when the operands are on the device, so that starting CUDA and PyTorch counts for nobody; importing
fastsgemm counts for fastsgemm.
"""

import os
import subprocess
import sys

import pytest

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
    """Run `code` in a fresh process and return the number that it prints last.

    It may keep bytecode, as an installed package does: compiling the sources each time would double the import.
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
    benchmark = reported("first result", measure, rounds(7))
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
        return seconds(SGEMM, FASTSGEMM_CACHE_DIR=empty, CUDA_CACHE_PATH=empty)  # NVRTC keeps a cache there, too

    fill(reported, rounds, "sgemm, empty cache", measure)


@pytest.mark.gpu
def test_warm_cache(cuda_torch, reported, rounds, tmp_path):
    seconds(SGEMM, FASTSGEMM_CACHE_DIR=str(tmp_path))
    fill(reported, rounds, "sgemm, warm cache", lambda: seconds(SGEMM, FASTSGEMM_CACHE_DIR=str(tmp_path)))


@pytest.mark.gpu
def test_torch(cuda_torch, reported, rounds):
    fill(reported, rounds, "torch.mm", lambda: seconds(TORCH))


def test_import(reported, rounds):
    fill(reported, rounds, "import fastsgemm", lambda: seconds(IMPORT))


def test_host(reported, rounds):
    fill(reported, rounds, "sgemm on the host, import included", lambda: seconds(ON_HOST, FASTSGEMM_DEVICE="host"))
