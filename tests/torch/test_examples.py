"""The examples for many devices run with two processes on CPU tensors, whose parts gloo moves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted({path.stem for path in EXAMPLES.glob("torch_*.py")} - {"torch_processes"})  # which the others share


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_processes(name, tmp_path):
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"FASTSGEMM_DEVICE": "host", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    written = tmp_path / "found.json"
    program = [str(EXAMPLES / f"{name}.py"), "--json", str(written)]
    ran = subprocess.run(launcher + program, capture_output=True, text=True, env=environment, timeout=180)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(written.read_text())
    assert found["devices"] == 2
    assert found["share"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_without_torchrun_the_program_says_so(name):
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    ran = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stderr) == (1, "torchrun starts this program, as its first lines say\n")
