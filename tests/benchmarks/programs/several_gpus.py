"""What the examples for several devices measure, on two: distributed tensors, tensor parallelism and FSDP2."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import SkipTest

import torch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
DEVICES = 2
RUNS = {  # name: program, and its options at full size
    "dtensor": ("torch_dtensor.py", ("--size", "16384")),
    "mlp": ("torch_tensor_parallel.py", ("--width", "8192", "--batch", "8192")),
    "fsdp": ("torch_fsdp.py", ("--width", "4096", "--batch", "4096")),
}


def measure(device, small, seconds):
    if device == "cuda" and torch.cuda.device_count() < DEVICES:
        raise SkipTest(f"needs {DEVICES} GPUs, and PyTorch sees {torch.cuda.device_count()}")
    # The examples take the GPUs that they see.
    environment = os.environ | ({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "FASTSGEMM_DEVICE": "host"})
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(DEVICES)]
    found = {}
    for name, (program, sizes) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "found.json"
            options = ["--json", str(written), *(() if small else sizes)]
            subprocess.run([*launcher, str(EXAMPLES / program), *options], check=True, env=environment)
            found[name] = json.loads(written.read_text())
    return found
