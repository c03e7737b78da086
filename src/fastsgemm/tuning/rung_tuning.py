"""The tuning of one rung: from a search space to the best config of each problem, and curves for the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.geometry.grid import tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import choose, cost_model, database, partial_accumulators
from fastsgemm.heuristics.database_entries import Curve, Point
from fastsgemm.problem import Problem, octaves, spell
from fastsgemm.tuning.candidates import distinct, of_its_size, worth_trying
from fastsgemm.tuning.evaluator import Job, job_of, largest_job
from fastsgemm.tuning.outcome import Outcome, Tuned
from fastsgemm.tuning.plan import RunPlan
from fastsgemm.tuning.portfolio import portfolio, whole
from fastsgemm.tuning.search import DECIDE, EXPLORE, QUICK, Effort, Result, Sweep
from fastsgemm.tuning.search_spaces import Space

_REFINED = 3  # configs of the grid whose refinements are tried, a problem
_SHORTLISTED = 8  # configs of each anchor that are tried on all other problems
_LIKELY = 1 / 3  # of an anchor's candidates, the best, are tried where the operands need other kernels
_PORTFOLIO = 24  # configs whose curves are measured: what the choice for an untuned problem has
_MOST_FLOPS = 2 * 10**11  # of a problem on which all kernels that are at hand are tried: some ms each
_LONG_FLOPS = 10**12  # from here on only what won on the largest problem before is tried
_LONG_TRIES = 8
_FINALISTS = 4  # of a problem, whose kernels for other operands are looked at
_MOST_ERROR = 1.1  # of cuBLAS's on the same operands
_FILLED = 2  # blocks a multiprocessor that SPLIT_K goes for at first
_CURVE_REPEATS = 7
_QUICK_REPEATS = 3

# Shares of the time that is left when each begins, where there is a budget
_ANCHORS, _PROBLEMS, _GRID = 0.5, 0.7, 0.6
_QUICK_CURVES, _QUICK_KERNELS = 0.9, 0.8  # of a rung's time; and of that the kernels'

T = TypeVar("T")


class RungTuning:
    """Tunes one rung: explores its search space, decides each problem and measures the curves."""

    def __init__(self, planned: RunPlan, space: Space, sweep: Sweep, outcome: Outcome) -> None:
        self._plan, self._space, self._sweep, self._outcome = planned, space, sweep, outcome
        self._problems = planned.of(space)
        self._largest: Result | None = None  # of the same layout, NN
        self._ranked: dict[Problem, list[Config]] = {}  # the candidates of an anchor, the quickest first
        self._rung = rungs.find(space.rung)
        self._limit = planned.device.shared_limit
        self._arch = planned.device.arch
        self._fitted = database.fitted(self._arch)
        self._candidates = space.candidates(self._limit, planned.quick)

    def run(self) -> None:
        """Tune every problem; with the standard set, measure the curves that other problems are predicted from."""
        if self._plan.problems:
            self._each(self._problems, lambda problem: self._decide(problem, self._explore(problem)))
        elif self._plan.quick:
            with self._sweep.within(_QUICK_CURVES):
                self._measure_curves(self._candidates, _QUICK_REPEATS, _QUICK_KERNELS)
            self._each(self._problems, lambda problem: self._decide(problem, self._candidates))
        else:
            with self._sweep.within(_ANCHORS):
                shortlist = self._shortlist()
            with self._sweep.within(_PROBLEMS):
                results = self._each(self._problems, lambda problem: self._decide(problem, shortlist))
            self._measure_curves(portfolio(results, _PORTFOLIO), _CURVE_REPEATS)

    def _each(self, items: Sequence[Problem], work: Callable[[Problem], T]) -> list[T]:
        """Do `work` on each, with an equal share of the time that is left."""
        done = []
        for number, problem in enumerate(items):
            self._title(spell(problem))
            with self._sweep.within(1 / (len(items) - number)):
                done.append(work(problem))
        return done

    def _title(self, text: str) -> None:
        self._sweep.progress.title(f"{self._rung.name} {text}")

    def _shortlist(self) -> list[Config]:
        """Return the best few of every anchor."""
        anchors, variants = self._space.anchors, self._space.variants
        with self._sweep.within(len(anchors) / (len(anchors) + len(variants))):
            few = self._anchored(anchors, lambda _: self._candidates)
        few += self._anchored(variants, self._likely)
        return list(dict.fromkeys(whole(config) for found in few for config in found))

    def _anchored(
        self, anchors: Sequence[Problem], candidates: Callable[[Problem], Sequence[Config]]
    ) -> list[list[Config]]:
        """Return for each of these problems the best few of its candidates and their refinements."""
        self._title("anchors")
        drawn = {problem: self._drawn(problem, candidates(problem)) for problem in anchors}
        # All kernels of the grids at once, so that no anchor pays for what the others use too.
        self._sweep.prepare(job_of(self._arch, self._rung, c, problem) for problem in anchors for c in drawn[problem])
        return self._each(anchors, lambda problem: self._refine(problem, drawn[problem]))

    def _likely(self, problem: Problem) -> list[Config]:
        """Return the best third of what was tried on the anchor that is nearest in its extents, else everything."""
        tried = [anchor for anchor, configs in self._ranked.items() if configs]
        if not tried:
            return self._candidates
        ranked = self._ranked[min(tried, key=lambda anchor: octaves(anchor, problem))]
        return ranked[: math.ceil(_LIKELY * len(ranked))]

    def _drawn(self, problem: Problem, configs: Sequence[Config]) -> list[Config]:
        """Return those of the configs that may be worth their compilation on a problem."""
        worthy = [c for c in distinct(configs, problem) if worth_trying(c, problem)]
        return of_its_size(worthy, with_swap_ab(self._rung, problem), self._plan.device.multiprocessors)

    def _explore(self, problem: Problem) -> list[Config]:
        """Return the best few of the whole space."""
        drawn = self._drawn(problem, self._candidates)
        return drawn if self._plan.quick else self._refine(problem, drawn)

    def _refine(self, problem: Problem, configs: Sequence[Config]) -> list[Config]:
        """Return the best few of these and of their refinements."""
        filling = [self._divided(config, problem)[-1] for config in configs]
        with self._sweep.within(_GRID):
            found = list(self._search(problem, filling, "grid", EXPLORE).times)
        self._ranked[problem] = list(dict.fromkeys(map(whole, found)))
        best: list[Config] = []
        for step in range(len(self._space.refined)):
            best += found[:_REFINED]
            refined = [c for config in found[:_REFINED] for c in self._space.refinements(config, self._limit, step)]
            with self._sweep.within(_GRID):
                found = list(self._search(problem, [*found[:_REFINED], *refined], f"refined {step}", EXPLORE).times)
        return list(dict.fromkeys([*found[:_SHORTLISTED], *best]))

    def _at_hand(self, problem: Problem) -> list[Config]:
        """Return the best few of those configs whose kernels the anchors needed: trying them compiles nothing."""
        if self._plan.problems or self._plan.quick or problem in self._ranked:
            return []
        if problem.flops > _MOST_FLOPS:
            return []
        drawn = [
            c
            for c in self._drawn(problem, self._candidates)
            if self._sweep.works(job_of(self._arch, self._rung, c, problem))
        ]
        found = self._search(problem, [self._divided(c, problem)[-1] for c in drawn], "at hand", EXPLORE)
        return list(found.times)[:_SHORTLISTED]

    def _divided(self, config: Config, problem: Problem) -> list[Config]:
        """Return the config with every SPLIT_K that is worth a trial, the one that fills the device last."""
        if not self._rung.splits:
            return [config]
        problem = with_swap_ab(self._rung, problem)
        parts = cost_model.splits(config, problem, self._plan.device.multiprocessors)
        count = tiles(config, problem)
        filling = max(p for p in parts if p == 1 or p * count <= _FILLED * self._plan.device.multiprocessors)
        return [config.replace(SPLIT_K=p) for p in (*(p for p in parts if p != filling), filling)]

    def _decide(self, problem: Problem, few: Sequence[Config]) -> Result:
        """Find the best of a few, beside the shipped config and cuBLAS."""
        effort = QUICK if self._plan.quick else DECIDE
        shipped = self._shipped(problem)
        few = [*few, *self._at_hand(problem)]
        if self._largest and problem.flops >= _LONG_FLOPS and problem.layout == self._largest.problem.layout:
            few = list(dict.fromkeys(map(whole, self._largest.times)))[:_LONG_TRIES]
        worthy = [config for config in distinct(few, problem) if worth_trying(config, problem)] or few
        tried = [other for config in worthy for other in self._divided(whole(config), problem)]
        if self._plan.quick and not self._plan.problems:  # not a few kernels at a time, which leaves cores idle
            tried = [c for c in tried if self._sweep.works(job_of(self._arch, self._rung, c, problem))] or tried[:1]
        result = self._search(problem, [*tried, shipped], "decide", effort)
        self._outcome.timed[self._rung.name, problem] = result.times
        if result.best is not None:
            if problem.layout == "NN" and (not self._largest or problem.flops > self._largest.problem.flops):
                self._largest = result
            config, ms = self._winner(result, effort)
            self._outcome.tuned.append(
                Tuned(problem, self._rung.name, config, ms, shipped, result.times.get(shipped), result.cublas_ms)
            )
        return result

    def _winner(self, result: Result, effort: Effort) -> tuple[Config, float]:
        """Return the quickest config that neither spills on other operands nor errs much more than cuBLAS.

        If all of the best few err more, it is the quickest of them with shorter chains.
        """
        problem, few = result.problem, self._clean(result)
        # A quick run does not know how much they err: it times the few with short chains, unless the first has them.
        asked = few[:1] if self._plan.quick else few
        close = self._close(problem, [config for config, _ in asked])
        chosen = next((pair for pair, is_close in zip(asked, close, strict=True) if is_close), None)
        if chosen is not None:
            return chosen
        shorter = [self._shortened(config, problem) for config, _ in few]
        if shorter == [config for config, _ in few]:
            return few[0]
        again = self._search(problem, shorter, "chains", effort)
        return self._clean(again)[0] if again.best else few[0]

    def _clean(self, result: Result) -> list[tuple[Config, float]]:
        """Return the best few, one a kernel, that do not spill on other operands either; the best if they all do.

        Among them are the best few whose chains are short, because all others may err too much.
        """
        of_kernel: dict[Config, tuple[Config, float]] = {}
        short_of_kernel: dict[Config, tuple[Config, float]] = {}
        for config, ms in result.times.items():
            of_kernel.setdefault(config.kernel, (config, ms))
            if self._shortened(config, result.problem) == config:
                short_of_kernel.setdefault(config.kernel, (config, ms))
        best = {*list(of_kernel.values())[:_FINALISTS], *list(short_of_kernel.values())[:_FINALISTS]}
        few = [pair for pair in result.times.items() if pair in best]
        shipped = self._shipped(result.problem).kernel  # which the tests of this package look at
        ready = self._sweep.prepare(largest_job(self._rung, config) for config, _ in few if config.kernel != shipped)
        return [pair for pair in few if ready.get(largest_job(self._rung, pair[0])) is None] or few[:1]

    def _close(self, problem: Problem, configs: Sequence[Config]) -> Iterator[bool]:
        """For each config, when asked: whether it errs hardly more than cuBLAS; where that is not known, whether its
        chains are short."""
        if self._rung.config is not PipelinedConfig:
            yield from (True for _ in configs)
        elif self._plan.quick:
            yield from (self._shortened(config, problem) == config for config in configs)
        else:
            for config, errors in zip(configs, self._sweep.errors(problem, self._rung, configs), strict=True):
                if errors is None:
                    yield self._shortened(config, problem) == config
                else:
                    yield errors[0] <= _MOST_ERROR * errors[1]

    def _shipped(self, problem: Problem) -> Config:
        return choose.choose(self._plan.device, self._rung, problem, only="shipped").config

    def _shortened(self, config: Config, problem: Problem) -> Config:
        return partial_accumulators.shortened(config, with_swap_ab(self._rung, problem), self._limit, self._fitted)

    def _search(self, problem: Problem, configs: Sequence[Config], label: str, effort: Effort) -> Result:
        result = self._sweep.search(problem, self._rung, configs, label, effort)
        self._outcome.complete &= result.complete
        for reason in result.failures.values():
            first = reason.splitlines()[0]
            self._outcome.failures[first] = self._outcome.failures.get(first, 0) + 1
        return result

    def _measure_curves(self, configs: Sequence[Config], repeats: int, share: float = 1.0) -> None:
        """Measure the curve of each config, after `share` of the time at most for kernels."""
        device_info, rung, sweep = self._plan.device, self._rung, self._sweep
        self._title("curves")
        needed = {config: self._curve_kernels(config) for config in configs}
        # All at once, because many kernels share the cores best, with what the standard set needs; one config after
        # the other, so that some are complete where the time is up before the end.
        shipped = [job_of(self._arch, rung, self._shipped(problem), problem) for problem in self._problems]
        wanted = [job for config in configs for job in (*needed[config], *self._standard_kernels(config))]
        with sweep.within(share):
            ready = sweep.prepare((*shipped, *wanted), in_order=True)
        plans = []
        for config, jobs in needed.items():
            if all(ready.get(job, "") is None for job in jobs):
                blocks = sweep.evaluator.blocks_per_sm(jobs[0])
                plans.append(
                    (config, blocks, cost_model.probes(config, blocks, device_info.multiprocessors, self._plan.quick))
                )
            else:
                self._outcome.complete &= all(job in ready for job in jobs)
        sweep.progress.begin("time", repeats * sum(len(probes) for _, _, probes in plans))
        for config, blocks, probes in plans:
            points = [Point(p, ms) for p in probes if (ms := sweep.measure(p, rung, config, repeats))]
            if len(points) < len(probes):  # no time left, or it fails somewhere: no curve
                self._outcome.complete &= not sweep.late
                continue
            curve = Curve(
                device_info.arch,
                device_info.name,
                device_info.multiprocessors,
                rung.name,
                config,
                blocks,
                tuple(points),
                self._outcome.tools,
            )
            self._outcome.curves.append(curve)

    def _curve_kernels(self, config: Config) -> list[Job]:
        """Return what is needed for a curve, which does not depend on occupancy, and to see that nothing spills."""
        probes = cost_model.probes(config, 1, self._plan.device.multiprocessors, self._plan.quick)
        jobs = [
            *(job_of(self._arch, self._rung, config, problem) for problem in probes),
            largest_job(self._rung, config),
        ]
        return list(dict.fromkeys(jobs))

    def _standard_kernels(self, config: Config) -> list[Job]:
        return [job_of(self._arch, self._rung, config, problem) for problem in self._problems]
