"""The tuning of one rung: it finds the best config of each problem and measures the curves of the cost model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import asdict

from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database, partial_accumulators
from fastsgemm.heuristics.alternatives import SKINNY
from fastsgemm.heuristics.choice import EXACT, choose_config
from fastsgemm.heuristics.curve_problems import CurveProblems, problems_of
from fastsgemm.heuristics.database_entries import Curve, points_of
from fastsgemm.problem import Problem, format_problem, octaves
from fastsgemm.tuning.calibration import calibrated
from fastsgemm.tuning.candidates import of_space, of_suitable_size, with_each_split, with_filling_split
from fastsgemm.tuning.correction import close_configs, correct_curves
from fastsgemm.tuning.evaluator import Job, Timer, job_of, largest_job
from fastsgemm.tuning.outcome import Outcome, Tuned
from fastsgemm.tuning.plan import RunPlan
from fastsgemm.tuning.portfolio import base_config, portfolio
from fastsgemm.tuning.search import DECIDE, EXPLORE, QUICK, Effort, Result, Sweep
from fastsgemm.tuning.spaces import Space

_REFINED = 3  # configs per problem whose refinements are tried
_SHORTLISTED = 8  # configs of each anchor that are tried on all other problems
_LIKELY = 1 / 3  # share of an anchor's ranking that is tried on problems whose operands need other kernels
_PORTFOLIO = 24  # configs whose curves are measured, from which an untuned problem gets its config
MOST_FLOPS_OF_SHORT = 2 * 10**11  # a product of at most this takes a few ms: all kernels already compiled are tried
_LONG_FLOPS = 10**12  # from here on only the fastest configs of the largest problem so far are tried
_LONG_TRIES = 8  # how many of them
_FINALISTS = 4  # configs per problem that must not spill on other operands either
_MOST_ERROR = 1.1  # largest error that a winner may have, relative to that of cuBLAS on the same operands
_MANY_CHAINS = 4  # of a sum without partial accumulators
_CURVE_REPEATS = 7  # measurements of each point of a curve
_CALIBRATION_REPEATS = 3  # measurements of each config on each problem of the calibration

# Shares of the remaining time that a phase gets, if there is a budget.
_ANCHORS, _PROBLEMS, _GRID, _REFINEMENTS = 0.5, 0.7, 0.6, 0.8
_CORRECTION = 0.6  # and so compiling for the problems that are tried afterwards

T = TypeVar("T")


class RungTuning:
    """Tunes the rung of a space: searches it, decides each problem, measures curves, and adds all to the outcome."""

    def __init__(self, plan: RunPlan, space: Space, sweep: Sweep, outcome: Outcome) -> None:
        self._plan, self._space, self._sweep, self._outcome = plan, space, sweep, outcome
        self._problems = plan.of(space)
        self._largest: Result | None = None  # of the largest problem in layout NN so far, not of a batch
        self._ranked: dict[Problem, list[Config]] = {}  # the candidates of each searched problem, the fastest first
        self._rung = rungs.find(space.rung)
        self._limit = plan.device.shared_limit
        self._arch = plan.device.arch
        self._fitted = database.fitted(self._arch)
        self._candidates = of_space(space, self._limit, plan.quick)
        self._search_limits = database.search_limits()

    def tune(self) -> None:
        """Tune every problem of the plan; if it is the standard set, also measure the curves of the cost model.

        A quick run of the standard set corrects curves instead, of the rungs that `sgemm` uses by default, and then
        tries on each problem the configs that these predict to be about the quickest.
        """
        if self._plan.problems:
            self._each(self._problems, lambda problem: self._decide(problem, self._explore(problem)))
        elif self._plan.corrects(self._space):
            self._title("curves")
            with self._sweep.within(_CORRECTION):
                correct_curves(self._rung, self._sweep, self._outcome)
            self._try_close()
        elif self._plan.quick:
            self._each(self._problems, lambda problem: self._decide(problem, self._candidates))
        else:
            with self._sweep.within(_ANCHORS):
                shortlist = self._shortlist()
            with self._sweep.within(_PROBLEMS):
                results = self._each(self._problems, lambda problem: self._decide(problem, shortlist))
            self.measure_curves(portfolio(results, _PORTFOLIO))

    def _try_close(self) -> None:
        """Time what may be the quickest, for the problems of the standard set that take short.

        Those that a rung for few rows suits are its own: what is timed on one rung alone counts more than a prediction.
        """
        problems = [
            problem
            for problem in self._space.problems
            if problem.flops <= MOST_FLOPS_OF_SHORT and self._rung.narrow is SKINNY.suits(problem.M, problem.N)
        ]
        few = {problem: close_configs(self._rung, self._outcome, problem) for problem in problems}
        few = {problem: configs for problem, configs in few.items() if len(configs) > 1}
        with self._sweep.within(_CORRECTION):
            self._sweep.prepare([self._job(c, problem) for problem, configs in few.items() for c in configs], True)

        def try_them(problem: Problem) -> None:
            best = self._search(problem, few[problem], "close", QUICK).best
            if best is not None:
                self._outcome.tuned.append(
                    Tuned(problem, self._rung.name, *best, self._shipped(problem), shipped_ms=None, cublas_ms=None)
                )

        self._each(list(few), try_them)

    def _each(self, items: Sequence[Problem], work: Callable[[Problem], T]) -> list[T]:
        """Do `work` for each problem, with equal shares of the remaining time, and return the results."""
        done = []
        for number, problem in enumerate(items):
            self._title(format_problem(problem))
            with self._sweep.within(1 / (len(items) - number)):
                done.append(work(problem))
        return done

    def _title(self, text: str) -> None:
        self._sweep.progress.title(f"{self._rung.name} {text}")

    def _job(self, config: Config, problem: Problem) -> Job:
        return job_of(self._arch, self._rung, config, problem)

    def _shortlist(self) -> list[Config]:
        """Return the best few configs of each anchor, without split-K and partial accumulators."""
        anchors, variants = self._space.anchors, self._space.variants
        with self._sweep.within(len(anchors) / (len(anchors) + len(variants))):
            few = self._anchored(anchors, lambda _: self._candidates)
        few += self._anchored(variants, self._likely)
        return list(dict.fromkeys(base_config(config) for ranked in few for config in ranked))

    def _anchored(
        self, anchors: Sequence[Problem], candidates: Callable[[Problem], Sequence[Config]]
    ) -> list[list[Config]]:
        """Return for each anchor the best few of its candidates and of their refinements."""
        self._title("anchors")
        drawn = {problem: self._drawn(problem, candidates(problem)) for problem in anchors}
        # All kernels are compiled before the first anchor, so that their time is not charged to one anchor's share.
        self._sweep.prepare(self._job(c, problem) for problem in anchors for c in drawn[problem])
        return self._each(anchors, lambda problem: self._refine(problem, drawn[problem]))

    def _likely(self, problem: Problem) -> list[Config]:
        """Return the best third of the ranking of the nearest anchor, or all candidates if no anchor has one."""
        tried = [anchor for anchor, configs in self._ranked.items() if configs]
        if not tried:
            return self._candidates
        ranked = self._ranked[min(tried, key=lambda anchor: octaves(anchor, problem))]
        return ranked[: math.ceil(_LIKELY * len(ranked))]

    def _drawn(self, problem: Problem, configs: Sequence[Config]) -> list[Config]:
        """Return the configs that are worth compiling for a problem."""
        worthy = self._space.worthy(configs, problem, self._search_limits)
        return of_suitable_size(worthy, with_swap_ab(self._rung, problem), self._plan.device.multiprocessors)

    def _explore(self, problem: Problem) -> list[Config]:
        """Return the best few configs of the space on a problem; in a quick run, all that are worth compiling."""
        drawn = self._drawn(problem, self._candidates)
        return drawn if self._plan.quick else self._refine(problem, drawn)

    def _refine(self, problem: Problem, configs: Sequence[Config]) -> list[Config]:
        """Return the best few of the configs and of their refinements."""
        filling = [self._with_filling_split(config, problem) for config in configs]
        with self._sweep.within(_GRID):
            ranked = list(self._search(problem, filling, "grid", EXPLORE).times)
        self._ranked[problem] = list(dict.fromkeys(map(base_config, ranked)))
        best: list[Config] = []
        steps = len(self._space.refined)
        with self._sweep.within(_REFINEMENTS):
            for step in range(steps):
                best += ranked[:_REFINED]
                refined = [other for config in ranked[:_REFINED] for other in self._refinements(config, step)]
                tried = self._space.distinct([*ranked[:_REFINED], *refined], problem)
                with self._sweep.within(1 / (steps - step)):
                    ranked = list(self._search(problem, tried, f"refined {step}", EXPLORE).times)
        return list(dict.fromkeys([*ranked[:_SHORTLISTED], *best]))

    def _refinements(self, config: Config, step: int) -> list[Config]:
        return self._space.refinements(config, self._limit, self._search_limits, step)

    def _best_compiled(self, problem: Problem) -> list[Config]:
        """Return the best few of the configs whose kernels are compiled already, because an anchor needed them."""
        searched = self._plan.problems or self._plan.quick or problem in self._ranked
        if searched or problem.flops > MOST_FLOPS_OF_SHORT:
            return []
        drawn = [c for c in self._drawn(problem, self._candidates) if self._sweep.works(self._job(c, problem))]
        timed = self._search(problem, [self._with_filling_split(c, problem) for c in drawn], "compiled", EXPLORE)
        return list(timed.times)[:_SHORTLISTED]

    def _with_filling_split(self, config: Config, problem: Problem) -> Config:
        return with_filling_split(self._rung, config, problem, self._plan.device.multiprocessors)

    def _with_each_split(self, config: Config, problem: Problem) -> list[Config]:
        return with_each_split(self._rung, config, problem, self._plan.device.multiprocessors)

    def _decide(self, problem: Problem, few: Sequence[Config]) -> Result:
        """Find the best of a few configs and of those known before, time cuBLAS, and add the winner to the outcome."""
        effort = QUICK if self._plan.quick else DECIDE
        shipped = self._shipped(problem)
        few = [*few, *self._best_compiled(problem)]
        alone = problem.layout == "NN" and problem.batch == 1
        if self._largest and problem.flops >= _LONG_FLOPS and alone:
            few = list(dict.fromkeys(map(base_config, self._largest.times)))[:_LONG_TRIES]
        worthy = self._space.worthy(few, problem, self._search_limits) or few
        tried = [divided for config in worthy for divided in self._with_each_split(base_config(config), problem)]
        result = self._search(problem, [*tried, *self._known(problem)], "decide", effort)
        self._outcome.timed[self._rung.name, problem] = result.times
        if result.best is not None and self._decides(result):
            if alone and (not self._largest or problem.flops > self._largest.problem.flops):
                self._largest = result
            config, ms = self._winner(result, effort)
            self._outcome.tuned.append(
                Tuned(problem, self._rung.name, config, ms, shipped, result.times.get(shipped), result.cublas_ms)
            )
        return result

    def _decides(self, result: Result) -> bool:
        """Whether the winner is known to be as fast as the config on record for this device: both were timed."""
        in_use = choose_config(self._plan.device, self._rung, result.problem)
        assert in_use.evidence is not None  # no config was given
        on_record = in_use.rule == EXACT and in_use.evidence.device == self._plan.device.name
        return not on_record or in_use.config in {**result.times, **result.failures}

    def _winner(self, result: Result, effort: Effort) -> tuple[Config, float]:
        """Return the fastest config that does not spill on other operands and is about as accurate as cuBLAS.

        If none of the best few is accurate enough, return the fastest of them with partial accumulators.
        """
        problem, few = result.problem, self._finalists(result)
        # A quick run does not measure errors. It times the few with partial accumulators, unless the fastest counts as
        # accurate.
        judged = few[:1] if self._plan.quick else few
        measured = self._rung.config is PipelinedConfig and not self._plan.quick
        timer = self._sweep.evaluator.operands(problem) if measured else None
        chosen = next((pair for pair in judged if self._is_accurate(pair[0], problem, timer)), None)
        if chosen is not None:
            return chosen
        kept = self._known(problem) if self._plan.quick else []
        shorter = [config if config in kept else self._shortened(config, problem) for config, _ in few]
        if shorter == [config for config, _ in few]:
            return few[0]
        again = self._search(problem, shorter, "accumulators", effort)
        winners = self._finalists(again)[:1] if again.best else []
        # The time may have been up before those that stay as they are, as the config on record does, were timed again.
        tried = {**again.times, **again.failures}
        unchanged = [pair for pair, config in zip(few, shorter, strict=True) if pair[0] == config]
        winners += [pair for pair in unchanged if pair[0] not in tried]
        return min(winners, key=lambda pair: pair[1], default=few[0])

    def _finalists(self, result: Result) -> list[tuple[Config, float]]:
        """Return the best few configs with their times in ms, one per kernel, that do not spill on other operands.

        They include the best few that count as accurate without a measurement, because all others may be too
        inaccurate. If all of them spill, return the fastest.
        """
        of_kernel: dict[Config, tuple[Config, float]] = {}
        accurate_of_kernel: dict[Config, tuple[Config, float]] = {}
        for config, ms in result.times.items():
            of_kernel.setdefault(config.kernel, (config, ms))
            if self._counts_as_accurate(config, result.problem):
                accurate_of_kernel.setdefault(config.kernel, (config, ms))
        best = {*list(of_kernel.values())[:_FINALISTS], *list(accurate_of_kernel.values())[:_FINALISTS]}
        few = [pair for pair in result.times.items() if pair in best]
        shipped = self._shipped(result.problem).kernel  # the compile gate of the tests has checked it
        ready = self._sweep.prepare(largest_job(self._rung, config) for config, _ in few if config.kernel != shipped)
        return [pair for pair in few if ready.get(largest_job(self._rung, pair[0])) is None] or few[:1]

    def _is_accurate(self, config: Config, problem: Problem, timer: Timer | None) -> bool:
        """Whether a config is about as accurate as cuBLAS, or counts as such where errors cannot be measured."""
        errors = None if timer is None else timer.errors(self._rung, config)
        return self._counts_as_accurate(config, problem) if errors is None else errors[0] <= _MOST_ERROR * errors[1]

    def _counts_as_accurate(self, config: Config, problem: Problem) -> bool:
        """Whether a config of unknown error is used: it needs no more partial accumulators, or was known before."""
        return config in self._known(problem) or self._shortened(config, problem) == config

    def _shipped(self, problem: Problem) -> Config:
        return choose_config(self._plan.device, self._rung, problem, only="shipped").config

    def _known(self, problem: Problem) -> list[Config]:
        """Return the shipped config and the one in use, which an earlier run on this device may have found."""
        in_use = choose_config(self._plan.device, self._rung, problem).config
        return list(dict.fromkeys((self._shipped(problem), in_use)))

    def _shortened(self, config: Config, problem: Problem) -> Config:
        return partial_accumulators.shortened(config, problem.K, self._limit)

    def _search(self, problem: Problem, configs: Sequence[Config], label: str, effort: Effort) -> Result:
        result = self._sweep.search(problem, self._rung, configs, label, effort)
        self._outcome.complete &= result.complete
        for reason in result.failures.values():
            first = reason.splitlines()[0]
            self._outcome.failures[first] = self._outcome.failures.get(first, 0) + 1
        return result

    def measure_curves(self, configs: Sequence[Config]) -> None:
        """Measure the curve of each config and calibrate them.

        They take the place of those that this very device has; those of a run whose time is up, only if they have more
        points.
        """
        self._title("curves")
        others = self._space.calibration
        curves = self._curves(self._measurable(configs, others))
        if curves and others:
            self._sweep.progress.begin("calibrate", _CALIBRATION_REPEATS * len(curves) * len(others))
            measure = partial(self._sweep.measure, repeats=_CALIBRATION_REPEATS)
            curves = calibrated(curves, others, measure, self._limit, self._fitted)
            self._outcome.complete &= not self._sweep.late
        late = self._sweep.late
        stored = [
            curve
            for curve in database.load(self._arch).curves
            if (curve.rung, curve.device, curve.config.segment) == (self._rung.name, self._plan.device.name, 0)
        ]
        more = sum(len(c.times) for c in curves) - sum(len(c.times) for c in stored)
        # Where the time is up, the last curves may lack their calibration, so as many points are not enough.
        if more > 0 or not late:
            self._outcome.curves += curves

    def _measurable(self, configs: Sequence[Config], others: Sequence[Problem]) -> list[CurveProblems]:
        """Compile the kernels of the curves and of other problems, and return the problems of the configs that compile.

        All are compiled in one batch, because that keeps all cores busy. They are ordered by config, so that some
        configs are complete if the time is up before the end.
        """
        sweep = self._sweep
        needed = {config: self._curve_kernels(config) for config in configs}
        jobs_of_all = (job for config in configs for job in (*needed[config], *(self._job(config, p) for p in others)))
        ready = sweep.prepare(jobs_of_all, in_order=True)
        measurable = []
        for config, jobs in needed.items():
            if all(ready.get(job, "") is None for job in jobs):
                blocks = min(map(sweep.evaluator.blocks_per_sm, self._resident(config)))
                measurable.append(problems_of(config, blocks, self._plan.device.multiprocessors))
            else:
                self._outcome.complete &= all(job in ready for job in jobs)
        return measurable

    def _curves(self, measurable: Sequence[CurveProblems]) -> list[Curve]:
        """Return the curves of the configs that no problem fails on, as far as the time allows."""
        sweep = self._sweep
        problems = [curve_problems.problems() for curve_problems in measurable]
        sweep.progress.begin("time", _CURVE_REPEATS * sum(map(len, problems)))
        curves = []
        for curve_problems, problems_of_curve in zip(measurable, problems, strict=True):
            times = [
                (p, ms)
                for p in problems_of_curve
                if (ms := sweep.measure(p, self._rung, curve_problems.config, _CURVE_REPEATS))
            ]
            if len(times) < len(problems_of_curve):  # the time is up, or the config fails on a problem
                self._outcome.complete &= not sweep.late
                continue
            curves.append(self._curve(curve_problems, times))
        return curves

    def _curve(self, measured: CurveProblems, times: Sequence[tuple[Problem, float]]) -> Curve:
        return Curve(
            rung=self._rung.name,
            device=self._plan.device.name,
            multiprocessors=self._plan.device.multiprocessors,
            constants=measured.config.constants,
            blocks_per_sm=measured.blocks_per_sm,
            points=points_of(times),
            **asdict(self._outcome.tools),
        )

    def _curve_kernels(self, config: Config) -> list[Job]:
        """Return the kernels of a curve, which are the same for any occupancy, and others that must compile.

        These are the one that spills first, and the one with partial accumulators.
        """
        problems = problems_of(config, 1, self._plan.device.multiprocessors).problems()
        of_curve = [self._job(config, problem) for problem in problems]
        return [*of_curve, largest_job(self._rung, config), *self._resident(config)]

    def _resident(self, config: Config) -> list[Job]:
        """Return the kernels that say how many blocks fit on a multiprocessor: as many as of each of them.

        Partial accumulators take registers and shared memory. Their kernel is left out where slices make so many chains
        that few problems need it.
        """
        problem = problems_of(config, 1, self._plan.device.multiprocessors).problems()[0]
        seldom = partial_accumulators.chains_of(config) >= _MANY_CHAINS
        several = None if seldom else partial_accumulators.accumulating(config, self._limit)
        return [self._job(resident, problem) for resident in (config, several) if resident is not None]
