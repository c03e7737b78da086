"""The products that a ladder compares, on one set of operands: on a device, or by NumPy on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from fastsgemm import device
from fastsgemm.call.arrays import DeviceArray
from fastsgemm.call.driver import multiply
from fastsgemm.config import Config
from fastsgemm.device import LEGACY_STREAM, Gpu
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import variants
from fastsgemm.heuristics import fp16x3
from fastsgemm.measure import cublas
from fastsgemm.measure.constants import constants_of
from fastsgemm.measure.operands import host_operands, lent, refuse_too_large, views
from fastsgemm.measure.stopwatch import Stopwatch, WallClock, Work
from fastsgemm.problem import Problem, format_problem
from fastsgemm.request import resolve
from fastsgemm.rungs import RUNGS, Rung

_POISON = 0xFF  # four such bytes are a NaN, so elements that a kernel does not write stay NaN
_HOST_SECONDS = 0.5  # approximate time for timing a product on the host
_COPIES = 4.0  # memory of a ladder, in float32 copies of A, B and C: the values, the float64 reference
_HOST_FLOPS = 10**13  # limit of a product on the host: minutes on two cores, and Ctrl-C cannot interrupt NumPy
_ONE, _ZERO = 1.0, 0.0  # alpha and beta

HostProduct = Callable[[Rung | None, np.ndarray, np.ndarray, np.ndarray], object]  # C = A @ B on the host, by a rung


@dataclass(frozen=True)
class Product:
    """One way to compute C = A @ B."""

    name: str  # name of the rung or library, or `NumPy`
    number: int | None  # number of the rung; None for a library
    constants: dict[str, int]  # tile constants of the rung
    work: Work  # runs the product; on a device it only launches it
    precision: str = "ieee"  # as in `Rung`. Only results of `ieee` can have the same bits.
    overridden: str | None = None  # as in `fastsgemm.measure.constants.Constants`


@dataclass(frozen=True)
class Contenders:
    """The operands of one problem, and the products to compare on them."""

    problem: Problem
    where: str  # name of the device, or a description of the host
    clock: str  # what `medians` measures, for the table's heading
    a: np.ndarray  # A and B, in host memory
    b: np.ndarray
    products: tuple[Product, ...]
    baseline: Product | None  # cuBLAS on the same memory; None without PyTorch and CuPy
    result: Callable[[Work], np.ndarray]  # fills C with NaN, runs the work of one product and returns C
    # Runs the work of several products in turns and returns the median time of each, in milliseconds.
    medians: Callable[[Sequence[Work]], list[float]]


def rungs_for(problem: Problem, arch: str) -> tuple[Rung, ...]:
    """Return the default rungs of a ladder: those that suit C and run on this architecture."""
    suitable = (rung for rung in RUNGS if rung.suits(problem.M, problem.N))
    return tuple(rung for rung in suitable if rung.precision == "ieee" or fp16x3.supported(arch))


@contextmanager
def on_device(
    problem: Problem, rungs: Sequence[Rung | None] = (), ordinal: int = 0, overrides: Mapping[str, int] | None = None
) -> Iterator[Contenders]:
    """Prepare the operands and products on a device of this machine.

    Operands are dense and stored as the problem's layout says; C is row-major. A rung of None stands for the one that
    `sgemm` picks by default; without rungs see `rungs_for`. `overrides` has constants by name that replace those of
    the tuning database in all rungs.

    Raises
    ------
    ConfigError
        A rung cannot take the overrides.
    ShapeError
        The problem is a batch, or the operands do not fit into the memory of the host.
    DeviceError
        The device does not exist or cannot be used.
    """
    gpu = device.open_gpu(ordinal, by_name=True)
    refuse_too_large(problem, _COPIES)
    with device.current(gpu), ExitStack() as stack:
        a, b, c = host_operands(problem)
        # A column-major operand is stored in device memory as its row-major transpose.
        lines = [x if x.flags.c_contiguous else x.T for x in (a, b, c)]
        A, B, C = (stack.enter_context(closing(DeviceArray(x.shape, gpu, LEGACY_STREAM))) for x in lines)
        A.upload(lines[0])
        B.upload(lines[1])
        operand_views = views(problem, (A, B, C))

        def launch(rung: Rung | None, config: Config | None) -> None:
            multiply(gpu, LEGACY_STREAM, resolve(rung, config), operand_views, _ONE, _ZERO)

        def result(work: Work) -> np.ndarray:
            C.fill(_POISON)
            work()
            C.download(c)
            return c

        baseline = cublas.product(*lent(problem, (A, B, C)))
        yield Contenders(
            problem=problem,
            where=gpu.name,
            clock="device time, L2 flushed",
            a=a,
            b=b,
            products=tuple(
                _product(gpu, problem, rung, launch, overrides or {}) for rung in rungs or rungs_for(problem, gpu.arch)
            ),
            baseline=Product(baseline.name, None, {}, baseline.work) if baseline else None,
            result=result,
            medians=stack.enter_context(closing(Stopwatch(gpu))).medians,
        )


def _product(
    gpu: Gpu, problem: Problem, rung: Rung | None, launch: Callable[..., object], overrides: Mapping[str, int]
) -> Product:
    """Return the product by a rung with its constants on this device."""
    constants = constants_of(gpu, rung, variants.dense_call(problem).problem, overrides)
    work = partial(launch, rung, constants.config if overrides else None)
    used = constants.rung
    return Product(used.name, used.number, constants.config.constants, work, used.precision, constants.overridden)


@contextmanager
def on_host(problem: Problem, multiply: HostProduct, rungs: Sequence[Rung] = ()) -> Iterator[Contenders]:
    """Prepare the operands and NumPy's product by `multiply`, which raises an error if a rung is named.

    Raises
    ------
    ShapeError
        The problem is a batch, the operands do not fit into memory, or the product takes too long.
    NoDriverError
        A rung was named.
    """
    refuse_too_large(problem, _COPIES)
    if problem.flops > _HOST_FLOPS:
        raise ShapeError(
            f"{format_problem(problem)} takes {problem.flops:.2g} FLOPs, the limit on the host is {_HOST_FLOPS:.2g}; "
            "choose a smaller size"
        )
    a, b, c = host_operands(problem)
    rung = rungs[0] if rungs else None

    def result(work: Work) -> np.ndarray:
        c.fill(np.nan)
        work()
        return c

    work = partial(multiply, rung, a, b, c)
    work()
    yield Contenders(
        problem=problem,
        where="host, no NVIDIA device in use: NumPy's product through sgemm",
        clock="wall time",
        a=a,
        b=b,
        products=(Product("NumPy", None, {}, work),),
        baseline=None,
        result=result,
        medians=partial(WallClock().medians, seconds=_HOST_SECONDS),
    )
