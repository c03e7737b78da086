#!/usr/bin/env python3
"""How much is lost by predicting instead of sweeping: random problems, the chosen config beside the best found.

    tests/benchmarks/regret.py                       200 problems, the best of the configs that the choice knows
    tests/benchmarks/regret.py --space warptiled+    the best of a whole search space (minutes of compiling)

Exits with 1 where the mean regret is above 5 % or the 95th percentile above 15 %.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from fastsgemm import candidates, choose, database, device, problems, rungs, tuner
from fastsgemm.config import Config
from fastsgemm.journal import Journal
from fastsgemm.plan import Problem
from fastsgemm.progress import Bar
from fastsgemm.rungs import Rung
from fastsgemm.sweep import Effort, Round, Sweep
from fastsgemm.workbench import job_of

SEED = 1
SMALLEST, LARGEST = 16, 8192
MOST_MEAN, MOST_P95 = 0.05, 0.15
EFFORT = Effort((Round(1.0, 1, 5), Round(0.2, 6, 15)), beside_cublas=False)


def draw(count: int) -> list[Problem]:
    """Return random problems, each extent uniform in its logarithm."""
    generator = random.Random(SEED)

    def extent() -> int:
        return round(SMALLEST * (LARGEST / SMALLEST) ** generator.random())

    return [Problem(extent(), extent(), extent()) for _ in range(count)]


def measure(sweep: Sweep, rung: Rung, problem: Problem, configs: list[Config]) -> dict[str, Any]:
    """Sweep one problem and compare with what is chosen for it."""
    choice = choose.choose(sweep.bench.card, rung, problem)
    result = sweep.search(problem, rung, [*configs, choice.config], "regret", EFFORT)
    best, best_ms = next(iter(result.times.items()))
    chosen_ms = result.times[choice.config]
    predicted = {option.config: option.ms for option in choice.options}
    return {
        "problem": problems.text(problem),
        "rule": choice.rule,
        "regret": max(0.0, chosen_ms / best_ms - 1.0),
        "chosen": configs.index(choice.config) if choice.config in configs else None,
        "best": configs.index(best) if best in configs else None,
        "ms": [result.times.get(config) for config in configs],
        "predicted_ms": [predicted.get(config) for config in configs],
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    rung = rungs.find(arguments.rung)
    with tuner.workbench(device.open_gpu(0)) as bench, tuner.alone(bench.card):
        content = database.load(bench.card.arch)
        configs = [curve.config for curve in content.curves if curve.rung == rung.name]
        if arguments.space:
            configs += candidates.SPACES[arguments.space].candidates(bench.card.shared_limit)
        configs = list(dict.fromkeys(configs))
        drawn = draw(arguments.count)
        bar = Bar()
        with Journal(None, {}) as journal:
            sweep = Sweep(bench, journal, bar)
            bar.title(rung.name)
            sweep.prepare(job_of(rung, config, problem) for problem in drawn for config in configs)
            rows = []
            for number, problem in enumerate(drawn):
                bar.title(f"{number + 1} of {len(drawn)}")
                rows.append(measure(sweep, rung, problem, configs))
        bar.end()
    regrets = sorted(row["regret"] for row in rows)
    return {
        "device": bench.card.name,
        "rung": rung.name,
        "space": arguments.space,
        "mean": statistics.mean(regrets),
        "p95": regrets[max(0, round(0.95 * len(regrets)) - 1)],
        "worst": regrets[-1],
        "configs": [config.constants for config in configs],
        "rows": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="problems; default 200")
    parser.add_argument("--rung", default=database.DEFAULT_RUNG)
    parser.add_argument("--space", choices=list(candidates.SPACES), help="also sweep this whole search space")
    parser.add_argument("--json", type=Path, help="write every time into this file")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = run(arguments)
    for row in sorted(found["rows"], key=lambda row: -row["regret"])[:15]:
        print(f"{row['problem']:18} {row['rule']:10} {100 * row['regret']:6.1f}%")
    head = f"{found['device']}, {found['rung']}, {len(found['rows'])} problems, {len(found['configs'])} configs"
    mean, p95, worst = (f"{100 * found[name]:.1f}%" for name in ("mean", "p95", "worst"))
    print(f"{head}: regret mean {mean}, 95th percentile {p95}, worst {worst}; {time.monotonic() - began:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(found))
    return int(found["mean"] > MOST_MEAN or found["p95"] > MOST_P95)


if __name__ == "__main__":
    sys.exit(main())
