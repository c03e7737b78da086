#!/usr/bin/env python3
"""Time the best algorithm of cublasLt beside cuBLAS, whose heuristics choose one, and `sgemm`, on ten problems.

    python3 tests/benchmarks/cublaslt.py [--json FILE] [--seconds 2]

The heuristics of cublasLt name configs of each algorithm that it has for FP32, with TF32 off and at most 64 MiB of
workspace. Configs that other values of their attributes would give are not tried. Each is compared with float64, then
timed a few times; the three quickest are timed again, in turns with the others. L2 is flushed before each run. Needs a
device and PyTorch, which loads cuBLAS; takes less than 40 seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

import one_order  # noqa: E402

from fastsgemm import device, sgemm  # noqa: E402
from fastsgemm.errors import FastsgemmError  # noqa: E402
from fastsgemm.measure import cublas, suite  # noqa: E402
from fastsgemm.measure.problem_sets import Sample  # noqa: E402
from fastsgemm.measure.reference import largest_error  # noqa: E402
from fastsgemm.measure.stopwatch import Stopwatch  # noqa: E402
from fastsgemm.measure.versus import compile_ahead, errors_against_float64  # noqa: E402
from fastsgemm.problem import Problem, as_data, format_problem  # noqa: E402
from fastsgemm.tuning import first_use  # noqa: E402

Work = Callable[[], object]

PROBLEMS = (
    *(Problem(n, n, n) for n in (1024, 4096, 8192)),
    Problem(4096, 4096, 4096, "NT"),
    Problem(4096, 4096, 4096, "TN"),
    Problem(4095, 4097, 4093),
    Problem(16, 4096, 4096),
    Problem(4096, 32, 4096),
    Problem(100000, 96, 96),
    Problem(64, 64, 65536),
)
WORKSPACE = 64 << 20  # bytes
ASKED = 200  # configs, at most, of all algorithms and of each
RUNS = 5  # of a config in the first pass; one that takes twice as long as the best gets a single run
FINAL = 3  # configs of the second pass
SECONDS = 0.15  # of the second pass, for each call
FLUSHES = 2  # of L2 before each run: the device is busy for longer than the host takes to launch

# Values of cublasLt.h and of library_types.h.
FLOAT, COMPUTE_32F = 0, 68
TRANSA, TRANSB = 3, 4
SEARCH_MODE, MAX_WORKSPACE = 0, 1
LIMITED_BY_ALGO_ID = 1


class Algorithm(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``: an algorithm and the values of its attributes."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class Result(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Refused(Exception):
    """cublasLt returned a status that is not success."""


class CublasLt:
    """cublasLt for FP32 products; `workspace` is the address of `WORKSPACE` bytes."""

    def __init__(self, library: Any, workspace: int) -> None:
        self._library, self._workspace = library, workspace
        self._handle = self._created("Create")

    def works(self, a: Any, b: Any, c: Any) -> list[Work]:
        """Return a call for each config, which writes A B to C; the first choice of the heuristics comes first."""
        # cublasLt reads column-major matrices. A row-major C is C^T = B^T A^T to it, so its first operand is our B.
        product, layouts = self._created("MatmulDescCreate", COMPUTE_32F, FLOAT), []
        for x, transposed in ((b, TRANSA), (a, TRANSB), (c, None)):
            rows, columns, leading, is_transposed = stored(x)
            extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(leading))
            layouts.append(self._created("MatrixLayoutCreate", FLOAT, *extents))
            if transposed is not None:
                self._set("MatmulDesc", product, transposed, ctypes.c_int32(is_transposed))
        of_b, of_a, of_c = layouts
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        at_a, at_b, at_c = (c_void_p(x.data_ptr()) for x in (a, b, c))
        operands = (byref(one), at_b, of_b, at_a, of_a, byref(zero), at_c, of_c, at_c, of_c)
        memory = (c_void_p(self._workspace), ctypes.c_size_t(WORKSPACE), c_void_p())  # and the legacy default stream

        def work(result: Result) -> Work:
            arguments = (self._handle, product, *operands, byref(result.algorithm), *memory)
            return lambda: self._call("Matmul", *arguments)

        return [work(result) for result in self._results((product, of_b, of_a, of_c, of_c))]

    def _results(self, described: Sequence[Any]) -> list[Result]:
        """Return the configs that the heuristics name: for the product, then for each algorithm, each once."""
        preference = self._created("MatmulPreferenceCreate")
        self._set("MatmulPreference", preference, MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        asked = (*described, preference)
        found = [*self._named(asked, Algorithm())]
        self._set("MatmulPreference", preference, SEARCH_MODE, ctypes.c_uint32(LIMITED_BY_ALGO_ID))
        types = (COMPUTE_32F, *[FLOAT] * 5)  # of the sum, of alpha and beta, of A, B, C and D
        numbers, count = (ctypes.c_int * ASKED)(), ctypes.c_int()
        self._call("MatmulAlgoGetIds", self._handle, *types, ASKED, numbers, byref(count))
        for number in numbers[: count.value]:
            algorithm = Algorithm()
            self._call("MatmulAlgoInit", self._handle, *types, number, byref(algorithm))
            found += self._named(asked, algorithm)
        return [*{bytes(result.algorithm): result for result in found}.values()]

    def _named(self, asked: Sequence[Any], algorithm: Algorithm) -> Iterator[Result]:
        """Yield the configs that the heuristics name, if the preference says so for this algorithm."""
        results, count = (Result * ASKED)(*[Result(algorithm)] * ASKED), ctypes.c_int()
        try:
            self._call("MatmulAlgoGetHeuristic", self._handle, *asked, ASKED, results, byref(count))
        except Refused:  # it has none
            return
        yield from (result for result in results[: count.value] if result.state == 0)

    def _created(self, name: str, *arguments: Any) -> c_void_p:
        made = c_void_p()
        self._call(name, byref(made), *arguments)
        return made

    def _set(self, kind: str, what: c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(f"{kind}SetAttribute", what, attribute, byref(value), size)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise Refused(f"cublasLt{name} returned status {status}")


def stored(x: Any) -> tuple[int, int, int, bool]:
    """Return rows, columns and leading dimension of what column-major order sees, and whether that is X, not X^T."""
    if x.stride(1) == 1:
        return x.shape[1], x.shape[0], x.stride(0), False
    return x.shape[0], x.shape[1], x.stride(1), True


def first_pass(
    works: Sequence[Work], is_right: Callable[[Work], bool], stopwatch: Any, seconds: float
) -> list[tuple[float, Work]]:
    """Return each work that is right with its time in ms, the quickest first. None is begun after `seconds`."""
    timed: list[tuple[float, Work]] = []
    end = time.perf_counter() + seconds
    for work in works:
        if time.perf_counter() > end:
            break
        if is_right(work):
            ms = stopwatch.once(work, FLUSHES)
            if ms < 2 * min((best for best, _ in timed), default=math.inf):
                ms = min(ms, *(stopwatch.once(work, FLUSHES) for _ in range(RUNS - 1)))
            timed.append((ms, work))
    return sorted(timed, key=lambda one: one[0])


def row(torch: Any, lt: CublasLt, stopwatch: Any, problem: Problem, seconds: float, device: str = "cuda") -> Any:
    """Check and time one problem: by cuBLAS, by `sgemm` and by the best config of cublasLt."""
    a, b = one_order.operands(torch, problem, device)
    c = torch.empty((problem.M, problem.N), device=device)
    error, most = errors_against_float64(torch, a, b), largest_error(problem.K)

    def is_right(work: Work) -> bool:
        c.fill_(math.nan)
        try:
            work()
        except Refused:
            return False
        return error(c) <= most

    beside: list[Work] = [lambda: torch.mm(a, b, out=c), lambda: sgemm(a, b, C=c)]
    configs = lt.works(a, b, c)
    tried = first_pass(configs, is_right, stopwatch, seconds)
    if not (tried and all(map(is_right, beside))):
        raise ValueError(f"{format_problem(problem)}: a result is wrong, or cublasLt has no algorithm")
    final = [*beside, *(work for _, work in tried[:FINAL])]
    cublas_ms, ms, *lt_ms = stopwatch.medians(final, SECONDS, FLUSHES)
    found = {"cublas_ms": cublas_ms, "lt_ms": min(lt_ms), "ms": ms, "configs": len(configs)}
    return as_data(problem) | found | {"first_pass_ms": [once for once, _ in tried]}


def line(row: dict[str, Any]) -> str:
    """Return a row as it is printed: times in microseconds, and the speed of `sgemm` relative to both others."""
    problem = format_problem(Problem(row["M"], row["N"], row["K"], row["layout"]))
    cublas_ms, lt_ms, ms = row["cublas_ms"], row["lt_ms"], row["ms"]
    times = f"{1e3 * cublas_ms:10.1f}{1e3 * lt_ms:10.1f}{1e3 * ms:10.1f}{cublas_ms / ms:8.2f}{lt_ms / ms:8.2f}"
    return f"{problem:20}{times}{len(row['first_pass_ms']):8} of {row['configs']}"


def measure(seconds: float) -> dict[str, Any]:
    """Print and return a row for each problem, and where and when they were measured."""
    torch = suite.import_torch()
    library = cublas.loaded("cublasLt")
    if library is None:
        sys.exit("PyTorch has loaded no cublasLt")
    gpu = first_use.open_device(0)
    print(f"{gpu.name}, cuBLAS {cublas.version()}; times in us, then the speed of sgemm relative to both")
    print(f"{'':20}{'cuBLAS':>10}{'cublasLt':>10}{'sgemm':>10}{'cuBLAS':>8}{'Lt':>8} configs")
    rows = []
    with device.current(gpu), closing(Stopwatch(gpu)) as stopwatch:
        compile_ahead(gpu, [*map(Sample, PROBLEMS)])
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")
        lt = CublasLt(library, workspace.data_ptr())
        for problem in PROBLEMS:
            rows.append(row(torch, lt, stopwatch, problem, seconds))
            print(line(rows[-1]), flush=True)
    return suite.about(gpu, torch) | {"rows": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for all times")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the first pass of a problem")
    given = parser.parse_args(arguments)
    try:
        found = measure(given.seconds)
    except FastsgemmError as error:
        sys.exit(str(error))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
