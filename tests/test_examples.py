"""Every example runs to its end, or says what it needs. Without a GPU they use the host or the simulated device."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from subprocesses import environment

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("torch_"))
ON_A_GPU = ("graph_capture", "many_gpus", "pytorch_tensors", "training")
SECONDS = (*ON_A_GPU, "reproducible", "serving")  # they import PyTorch, or simulate whole products

pytestmark = pytest.mark.skipif(not EXAMPLES, reason="examples/ is part of a checkout only")


def run(path, **variables):
    command = [sys.executable, path]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**variables), timeout=120)


def named(path):
    return pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in SECONDS else ())


@pytest.mark.parametrize("path", [named(path) for path in EXAMPLES])
def test_an_example_runs(path):
    done = run(path)
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.strip().removeprefix("skipped: "))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
def test_an_example_runs_on_a_gpu(name):
    test_an_example_runs(ROOT / "examples" / f"{name}.py")


def test_an_example_that_needs_a_kernel_says_so_on_the_host():
    done = run(ROOT / "examples" / "reproducible.py", FASTSGEMM_DEVICE="host")
    assert done.returncode == 0 and done.stdout.startswith("skipped: ") and done.stdout.count("\n") == 1


@pytest.mark.slow
def test_numpy_arrays_on_the_simulated_device():
    done = run(ROOT / "examples" / "numpy_arrays.py", FASTSGEMM_DEVICE="sim")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_example_is_listed():
    listed = re.findall(r"^\| `(\w+\.py)` ", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert {*listed} == names - {"torch_processes.py"}  # what the examples for several devices share
