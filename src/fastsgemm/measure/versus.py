"""Compares `sgemm` with cuBLAS on the same operands: checks both against float64, then times them in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastsgemm.call.product import plan_of
from fastsgemm.errors import FastsgemmError
from fastsgemm.geometry.layout import Meta
from fastsgemm.heuristics.choice import choose
from fastsgemm.jit import compiler, kernel
from fastsgemm.measure.problem_sets import Sample, size_class
from fastsgemm.measure.reference import largest_error
from fastsgemm.measure.stopwatch import Clock, Work, standard_error
from fastsgemm.problem import as_data
from fastsgemm.request import of_problem, resolve

_CHECKED_ROWS = 2048  # most rows of each C that are compared


class WrongResultError(FastsgemmError, RuntimeError):
    """A result is wrong, so it is not timed."""


@dataclass(frozen=True)
class Versus:
    """Times `sgemm` and `torch.mm` or `torch.bmm`, which call cuBLAS, on the same tensors."""

    torch: Any  # the module, with TF32 turned off
    device: str  # in PyTorch's spelling
    gpu: Any
    stopwatch: Clock
    sgemm: Callable[..., object]

    def row(self, sample: Sample, seconds: float) -> dict[str, Any]:
        """Check and time one sample, each library for about `seconds`; return the results as plain data.

        Raises
        ------
        WrongResultError
            `sgemm` left an element of C unwritten, wrote past the end of a row, or has more than rounding errors.
        """
        torch = self.torch
        torch.manual_seed(0)
        a, b = (
            self.tensor(torch.randn, operand).to(getattr(torch, operand.dtype.numpy_name))
            for operand in sample.operands[:2]
        )
        if sample.problem.symmetric:
            b = a.mT
        c, c_cublas = (self.tensor(self.nan, sample.operands[2]) for _ in range(2))
        error, cublas_error = self._check(sample, a, b, c, c_cublas)
        times = self.stopwatch.samples([self._ours(sample, a, b, c), self._cublas(sample, a, b, c_cublas)], seconds)
        ms, cublas_ms = map(statistics.median, times)
        operand_a, operand_b, operand_c = sample.described
        request = of_problem(resolve(**_options(sample)), sample.problem)
        choice = choose(self.gpu, request, operand_a, operand_b, operand_c, sample.extents)
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

    def _ours(self, sample: Sample, a: Any, b: Any, c: Any) -> Work:
        """Return the timed call of `sgemm`."""
        sgemm, options = self.sgemm, _options(sample)
        if not options:
            return lambda: sgemm(a, b, C=c)
        return lambda: sgemm(a, b, C=c, **options)

    def _cublas(self, sample: Sample, a: Any, b: Any, c: Any) -> Work:
        """Return the timed call of cuBLAS, which includes casts of 16-bit operands to float32."""
        product = self.torch.bmm if sample.extents else self.torch.mm
        if sample.problem.dtypes.are_float32:
            return lambda: product(a, b, out=c)
        return lambda: product(a.float(), b.float(), out=c)

    def tensor(self, make: Any, operand: Meta) -> Any:
        """Return a tensor with this shape and these strides, a view of whole lines that `make` allocates."""
        *batch, rows, columns = operand.shape
        *_, down, right = operand.strides
        if right != 1:
            return make((*batch, columns, max(right, rows)), device=self.device)[..., :rows].mT
        return make((*batch, rows, max(down, columns)), device=self.device)[..., :columns]

    def nan(self, shape: Sequence[int], device: str) -> Any:
        """Return a tensor of NaNs."""
        return self.torch.full(shape, math.nan, device=device)

    def _check(self, sample: Sample, a: Any, b: Any, c: Any, c_cublas: Any) -> tuple[float, float]:
        """Multiply with both, and return their errors: ||C - C64||_F / ||C64||_F."""
        torch, problem = self.torch, sample.problem
        self._ours(sample, a, b, c)()
        self._cublas(sample, a, b, c_cublas)()
        error_of = errors_against_float64(torch, a, b)
        error, cublas_error = error_of(c), error_of(c_cublas)
        padded_c = c.as_strided((*c.shape[:-1], max(c.stride(-2), problem.N)), c.stride())
        if bool(torch.isnan(c).any()) or not bool(torch.isnan(padded_c[..., problem.N :]).all()):
            raise WrongResultError(f"{sample}: an element of C was not written, or one beyond a row of C was")
        if not error <= largest_error(problem.K):
            raise WrongResultError(f"{sample}: error {error}")
        return error, cublas_error


def errors_against_float64(torch: Any, a: Any, b: Any, max_rows: int = _CHECKED_ROWS) -> Callable[[Any], float]:
    """Return a function for the error of C = A B: ||C - C64||_F / ||C64||_F on some rows, or NaN if C has a NaN."""
    rows = torch.randperm(a.shape[-2], device=a.device)[:max_rows]
    exact = a[..., rows, :].double() @ b.double()
    norm = exact.norm()
    return lambda c: math.nan if bool(c.isnan().any()) else float((c[..., rows, :].double() - exact).norm() / norm)


def _options(sample: Sample) -> dict[str, Any]:
    """Return the options of a call: 16-bit operands need a precision."""
    return {} if sample.problem.dtypes.are_float32 else {"precision": "ieee"}


def compile_ahead(gpu: Any, samples: Iterable[Sample]) -> int:
    """Compile the kernels of `samples` into the cache on all cores, and return their number."""
    kernels = {
        launch.kernel
        for sample in samples
        for launch in plan_of(gpu, of_problem(resolve(**_options(sample)), sample.problem), sample.operands).launches
    }
    return len(list(compiler.on_all_cores(lambda source_kernel: kernel.cubin(source_kernel, gpu.arch), kernels)))
