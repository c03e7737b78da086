"""`sgemm` on the simulated device: the variant, the grid and the arguments of a real launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm import rungs
from fastsgemm.call import checks, dispatch
from fastsgemm.config import Config
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import DIMENSIONS, Batch, Stack, stacks
from fastsgemm.geometry.layout import ITEM, Stored, stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.jit import source
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
    shape = checks.result_shape(A.shape, B.shape, None if C is None else C.shape)
    out = np.empty(shape, np.float32) if C is None else C
    checks.output(out.shape, _strides(out), readonly=not out.flags.writeable)
    rung = checks.config(rung, config, machine.device.shared_limit)
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
    extents, found = stacks(*((x.shape, _strides(x)) for x in (a, b, c)))
    if len(extents) > DIMENSIONS:  # a launch for each index of the first; the report is that of the last
        a, b = (np.broadcast_to(x, c.shape[:-2] + x.shape[-2:]) if x.ndim > 1 else x for x in (a, b))
        for i in range(len(c)):
            one_a, one_b = (x[i] if x.ndim > 1 else x for x in (a, b))
            report = _launch(machine, rung, config, one_a, one_b, alpha, beta, c[i])
        return report
    call = variants.call_for(*(_operand(x, how) for x, how in zip((a, b, c), found, strict=True)), extents)
    rung, config = dispatch.choose_config(machine.device, rung, config, call.problem)
    launch = dispatch.kernel_launch(machine.device.arch, rung, config, call)
    steps, alpha = grid.steps(launch.K, alpha, beta)
    read = bool(steps)
    operands = {
        "A": Region(a, read=read),
        "B": Region(b, read=read),
        "C": Region(c, read=bool(beta), write=True, complete=True),
    }
    kernel = (source.generate(rung, config, launch.variant), rung.kernel)
    shape: tuple[Any, ...] = (launch.grid, config.threads, config.shared_bytes)
    if launch.parts == 1:
        return machine.launch(*kernel, *shape, _packed(launch.arguments("A", "B", "C", steps, alpha, beta)), operands)
    partial_sums = np.empty(launch.partial_sums, np.float32)
    into = {"A": operands["A"], "B": operands["B"], "W": Region(partial_sums, write=True, complete=True)}
    report = machine.launch(*kernel, *shape, _packed(launch.partial_arguments("A", "B", "W", steps)), into)
    reduction = (source.helper("reduce_parts"), rungs.kernel_name("reduce_parts"))
    blocks, threads = grid.reduction_blocks(int(launch.M), int(launch.N), int(launch.parts))
    arguments = _packed(launch.reduction_arguments("W", "C", alpha, beta))
    shape = ((blocks, *launch.grid[1:]), threads, 0)
    machine.launch(*reduction, *shape, arguments, {"W": Region(partial_sums), "C": operands["C"]})
    return report


def _packed(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.packed if isinstance(each, Batch) else each for each in arguments)


def _operand(x: Matrix, lying: Stack) -> Operand:
    how = stored(lying.shape, lying.strides)
    assert how is not None  # `_readable` saw to it
    return Operand(lying.shape, Stored(how.trans, how.ld), misalignment(x) % 16, lying.steps)


def _readable(x: Matrix) -> Matrix:
    """Return `x`, or a row-major copy if it has no unit stride or its address is not a multiple of 4 bytes."""
    shape, strides = ((1, 1, *each)[-2:] for each in (x.shape, _strides(x)))
    as_it_lies = (x.ndim < 2 or stored(shape, strides) is not None) and misalignment(x) % ITEM == 0
    return x if as_it_lies else x.copy(order="C")


def _strides(x: NDArray[Any]) -> tuple[int, ...]:
    return tuple(step // ITEM for step in x.strides)
