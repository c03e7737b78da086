"""The search on one problem: compile, check, time in rounds, keep the best.

A candidate that fails is a value, never the end of the run, and every measurement is in the checkpoint as soon as it
is made. Nothing here needs a device: see `fastsgemm.tuning.evaluator.Evaluator`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from fastsgemm.config import Config
from fastsgemm.errors import DeviceMemoryError, TuningError
from fastsgemm.heuristics.database_entries import tflops
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.evaluator import Evaluator, Job, job_of

_SEED = 20  # of the order in which candidates are timed
_PATIENCE_MS = 60.0  # that a candidate may run for in a round, once the least repeats are done
_LEAST_REPEATS = 2
_PREPARATION = 0.75  # of the time that is left may go into compiling
_ROUND = 0.6  # and into each round but the last


@dataclass(frozen=True)
class Round:
    """One round of successive halving.

    Attributes
    ----------
    share : float
        Of the candidates of the round before that are in it.
    least : int
        Candidates that are in it in any case.
    repeats : int
        Times that each is timed; fewer where it takes long.
    """

    share: float
    least: int
    repeats: int


@dataclass(frozen=True)
class Effort:
    """How thoroughly a problem is searched.

    Attributes
    ----------
    rounds : tuple of Round
        The last of them decides.
    beside_cublas : bool
        In the last round cuBLAS runs in turns with the candidates, where there is any.
    """

    rounds: tuple[Round, ...]
    beside_cublas: bool


EXPLORE = Effort((Round(1.0, 1, 1), Round(0.12, 12, 3), Round(0.0, 8, 5)), beside_cublas=False)
DECIDE = Effort((Round(1.0, 1, 3), Round(0.12, 6, 5), Round(0.0, 4, 15)), beside_cublas=True)
QUICK = Effort((Round(1.0, 1, 1), Round(0.25, 4, 5)), beside_cublas=False)  # loading PyTorch alone takes seconds


class Progress(Protocol):
    """Where a run says how far it is; `fastsgemm.progress` has one for terminals."""

    def title(self, text: str) -> None:
        """Say what the next phases are about."""

    def begin(self, what: str, count: int) -> None:
        """Start counting to `count`."""

    def step(self) -> None:
        """Count one."""

    def best(self, text: str) -> None:
        """Show the best so far."""

    def note(self, text: str) -> None:
        """Say something that stays."""

    def end(self) -> None:
        """Stop showing anything."""


@dataclass(frozen=True)
class Result:
    """What the search on one problem found.

    Attributes
    ----------
    problem : Problem
    rung : str
    times : dict
        Median device time in ms of every candidate that was timed, the winner first.
    failures : dict
        Why each of the others failed.
    cublas_ms : float or None
        In turns with the winner, where there is cuBLAS.
    complete : bool
        The time sufficed for all candidates.
    """

    problem: Problem
    rung: str
    times: dict[Config, float]
    failures: dict[Config, str]
    cublas_ms: float | None
    complete: bool

    @property
    def best(self) -> tuple[Config, float] | None:
        """The winner and its time, or None where nothing worked."""
        return next(iter(self.times.items()), None)


@dataclass
class Sweep:
    """A search that goes from problem to problem with one bench and one checkpoint.

    Attributes
    ----------
    bench : Bench
    checkpoint : Checkpoint
    progress : Progress
    deadline : float
        By the clock: what is not timed by then is left out, and the best of the rest is the answer.
    clock : callable
        Seconds.
    """

    evaluator: Evaluator
    checkpoint: Checkpoint
    progress: Progress
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    _ready: dict[Job, str | None] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return self.clock() > self.deadline

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Leave the body this share of the time that is left."""
        end, now = self.deadline, self.clock()
        self.deadline = now + share * (end - now)
        try:
            yield
        finally:
            self.deadline = end

    def prepare(self, jobs: Iterable[Job], in_order: bool = False) -> dict[Job, str | None]:
        """Compile and check what has not been; return for each job that is done None or why it failed.

        Parameters
        ----------
        jobs : iterable of Job
        in_order : bool
            Those that come first matter most. Else any of them may be left out where the time is up.
        """
        wanted = list(dict.fromkeys(jobs))
        new = [job for job in wanted if job not in self._ready and not self._failed_before(job)]
        with self.within(_PREPARATION):
            # In any order but the drawn one: what there is no time for should not be all of one kind.
            compiled = self._compiled(new if in_order else random.Random(_SEED).sample(new, len(new)))
        self.progress.begin("check", len(compiled))
        for job in compiled:
            if self.late:
                break
            try:
                self.settle(job, self.evaluator.check(job))
            except TuningError as error:  # it ends the run, and the next one leaves it out
                self.settle(job, str(error))
                raise
            self.progress.step()
        return {job: self._ready[job] for job in wanted if job in self._ready}

    def works(self, job: Job) -> bool:
        """Whether this kernel was compiled and found right."""
        return self._ready.get(job, "") is None

    def _compiled(self, jobs: Sequence[Job]) -> list[Job]:
        if not jobs or self.late:
            return []
        compiled = []
        self.progress.begin("compile", len(jobs))
        for job, failure in self.evaluator.compile(jobs):
            self.progress.step()
            if failure is None:
                compiled.append(job)
            else:
                self.settle(job, failure)
            if self.late:
                break
        return compiled

    def search(self, problem: Problem, rung: Rung, candidates: Iterable[Config], label: str, effort: Effort) -> Result:
        """Find the fastest of `candidates` on `problem`.

        Parameters
        ----------
        problem : Problem
        rung : Rung
        candidates : iterable of Config
        label : str
            Sets the measurements of this search apart from those of another one on the same problem.
        effort : Effort
        """
        wanted = list(dict.fromkeys(candidates))
        jobs = {config: job_of(self.evaluator.device.arch, rung, config, problem) for config in wanted}
        prepared = self.prepare(jobs.values())
        known = {config: prepared[kernel] for config, kernel in jobs.items() if kernel in prepared}
        failures = {config: reason for config, reason in known.items() if reason is not None}
        working = [config for config, reason in known.items() if reason is None]
        try:
            trial = _Trial(self, problem, rung, failures)
        except DeviceMemoryError as error:  # a device too small for this problem
            return Result(problem, rung.name, {}, dict.fromkeys(wanted, str(error)), None, complete=True)
        cublas_ms = trial.run(working, label, effort)
        complete = len(known) == len(wanted) and not trial.cut
        return Result(problem, rung.name, trial.ranking, failures, cublas_ms, complete)

    def measure(self, problem: Problem, rung: Rung, config: Config, repeats: int) -> float | None:
        """Return the median time of one config in ms, or None where it fails or the time is up."""
        kernel = job_of(self.evaluator.device.arch, rung, config, problem)
        if self.prepare([kernel]).get(kernel, ""):
            return None
        try:
            trial = _Trial(self, problem, rung, {})
        except DeviceMemoryError:
            return None
        trial.time([config], "measure", repeats)
        return trial.medians.get(config)

    def errors(self, problem: Problem, rung: Rung, configs: Iterable[Config]) -> Iterator[tuple[float, float] | None]:
        """Give the errors of each config and of cuBLAS when asked, see `fastsgemm.tuning.evaluator.Timer`."""
        timer = self.evaluator.operands(problem)
        yield from (timer.errors(rung, config) for config in configs)

    def settle(self, job: Job, failure: str | None) -> None:
        """Note that a kernel is good, or why it is not."""
        self._ready[job] = failure
        if failure is not None:
            self.checkpoint.put(None, job.rung.name, job.config, str(job.variant), failure)

    def _failed_before(self, job: Job) -> bool:
        reason = self.checkpoint.get(None, job.rung.name, job.config, str(job.variant))
        if isinstance(reason, str):
            self._ready[job] = reason
        return isinstance(reason, str)


