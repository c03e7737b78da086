#!/usr/bin/env python3
"""Measure the curves of the cost model again, without a search: after a kernel has changed, or for other configs.

    tests/benchmarks/curves.py sm_90.json                          the configs that have curves now
    tests/benchmarks/curves.py sm_90.json --configs configs.json   these: [{"rung": ..., "constants": {...}}, ...]

It writes a file for the shipped database: the records as they are, and the new curves. Takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

from fastsgemm import device, rungs
from fastsgemm.config import Config
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import Content
from fastsgemm.progress import Bar
from fastsgemm.tuning import tuner
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.outcome import Outcome
from fastsgemm.tuning.plan import plan_run
from fastsgemm.tuning.rung_tuning import RungTuning
from fastsgemm.tuning.search import Sweep


def wanted(content: Content, path: Path | None) -> dict[tuple[str, int], list[Config]]:
    """Return the configs of each rung and order of summation: those in a file, or those that have curves."""
    if path is None:
        pairs: Iterable[tuple[str, Config]] = ((curve.rung, curve.config) for curve in content.curves)
    else:
        lines = json.loads(path.read_text())
        pairs = ((one["rung"], rungs.find(one["rung"]).config.from_constants(one["constants"])) for one in lines)
    found: dict[tuple[str, int], list[Config]] = {}
    for rung, config in pairs:
        found.setdefault((rung, config.segment), []).append(config)
    return found


def measured(path: Path | None) -> Content:
    """Return the shipped content of this device's architecture with new curves."""
    with tuner.evaluating(device.open_gpu(0)) as evaluator, tuner.exclusive_lock(evaluator.device):
        shipped = database.shipped(evaluator.device.arch)
        outcome, bar = Outcome(evaluator.device, evaluator.tools), Bar()
        with Checkpoint(None, {}) as checkpoint:
            sweep = Sweep(evaluator, checkpoint, bar)
            for (rung, segment), configs in wanted(shipped, path).items():
                plan = plan_run(evaluator.device, rung=rung)
                # A curve knows nothing of segments: adding up their sums takes less than one percent.
                whole = [config.replace(SEGMENT=0) for config in configs] if segment else configs
                before = len(outcome.curves)
                RungTuning(plan, plan.spaces[0], sweep, outcome).measure_curves(whole)
                if segment:
                    outcome.curves[before:] = [
                        structs.replace(curve, constants=curve.constants | {"SEGMENT": segment})
                        for curve in outcome.curves[before:]
                    ]
        bar.end()
    return database.merged(shipped, outcome.content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--configs", type=Path)
    arguments = parser.parse_args()
    content = measured(arguments.configs)
    arguments.out.write_text(database.dumps(content), encoding="utf-8")
    for curve in content.curves:
        print(f"{curve.rung:10} {curve.calibration:6.3f}  {curve.config}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
