"""Work on several devices: the examples on all of them, and how it goes on from one to eight."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import SkipTest

import torch

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[2] / "examples"
COUNTS = (1, 2, 4, 8)
RUNS = {  # name: program, and its options at full size
    "dtensor": ("torch_dtensor.py", ("--size", "16384")),
    "mlp": ("torch_tensor_parallel.py", ("--width", "8192", "--batch", "8192")),
    "fsdp": ("torch_fsdp.py", ("--width", "4096", "--batch", "4096")),
}


def measure(device, small, seconds):
    there = torch.cuda.device_count() if device == "cuda" else 2
    if there < 2:
        raise SkipTest(f"needs 2 GPUs, and PyTorch sees {there}")
    counts = [count for count in COUNTS if count <= there]
    # The programs take the GPUs that they see.
    environment = os.environ | ({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "FASTSGEMM_DEVICE": "host"})
    found = {
        name: _run(EXAMPLES / program, counts[-1], () if small else sizes, environment)
        for name, (program, sizes) in RUNS.items()
    }
    program, options = HERE / "scaling.py", ("--small",) if small else ()
    runs = [_run(program, count, options, environment) for count in counts]
    return found | {"scaling": runs, "differences": differences(runs)}


def _run(program, devices, options, environment):
    """Run a program with a process per device, and return what it writes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "found.json"
        subprocess.run([*launcher, str(program), "--json", str(written), *options], check=True, env=environment)
        return json.loads(written.read_text())


def differences(runs):
    """Compare each run with that of one device, which is the first.

    Returns
    -------
    dict
        ``bits``: the products whose bits differ, by number of devices. ``losses``: the largest relative difference of a
        loss, by kind of products.
    """
    alone, *others = runs
    bits = {
        run["devices"]: [name for name, digest in run["bits"].items() if digest != alone["bits"][name]]
        for run in others
    }
    losses = {
        kind: max(
            abs(loss - first) / abs(first)
            for run in others
            for loss, first in zip(run["losses"][kind], own, strict=True)
        )
        for kind, own in alone["losses"].items()
    }
    return {"bits": bits, "losses": losses}
