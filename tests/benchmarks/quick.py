#!/usr/bin/env python3
"""Compare the choices of a quick tuning run, on an empty data folder, with the shipped ones, on the standard set.

The exit code is 1 if the geometric mean of the speed ratios is below 95 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fastsgemm import device
from fastsgemm.config import Config
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.problem import format_problem
from fastsgemm.progress import Bar
from fastsgemm.rungs import Rung
from fastsgemm.tuning import tuner
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.search import Effort, Round, Sweep
from fastsgemm.tuning.spaces import skinny, standard_set

LEAST = 0.95
EFFORT = Effort((Round(1.0, 2, 15),), beside_cublas=False)


def run() -> dict[str, Any]:
    began = time.monotonic()
    tuned = tuner.tune(quick=True)
    seconds = time.monotonic() - began
    rows = []
    with tuner.evaluating(device.open_gpu(0)) as evaluator, Checkpoint(None, {}) as checkpoint:
        sweep = Sweep(evaluator, checkpoint, Bar(False))
        for problem in dict.fromkeys((*standard_set.STANDARD, *skinny.NARROW)):
            quick, shipped = (choose_config(evaluator.device, None, problem, only) for only in ("user", "shipped"))
            of_rung: dict[Rung, list[Config]] = {}
            for choice in (quick, shipped):
                of_rung.setdefault(choice.rung, []).append(choice.config)
            times: dict[Config, float] = {}
            for rung, configs in of_rung.items():
                times |= sweep.search(problem, rung, configs, "quick", EFFORT).times
            rows.append({"problem": format_problem(problem), "speed": times[shipped.config] / times[quick.config]})
    return {
        "device": evaluator.device.name,
        "seconds": seconds,
        "complete": tuned.complete,
        "speed": statistics.geometric_mean(row["speed"] for row in rows),
        "rows": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FASTSGEMM_DATA_DIR"] = folder
        found = run()
    for row in found["rows"]:
        print(f"{row['problem']:22} {100 * row['speed']:6.1f}%")
    print(
        f"{found['device']}: quick tuning took {found['seconds']:.1f} s "
        f"({'complete' if found['complete'] else 'cut short'}) and reaches {100 * found['speed']:.1f}% of the shipped "
        f"records' speed; lowest {100 * min(row['speed'] for row in found['rows']):.1f}%"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found))
    return int(found["speed"] < LEAST)


if __name__ == "__main__":
    sys.exit(main())
