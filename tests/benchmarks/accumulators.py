#!/usr/bin/env python3
"""Measure what partial accumulators cost each config that has a curve: after a kernel has changed, or for new curves.

    tests/benchmarks/accumulators.py sm_90.json

It times three partial accumulators in turns with one, on problems of every layout, aligned and odd, whose tiles fill
the device less than twice, and writes a file for the shipped database with the costs in its curves. Takes a minute.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from msgspec import structs

from fastsgemm import device, rungs, sgemm
from fastsgemm.call.product import plan_of
from fastsgemm.config import Config
from fastsgemm.geometry.variants import dense
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import Curve
from fastsgemm.jit import compiler, kernel
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.progress import track
from fastsgemm.request import Request

RUNG = rungs.find("pipelined")
SEVERAL = 3  # partial accumulators
FILLED = (1.6, 1.95)  # times that the tiles fill the device, whether or not as many fit as in the curve
DEPTH = 1536  # steps of k
SECONDS = 0.02  # of each measurement, about


def problems(curve: Curve, layout: str) -> Iterator[Problem]:
    """Yield problems of a layout, of whole tiles and a little less."""
    for filled in FILLED:
        tiles = filled * curve.multiprocessors * curve.blocks_per_sm
        down = round(math.sqrt(tiles))
        M, N = down * curve.config.BM, int(tiles / down) * curve.config.BN
        yield Problem(M, N, DEPTH, layout)
        yield Problem(M - 1, N - 1, DEPTH - 1, layout)


def configs(curve: Curve, shared_limit: int) -> list[Config]:
    """Return the config with one accumulator and with several, if these fit into shared memory."""
    both = (curve.config.replace(PARTIAL_ACCUMULATORS=count) for count in (1, SEVERAL))
    return [config for config in both if not RUNG.violations(config, shared_limit)]


def compile_ahead(gpu: device.Gpu, curves: list[Curve]) -> None:
    kernels = set()
    for curve, layout in itertools.product(curves, LAYOUTS):
        for config, problem in itertools.product(configs(curve, gpu.shared_limit), problems(curve, layout)):
            plan = plan_of(gpu, Request(RUNG, config), dense(problem))
            kernels.update(launch.kernel for launch in plan.launches)
    for _ in compiler.on_all_cores(lambda spec: kernel.cubin(spec, gpu.arch), kernels):
        pass


def cost(curve: Curve, layout: str, gpu: device.Gpu, watch: Stopwatch) -> float:
    """Return the time with several accumulators relative to one, as a geometric mean over problems of a layout."""
    tried = configs(curve, gpu.shared_limit)
    if len(tried) == 1:
        return 0.0
    ratios = []
    for problem in problems(curve, layout):
        a, b, c = (torch.randn(x.shape, device="cuda").as_strided(x.shape, x.strides) for x in dense(problem))
        one, several = watch.medians([partial(sgemm, a, b, C=c, rung=RUNG, config=each) for each in tried], SECONDS)
        ratios.append(several / one)
    return max(1.0, statistics.geometric_mean(ratios))


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
    watch, found = Stopwatch(gpu), {}
    for curve in track(mine, "accumulators"):
        found[curve.config] = [cost(curve, layout, gpu, watch) for layout in LAYOUTS]
    for config, values in found.items():
        print(*(f"{value:6.3f}" for value in values), config)
    curves = tuple(
        structs.replace(each, accumulators_cost=found[each.config]) if each in mine else each for each in shipped.curves
    )
    arguments.out.write_text(database.dumps(structs.replace(shipped, curves=curves)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
