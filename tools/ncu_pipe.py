#!/usr/bin/env python3
"""Measure with Nsight Compute how busy rung 9 keeps the FMA pipe, and rung 11 the tensor pipe, for docs/sass.md.

    tools/ncu_pipe.py                     4096 x 4096 x 4096 in the four layouts, and rung 11, into docs/data/ncu.json
    tools/ncu_pipe.py --json found.json   into another file

The constants are those of the shipped tuning database. This needs a device, `ncu` and permission to read the device's
counters. Clocks are not locked. Run tools/write_tables.py afterwards to update the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sim"))

from ncu_counters import NcuError, find_ncu, profile

from fastsgemm import rungs
from fastsgemm.geometry import variants
from fastsgemm.heuristics import fp16x3
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.measure import contenders, environment
from fastsgemm.problem import LAYOUTS, Problem

KEPT = Path(__file__).resolve().parents[1] / "docs" / "data" / "ncu.json"
RUNG = "pipelined"
KERNELS = "fastsgemm_pipelined|fastsgemm_fp16x3"  # a regular expression
SIZE = 4096
WARM_UP = 20  # products before the measured one, so that clocks rise

# No device and version of ncu has all of these. Those that return a value are stored, in this order.
METRICS = (
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "sm__pipe_fmaheavy_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fmaheavy.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.sum",
    "sm__cycles_active.avg",
    "smsp__inst_executed.avg.per_cycle_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "gpu__time_duration.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
)

Data = dict[str, Any]


def on_device(folder: Path) -> None:
    """Multiply in each layout, and by rung 11: warm up, then run one product with the profiler on."""
    from cuda.bindings import driver

    from fastsgemm import device
    from fastsgemm.tuning.evaluator import Evaluator

    gpu = device.open_gpu(0)
    gpu.enter()
    bench = Evaluator(gpu)
    rung = rungs.find(RUNG)
    rows = []

    def profiled(work: Callable[[], object]) -> None:
        for _ in range(WARM_UP):
            taken = work()
            if isinstance(taken, str):
                raise RuntimeError(taken)
        device.check_driver("starting the profiler", driver.cuProfilerStart())
        work()
        device.check_driver("stopping the profiler", driver.cuProfilerStop())

    for layout in LAYOUTS:
        problem = Problem(SIZE, SIZE, SIZE, layout)
        config = choose_config(bench.device, rung, variants.dense_call(problem).problem, only="shipped").config
        timer = bench.operands(problem)
        profiled(partial(timer.once, rung, config))
        rows.append({"rung": RUNG, "layout": layout, "constants": config.constants})
    if fp16x3.supported(gpu.arch):
        square = Problem(SIZE, SIZE, SIZE)
        with contenders.on_device(square, [rungs.find("fp16x3")]) as place:
            [product] = place.products
            profiled(product.work)
        rows.append({"rung": product.name, "layout": square.layout, "constants": product.constants})
    bench.close()
    found = {"arch": gpu.arch, **environment.facts(gpu), "rows": rows}
    (folder / "device.json").write_text(json.dumps(found), encoding="utf-8")


def measure(ncu: str) -> Data:
    """Run `on_device` under ncu and return the metrics of each layout, with the versions they were measured with."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kernels = profile(ncu, folder, Path(__file__), METRICS, KERNELS)
        device_info = json.loads((folder / "device.json").read_text(encoding="utf-8"))
    rows = device_info.pop("rows")
    if len(kernels) != len(rows):
        wanted = [f"{row['rung']} {row['layout']}" for row in rows]
        raise NcuError(f"ncu saw {len(kernels)} kernels, expected one for each of {wanted}")
    for row, (_, counts) in zip(rows, kernels, strict=True):
        row["metrics"] = {metric: counts[metric] for metric in METRICS if metric in counts}
    return {**device_info, "ncu": ncu_version(ncu), "M": SIZE, "N": SIZE, "K": SIZE, "rows": rows}


def ncu_version(ncu: str) -> str:
    """Return the version of ncu: the last line of its output."""
    done = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return lines[-1].removeprefix("Version ") if lines and not done.returncode else "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ncu", metavar="PATH", help="path of ncu; default: search for it")
    parser.add_argument("--json", type=Path, default=KEPT, metavar="FILE", help="output file")
    parser.add_argument("--on-device", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.on_device is not None:
        on_device(options.on_device)
        return 0
    try:
        measured = measure(find_ncu(options.ncu))
    except NcuError as error:
        print(error, file=sys.stderr)
        return 2
    for row in measured["rows"]:
        print(row["rung"], row["layout"], *(f"{name}={value:g}" for name, value in row["metrics"].items()))
    missing = [name for name in METRICS if not any(name in row["metrics"] for row in measured["rows"])]
    for name in missing:
        print(f"ncu gave no {name}")
    options.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
