"""`sgemm` on the simulated device: the variant, the grid and the arguments of a real launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm import rungs
from fastsgemm.call import checks
from fastsgemm.config import Config
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.grid import reduction_blocks, split, steps
from fastsgemm.geometry.layout import ITEM, Stored, stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics.choose import choose
from fastsgemm.jit import source
from fastsgemm.problem import Problem
from fastsgemm.rungs import Rung
from fastsgemm.sim.global_memory import Region, misalignment
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

Matrix = NDArray[np.float32]


def sgemm(
    rung: Rung | None,
    config: Config | None,
    A: Matrix,
    B: Matrix,
    alpha: float = 1.0,
    beta: float = 0.0,
    C: Matrix | None = None,
    machine: Machine | None = None,
) -> tuple[Matrix, Report | None]:
    """Compute C <- alpha * A @ B + beta * C by running the kernel of a rung on the simulated device.

    Parameters
    ----------
    rung : Rung or None
        None: the one that `fastsgemm.sgemm` uses when none is named.
    config : Config or None
        Its constants. None: from the tuning database, as for a real device of this name.
    A, B : ndarray of float32
        Row-major, column-major or padded views; one that the kernels cannot read as it lies is copied first.
    alpha, beta : float
    C : ndarray of float32, optional
        Updated in place. Without it the result is a new array.
    machine : Machine, optional
        Default: see `Machine`.

    Returns
    -------
    C : ndarray
    report : Report or None
        None where C has no elements and nothing is launched.

    Raises
    ------
    ConfigError
        The config is not legal for the rung on this architecture.
    ShapeError, OverlapError, OperandError
        The arrays cannot be used as given.
    KernelFault
        The kernel did what it must not do.
    """
    machine = machine or Machine()
    M, N, _ = checks.shapes(A.shape, B.shape, None if C is None else C.shape)
    out = np.empty((M, N), np.float32) if C is None else C
    checks.output(out.shape, _strides(out), readonly=not out.flags.writeable)
    if config is not None:
        rung = rung or rungs.of_config(config)
        rung.check(config, machine.device.shared_limit)
    if out.size == 0:
        return out, None
    a, b, c = (_readable(x) for x in (A, B, out))
    report = _launch(machine, rung, config, a, b, np.float32(alpha), np.float32(beta), c)
    if c is not out:
        out[...] = c
    return out, report


def _launch(
    machine: Machine,
    rung: Rung | None,
    config: Config | None,
    a: Matrix,
    b: Matrix,
    alpha: np.float32,
    beta: np.float32,
    c: Matrix,
) -> Report:
    call = variants.call_for(*(_operand(x) for x in (a, b, c)))
    if rung is None or config is None:
        choice = choose(machine.device, rung, call.problem)
        rung, config = choice.rung, choice.config
    call = variants.call_with_swap_ab(rung, call)
    problem = call.problem
    if call.swap_ab:
        a, b = b.T, a.T
    K, alpha = steps(np.int32(problem.K), alpha, beta)
    operands = {
        "A": Region(a, read=bool(K)),
        "B": Region(b, read=bool(K)),
        "C": Region(c, read=bool(beta), write=True, complete=True),
    }
    text = source.generate(rung, config, variants.variant_for(rung, call, config))
    blocks = grid.blocks(config, problem)
    count, chunk = split(config, problem.K)
    more = (chunk, problem.M * problem.N) if rung.splits else ()
    ab = ("A", call.lda, "B", call.ldb)
    if count == 1:
        args = (problem.M, problem.N, K, alpha, *ab, beta, "C", call.ldc, *more)
        return machine.launch(text, rung.kernel, blocks, config.threads, config.shared_bytes, args, operands)
    parts = np.empty((count * problem.M, problem.N), np.float32)
    into = {"A": operands["A"], "B": operands["B"], "W": Region(parts, write=True, complete=True)}
    args = (problem.M, problem.N, K, 1.0, *ab, 0.0, "W", problem.N, *more)
    report = machine.launch(text, rung.kernel, blocks, config.threads, config.shared_bytes, args, into)
    _add_up(machine, problem, parts, alpha, beta, operands["C"], call.strides_c)
    return report


def _add_up(
    machine: Machine,
    problem: Problem,
    parts: Matrix,
    alpha: np.float32,
    beta: np.float32,
    c: Region,
    strides: tuple[int, int],
) -> None:
    """Launch the second kernel of split-K."""
    M, N = problem.M, problem.N
    count = len(parts) // M
    args = (M, N, count, "W", M * N, alpha, beta, "C", *strides)
    operands = {"W": Region(parts), "C": c}
    blocks, threads = reduction_blocks(M, N, count)
    text, name = source.helper("reduce_parts"), rungs.kernel_name("reduce_parts")
    machine.launch(text, name, blocks, threads, 0, args, operands)


def _operand(x: Matrix) -> Operand:
    how = stored(x.shape, _strides(x))
    assert how is not None  # `_readable` saw to it
    return Operand(x.shape, Stored(how.trans, how.ld), misalignment(x) % 16)


def _readable(x: Matrix) -> Matrix:
    """Return `x`, or a row-major copy where it has no unit stride or lies between two floats."""
    as_it_lies = stored(x.shape, _strides(x)) is not None and misalignment(x) % ITEM == 0
    return x if as_it_lies else x.copy(order="C")


def _strides(x: NDArray[Any]) -> tuple[int, int]:
    return (x.strides[0] // ITEM, x.strides[1] // ITEM)
