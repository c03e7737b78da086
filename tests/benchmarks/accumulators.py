#!/usr/bin/env python3
"""Measure what partial accumulators cost each config that has a curve: after a kernel has changed, or for new curves.

    tests/benchmarks/accumulators.py sm_90.json

It times 4 and 8 partial accumulators in turns with one, on problems of every layout whose tiles fill the device twice,
and writes a file for the shipped database with the costs in its curves. Takes a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from msgspec import structs

from fastsgemm import device, rungs, sgemm
from fastsgemm.call import dispatch
from fastsgemm.config import Config
from fastsgemm.geometry import variants
from fastsgemm.geometry.variants import dense
from fastsgemm.heuristics import database, database_writing
from fastsgemm.heuristics.database_entries import Curve
from fastsgemm.jit import compiler, source
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.progress import track

RUNG = rungs.find("pipelined")
COUNTS = (1, 4, 8)
DEPTH = 2048  # steps of k
SECONDS = 0.02  # of each measurement, about


def legal(curve: Curve, shared_limit: int) -> list[Config]:
    """Return the config with each number of partial accumulators that fits on the device."""
    tried = (curve.config.replace(PARTIAL_ACCUMULATORS=count) for count in COUNTS)
    return [config for config in tried if not RUNG.violations(config, shared_limit)]


def problems(curve: Curve) -> Iterator[Problem]:
    """Yield a problem of each layout whose tiles fill the device twice, whether or not as many fit as in the curve."""
    tiles = 2 * curve.multiprocessors * curve.blocks_per_sm
    down = max(rows for rows in range(1, int(tiles**0.5) + 1) if tiles % rows == 0)
    for layout in LAYOUTS:
        yield Problem(down * curve.config.BM, tiles // down * curve.config.BN, DEPTH, layout)


def compile_ahead(gpu: device.Gpu, curves: list[Curve]) -> None:
    texts = set()
    for curve in curves:
        for config in legal(curve, gpu.shared_limit):
            for problem in problems(curve):
                launch = dispatch.kernel_launch(gpu.arch, RUNG, config, variants.dense_call(problem))
                texts.add(source.generate(RUNG, config, launch.variant))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda text: compiler.cubin(text, RUNG.kernel, gpu.arch), texts))


def cost(curve: Curve, problem: Problem, gpu: device.Gpu, watch: Stopwatch, steps: int) -> float:
    """Return the time with four partial accumulators at so many steps of k, relative to one, as a mean of all times."""
    configs = legal(curve, gpu.shared_limit)
    a, b, c = (torch.randn(shape, device="cuda").as_strided(shape, strides) for shape, strides in dense(problem))
    one, *more = watch.medians([partial(sgemm, a, b, C=c, rung=RUNG, config=each) for each in configs], SECONDS)
    per_chain = [
        (ms / one - 1) * problem.K / each.PARTIAL_ACCUMULATORS for each, ms in zip(configs[1:], more, strict=True)
    ]
    return max(1.0, 1 + 4 * statistics.mean(per_chain) / steps) if per_chain else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    torch.zeros(1, device="cuda")
    gpu = device.open_gpu(0)
    gpu.enter()
    shipped = database.shipped(gpu.arch)
    mine = [each for each in shipped.curves if each.rung == RUNG.name and each.device == gpu.name]
    compile_ahead(gpu, mine)
    watch, steps, found = Stopwatch(gpu), database.fitted(gpu.arch).accumulators_steps, {}
    for curve in track(mine, "accumulators"):
        found[curve.config] = tuple(cost(curve, problem, gpu, watch, steps) for problem in problems(curve))
    for config, values in found.items():
        print(*(f"{value:6.3f}" for value in values), config)
    curves = tuple(
        structs.replace(each, accumulators_cost=found[each.config]) if each in mine else each for each in shipped.curves
    )
    arguments.out.write_text(database_writing.dumps(structs.replace(shipped, curves=curves)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
