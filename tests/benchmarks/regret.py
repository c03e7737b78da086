#!/usr/bin/env python3
"""Measure the regret of predicted configs: time of the chosen config relative to the best found, on random problems.

    tests/benchmarks/regret.py                       200 problems, against the best config that has a curve
    tests/benchmarks/regret.py --whole               against the best of the search spaces (minutes of compiling)

The exit code is 1 if the mean regret is above 5 % or the 95th percentile above 15 %.
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

from fastsgemm import device, rungs
from fastsgemm.config import Config
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import variants
from fastsgemm.heuristics import cost_model, database, partial_accumulators
from fastsgemm.heuristics.alternatives import Search
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.problem import Problem, format_problem
from fastsgemm.progress import Bar
from fastsgemm.request import Request
from fastsgemm.rungs import Rung
from fastsgemm.tuning import tuner
from fastsgemm.tuning.candidates import of_space
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.evaluator import job_of
from fastsgemm.tuning.search import Effort, Round, Sweep
from fastsgemm.tuning.spaces import SPACES

SEED = 1
SMALLEST, LARGEST = 16, 8192
MOST_MEAN, MOST_P95 = 0.05, 0.15
EFFORT = Effort((Round(1.0, 1, 3), Round(0.2, 6, 9)), beside_cublas=False)
FINAL = Effort((Round(1.0, 1, 15),), beside_cublas=False)  # the chosen config and the best ones, in turns
FINALISTS = 3


def draw(count: int) -> list[Problem]:
    """Return random problems with log-uniform extents."""
    generator = random.Random(SEED)

    def extent() -> int:
        return round(SMALLEST * (LARGEST / SMALLEST) ** generator.random())

    return [Problem(extent(), extent(), extent()) for _ in range(count)]


def divided(rung: Rung, config: Config, problem: Problem, device_info: DeviceInfo) -> list[Config]:
    """Return the config with every SPLIT_K that the cost model considers, and the partial accumulators of a choice."""
    if not rung.splits:
        return [config]
    seen = variants.with_swap_ab(rung, problem)
    parts = (config.replace(SPLIT_K=count) for count in cost_model.splits(config, seen, device_info.multiprocessors))
    return [partial_accumulators.shortened(one, problem.K, device_info.shared_limit) for one in parts]


def suited(rungs: list[Rung], problem: Problem) -> list[Rung]:
    """Return the rungs that suit the problem. A single rung is measured on every problem."""
    return [rung for rung in rungs if rung.suits(problem.M, problem.N) or len(rungs) == 1]


def measure(sweep: Sweep, rungs: list[Rung], problem: Problem, configs: dict[Rung, list[Config]]) -> dict[str, Any]:
    """Time all configs on one problem and compare the best with the chosen one."""
    device_info = sweep.evaluator.device
    choice = choose_config(device_info, rungs[0] if len(rungs) == 1 else None, problem)
    times: dict[Config, float] = {}
    of_rung: dict[Config, Rung] = {choice.config: choice.rung}
    for rung in suited(rungs, problem):
        tried = [one for config in configs[rung] for one in divided(rung, config, problem, device_info)]
        if rung is choice.rung:
            tried.append(choice.config)
        found = sweep.search(problem, rung, tried, "regret", EFFORT).times
        times |= found
        of_rung |= dict.fromkeys(found, rung)
    finalists = {choice.config, *sorted(times, key=times.__getitem__)[:FINALISTS]}
    final: dict[Config, float] = {}
    for rung in rungs:
        of_it = [config for config in finalists if of_rung[config] is rung]
        final |= sweep.search(problem, rung, of_it, "final", FINAL).times if of_it else {}
    times |= final
    best = min(final, key=final.__getitem__)
    searches = (Search(device_database(device_info), Request(rung)) for rung in rungs)
    predicted = {one.config: one.ms for search in searches for one in search.ranking(problem)}
    return {
        "problem": format_problem(problem),
        "rung": choice.rung.name,
        "rule": choice.rule,
        "regret": times[choice.config] / times[best] - 1.0,
        "chosen": choice.config.constants,
        "predicted_ms": choice.ms,
        "best": best.constants,
        "times": [
            {"constants": config.constants, "ms": ms, "predicted_ms": predicted.get(config)}
            for config, ms in times.items()
            if config in predicted or ms <= 1.1 * times[best]
        ],
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = [rungs.find(arguments.rung)] if arguments.rung else list(rungs.DEFAULTS)
    with tuner.evaluating(device.open_gpu(0)) as evaluator, tuner.exclusive_lock(evaluator.device):
        content = database.load(evaluator.device.arch)
        configs = {rung: [curve.config for curve in content.curves if curve.rung == rung.name] for rung in chosen}
        if arguments.whole:
            for rung in chosen:
                configs[rung] += of_space(SPACES[rung.name], evaluator.device.shared_limit)
        drawn = draw(arguments.count)
        bar = Bar()
        with Checkpoint(None, {}) as checkpoint:
            sweep = Sweep(evaluator, checkpoint, bar)
            bar.title("compile")
            sweep.prepare(
                job_of(evaluator.device.arch, rung, one, problem)
                for problem in drawn
                for rung in suited(chosen, problem)
                for config in configs[rung]
                for one in divided(rung, config, problem, evaluator.device)
            )
            rows = []
            for number, problem in enumerate(drawn):
                bar.title(f"{number + 1} of {len(drawn)}")
                rows.append(measure(sweep, chosen, problem, configs))
        bar.end()
    regrets = sorted(row["regret"] for row in rows)
    return {
        "device": evaluator.device.name,
        "rungs": [rung.name for rung in chosen],
        "whole": arguments.whole,
        "mean": statistics.mean(regrets),
        "p95": regrets[max(0, round(0.95 * len(regrets)) - 1)],
        "worst": regrets[-1],
        "configs": sum(map(len, configs.values())),
        "rows": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="problems; default 200")
    parser.add_argument("--rung", help="one rung only; default: those that sgemm chooses from")
    parser.add_argument("--whole", action="store_true", help="also sweep the whole search space of each rung")
    parser.add_argument("--json", type=Path, help="write every time into this file")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = run(arguments)
    for row in sorted(found["rows"], key=lambda row: -row["regret"])[:15]:
        print(f"{row['problem']:18} {row['rung']:10} {row['rule']:10} {100 * row['regret']:6.1f}%")
    head = (
        f"{found['device']}, {' and '.join(found['rungs'])}, {len(found['rows'])} problems, {found['configs']} configs"
    )
    mean, p95, worst = (f"{100 * found[name]:.1f}%" for name in ("mean", "p95", "worst"))
    print(f"{head}: regret mean {mean}, 95th percentile {p95}, worst {worst}; {time.monotonic() - began:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(found))
    return int(found["mean"] > MOST_MEAN or found["p95"] > MOST_P95)


if __name__ == "__main__":
    sys.exit(main())