class _Trial:
    """The rounds on one problem."""

    def __init__(self, sweep: Sweep, problem: Problem, rung: Rung, failures: dict[Config, str]) -> None:
        self._sweep, self._problem, self._rung, self._failures = sweep, problem, rung, failures
        self._timer = sweep.evaluator.operands(problem)
        self._order = random.Random(_SEED)
        self._finalists: list[Config] = []
        self._best = float("inf")
        self.medians: dict[Config, float] = {}
        self.cut = False

    @property
    def ranking(self) -> dict[Config, float]:
        """Every time, the winner first: the last round decides among those that were in it."""
        order = sorted(self.medians, key=lambda config: (config not in self._finalists, self.medians[config]))
        return {config: self.medians[config] for config in order}

    def run(self, candidates: Sequence[Config], label: str, effort: Effort) -> float | None:
        """Time in rounds; return the median time of cuBLAS."""
        if candidates and not self._sweep.late:
            self._timer.once(self._rung, candidates[0])  # the first product on new memory pays for page tables
        left = list(candidates)
        beside: list[float] = []
        for number, stage in enumerate(effort.rounds):
            count = max(stage.least, round(stage.share * len(left)))
            left = sorted(left, key=lambda config: self.medians.get(config, 0.0))[:count]
            last = number == len(effort.rounds) - 1
            turns = beside if last and effort.beside_cublas else None
            repeats = self._repeats(left, stage.repeats)
            self._sweep.progress.begin("time", len(left) * repeats)
            with self._sweep.within(1.0 if last else _ROUND):
                timed = self.time(left, f"{label}.{number}", repeats, turns)
            if timed:
                self._finalists = timed
            left = [config for config in left if config in self.medians]
        return statistics.median(beside) if beside else None

    def _repeats(self, configs: Sequence[Config], most: int) -> int:
        quickest = min((self.medians[config] for config in configs if config in self.medians), default=0.0)
        return min(most, max(_LEAST_REPEATS, int(_PATIENCE_MS / quickest))) if quickest else most

    def time(
        self, configs: Sequence[Config], turn: str, repeats: int, beside: list[float] | None = None
    ) -> list[Config]:
        """Time each of `configs`, in turns and in another order every time; return those that were timed.

        Parameters
        ----------
        configs : sequence of Config
        turn : str
            For the checkpoint.
        repeats : int
        beside : list of float, optional
            Takes the times of cuBLAS, in turns with the others.
        """
        seen: dict[Config, list[float]] = {}
        for repeat in range(repeats):
            for config in self._order.sample(list(configs), len(configs)):
                if self._sweep.late:
                    self.cut = True
                    break
                self._time_once(f"{turn}.{repeat}", config, seen)
            reference = None if beside is None or self.cut else self._timer.baseline()
            if beside is not None and reference is not None:
                beside.append(reference)
        self.medians |= {config: statistics.median(times) for config, times in seen.items()}
        for config in self._failures:
            self.medians.pop(config, None)
        return [config for config in seen if config in self.medians]

    def _time_once(self, turn: str, config: Config, seen: dict[Config, list[float]]) -> None:
        checkpoint, rung = self._sweep.checkpoint, self._rung
        found = checkpoint.get(self._problem, rung.name, config, turn)
        if found is None:
            try:
                found = self._timer.once(rung, config)
            except TuningError as error:  # it ends the run, and the next one leaves it out
                self._sweep.settle(job_of(self._sweep.evaluator.device.arch, rung, config, self._problem), str(error))
                raise
            checkpoint.put(self._problem, rung.name, config, turn, found)
        if isinstance(found, str):
            self._failures[config] = found
        else:
            seen.setdefault(config, []).append(found)
            if found < self._best:
                self._best = found
                self._sweep.progress.best(f"{found:.4g} ms, {tflops(self._problem, found):.4g} TFLOP/s")
        self._sweep.progress.step()
