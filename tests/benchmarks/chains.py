#!/usr/bin/env python3
"""Measure how many chains of FMAs the sums of cuBLAS have, and fit how many ours need.

    tests/benchmarks/chains.py sm_90.json

A sum of K steps in n chains of equal length errs like sqrt(K / n), so the errors of cuBLAS against float64 say how many
chains it has. They are measured on random problems in every layout. The rule takes, for each range of K and of the size
of C, the most that was seen, divided by 1.44: so many chains err at most 1.2 times as much. It writes a file for the
shipped database with these numbers in it; copy them to generic.json too. Takes a minute.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from msgspec import structs

from fastsgemm import device
from fastsgemm.geometry.variants import dense
from fastsgemm.heuristics import database, partial_accumulators
from fastsgemm.heuristics.fitted import Needs
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.progress import track

WIDE, NARROW = 80_000, 24_000  # problems
MOST_FLOPS = 3 * 10**11
SAMPLED = 256  # rows and columns that are compared, at most
LEAST_ELEMENTS = 1000  # of C: fewer errors say little about their mean
# Upper limits of the elements of C and lower limits of K, between which one number of chains is fitted.
ELEMENTS = (2**17, 2**18, 2**19, 900_000, 1_500_000, 2_300_000, 3_500_000, 5_000_000, 9_000_000, 25_000_000, None)
ELEMENTS_OF = {**dict.fromkeys(("row", "rows"), (4000, None)), **dict.fromkeys(LAYOUTS, ELEMENTS)}
STEPS = (17, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192, 11_000)
ALLOWED = 1.2  # errors relative to those of cuBLAS
ROUNDING = 0.3015 * 2.0**-24  # error of a chain of one step, as tests/heuristics/test_partial_accumulators.py finds


def problems(seed: int = 29) -> Iterator[Problem]:
    """Yield random problems in all layouts, first of many rows and columns, then of few rows or few columns."""
    draw = random.Random(seed)

    def extent(least: int, most: int, multiple: int = 1) -> int:
        return max(multiple, multiple * round(least * (most / least) ** draw.random() / multiple))

    turns = itertools.cycle(itertools.product((1, 8, 64), LAYOUTS))
    for multiple, layout in itertools.islice(turns, WIDE):
        rows, columns = (extent(partial_accumulators.DOTS + 1, 12288, multiple) for _ in range(2))
        found = Problem(rows, columns, extent(17, 16384, multiple), layout)
        if found.flops <= MOST_FLOPS:
            yield found
    for multiple, layout in itertools.islice(turns, NARROW):
        few, many = extent(1, partial_accumulators.DOTS), extent(128, 16384, multiple)
        rows, columns = (few, many) if draw.random() < 0.5 else (many, few)
        yield Problem(rows, columns, extent(17, 20000, multiple), layout)


def errors(asked: list[Problem]) -> list[float]:
    """Return the relative error of cuBLAS on each problem, on at most `SAMPLED` of its rows and columns."""
    largest = max(max(one.M * one.K, one.K * one.N) for one in asked)
    memory = [torch.randn(largest, device="cuda") for _ in range(2)]
    found = []
    for problem in track(asked, "errors of cuBLAS"):
        a, b = (of.as_strided(how.shape, how.strides) for of, how in zip(memory, dense(problem)[:2], strict=True))
        product = torch.mm(a, b)
        rows, columns = (torch.arange(0, most, -(-most // SAMPLED), device="cuda") for most in product.shape)
        exact = a[rows].double() @ b[:, columns].double()
        found.append((product[rows][:, columns] - exact).norm() / exact.norm())
    return [float(one) for one in found]


def fitted(measured: Iterable[tuple[Problem, float]]) -> dict[str, tuple[tuple[int | None, Needs], ...]]:
    """Return the chains that sums need, for each kind of problem and size of C."""
    most: dict[tuple[str, int | None], list[float]] = {}
    for problem, error in measured:
        size, kind = problem.M * problem.N, partial_accumulators.kind(problem)
        if size >= LEAST_ELEMENTS:
            limit = next(limit for limit in ELEMENTS_OF[kind] if limit is None or size <= limit)
            seen = most.setdefault((kind, limit), [1.0] * len(STEPS))
            step = bisect_right(STEPS, problem.K) - 1
            seen[step] = max(seen[step], problem.K * (ROUNDING / error) ** 2)
    return {
        kind: tuple((limit, needs(most.get((kind, limit), []))) for limit in limits)
        for kind, limits in ELEMENTS_OF.items()
    }


def needs(seen: list[float]) -> Needs:
    """Return from which K on a sum needs more chains, given the most chains that were seen in each range of K."""
    found: list[tuple[int, int]] = []
    for steps, chains in zip(STEPS, seen, strict=False):
        needed = math.ceil(chains / ALLOWED**2 - 0.05)  # the errors say 2.95 to 3.05 where cuBLAS has 3
        if needed > (found[-1][1] if found else 1):
            found.append((steps, needed))
    return tuple(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    gpu = device.open_gpu(0)
    asked = list(problems())
    sums = fitted(zip(asked, errors(asked), strict=True))
    shipped = database.shipped(gpu.arch)
    numbers = structs.replace(database.fitted(gpu.arch), long_sums=sums)
    arguments.out.write_text(database.dumps(structs.replace(shipped, fitted=numbers)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
