"""The search on one problem: compile the candidates, check them, time them in rounds, keep the best.

A candidate that fails becomes an entry of the result and does not end the run. Every measurement is written to the
checkpoint at once. All work on the device is done by a `fastsgemm.tuning.evaluator.Evaluator`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastsgemm.config import Config
from fastsgemm.errors import DeviceMemoryError, TuningError
from fastsgemm.heuristics.database_entries import tflops
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.tuning.checkpoint import Checkpoint
from fastsgemm.tuning.evaluator import Evaluator, Job, job_of

if TYPE_CHECKING:
    from fastsgemm.progress import Bar

_SEED = 20  # of the random order in which candidates are compiled and timed
_PATIENCE_MS = 60.0  # time of a candidate in a round, beyond which it is repeated no more than the least repeats
_LEAST_REPEATS = 2
_PREPARATION = 0.75  # share of the remaining time that compiling may take
_ROUND = 0.6  # share of the remaining time that each round but the last may take


@dataclass(frozen=True)
class Round:
    """One round of successive halving."""

    share: float  # share of the candidates of the previous round that enter this one
    least: int  # least number of candidates that enter it
    repeats: int  # how often each is timed; less often if a product takes long


@dataclass(frozen=True)
class Effort:
    """How thoroughly a problem is searched."""

    rounds: tuple[Round, ...]  # the last round decides
    beside_cublas: bool  # whether cuBLAS, if installed, is timed alternately with the candidates of the last round


EXPLORE = Effort((Round(1.0, 1, 1), Round(0.12, 12, 3), Round(0.0, 8, 5)), beside_cublas=False)
DECIDE = Effort((Round(1.0, 1, 3), Round(0.12, 6, 5), Round(0.0, 4, 15)), beside_cublas=True)
QUICK = Effort(
    (Round(1.0, 1, 1), Round(0.25, 4, 5)), beside_cublas=False
)  # no cuBLAS: it takes seconds to load PyTorch


@dataclass(frozen=True)
class Result:
    """The result of the search on one problem."""

    problem: Problem
    times: dict[Config, float]  # median device time in ms of every candidate that was timed, the winner first
    failures: dict[Config, str]  # the reason of each candidate that failed
    cublas_ms: float | None  # median device time of cuBLAS in ms, or None if it was not timed
    complete: bool  # whether all candidates were tried before the deadline

    @property
    def best(self) -> tuple[Config, float] | None:
        """The winner and its time in ms, or None if no candidate was timed."""
        return next(iter(self.times.items()), None)


@dataclass
class Sweep:
    """A series of searches that share an evaluator, a checkpoint and a deadline."""

    evaluator: Evaluator
    checkpoint: Checkpoint
    progress: Bar
    # Time of the evaluator's clock after which nothing more is tried. The winner is the best candidate timed by then.
    deadline: float = float("inf")
    _ready: dict[Job, str | None] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.evaluator.clock() > self.deadline

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Bring the deadline forward for the body, which gets this share of the remaining time."""
        end, now = self.deadline, self.evaluator.clock()
        self.deadline = now + share * (end - now)
        try:
            yield
        finally:
            self.deadline = end

    def prepare(self, jobs: Iterable[Job], in_order: bool = False) -> dict[Job, str | None]:
        """Compile and check the kernels that are new, in order because the first matter most, or in a random one.

        Return for each kernel that was tried, now or before, None or the reason of its failure. Kernels that the
        deadline left out are missing.
        """
        distinct = list(dict.fromkeys(jobs))
        new = [job for job in distinct if job not in self._ready and not self._failed_before(job)]
        with self.within(_PREPARATION):
            # In random order, so that kernels of all kinds are compiled before the time is up.
            compiled = self._compiled(new if in_order else random.Random(_SEED).sample(new, len(new)))
        if compiled:
            self.progress.begin("check", len(compiled))
        for job in compiled:
            if self.late:
                break
            try:
                self.settle(job, self.evaluator.check(job))
            except TuningError as error:  # it ends the run; the next run skips this kernel
                self.settle(job, str(error))
                raise
            self.progress.step()
        return {job: self._ready[job] for job in distinct if job in self._ready}

    def works(self, job: Job) -> bool:
        """Whether this kernel was compiled and passed its check."""
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

        In the checkpoint, the label tells the measurements from those of other searches on the same problem.
        """
        distinct = list(dict.fromkeys(candidates))
        jobs = {config: job_of(self.evaluator.device.arch, rung, config, problem) for config in distinct}
        prepared = self.prepare(jobs.values())
        compiled = {config: prepared[job] for config, job in jobs.items() if job in prepared}
        failures = {config: reason for config, reason in compiled.items() if reason is not None}
        working = [config for config, reason in compiled.items() if reason is None]
        try:
            trial = _Trial(self, problem, rung, failures)
        except DeviceMemoryError as error:  # the operands do not fit on the device
            return Result(problem, {}, dict.fromkeys(distinct, str(error)), None, complete=True)
        cublas_ms = trial.time_in_rounds(working, label, effort)
        complete = len(compiled) == len(distinct) and not trial.cut
        return Result(problem, trial.ranking, failures, cublas_ms, complete)

    def measure(self, problem: Problem, rung: Rung, config: Config, repeats: int) -> float | None:
        """Return the median time of one config in ms, or None if it fails or the deadline has passed."""
        job = job_of(self.evaluator.device.arch, rung, config, problem)
        self.prepare([job])
        if not self.works(job):
            return None
        try:
            trial = _Trial(self, problem, rung, {})
        except DeviceMemoryError:
            return None
        trial.time([config], "measure", repeats)
        return trial.medians.get(config)

    def settle(self, job: Job, failure: str | None) -> None:
        """Note that a kernel works (None) or why it does not; failures are also written to the checkpoint."""
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
        """The times of all candidates in ms, the winner first. Those of the last round come before all others."""
        order = sorted(self.medians, key=lambda config: (config not in self._finalists, self.medians[config]))
        return {config: self.medians[config] for config in order}

    def time_in_rounds(self, candidates: Sequence[Config], label: str, effort: Effort) -> float | None:
        """Time the candidates by successive halving; return the median time of cuBLAS in ms, or None."""
        if candidates and not self._sweep.late:
            self._once(candidates[0])  # warms up: the first product on new memory takes longer
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
                self.time(left, f"{label}.{number}", repeats, turns)
            left = [config for config in left if config in self.medians]
        self._finalists = left
        return statistics.median(beside) if beside else None

    def _repeats(self, configs: Sequence[Config], most: int) -> int:
        quickest = min((self.medians[config] for config in configs if config in self.medians), default=0.0)
        return min(most, max(_LEAST_REPEATS, int(_PATIENCE_MS / quickest))) if quickest else most

    def time(self, configs: Sequence[Config], turn: str, repeats: int, beside: list[float] | None = None) -> None:
        """Time the configs alternately, in a new random order for each repeat; `turn` names that in the checkpoint.

        If a list is given, cuBLAS is timed after each repeat, and its times in ms are appended.
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

    def _time_once(self, turn: str, config: Config, seen: dict[Config, list[float]]) -> None:
        checkpoint, rung = self._sweep.checkpoint, self._rung.name
        result = checkpoint.get(self._problem, rung, config, turn)
        if result is None:
            result = self._once(config)
            checkpoint.put(self._problem, rung, config, turn, result)
        if isinstance(result, str):
            self._failures[config] = result
        else:
            seen.setdefault(config, []).append(result)
            if result < self._best:
                self._best = result
                self._sweep.progress.best(f"{result:.4g} ms, {tflops(self._problem, result):.4g} TFLOP/s")
        self._sweep.progress.step()

    def _once(self, config: Config) -> float | str:
        try:
            return self._timer.once(self._rung, config)
        except TuningError as error:  # it ends the run; the next run skips this kernel
            self._sweep.settle(job_of(self._sweep.evaluator.device.arch, self._rung, config, self._problem), str(error))
            raise
