"""Compares `sgemm` with cuBLAS on the same operands: checks both against float64, then times them in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastsgemm.bench.problem_sets import Sample, size_class
from fastsgemm.call.product import plan_of
from fastsgemm.errors import FastsgemmError
from fastsgemm.gemm import sgemm
from fastsgemm.geometry.layout import Meta
from fastsgemm.heuristics.choice import choose
from fastsgemm.jit import compiler, kernel
from fastsgemm.problem import as_data
from fastsgemm.request import of_problem, resolve

_CHECKED_ROWS = 2048  # of each C that are compared, at most
_UNIT = 2.0**-24  # float32's unit roundoff


class WrongResultError(FastsgemmError, RuntimeError):
    """A result is wrong, so it is not timed."""


class Versus:
    """Times `sgemm` and `torch.mm` or `torch.bmm`, which call cuBLAS, on the same tensors.

    The module has TF32 turned off; `device` is its name of the device.
    """

    def __init__(self, torch: Any, device: str, gpu: Any, stopwatch: Any) -> None:
        self._torch, self._device, self._gpu, self._stopwatch = torch, device, gpu, stopwatch

    def row(self, sample: Sample, seconds: float) -> dict[str, Any]:
        """Check and time one sample, each of the two for about so many seconds; return the results as plain data.

        Raises
        ------
        WrongResultError
            `sgemm` did not write an element of C, wrote past the end of a row, or has more than a rounding error.
        """
        torch = self._torch
        torch.manual_seed(0)
        a, b = (
            self._tensor(torch.randn, operand).to(getattr(torch, operand.dtype.numpy_name))
            for operand in sample.operands[:2]
        )
        if sample.problem.symmetric:
            b = a.mT
        c, theirs = (self._tensor(self._nan, sample.operands[2]) for _ in range(2))
        error, cublas_error = self._check(sample, a, b, c, theirs)
        times = self._stopwatch.samples([self._ours(sample, a, b, c), self._cublas(sample, a, b, theirs)], seconds)
        ms, cublas_ms = map(statistics.median, times)
        described_a, described_b, described_c = sample.described
        request = of_problem(resolve(**_how(sample)), sample.problem)
        choice = choose(self._gpu, request, described_a, described_b, described_c, sample.extents)
        problem, leading = sample.problem, sample.leading_dimensions
        return {
            **as_data(problem),
            **dict(zip(("lda", "ldb", "ldc"), leading, strict=True)),
            "load_bytes": sample.load_bytes,
            "size": size_class(problem),
            "rung": choice.rung.name,
            "rule": choice.rule,
            "packed": choice.packed,
            "constants": choice.config.constants,
            "ms": ms,
            "tflops": 1e-9 * problem.flops / ms,
            "cublas_ms": cublas_ms,
            "percent": 100 * cublas_ms / ms,
            "noise": math.hypot(*map(standard_error, times)),
            "error": error,
            "cublas_error": cublas_error,
        }

    def _ours(self, sample: Sample, a: Any, b: Any, c: Any) -> Callable[[], object]:
        """Return the call of `sgemm` that is timed."""
        how = _how(sample)
        if not how:
            return lambda: sgemm(a, b, C=c)
        return lambda: sgemm(a, b, C=c, **how)

    def _cublas(self, sample: Sample, a: Any, b: Any, c: Any) -> Callable[[], object]:
        """Return the call of cuBLAS that is timed. It gets 16-bit operands as float32, casts included."""
        product = self._torch.bmm if sample.extents else self._torch.mm
        if sample.problem.dtypes.are_float32:
            return lambda: product(a, b, out=c)
        return lambda: product(a.float(), b.float(), out=c)

    def _tensor(self, make: Any, operand: Meta) -> Any:
        """Return a tensor with this shape and these strides, a view of whole lines that `make` allocates."""
        *batch, rows, columns = operand.shape
        *_, down, right = operand.strides
        if right != 1:
            return make((*batch, columns, max(right, rows)), device=self._device)[..., :rows].mT
        return make((*batch, rows, max(down, columns)), device=self._device)[..., :columns]

    def _nan(self, shape: Sequence[int], device: str) -> Any:
        return self._torch.full(shape, math.nan, device=device)

    def _check(self, sample: Sample, a: Any, b: Any, c: Any, theirs: Any) -> tuple[float, float]:
        """Multiply with both, and return their errors: ||C - C64||_F / ||C64||_F."""
        torch, problem = self._torch, sample.problem
        self._ours(sample, a, b, c)()
        self._cublas(sample, a, b, theirs)()
        rows = torch.randperm(problem.M, device=self._device)[:_CHECKED_ROWS]
        exact = a[..., rows, :].double() @ b.double()
        error, cublas_error = (float((x[..., rows, :].double() - exact).norm() / exact.norm()) for x in (c, theirs))
        whole = c.as_strided((*c.shape[:-1], max(c.stride(-2), problem.N)), c.stride())
        if bool(torch.isnan(c).any()) or not bool(torch.isnan(whole[..., problem.N :]).all()):
            raise WrongResultError(f"{sample}: an element of C was not written, or one beyond a row of C was")
        if not error <= 2 * _UNIT * math.sqrt(problem.K):
            raise WrongResultError(f"{sample}: error {error}")
        return error, cublas_error


def _how(sample: Sample) -> dict[str, Any]:
    """Return the options of a call: 16-bit operands need a precision."""
    return {} if sample.problem.dtypes.are_float32 else {"precision": "ieee"}


def standard_error(times: Sequence[float]) -> float:
    """Return the standard error of the median of `times`, relative to the median.

    It is estimated from the interquartile range, so that one slow run has no effect. For normally distributed times the
    standard deviation is 0.741 of that range, and the standard error of the median is 1.253 standard deviations divided
    by the square root of n.
    """
    lower, median, upper = statistics.quantiles(times, n=4)
    return 1.253 * 0.741 * (upper - lower) / math.sqrt(len(times)) / median


def compile_ahead(gpu: Any, samples: Iterable[Sample]) -> int:
    """Compile the kernels of `samples` into the cache on all cores, and return their number."""
    wanted = {
        launch.kernel
        for sample in samples
        for launch in plan_of(gpu, of_problem(resolve(**_how(sample)), sample.problem), sample.operands).launches
    }
    return len(list(compiler.on_all_cores(lambda one: kernel.cubin(one, gpu.arch), wanted)))
