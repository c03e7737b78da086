"""The evaluator: it compiles, checks and times candidates on a device, through the same launches as `sgemm`."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm import device
from fastsgemm.call.arrays import DeviceArray
from fastsgemm.call.driver import multiply
from fastsgemm.call.split_operand import split as split_operand
from fastsgemm.config import Config, F16DirectConfig
from fastsgemm.device import LEGACY_STREAM, info_of
from fastsgemm.errors import CompileError, TuningError
from fastsgemm.geometry import variants
from fastsgemm.geometry.fp16x3 import TileConfig
from fastsgemm.geometry.variants import Variant
from fastsgemm.heuristics import database
from fastsgemm.heuristics.fields import Tools
from fastsgemm.heuristics.fp16x3_rates import Rates
from fastsgemm.jit import compiler, kernel, source
from fastsgemm.measure import cublas
from fastsgemm.measure.cublas import Baseline
from fastsgemm.measure.operands import Memory, lent, views
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import Problem, Sym
from fastsgemm.request import Request, of_call, resolve
from fastsgemm.rungs import Rung
from fastsgemm.tuning import fp16x3

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

_POISON = 0xFF  # C is filled with this byte; four of them are a NaN, which shows elements that were not written
_ONE, _ZERO = 1.0, 0.0  # alpha and beta
_CHECKED = (516, 388, 132)  # M, N, K of the check: several tiles and a ragged one each way, multiples of 4
_GUARDED = (12, 4, 132)  # the same for kernels that are compiled for less than a tile of C, whose BN is 8 or more
_NARROW = (12, 388, 2180)  # the same for rung 10, whose tiles are deep
_PRODUCTS = 2  # of the check of a kernel for batches
_TILE_SECONDS = 0.04  # of each measurement of rung 11, about
_TILE_FLUSHES = 8  # take longer than the host takes to launch the kernels of a call
_LONG = 2 * 10**10  # FLOPs; a product of at least this needs no warm-up, because its time hides the start-up costs


@dataclass(frozen=True)
class _Reference:
    """A problem with its operands as stored, their product in float64, and what rounding may add to each element.

    The arrays have three dimensions, of which the first is the batch.
    """

    problem: Problem
    a: np.ndarray
    b: np.ndarray
    exact: np.ndarray
    bound: np.ndarray


@dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    rung: Rung
    config: Config
    variant: Variant


def job_of(arch: str, rung: Rung, config: Config, problem: Problem) -> Job:
    """Return the kernel that computes a problem with dense, aligned operands on a device of this architecture."""
    peeled_tiles = database.fitted(arch).peeled_tiles
    return Job(rung, config.kernel, variants.variant_for(rung, _call_of(rung, problem), config, peeled_tiles))


@lru_cache(maxsize=256)
def _call_of(rung: Rung, problem: Problem) -> variants.Call:
    return variants.call_with_swap_ab(rung, variants.dense_call(problem))


def largest_job(rung: Rung, config: Config) -> Job:
    """Return the kernel of a config that needs the most registers. If it does not spill, no other variant does."""
    return Job(rung, config.kernel, Variant(True, True, guard=rung.guarded, trans_c=rung.narrow))


class Evaluator:
    """What a tuning run needs of a device, which must be current in this thread.

    Tests have one without a device and with its own clock.
    """

    clock = staticmethod(time.monotonic)  # in seconds

    def __init__(self, gpu: Gpu) -> None:
        self._opened = gpu
        self.gpu = gpu.with_own_tables()  # of which other threads' calls never meet a candidate
        self.device = info_of(gpu)
        self.tools = _tools()
        self.stopwatch = Stopwatch(gpu)
        self._cubins: dict[Job, bytes] = {}  # compiled but not yet loaded
        self._memory = Memory(gpu)
        self._references: dict[Problem, _Reference] = {}

    def close(self) -> None:
        """Free the memory and unload the kernels that were tried. The next call of `sgemm` reads the database again."""
        self.stopwatch.close()
        self._memory.close()
        shared = set(self._opened.kernels.values())
        tried = [loaded for loaded in self.gpu.kernels.values() if loaded not in shared]
        if tried:
            device.Event(LEGACY_STREAM).synchronize()  # after Ctrl-C one of them may still run
        for loaded in tried:
            loaded.unload()
        self.gpu.kernels.clear()
        self._opened.forget_problems()

    def compile(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str | None]]:
        """Compile on all cores; yield each job when it is done, with None or the reason of its failure."""
        return compiler.on_all_cores(self._compile, jobs)

    def _compile(self, job: Job) -> str | None:
        spec = source.rung_spec(job.rung, job.config, job.variant)
        try:
            # The kernel cache is bypassed, because the thousands of kernels of a run would evict everything else.
            self._cubins[job] = compiler.compiled(spec.text, spec.name, self.device.arch)
        except CompileError as error:
            return str(error)
        return None

    def check(self, job: Job) -> str | None:
        """Return why a compiled kernel must not be used (it spills, or its result is wrong), or None.

        C is filled with NaN first, and each element of the result is compared with float64.
        """
        local = self._kernel(job).local_bytes
        if local:
            return f"it spills: {local} bytes of local memory a thread"
        reference = self._reference(job)
        try:
            result = self._checked_product(job, reference)
        except Exception as error:  # cuda.core's launch errors share no public base
            self.survive(error)
            return f"launch failed: {error}"
        wrong = ~(np.abs(result - reference.exact) <= reference.bound)  # negated, so that NaN counts as wrong
        if wrong.any():
            return f"wrong result: {int(wrong.sum())} of {wrong.size} elements beyond the rounding bound"
        return None

    def blocks_per_sm(self, job: Job) -> int:
        """Return how many blocks of a kernel fit on a multiprocessor at a time."""
        return self._kernel(job).blocks_per_sm(job.config.threads, job.config.shared_bytes)

    def operands(self, problem: Problem) -> Timer:
        """Return the `Timer` of a problem. It is valid until the next call of this method.

        All problems share the same memory, which grows to the largest of them.
        """
        return Timer(self, problem, self._memory.holding(problem))

    def fp16x3_rates(self, quick: bool = False) -> Rates:
        """Measure rung 11 or, if `quick`, correct the rates of another device; see `fastsgemm.tuning.fp16x3`."""
        measure = fp16x3.correct if quick else fp16x3.measure
        return measure(
            self.device, self.tools, lambda config, problem, split: self.operands(problem).of_tile(config, split)
        )

    def _kernel(self, job: Job) -> Kernel:
        cubin = self._cubins.pop(job, None)
        spec = source.rung_spec(job.rung, job.config, job.variant)
        if cubin is not None:
            return kernel.load(self.gpu, spec, job.config.shared_bytes, cubin)
        return kernel.ready(self.gpu, spec, job.config.shared_bytes)

    def _checked_product(self, job: Job, reference: _Reference) -> np.ndarray:
        problem = reference.problem
        a, b, c = arrays = self._memory.holding(problem)
        a.upload(reference.a)
        if not problem.symmetric:
            b.upload(reference.b)
        c.fill(_POISON)
        request = Request(job.rung, _launched(job))
        multiply(self.gpu, LEGACY_STREAM, request, views(problem, arrays), _ONE, _ZERO)
        result = np.empty(reference.exact.shape, np.float32)
        c.download(result)
        return result

    def _reference(self, job: Job) -> _Reference:
        problem = _problem_of(self.device.arch, job)
        if problem not in self._references:
            self._references[problem] = _reference(problem)
        return self._references[problem]

    def survive(self, error: Exception) -> None:
        """Raise `TuningError` if a failed launch has made the CUDA context unusable."""
        from cuda.bindings import driver

        answer = driver.cuCtxSynchronize()
        if int(answer[0]) != 0:
            raise TuningError(
                f"a candidate broke the CUDA context ({answer[0].name}); start again to resume without this candidate"
            ) from error


class Timer:
    """Times products of one problem's operands."""

    def __init__(self, evaluator: Evaluator, problem: Problem, arrays: Sequence[DeviceArray]) -> None:
        self._evaluator, self._problem, self._arrays = evaluator, problem, arrays
        self._given = views(problem, arrays)
        self._short = problem.flops < _LONG

    def once(self, rung: Rung, config: Config) -> float | str:
        """Return the device time of one product in ms, or the reason of its failure."""
        evaluator = self._evaluator

        def work() -> None:
            multiply(evaluator.gpu, LEGACY_STREAM, Request(rung, config), self._given, _ONE, _ZERO)

        try:
            if self._short:
                work()  # warms up: preparing a first call takes longer than the kernel
            return evaluator.stopwatch.once(work)
        except Exception as error:  # cuda.core's launch errors share no public base
            evaluator.survive(error)
            return f"launch failed: {error}"

    def of_tile(self, config: TileConfig, split: tuple[bool, bool]) -> float:
        """Return the microseconds that the kernels of a product by rung 11 take on the device.

        `split` says which of A and B are split in the product; the others were before.
        """
        ms = self._evaluator.stopwatch.medians([self.product_of_tile(config, split)], _TILE_SECONDS, _TILE_FLUSHES)
        return 1e3 * ms[0]

    def product_of_tile(self, config: TileConfig, split: tuple[bool, bool]) -> Callable[[], None]:
        """Return the product that `of_tile` times."""
        before = not isinstance(
            config, F16DirectConfig
        )  # nothing is split of operands as they lie, in the call or before
        operands = lent(self._problem, self._arrays)
        splits = [
            split_operand(operand, name) if before and not within else None
            for operand, name, within in zip(operands, "AB", split, strict=False)
        ]
        named = resolve("fp16x3", config, "fp16x3", symmetric=self._problem.symmetric)
        request = of_call(named, (splits[0] is not None, splits[1] is not None))
        addresses = tuple(0 if operand is None else operand.address for operand in splits)

        def work(held: Any = splits) -> None:  # their memory is freed with them
            multiply(self._evaluator.gpu, LEGACY_STREAM, request, self._given, _ONE, _ZERO, addresses)

        return work

    def baseline(self) -> float | None:
        """Return the device time of one product by cuBLAS in ms, or None without cuBLAS."""
        if self._beside is None:
            return None
        if self._short:
            self._beside.work()
        return self._evaluator.stopwatch.once(self._beside.work)

    def errors(self, rung: Rung, config: Config) -> tuple[float, float] | None:
        """Return the errors of one product and of cuBLAS's, or None if they cannot be measured.

        An error is the norm of the difference from the float64 product, divided by the norm of that product.
        """
        if self._beside is None or isinstance(self.once(rung, config), str):
            return None
        try:
            ours = self._beside.error()
            self._beside.work()
            return ours, self._beside.error()
        except Exception as error:  # either library may fail, for example for lack of memory for float64
            self._evaluator.survive(error)
            return None

    @cached_property
    def _beside(self) -> Baseline | None:
        baseline = cublas.product(*lent(self._problem, self._arrays))
        if baseline is not None:
            for _ in range(2):  # the first call loads the library and its kernel
                self._evaluator.stopwatch.once(baseline.work)
        return baseline


