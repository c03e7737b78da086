#!/usr/bin/env python3
"""Time configs that sum in one order beside cuBLAS, the default and the rung-9 config of the database.

    tests/benchmarks/one_order_candidates.py            all groups of problems
    tests/benchmarks/one_order_candidates.py rows dot   some of them: rows, columns, dot, deep, middle

Prints, for each problem, cuBLAS, the default, the database's config of rung 9 in one order (old), then the candidates,
the quickest first, and whether the bits of each are those of the old one. Needs a device and PyTorch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import product

import one_order

from fastsgemm import device, preparation, rungs, sgemm
from fastsgemm.config import SEGMENT, Config, PipelinedConfig, SkinnyInOrderConfig
from fastsgemm.errors import FastsgemmError
from fastsgemm.geometry import variants
from fastsgemm.heuristics.choice import choose
from fastsgemm.measure import suite
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import Problem, format_problem
from fastsgemm.progress import Bar
from fastsgemm.request import PLAIN, resolve
from fastsgemm.tuning import first_use

SECONDS = 0.012  # spent on timing each work
SHOWN = 6  # candidates of a problem
STAGES = ((16, 6), (16, 12), (32, 3), (32, 4), (32, 6), (32, 8), (64, 3), (64, 4))  # BK and STAGES of rung 10


def rows(warps: tuple[int, ...]) -> list[Config]:
    """Return candidates of rung 10 for one row and as many segments as a block has warps, or part of them."""
    found = []
    for columns, (steps, stages), count in product((16, 32), STAGES, warps):
        found.append(SkinnyInOrderConfig(1, columns, steps, count, stages))
    return found


WHOLE = ((1024, 1, 2), (512, 1, 3), (256, 1, 5), (128, 1, 9), (64, 1, 17))
DOT: list[Config] = [SkinnyInOrderConfig(1, 1, *each, 2) for each in WHOLE]  # all tiles of a segment on their way


SHAPES = (  # BM, BN, BK, TM, TN, WM, WN, WNITER
    (32, 32, 32, 4, 4, 16, 32, 1),
    (32, 64, 32, 4, 4, 16, 32, 1),
    (64, 32, 32, 4, 4, 32, 16, 1),
    (64, 32, 32, 8, 4, 32, 32, 1),
    (64, 64, 32, 4, 4, 16, 32, 1),
    (64, 64, 32, 8, 4, 32, 32, 1),
    (64, 128, 16, 8, 4, 32, 64, 2),
    (128, 128, 16, 8, 4, 64, 32, 2),
    (128, 128, 16, 8, 4, 32, 32, 1),
    (128, 32, 16, 8, 4, 32, 32, 1),
)
DEEP_SHAPES = tuple(
    (rows, columns, steps, 8, 4, 32, 32 * sub_tiles, sub_tiles)
    for rows, columns, sub_tiles in (
        (32, 64, 1), (64, 64, 1), (64, 64, 2), (32, 128, 1), (32, 128, 2), (64, 128, 1), (64, 128, 2), (128, 64, 1)
    )
    for steps in (16, 32)
)  # fmt: skip
THROUGH_REGISTERS = ({"CP_ASYNC": 1}, {"CP_ASYNC": 1, "FRAGMENTS": 4})
PAST_REGISTERS = tuple(
    {"CP_ASYNC": 2, "STAGES": stages, "FRAGMENTS": fragments}
    for stages, fragments in ((3, 2), (4, 4), (6, 2), (6, 4), (8, 2))
)


def tiles(shapes: tuple[tuple[int, ...], ...]) -> list[Config]:
    """Return candidates of rung 9, each segment a part."""
    return [
        PipelinedConfig(*shape, ORDER=4, SPREAD=2, SEGMENT=SEGMENT, SPLIT_K=2, **copies)
        for shape in shapes
        for copies in (*THROUGH_REGISTERS, *PAST_REGISTERS)
    ]


NARROW: list[Config] = [
    SkinnyInOrderConfig(1, columns, *each, 2)
    for columns, each in product((8, 16, 32), ((32, 1, 8), (64, 1, 6), (128, 1, 4)))
]
VECTOR = rows((2, 4))
DEEP_VECTOR = rows((4, 6, 11))
TILES, DEEP_TILES = tiles(SHAPES), tiles(DEEP_SHAPES)
GROUPS: dict[str, list[tuple[Problem, list[Config]]]] = {
    "rows": [
        (Problem(1, 4096, 4096), VECTOR),
        (Problem(1, 11008, 4096), VECTOR),
        (Problem(1, 4096, 11008), DEEP_VECTOR),
        (Problem(1, 16384, 1024), rows((1,))),
        (Problem(1, 1024, 1024), rows((1,))),
    ],
    "columns": [
        (Problem(4096, 1, 4096), VECTOR),
        (Problem(11008, 1, 4096), VECTOR),
        (Problem(4096, 1, 11008), DEEP_VECTOR),
        (Problem(4096, 1, 4096, "TN"), VECTOR),
        (Problem(4095, 1, 4097), VECTOR),
    ],
    "dot": [(Problem(1, 1, 1000000), DOT), (Problem(1, 1, 100000), DOT), (Problem(1, 64, 65536), NARROW)],
    "deep": [
        (Problem(256, 256, 16384), DEEP_TILES),
        (Problem(64, 64, 65536), TILES),
        (Problem(128, 4096, 4096), [*TILES, *DEEP_TILES]),
        (Problem(4096, 32, 4096), TILES),
    ],
    "middle": [
        (Problem(700, 700, 700), TILES),
        (Problem(333, 777, 555), TILES),
        (Problem(1024, 1024, 1024, "NT"), TILES),
    ],
}


def legal(gpu, problem: Problem, configs: list[Config]) -> list[Config]:
    """Return the configs that are legal on the device and have a tile that fits the problem."""
    found = []
    for config in configs:
        rung, config = rungs.batch_invariant(None, config, "ieee")
        large = isinstance(config, PipelinedConfig) and (config.BM > problem.M or config.BN > problem.N)
        if not rung.violations(config, gpu.shared_limit) and not large:
            found.append(config)
    return found


def compile_all(gpu, wanted: list[tuple[Problem, Config | None]]) -> None:
    """Compile and load the kernels of all candidates and, for None, those of the default, on all cores."""
    needed: dict = {}
    bar = Bar(False)
    for problem, config in wanted:
        request = PLAIN if config is None else resolve(config=config, batch_invariant=True)
        needed |= preparation.kernels_of(gpu, request, [problem], "", bar)
    preparation.load(gpu, needed, bar)


def show(torch, stopwatch, problem: Problem, old: Config, configs: list[Config]) -> None:
    """Time one problem and print its lines."""
    a, b = one_order.operands(torch, problem, "cuda")
    ordered = [old, *configs]
    results = [torch.full((problem.M, problem.N), float("nan"), device="cuda") for _ in range(len(ordered) + 2)]
    works = [
        lambda: torch.mm(a, b, out=results[0]),
        lambda: sgemm(a, b, C=results[1]),
        *(
            lambda config=config, c=c: sgemm(a, b, C=c, config=config, batch_invariant=True)
            for config, c in zip(ordered, results[2:], strict=True)
        ),
    ]
    for work in works:
        work()
    torch.cuda.synchronize()
    same = [torch.equal(c.view(torch.int32), results[2].view(torch.int32)) for c in results[2:]]
    times = stopwatch.medians(works, SECONDS)
    cublas, default, before = times[:3]
    ratio = f"{cublas / before:.2f} x cuBLAS"
    print(
        f"\n{format_problem(problem)}: cuBLAS {cublas:.4f} ms, default {default:.4f}, old {before:.4f}, {ratio}: {old}"
    )
    found = sorted(zip(times[3:], configs, same[1:], strict=True), key=lambda each: each[0])
    for ms, config, equal in found[:SHOWN]:
        print(f"  {ms:.4f} ms  {cublas / ms:.2f} x cuBLAS  bits {'yes' if equal else 'NO'}  {config}")
    wrong = [config for _, config, equal in found if not equal]
    print(f"  {len(found)} candidates, bits differ in {len(wrong)}" + "".join(f"\n    WRONG {c}" for c in wrong[:5]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="group", help=f"{', '.join(GROUPS)}; all by default")
    names = parser.parse_args(arguments).groups
    if unknown := [name for name in names if name not in GROUPS]:
        parser.error(f"unknown groups {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    began = time.perf_counter()
    try:
        device.probe()
        torch = suite.import_torch()
    except FastsgemmError as error:
        sys.exit(str(error))
    gpu = first_use.open_device(0)
    with device.current(gpu), closing(Stopwatch(gpu)) as stopwatch:
        chosen = [each for name in names or GROUPS for each in GROUPS[name]]
        jobs = []
        for problem, configs in chosen:
            request = resolve("pipelined", batch_invariant=True)
            old = choose(gpu, request, *variants.dense_operands(problem)).config
            jobs.append((problem, old, legal(gpu, problem, configs)))
        compile_all(gpu, [(problem, config) for problem, old, configs in jobs for config in (None, old, *configs)])
        print(f"compiled after {time.perf_counter() - began:.0f} s")
        for job in jobs:
            show(torch, stopwatch, *job)
        print(f"\n{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
