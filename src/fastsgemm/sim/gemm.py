"""`sgemm` on the simulated device: the variant, the grid and the arguments of a real launch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm import rungs
from fastsgemm.call import arrays, checks, dispatch
from fastsgemm.call.dispatch import Share
from fastsgemm.config import Config
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import ADDRESS_PLACE, DIMENSIONS, BatchAndSource, Source, Stack, stacks
from fastsgemm.geometry.layout import ITEM, Pair, Stored, stored
from fastsgemm.geometry.variants import Call, Operand
from fastsgemm.jit import source as jit_source
from fastsgemm.rungs import Rung
from fastsgemm.sim import fp16x3
from fastsgemm.sim.global_memory import Region, misalignment
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

Matrix = NDArray[np.float32]


def sgemm(
    rung: Rung | None,
    config: Any,
    A: Matrix,
    B: Matrix,
    alpha: float = 1.0,
    beta: float = 0.0,
    C: Matrix | None = None,
    machine: Machine | None = None,
    precision: str = "ieee",
    out: Matrix | None = None,
) -> tuple[Matrix, Report | None]:
    """Compute C <- alpha * A @ B + beta * C by running the kernels of a rung on the simulated device.

    Parameters
    ----------
    rung : Rung or None
        None: the one that `fastsgemm.sgemm` uses when none is named.
    config : Config or None
        Its constants. None: from the tuning database, as for a real device of this name.
    A, B : ndarray of float32
        Matrices, vectors or batches with any strides; one that the kernels cannot read as it lies is copied first.
    alpha, beta : float
    C : ndarray of float32, optional
        Updated in place. Without it the result is a new array.
    machine : Machine, optional
        Default: see `Machine`.
    precision : str
        As in `fastsgemm.sgemm`.
    out : ndarray of float32, optional
        Written in place of C, which broadcasts to its shape and shares no memory with it.

    Returns
    -------
    C : ndarray
        Or `out`.
    report : Report or None
        Of the kernel that multiplies or, if C is cut, computes its first element. None where C has no elements and
        nothing is launched.

    Raises
    ------
    ConfigError
        The config is not legal for the rung on this architecture.
    DTypeError, ShapeError, OverlapError, OperandError
        The arrays cannot be used as given.
    KernelFault
        The kernel did what it must not do.
    """
    machine = machine or Machine()
    source = None if out is None or out is C else C
    target = C if out is None else out
    for name, x in (("A", A), ("B", B), ("C", C), ("out", out)):
        fault = None if x is None else arrays.host_fault(x)
        if fault is not None:
            raise fault(name)
    of_target, of_source = (None if x is None else x.shape for x in (target, source))
    shape = checks.result_shape(A.shape, B.shape, of_target, of_source)
    out = np.empty(shape, np.float32) if target is None else target
    checks.output(out.shape, _strides(out), readonly=not out.flags.writeable)
    precision = rungs.precision_of(rung, precision)
    if precision == "ieee":
        rung = checks.config(rung, config, machine.device.shared_limit)
    if out.size == 0:
        return out, None
    a, b, c = (_readable(x) for x in (A, B, out))
    if source is not None:
        source = np.broadcast_to(source, shape)
    report = None
    if precision == "fp16x3":
        for one_a, one_b, one_c, *rest in _products(a, b, c, source) if alpha and a.shape[-1] else ():
            reports = fp16x3.sgemm(config, one_a, one_b, alpha, beta, one_c, machine, rung is not None, *rest)
            report = next((one for one in reports if one.kernel in fp16x3.PRODUCTS), None)
            if report is None:
                break
        rung = config = None  # what is left is for an IEEE kernel
    if report is None:
        report = _launch(machine, rung, config, a, b, np.float32(alpha), np.float32(beta), c, source)
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
    source: Matrix | None = None,
) -> Report:
    given = [x for x in (a, b, c, source) if x is not None]
    extents, found = stacks(*((x.shape, _strides(x)) for x in given))
    if len(extents) > DIMENSIONS:
        each = (_launch(machine, rung, config, x, y, alpha, beta, *z) for x, y, *z in _products(a, b, c, source))
        return deque(each, maxlen=1)[0]  # the report of the last
    if not extents:  # of vectors or of a batch that shares an operand, too
        a, b, c, *rest = (_as_matrix(x, each) for x, each in zip(given, found, strict=True))
        source = rest[0] if rest else None
    as_they_lie = [_operand(x, how) for x, how in zip((a, b, c), found, strict=False)]
    lying_a, lying_b, lying_c = as_they_lie
    shares = dispatch.choose_shares(machine.device, rung, config, *as_they_lie, extents=extents)
    if source is not None and not all(share.rung.reads_source for share in shares):
        c[...] = source
        source = None
    arrays_a, arrays_b = {lying_a: a}, {lying_b: b}
    if grid.steps(a.shape[-1], alpha, beta)[0]:
        for share in shares:
            for arrays, how, to in ((arrays_a, lying_a, share.a), (arrays_b, lying_b, share.b)):
                if to.padded:
                    arrays[to] = _packed(machine, arrays[how], how, to)
    lying = None if source is None else Source(found[3].strides, found[3].steps, misalignment(source) % 16)
    for share in shares:
        blocks = share.operands(lying_c)
        call = variants.call_for(*blocks, extents=extents, source=lying and lying.block(share.firsts[2]))
        own = arrays_a.get(share.a, a), arrays_b.get(share.b, b), c, source
        if len(shares) > 1:
            own = _of_share(share, blocks, *own)
        one = _launch_share(machine, share, call, alpha, beta, *own)
        if share.firsts[2] == (0, 0):
            report = one
    return report


def _of_share(
    share: Share, blocks: tuple[Operand, ...], a: Matrix, b: Matrix, c: Matrix, source: Matrix | None
) -> tuple[Matrix, Matrix, Matrix, Matrix | None]:
    """Return what a share reads of A, B and the source, and writes of C."""
    of_a, of_b, (row, column) = share.firsts
    part_c = _block(c, blocks[2], (row, column))
    read = None if source is None else source[row:, column:][: part_c.shape[0], : part_c.shape[1]]
    return _block(a, blocks[0], of_a), _block(b, blocks[1], of_b), part_c, read


def _block(x: Matrix, block: Operand, first: Pair) -> Matrix:
    """Return a block of a matrix, or of the lines that `_packed` returned."""
    (m, n), (rows, columns) = first, block.shape
    if not block.padded:
        return x[m : m + rows, n : n + columns]
    return x[n : n + columns, m : m + block.line] if block.how.trans else x[m : m + rows, n : n + block.line]


def _launch_share(
    machine: Machine,
    share: Share,
    call: Call,
    alpha: np.float32,
    beta: np.float32,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    source: Matrix | None,
) -> Report:
    rung, config = share.rung, share.config
    launch = dispatch.kernel_launch(machine.device.arch, rung, config, call)
    steps, alpha = grid.steps(launch.K, alpha, beta)
    read = bool(steps)
    operands = {
        "A": Region(a, read=read),
        "B": Region(b, read=read),
        "C": Region(c, read=bool(beta) and source is None, write=True, complete=True),
    }
    read_for_beta = {} if source is None else {"S": Region(source, read=bool(beta))}
    kernel, name = jit_source.generate(rung, config, launch.variant), rung.kernel
    shape = (launch.grid, config.threads, config.shared_bytes)
    if launch.parts == 1:
        arguments = _arguments(launch.arguments("A", "B", "C", steps, alpha, beta, "S"))
        return machine.launch(kernel, name, *shape, arguments, operands | read_for_beta)
    partial_sums = np.empty(launch.partial_sums, np.float32)
    into = {"A": operands["A"], "B": operands["B"], "W": Region(partial_sums, write=True, complete=True)}
    arguments = _arguments(launch.partial_arguments("A", "B", "W", steps))
    report = machine.launch(kernel, name, *shape, arguments, into)
    reduction = (
        jit_source.helper(launch.reduction, **launch.reduction_constants), rungs.kernel_name(launch.reduction),
    )  # fmt: skip
    M, N, parts = int(launch.M), int(launch.N), int(launch.parts)
    blocks, threads = grid.reduction_blocks(M, N, parts, in_order=config.segment > 0)
    arguments = _arguments(launch.reduction_arguments("W", "C", alpha, beta, "S"))
    grid_of_sums = (blocks, *launch.grid[1:])
    into = {"W": Region(partial_sums), "C": operands["C"]} | read_for_beta
    machine.launch(*reduction, grid_of_sums, threads, 0, arguments, into, early=True)
    return report


def _packed(machine: Machine, x: Matrix, how: Operand, to: Operand) -> Matrix:
    """Return an operand packed, as lines with what pads them."""
    launch = dispatch.pack_launch(how, to)
    lines = np.empty((launch.lines, launch.to_line), np.float32)[:, : to.line]
    kernel = (jit_source.helper("pack"), rungs.kernel_name("pack"))
    into = {"X": Region(x), "Y": Region(lines, write=True, complete=True)}
    machine.launch(*kernel, (launch.blocks,), launch.threads, 0, launch.arguments("X", "Y"), into)
    return lines


def _products(a: Matrix, b: Matrix, c: Matrix, source: Matrix | None = None) -> Iterator[tuple[Matrix, ...]]:
    """Return views of A, B, C and, if there is one, the source for each product of a batch."""
    results = [c] if source is None else [c, source]
    if b.ndim == 1:
        b, results = b[:, np.newaxis], [x[..., np.newaxis] for x in results]
    if a.ndim == 1:
        a, results = a[np.newaxis], [x[..., np.newaxis, :] for x in results]
    batch = results[0].shape[:-2]
    a, b = (np.broadcast_to(x, batch + x.shape[-2:]) for x in (a, b))
    for index in np.ndindex(batch):
        yield tuple(x[index] for x in (a, b, *results))


def _arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with the last one, a batch with or without a source, as the kernel reads it."""
    *others, last = arguments
    if isinstance(last, BatchAndSource):
        return (*others, (last.packed(0), ADDRESS_PLACE, last.address))
    return (*others, last.packed)


def _as_matrix(x: Matrix, lying: Stack) -> Matrix:
    """Return the one matrix of a stack."""
    return np.lib.stride_tricks.as_strided(x, lying.shape, tuple(ITEM * stride for stride in lying.strides))


def _operand(x: Matrix, lying: Stack) -> Operand:
    how = stored(lying.shape, lying.strides)
    assert how is not None  # `_readable` saw to it
    return Operand(lying.shape, Stored(how.trans, how.ld), misalignment(x) % 16, lying.steps)


def _readable(x: Matrix) -> Matrix:
    """Return `x`, or a row-major copy if it has no unit stride."""
    shape, strides = ((1, 1, *each)[-2:] for each in (x.shape, _strides(x)))
    return x if x.ndim < 2 or stored(shape, strides) is not None else x.copy(order="C")


def _strides(x: NDArray[Any]) -> tuple[int, ...]:
    return tuple(step // ITEM for step in x.strides)