def _reference(problem: Problem) -> _Reference:
    generator = np.random.default_rng(1)
    a = generator.standard_normal((problem.batch, problem.M, problem.K), np.float32)
    b = generator.standard_normal((problem.batch, problem.K, problem.N), np.float32)
    if problem.symmetric:
        b = np.swapaxes(a, 1, 2)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # In any order of summation, the error is at most about K * 2^-24 times the sum of the products' magnitudes.
    bound = (problem.K + 1) * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    a, b = (
        np.ascontiguousarray(np.swapaxes(x, 1, 2) if letter == "T" else x)
        for x, letter in zip((a, b), problem.layout, strict=True)
    )
    return _Reference(problem, a, b, exact, bound)


def _launched(job: Job) -> Config:
    """Return the config that a kernel is checked with: one that splits K, if it computes parts of one triangle."""
    return job.config.replace(SPLIT_K=2) if job.variant.sym is Sym.LOWER else job.config


def _problem_of(arch: str, job: Job) -> Problem:
    """Return a problem that is computed by this variant of the kernel, of about the size of the check."""
    variant, config, symmetric = job.variant, _launched(job), bool(job.variant.sym)
    M, N, K = _NARROW if job.rung.narrow else _GUARDED if variant.guard else _CHECKED
    # Load widths depend on which extents are multiples of 4 or 2: vec_a on K (or M if A is column-major), vec_b on
    # N (or K), vec_c on N.
    # For variants that peel no end of K, or of a part of it.
    deep = config.split_k * (database.fitted(arch).peeled_tiles + 1) * config.tile_k + 4
    for many in (K, deep):
        for m in (M, M + 1, M + 2):
            for n in (N, N + 1, N + 2):
                for k in (many, many - 1, many - 2):
                    n = m if symmetric else n
                    computed = Problem(m, n, k, variant.layout, _PRODUCTS if variant.batched else 1, symmetric)
                    problem = computed.transposed if variant.trans_c else computed
                    if job_of(arch, job.rung, config, problem).variant == variant:
                        return problem
    raise ValueError(f"no problem with dense operands is computed by {variant}")


def _tools() -> Tools:
    return Tools(device.driver_text() or "unknown", device.nvrtc_text(), datetime.date.today().isoformat())
