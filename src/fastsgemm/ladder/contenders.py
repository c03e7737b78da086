"""Where the ladder is climbed: the first device, or the host where there is none."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from fastsgemm import device
from fastsgemm.call.arrays import DeviceArray
from fastsgemm.call.launch import run
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.gemm import sgemm
from fastsgemm.heuristics.choose import choose
from fastsgemm.measure import cublas
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung

Work = Callable[[], object]

_POISON = 0xFF  # four such bytes are a NaN, and what a kernel forgets to write stays one
_HOST_SECONDS = 0.5  # about how long a product on the host is timed
_LEAST_RUNS, _MOST_RUNS = 5, 100  # of a product on the host
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)  # alpha and beta


@dataclass(frozen=True)
class Product:
    """One way to compute C = A @ B.

    Attributes
    ----------
    name : str
        Of a rung, of a library, or ``NumPy``.
    number : int or None
        Of the rung.
    constants : dict
        The rung's tile constants.
    work : callable
        Launches it, or does it.
    """

    name: str
    number: int | None
    constants: dict[str, int]
    work: Work


@dataclass(frozen=True)
class Contenders:
    """One problem's operands in one place, with the ways to multiply them there.

    Attributes
    ----------
    where : str
        The device, or the host.
    clock : str
        What `medians` measures.
    a, b : numpy.ndarray
        The values of A and B.
    products : tuple of Product
    baseline : Product or None
        cuBLAS on the same memory.
    result : callable
        Poisons C, runs the work of a product and returns C.
    medians : callable
        Runs several in turns and returns the median time of each, in milliseconds.
    """

    where: str
    clock: str
    a: np.ndarray
    b: np.ndarray
    products: tuple[Product, ...]
    baseline: Product | None
    result: Callable[[Work], np.ndarray]
    medians: Callable[[Sequence[Work]], list[float]]


@contextmanager
def on_device(problem: Problem, rungs: Sequence[Rung | None]) -> Iterator[Contenders]:
    """Make ready on the first device.

    Parameters
    ----------
    problem : Problem
        M, N and K; the operands are row-major.
    rungs : sequence of Rung or None
        None: as `sgemm` does it where no rung is named.

    Raises
    ------
    DeviceError
        There is no device that can be used.
    """
    gpu = device.open_gpu(0)
    with ExitStack() as stack:
        if gpu.enter():
            stack.callback(gpu.leave)
        a, b, c = _operands(problem)
        A, B, C = (stack.enter_context(closing(DeviceArray(x.shape, gpu, LEGACY_STREAM))) for x in (a, b, c))
        A.upload(a)
        B.upload(b)
        launch = partial(run, gpu, LEGACY_STREAM, A.view, B.view, C.view, _ONE, _ZERO)

        def product(rung: Rung | None) -> Product:
            found = choose(gpu, rung, problem)
            return Product(found.rung.name, found.rung.number, found.config.constants, partial(launch, rung))

        def result(work: Work) -> np.ndarray:
            C.buffer.fill(_POISON, stream=C.stream)
            work()
            C.download(c)
            return c

        beside = cublas.product(A, B, C)
        yield Contenders(
            where=gpu.name,
            clock="device time, L2 flushed",
            a=a,
            b=b,
            products=tuple(map(product, rungs)),
            baseline=Product(beside.name, None, {}, beside.work) if beside else None,
            result=result,
            medians=stack.enter_context(closing(Stopwatch(gpu))).medians,
        )


@contextmanager
def on_host(problem: Problem, rungs: Sequence[Rung] = ()) -> Iterator[Contenders]:
    """Make ready on the host, where `sgemm` multiplies by NumPy and a rung is an error.

    Parameters
    ----------
    problem : Problem
    rungs : sequence of Rung
        Naming one is the caller's error, which `sgemm` explains.

    Raises
    ------
    NoDriverError
        A rung was named.
    """
    a, b, c = _operands(problem)
    named = rungs[0] if rungs else None

    def result(work: Work) -> np.ndarray:
        c.fill(np.nan)
        work()
        return c

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fastsgemm found no NVIDIA GPU")  # the table's own heading says so
        work = partial(sgemm, a, b, C=c, rung=named)
        work()
        yield Contenders(
            where="host, no NVIDIA GPU in use: NumPy's product through sgemm",
            clock="wall time",
            a=a,
            b=b,
            products=(Product("NumPy", None, {}, work),),
            baseline=None,
            result=result,
            medians=_wall_medians,
        )


def _operands(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((problem.M, problem.K), np.float32)
    b = generator.standard_normal((problem.K, problem.N), np.float32)
    return a, b, np.empty((problem.M, problem.N), np.float32)


def _wall_medians(works: Sequence[Work]) -> list[float]:
    return [_wall_median(work) for work in works]


def _wall_median(work: Work) -> float:
    times: list[float] = []
    end = time.perf_counter() + _HOST_SECONDS
    while len(times) < _LEAST_RUNS or (len(times) < _MOST_RUNS and time.perf_counter() < end):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)
