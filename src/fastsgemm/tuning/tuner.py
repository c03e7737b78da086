"""A tuning run: candidates, compile, check, time, store. `tune` is the whole of it; `fastsgemm.tune` is its entry."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fastsgemm import resources, rungs
from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig
from fastsgemm.errors import ConfigError, RecordError, TuningError
from fastsgemm.geometry.grid import tiles
from fastsgemm.geometry.variants import dense_call, facing
from fastsgemm.heuristics import choose, cost_model, database, partial_accumulators
from fastsgemm.heuristics.database import Content, Curve, Point, Record, tflops
from fastsgemm.problem import Problem, checked, octaves, parse, spell
from fastsgemm.rungs import Rung
from fastsgemm.tuning import search_spaces
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.evaluator import Job, job_of, largest_job
from fastsgemm.tuning.search import DECIDE, EXPLORE, QUICK, Effort, Result, Sweep
from fastsgemm.tuning.search_spaces import Space

if TYPE_CHECKING:
    from pathlib import Path

    from fastsgemm.device import DeviceInfo, Gpu
    from fastsgemm.tuning.evaluator import Evaluator
    from fastsgemm.tuning.search import Progress

QUICK_SECONDS, STANDARD_SECONDS = 18.0, 465.0  # the budgets of a quick run and of the standard set, if none is named

_REFINED = 3  # configs of the grid whose refinements are tried, a problem
_SHORTLISTED = 8  # configs of each anchor that are tried on all other problems
_LIKELY = 1 / 3  # of an anchor's candidates, the best, are tried where the operands need other kernels
_PORTFOLIO = 24  # configs whose curves are measured: what the choice for an untuned problem has
_MOST_FLOPS = 2 * 10**11  # of a problem on which all kernels that are at hand are tried: some ms each
_LONG_FLOPS = 10**12  # from here on only what won on the largest problem before is tried
_LONG_TRIES = 8
_FINALISTS = 4  # of a problem, whose kernels for other operands are looked at
_MOST_SLICED = 1024  # blocks on a C for which slices of their threads are tried
_MOST_ERROR = 1.1  # of cuBLAS's on the same operands
_FINEST = 16  # tiles of C a multiprocessor: where there would be more, only larger ones are tried
_COARSEST = 4  # times the rows or columns of C that a tile may have
_FILLED = 2  # blocks a multiprocessor that SPLIT_K goes for at first
_CURVE_REPEATS = 7
_QUICK_REPEATS = 3

# Shares of the time that is left when each begins, where there is a budget
_FIRST_RUNG, _NEXT_RUNG = 0.65, 0.5  # and the last has the rest; what `sgemm` uses comes first
_ANCHORS, _PROBLEMS, _GRID = 0.5, 0.7, 0.6
_QUICK_CURVES, _QUICK_KERNELS = 0.9, 0.8  # of a rung's time; and of that the kernels'

T = TypeVar("T")
_NEVER = 1e9  # ms, of a problem that nothing has covered yet
_LEAST_GAIN = 0.002  # in the sum of the logarithms of the times: less is noise


@dataclass(frozen=True)
class Tuned:
    """What a run found for one problem.

    Attributes
    ----------
    problem : Problem
    rung : str
    config : Config
    ms : float
        Median device time.
    shipped_config : Config
        What the shipped database chooses.
    shipped_ms : float or None
        Its time in this run.
    cublas_ms : float or None
        Of cuBLAS in turns with the winner, where there is any.
    """

    problem: Problem
    rung: str
    config: Config
    ms: float
    shipped_config: Config
    shipped_ms: float | None
    cublas_ms: float | None


@dataclass
class Outcome:
    """What a run has found so far.

    Attributes
    ----------
    device : Device
    tools : Tools
    tuned : list of Tuned
    curves : list of Curve
    failures : dict
        Why candidates failed, and how many for that reason.
    timed : dict
        Every time of every problem and rung, for the plot.
    seconds : float
    complete : bool
        The time sufficed for everything.
    path : Path or None
        Where it was stored.
    """

    device: DeviceInfo
    tools: database.Tools
    tuned: list[Tuned] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    timed: dict[tuple[str, Problem], dict[Config, float]] = field(default_factory=dict)
    seconds: float = 0.0
    complete: bool = True
    path: Path | None = None

    @property
    def content(self) -> Content:
        """As the database has it."""
        return Content(
            self.device.arch, self.device.shared_limit, tuple(map(self._record, self.tuned)), tuple(self.curves)
        )

    def _record(self, found: Tuned) -> Record:
        ratio = None if found.cublas_ms is None else found.cublas_ms / found.ms
        return Record(
            arch=self.device.arch,
            device=self.device.name,
            rung=found.rung,
            problem=found.problem,
            config=found.config,
            origin="measured",
            source=str(self.tools),
            ms=found.ms,
            cublas_ratio=ratio,
            tools=self.tools,
        )

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "device": self.device.name,
            "arch": self.device.arch,
            "driver": self.tools.driver,
            "nvrtc": self.tools.nvrtc,
            "seconds": round(self.seconds, 1),
            "complete": self.complete,
            "stored": self.path and str(self.path),
            "failures": self.failures,
            "curves": len(self.curves),
            "results": [_row(found) for found in self.tuned],
        }

    def __str__(self) -> str:
        lines = [f"{'problem':22} {'rung':10} {'ms':>9} {'TFLOP/s':>8} {'shipped':>8} {'cuBLAS':>7}  constants"]
        for found in self.tuned:
            row = _row(found)
            lines.append(
                f"{spell(found.problem):22} {found.rung:10} {found.ms:9.4g} {row['tflops']:8.4g} "
                f"{_percent(row['of_shipped']):>8} {_percent(row['of_cublas']):>7}  {found.config}"
            )
        lines.append("shipped, cuBLAS: speed as a share of theirs in this run; '-' where it was not measured")
        if not self.complete:
            lines.append("the time was up before everything was measured; the same command goes on from here")
        if self.path:
            lines.append(f"stored in {self.path}")
        return "\n".join(lines)


def _row(found: Tuned) -> dict[str, Any]:
    problem = found.problem
    return {
        "problem": {"M": problem.M, "N": problem.N, "K": problem.K, "layout": problem.layout},
        "rung": found.rung,
        "constants": found.config.constants,
        "ms": found.ms,
        "tflops": tflops(problem, found.ms),
        "shipped_constants": found.shipped_config.constants,
        "of_shipped": found.shipped_ms and found.shipped_ms / found.ms,
        "of_cublas": found.cublas_ms and found.cublas_ms / found.ms,
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


@dataclass(frozen=True)
class RunPlan:
    """What a run will try.

    Attributes
    ----------
    device : Device
    problems : tuple of Problem
        None are given: the standard set of each space. Its anchors are tuned thoroughly, and curves are measured.
    spaces : tuple of Space
        One a rung.
    quick : bool
    """

    device: DeviceInfo
    problems: tuple[Problem, ...]
    spaces: tuple[Space, ...]
    quick: bool

    def of(self, space: Space) -> tuple[Problem, ...]:
        """Return the problems that are tuned for a rung: all, unless other rungs are tuned for some."""
        if not self.problems:
            return space.problems
        rung = rungs.find(space.rung)
        suited = tuple(problem for problem in self.problems if rung.suits(problem.M, problem.N))
        return suited if len(self.spaces) > 1 else self.problems

    @property
    def everything(self) -> list[str]:
        """The problems of all spaces, as they are written."""
        return list(dict.fromkeys(spell(problem) for space in self.spaces for problem in self.of(space)))

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "device": self.device.name,
            "arch": self.device.arch,
            "shared_limit": self.device.shared_limit,
            "problems": self.everything,
            "spaces": {
                space.name: len(space.candidates(self.device.shared_limit, self.quick)) for space in self.spaces
            },
        }

    def __str__(self) -> str:
        lines = [f"{self.device.name}, {self.device.arch}, {self.device.shared_limit} bytes of shared memory a block"]
        lines.append(f"{len(self.everything)} problems: " + "  ".join(self.everything))
        for space in self.spaces:
            count = len(space.candidates(self.device.shared_limit, self.quick))
            lines.append(
                f"rung {space.rung}: {count} candidates of space {space.name}{' (quick)' if self.quick else ''}"
            )
        return "\n".join(lines)


def plan(
    device_info: DeviceInfo,
    shapes: Iterable[str | Sequence[int] | Problem] | None = None,
    rung: str | int | Rung | None = None,
    space: str | None = None,
    quick: bool = False,
) -> RunPlan:
    """Return what `tune` with these arguments would try on `device`; see there."""
    chosen = () if shapes is None else tuple(dict.fromkeys(map(_problem, shapes)))
    return RunPlan(device_info, chosen, _spaces(rung, space, quick), quick)


def _problem(shape: str | Sequence[int] | Problem) -> Problem:
    if isinstance(shape, Problem):
        found = checked(shape)
    else:
        found = parse(shape if isinstance(shape, str) else ",".join(map(str, shape)))
    return dense_call(found).problem


def _spaces(rung: str | int | Rung | None, space: str | None, quick: bool) -> tuple[Space, ...]:
    if space is not None:
        found = search_spaces.SPACES.get(space)
        if found is None:
            raise ConfigError(f"unknown search space {space!r}; there are {', '.join(search_spaces.SPACES)}")
        if rung is not None and rungs.find(rung).name != found.rung:
            raise ConfigError(f"search space {space} is of rung {found.rung}, not {rungs.find(rung).name}")
        return (found,)
    if rung is not None:
        names: tuple[str, ...] = (rungs.find(rung).name,)
    else:
        names = tuple(default.name for default in rungs.DEFAULTS) if quick else search_spaces.tunable()
    spaces = [search_spaces.default_space(name) for name in names]
    if None in spaces:
        raise ConfigError(f"rung {names[0]} has no search space; tunable are {', '.join(search_spaces.tunable())}")
    return tuple(space for space in spaces if space is not None)


def tune(
    shapes: Iterable[str | Sequence[int] | Problem] | None = None,
    *,
    rung: str | int | Rung | None = None,
    space: str | None = None,
    quick: bool = False,
    budget: float | None = None,
    device: int | str = 0,
    store: bool = True,
    progress: bool = True,
) -> Outcome:
    """Search the constants that are fastest on a device, and remember them.

    Parameters
    ----------
    shapes : iterable, optional
        Problems as ``(M, N, K)``, ``(M, N, K, layout)`` or ``"M,N,K,LAYOUT"``. Default: the standard set, which also
        measures the curves that untuned problems are predicted from.
    rung : str or int, optional
        The rung to tune. Default: every rung that has a search space; in a quick run those that `sgemm` uses.
    space : str, optional
        The search space, by name. Default: that of the rung.
    quick : bool
        A few good candidates only, in seconds.
    budget : float, optional
        Seconds that the run may take. Default: 18 for a quick run, 465 for the standard set, else as long
        as it takes.
    device : int or str
        CUDA's number of the device in this machine, ``cuda:1``, or its name or architecture.
    store : bool
        Whether to keep the result in the user's data folder.
    progress : bool
        Whether to show on stderr how far it is.

    Returns
    -------
    Outcome

    Raises
    ------
    TuningError
        Another process is tuning this device, or a candidate broke the CUDA context.
    DeviceError, ConfigError, UnknownRungError, ShapeError
    """
    from fastsgemm.device import open_gpu, ordinal
    from fastsgemm.progress import Bar

    began = time.monotonic()
    with evaluating(open_gpu(ordinal(device))) as evaluator, alone(evaluator.device):
        return run(
            plan(evaluator.device, shapes, rung, space, quick),
            evaluator,
            Bar(progress),
            budget,
            store=store,
            began=began,
        )


@contextmanager
def evaluating(gpu: Gpu) -> Iterator[Evaluator]:
    """Make ready to tune a device. Afterwards nothing that was loaded or chosen for the trials is left."""
    from fastsgemm.tuning.evaluator import DeviceEvaluator

    switched = gpu.enter()
    try:
        evaluator = DeviceEvaluator(gpu)
        try:
            yield evaluator
        finally:
            evaluator.close()
            choose.forget()
    finally:
        if switched:
            gpu.leave()


def run(
    planned: RunPlan,
    evaluator: Evaluator,
    bar: Progress,
    budget: float | None = None,
    *,
    store: bool = True,
    began: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Carry out a plan on a bench. What was found is stored also if it ends by an exception or Ctrl-C."""
    began = clock() if began is None else began
    if budget is None and (planned.quick or not planned.problems):
        budget = QUICK_SECONDS if planned.quick else STANDARD_SECONDS
    outcome = Outcome(evaluator.device, evaluator.tools)
    with Checkpoint(_checkpoint_path(evaluator.device), _stamp(evaluator)) as checkpoint:
        if checkpoint.found:
            bar.note(f"going on from {checkpoint.found} measurements in {checkpoint.path}")
        sweep = Sweep(evaluator, checkpoint, bar, began + (math.inf if budget is None else budget), clock)
        try:
            share = _FIRST_RUNG
            for space in planned.spaces:
                with sweep.within(1.0 if space is planned.spaces[-1] else share):
                    _Run(planned, space, sweep, outcome).run()
                share = _NEXT_RUNG
        finally:
            bar.end()
            outcome.seconds = clock() - began
            if store and (outcome.tuned or outcome.curves):
                outcome.path = database.save(outcome.content)
                choose.forget()
        if outcome.complete:
            checkpoint.finish()
    if not outcome.tuned:
        raise TuningError(f"nothing could be measured in the time: {_most(outcome.failures)}")
    return outcome


