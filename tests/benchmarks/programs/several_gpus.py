"""One work on one, two, four and eight devices, by `scaling.py`; and what a comparison with one device gives."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import SkipTest

import torch

HERE = Path(__file__).resolve().parent
COUNTS = (1, 2, 4, 8)


def measure(device, small, seconds):
    there = torch.cuda.device_count() if device == "cuda" else 2
    if there < 2:
        raise SkipTest(f"needs 2 GPUs, and PyTorch sees {there}")
    counts = [count for count in COUNTS if count <= there]
    # The program takes the GPUs that it sees.
    environment = os.environ | ({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "FASTSGEMM_DEVICE": "host"})
    runs = [_run(count, small, environment) for count in counts]
    return {"scaling": runs, "differences": differences(runs)}


def _run(devices, small, environment):
    """Run the program with a process per device, and return what it writes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "found.json"
        options = ["--json", str(written), *(["--small"] if small else ())]
        subprocess.run([*launcher, str(HERE / "scaling.py"), *options], check=True, env=environment)
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
