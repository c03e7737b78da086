#!/usr/bin/env python3
"""Order the curves of a shipped tuning file, the most useful config of each rung first.

    tools/order_curves.py sm_90

Of two configs that are predicted to be about as fast, `sgemm` takes the one that comes first; see ``docs/tuning.md``.
So the fewest kernels are needed if each config in turn is close to the best on most problems that the ones before it
leave. Configs that records use come first, because their kernels are needed anyway. A tuning run writes its curves in
such an order; run this after merging several runs.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import structs

from fastsgemm import rungs
from fastsgemm.heuristics import database
from fastsgemm.heuristics.cost_model import CLOSE, CostModel
from fastsgemm.heuristics.curve_fit import fit
from fastsgemm.heuristics.database_entries import Content, Curve
from fastsgemm.problem import LAYOUTS, Problem

SEED, RANDOM, LAYERS = 7, 1500, 3000
WIDTHS = (1024, 2048, 3072, 4096, 8192, 11008)  # of linear layers
LAYER_WEIGHT = 10
MOST_TIMES = 9.0  # relative to the best; a config that is slower counts as this slow in a mean


def problems() -> Iterator[tuple[Problem, int]]:
    """Yield random problems, aligned and not, and batches of linear layers, each with its weight."""
    generator = random.Random(SEED)

    def extent(least: int, step: int = 1) -> int:
        return max(step, round(least * (8192 / least) ** generator.random()) // step * step)

    for step in (1, 4):
        for _ in range(RANDOM):
            yield Problem(extent(step), extent(16, step), extent(16, step), generator.choice(LAYOUTS)), 1
    for _ in range(LAYERS):
        widths = generator.choice(WIDTHS), generator.choice(WIDTHS)
        yield Problem(extent(1), *widths, generator.choice(("NN", "NT"))), LAYER_WEIGHT


def relative_times(content: Content, curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Return the predicted times relative to the best, by problem (rows) and curve (columns), and the weights."""
    fits = [fit(curve) for curve in curves]
    place = {one.curve.config: number for number, one in enumerate(fits)}
    fitted = database.fitted(content.arch)
    models: dict[frozenset[str], CostModel] = {}
    rows, weights = [], []
    for problem, weight in problems():
        suited = frozenset(rung.name for rung in rungs.DEFAULTS if rung.suits(problem.M, problem.N))
        if suited not in models:
            of_these = [one for one in fits if one.rung.name in suited]
            models[suited] = CostModel(of_these, curves[0].multiprocessors, content.shared_limit, fitted)
        row = np.full(len(fits), np.inf)
        for one in models[suited].ranking(problem):
            row[place[one.fit.curve.config]] = one.ms
        rows.append(row / row.min())
        weights.append(weight)
    return np.array(rows), np.array(weights, np.float64)


def greedy(times: np.ndarray, weights: np.ndarray, groups: Sequence[list[int]]) -> list[int]:
    """Return all columns of `times`, the groups one after the other, in each the most useful column first.

    The most useful one is close to the best on the largest weight of problems that the columns before it leave; among
    equals it has the least mean time.
    """
    order: list[int] = []
    left, means = weights.copy(), np.minimum(times, MOST_TIMES).mean(axis=0)
    for group in groups:
        columns = list(group)
        while columns:
            close = times[:, columns] <= CLOSE
            best = int(np.lexsort((means[columns], -(left @ close)))[0])
            left[close[:, best]] = 0
            order.append(columns.pop(best))
    return order


def ordered(content: Content) -> Content:
    """Return a file with its curves in order; those of one order of summation come first."""
    names = [rung.name for rung in rungs.DEFAULTS]
    curves = [curve for name in names for curve in content.curves if curve.rung == name and not curve.config.segment]
    recorded = {record.config.kernel for record in content.records}
    groups = [
        [at for at, one in enumerate(curves) if one.rung == name and (one.config in recorded) is in_records]
        for name in names
        for in_records in (True, False)
    ]
    others = [curve for curve in content.curves if curve not in curves]
    order = greedy(*relative_times(content, curves), groups)
    return structs.replace(content, curves=(*others, *(curves[at] for at in order)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("arch", help="the architecture of the file, such as sm_90")
    options = parser.parse_args(arguments)
    content = database.shipped(options.arch)
    if not content.curves:
        parser.error(f"no curves are shipped for {options.arch}")
    database.write(database.shipped_path(options.arch), ordered(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