def _most(failures: dict[str, int]) -> str:
    if not failures:
        return "no candidate was reached"
    reason = max(failures, key=lambda text: failures[text])
    return f"{sum(failures.values())} candidates failed, most of them because {reason}"


@contextmanager
def alone(device_info: DeviceInfo, wait: float = 0.0) -> Iterator[None]:
    """Keep other processes from tuning the same kind of device: they would disturb each other's times.

    Parameters
    ----------
    device : Device
    wait : float
        Seconds to wait for another process.

    Raises
    ------
    TuningError
        It goes on for longer, or the user's data folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path = database.folder_to_write("tuning") / f"{_slug(device_info.name)}.lock"
    except RecordError as error:
        raise TuningError(str(error)) from error
    try:
        lock = FileLock(path, timeout=wait)
        lock.acquire()
    except Timeout:
        raise TuningError(f"another process is tuning {device_info.name} (it holds {path})") from None
    except OSError as error:
        raise TuningError(
            f"{path.parent} cannot be written ({error}); FASTSGEMM_DATA_DIR names another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _checkpoint_path(device_info: DeviceInfo) -> Path:
    return database.folder_to_write("tuning") / f"{_slug(device_info.name)}.jsonl"


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _stamp(evaluator: Evaluator) -> dict[str, str]:
    """Return what a measurement holds for: the kernels are part of it."""
    digest = hashlib.sha256()
    for path in sorted(resources.folder("cuda_src").rglob("*.cu*")):
        digest.update(path.read_bytes())
    return {
        "device": evaluator.device.name,
        "driver": evaluator.tools.driver,
        "nvrtc": evaluator.tools.nvrtc,
        "kernels": digest.hexdigest()[:16],
    }


class _Run:
    """The part of a run that is about one rung."""

    def __init__(self, planned: RunPlan, space: Space, sweep: Sweep, outcome: Outcome) -> None:
        self._plan, self._space, self._sweep, self._outcome = planned, space, sweep, outcome
        self._problems = planned.of(space)
        self._largest: Result | None = None  # of the same layout, NN
        self._ranked: dict[Problem, list[Config]] = {}  # the candidates of an anchor, the quickest first
        self._rung = rungs.find(space.rung)
        self._limit = planned.device.shared_limit
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
        return list(dict.fromkeys(_whole(config) for found in few for config in found))

    def _anchored(
        self, anchors: Sequence[Problem], candidates: Callable[[Problem], Sequence[Config]]
    ) -> list[list[Config]]:
        """Return for each of these problems the best few of its candidates and their refinements."""
        self._title("anchors")
        drawn = {problem: self._drawn(problem, candidates(problem)) for problem in anchors}
        # All kernels of the grids at once, so that no anchor pays for what the others use too.
        self._sweep.prepare(job_of(self._rung, c, problem) for problem in anchors for c in drawn[problem])
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
        worthy = [c for c in _distinct(configs, problem) if _worth_trying(c, problem)]
        return _of_its_size(worthy, facing(self._rung, problem), self._plan.device.multiprocessors)

    def _explore(self, problem: Problem) -> list[Config]:
        """Return the best few of the whole space."""
        drawn = self._drawn(problem, self._candidates)
        return drawn if self._plan.quick else self._refine(problem, drawn)

    def _refine(self, problem: Problem, configs: Sequence[Config]) -> list[Config]:
        """Return the best few of these and of their refinements."""
        filling = [self._divided(config, problem)[-1] for config in configs]
        with self._sweep.within(_GRID):
            found = list(self._search(problem, filling, "grid", EXPLORE).times)
        self._ranked[problem] = list(dict.fromkeys(map(_whole, found)))
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
        drawn = [c for c in self._drawn(problem, self._candidates) if self._sweep.works(job_of(self._rung, c, problem))]
        found = self._search(problem, [self._divided(c, problem)[-1] for c in drawn], "at hand", EXPLORE)
        return list(found.times)[:_SHORTLISTED]

    def _divided(self, config: Config, problem: Problem) -> list[Config]:
        """Return the config with every SPLIT_K that is worth a trial, the one that fills the device last."""
        if not self._rung.splits:
            return [config]
        problem = facing(self._rung, problem)
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
            few = list(dict.fromkeys(map(_whole, self._largest.times)))[:_LONG_TRIES]
        worthy = [config for config in _distinct(few, problem) if _worth_trying(config, problem)] or few
        tried = [other for config in worthy for other in self._divided(_whole(config), problem)]
        if self._plan.quick and not self._plan.problems:  # not a few kernels at a time, which leaves cores idle
            tried = [c for c in tried if self._sweep.works(job_of(self._rung, c, problem))] or tried[:1]
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
        return partial_accumulators.shortened(config, facing(self._rung, problem), self._limit)

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
        shipped = [job_of(rung, self._shipped(problem), problem) for problem in self._problems]
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
        jobs = [*(job_of(self._rung, config, problem) for problem in probes), largest_job(self._rung, config)]
        return list(dict.fromkeys(jobs))

    def _standard_kernels(self, config: Config) -> list[Job]:
        return [job_of(self._rung, config, problem) for problem in self._problems]


def portfolio(results: Sequence[Result], count: int) -> list[Config]:
    """Return `count` configs that together are near the best on every problem, greedily.

    Once another config brings nothing the problems are covered again by the rest: the second best of many problems
    is more use on the untuned ones than any config left over.

    Parameters
    ----------
    results : sequence of Result
        On which all configs were timed.
    count : int
    """
    tables = [_of_whole(result.times) for result in results if result.times]
    left = list(dict.fromkeys(config for table in tables for config in table))
    chosen: list[Config] = []
    covered = [_NEVER] * len(tables)
    while left and len(chosen) < count:
        costs = {config: _cost(config, covered, tables) for config in left}
        config = min(left, key=lambda config: costs[config])
        if costs[config] > _cost(None, covered, tables) - _LEAST_GAIN and covered[0] != _NEVER:
            covered = [_NEVER] * len(tables)
            continue
        covered = [min(have, table.get(config, _NEVER)) for have, table in zip(covered, tables, strict=True)]
        chosen.append(config)
        left.remove(config)
    return chosen


def _worth_trying(config: Config, problem: Problem) -> bool:
    """Whether slices have but few blocks to fill, and a block of rung 10 has about as many rows as there are."""
    if isinstance(config, SkinnyConfig):
        rows = min(problem.M, problem.N, rungs.NARROW)
        return rows / 4 <= config.BM < 2 * rows
    return config.sliced_k == 1 or tiles(config, problem) <= _MOST_SLICED


def _distinct(configs: Sequence[Config], problem: Problem) -> list[Config]:
    """Leave out what is the same as another of the configs: in layout TN, CP_ASYNC = 2 does what CP_ASYNC = 1 does."""
    if problem.layout != "TN":
        return list(configs)
    pipelined = (config for config in configs if isinstance(config, PipelinedConfig))
    twins = {config.replace(CP_ASYNC=2) for config in pipelined if config.CP_ASYNC == 1}
    return [config for config in configs if config not in twins]


def _of_its_size(configs: Sequence[Config], problem: Problem, multiprocessors: int) -> list[Config]:
    """Return the configs whose tiles are neither much larger than a problem nor very many, or those nearest to that.

    Parameters
    ----------
    configs : sequence of Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.facing`.
    multiprocessors : int
    """
    inside = [c for c in configs if c.BM < _COARSEST * problem.M and c.BN < _COARSEST * problem.N]
    few = [c for c in inside if tiles(c, problem) <= _FINEST * multiprocessors]
    if few or not configs:
        return few
    nearest = max(c.BM * c.BN for c in inside) if inside else min(c.BM * c.BN for c in configs)
    return [c for c in inside or configs if nearest == c.BM * c.BN]


def _whole(config: Config) -> Config:
    """Return the config without split-K and partial accumulators, which are chosen for each problem."""
    return config.kernel.replace(PARTIAL_ACCUMULATORS=1) if isinstance(config, PipelinedConfig) else config.kernel


def _of_whole(times: dict[Config, float]) -> dict[Config, float]:
    """Return for each config the time with its best SPLIT_K."""
    found: dict[Config, float] = {}
    for config, ms in times.items():
        found[_whole(config)] = min(ms, found.get(_whole(config), ms))
    return found


def _cost(config: Config | None, covered: Sequence[float], tables: Sequence[dict[Config, float]]) -> float:
    """Return the sum over the problems of the logarithm of the best time with `config` beside what there is."""
    times = (
        (have, table.get(config, _NEVER) if config else _NEVER) for have, table in zip(covered, tables, strict=True)
    )
    return sum(math.log(min(pair)) for pair in times)
