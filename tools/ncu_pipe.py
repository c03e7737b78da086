#!/usr/bin/env python3
"""Measure how busy rung 9 keeps the FMA pipe with Nsight Compute, for docs/sass.md.

    tools/ncu_pipe.py                     4096 x 4096 x 4096 in the four layouts, into docs/data/ncu.json
    tools/ncu_pipe.py --json found.json   into another file

The constants are those that the shipped tuning database gives these problems. Needs a device, `ncu`, and the right to
read the device's counters; clocks are left alone. Then tools/write_tables.py writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sim"))

from ncu_counters import NcuError, find_ncu, profile

from fastsgemm import rungs
from fastsgemm.geometry import variants
from fastsgemm.heuristics.choose import choose
from fastsgemm.problem import LAYOUTS, Problem

KEPT = Path(__file__).resolve().parents[1] / "docs" / "data" / "ncu.json"
RUNG = "pipelined"
SIZE = 4096
WARM_UP = 20  # products before the one that is measured: clocks go up

# Not every device and version of ncu has all of them; what comes back with a value is kept, in this order.
METRICS = (
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "sm__pipe_fmaheavy_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fmaheavy.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.sum",
    "sm__cycles_active.avg",
    "smsp__inst_executed.avg.per_cycle_active",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "gpu__time_duration.sum",
)

Data = dict[str, Any]


def on_device(folder: Path) -> None:
    """Multiply in each layout, warm up included, for ncu to watch the last product of each."""
    from cuda.bindings import driver

    from fastsgemm import device
    from fastsgemm.tuning.evaluator import DeviceEvaluator

    gpu = device.open_gpu(0)
    gpu.enter()
    bench = DeviceEvaluator(gpu)
    rung = rungs.find(RUNG)
    rows = []
    for layout in LAYOUTS:
        problem = Problem(SIZE, SIZE, SIZE, layout)
        config = choose(bench.device, rung, variants.dense_call(problem).problem, only="shipped").config
        timer = bench.operands(problem)
        for _ in range(WARM_UP):
            taken = timer.once(rung, config)
            if isinstance(taken, str):
                raise RuntimeError(f"{layout}, {config}: {taken}")
        device.succeed("starting the profiler", driver.cuProfilerStart())
        timer.once(rung, config)
        device.succeed("stopping the profiler", driver.cuProfilerStop())
        rows.append({"layout": layout, "constants": config.constants})
    bench.close()
    found = {
        "device": gpu.name,
        "arch": gpu.arch,
        "driver": device.driver_text(),
        "nvrtc": ".".join(map(str, device.nvrtc_version())),
        "rows": rows,
    }
    (folder / "device.json").write_text(json.dumps(found), encoding="utf-8")


def measure(ncu: str) -> Data:
    """Run `on_device` under ncu and return all that was found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kernels = profile(ncu, folder, Path(__file__), METRICS, RUNG)
        device_info = json.loads((folder / "device.json").read_text(encoding="utf-8"))
    rows = device_info.pop("rows")
    if len(kernels) != len(rows):
        raise NcuError(f"ncu saw {len(kernels)} kernels, expected one for each of {[row['layout'] for row in rows]}")
    for row, (_, counts) in zip(rows, kernels, strict=True):
        row["metrics"] = {metric: counts[metric] for metric in METRICS if metric in counts}
    return {
        "date": datetime.date.today().isoformat(),
        **device_info,
        "ncu": ncu_version(ncu),
        "M": SIZE,
        "N": SIZE,
        "K": SIZE,
        "rows": rows,
    }


def ncu_version(ncu: str) -> str:
    """Return what ncu says of its version, its last line."""
    done = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return lines[-1].removeprefix("Version ") if lines and not done.returncode else "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; see the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ncu", metavar="PATH", help="the profiler; default: looked for")
    parser.add_argument("--json", type=Path, default=KEPT, metavar="FILE", help="write it here")
    parser.add_argument("--on-device", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.on_device is not None:
        on_device(options.on_device)
        return 0
    try:
        found = measure(find_ncu(options.ncu))
    except NcuError as error:
        print(error, file=sys.stderr)
        return 2
    for row in found["rows"]:
        print(row["layout"], *(f"{name}={value:g}" for name, value in row["metrics"].items()))
    missing = [name for name in METRICS if not any(name in row["metrics"] for row in found["rows"])]
    for name in missing:
        print(f"ncu gave no {name}")
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
