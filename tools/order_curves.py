#!/usr/bin/env python3
"""Order the curves of a shipped tuning file, the most useful config of each rung first.

    tools/order_curves.py sm_90

Of two configs that are predicted to be about as fast, `sgemm` takes the one that comes first; see ``docs/tuning.md``.
So the fewest kernels are needed if each config in turn is close to the best on most problems that the ones before it
leave. Configs that records use come first, because their kernels are needed anyway. A tuning run writes its curves in
such an order; run this after merging several runs.
"""

import random
import sys
from dataclasses import replace

import numpy as np

from fastsgemm import rungs
from fastsgemm.heuristics import database, database_writing
from fastsgemm.heuristics.cost_model import CLOSE, CostModel
from fastsgemm.heuristics.curve_fit import fit
from fastsgemm.problem import LAYOUTS, Problem

SEED, RANDOM, LAYERS = 7, 1500, 3000
WIDTHS = (1024, 2048, 3072, 4096, 8192, 11008)  # of linear layers
LAYER_WEIGHT = 10


def problems():
    """Return random problems, aligned and not, and batches of linear layers, each with its weight."""
    generator = random.Random(SEED)

    def extent(least, step=1):
        return max(step, round(least * (8192 / least) ** generator.random()) // step * step)

    for step in (1, 4):
        for _ in range(RANDOM):
            yield Problem(extent(step), extent(16, step), extent(16, step), generator.choice(LAYOUTS)), 1
    for _ in range(LAYERS):
        widths = generator.choice(WIDTHS), generator.choice(WIDTHS)
        yield Problem(extent(1), *widths, generator.choice(("NN", "NT"))), LAYER_WEIGHT


def relative_times(content, curves):
    """Return the predicted time of each config of a default rung on each problem, relative to the best."""
    fits = [fit(curve) for curve in curves]
    place = {one.curve.config: number for number, one in enumerate(fits)}
    fitted = database.fitted(content.arch)
    models, rows, weights = {}, [], []
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


def main(arch):
    """Rewrite the file of one architecture."""
    content = database.shipped(arch)
    names = [rung.name for rung in rungs.DEFAULTS]
    curves = [curve for name in names for curve in content.curves if curve.rung == name]
    times, weights = relative_times(content, curves)
    recorded = {record.config.kernel for record in content.records}
    order, left = [], weights.copy()
    for name in names:
        for in_records in (True, False):
            columns = [
                number
                for number, curve in enumerate(curves)
                if curve.rung == name and (curve.config in recorded) is in_records
            ]
            while columns:
                close = times[:, columns] <= CLOSE
                covered, mean = left @ close, np.minimum(times[:, columns], 9.0).mean(axis=0)
                best = int(np.lexsort((mean, -covered))[0])
                left[close[:, best]] = 0
                order.append(columns.pop(best))
    others = [curve for curve in content.curves if curve.rung not in names]
    ordered = replace(content, curves=(*others, *(curves[number] for number in order)))
    database_writing.write(database.shipped_path(arch), ordered)


if __name__ == "__main__":
    main(*sys.argv[1:])
