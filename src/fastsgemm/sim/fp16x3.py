"""Rung 11 on the simulated device: split A and B, multiply, add the parts of K, and guard, as a device runs them.

Tiles, parts of K and grids are those of `fastsgemm.geometry.fp16x3`, as on a device. The operands are split whole; a
device may split them in panels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm.config import Fp16x3Config
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import splitting
from fastsgemm.geometry.batch import Source
from fastsgemm.geometry.fp16x3 import LINE_BYTES, SPARSE, TileConfig, Tiling
from fastsgemm.geometry.layout import ITEM, Stored, line_vector, stored
from fastsgemm.geometry.splitting import Side, SideArguments
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.jit import source as jit_source
from fastsgemm.problem import Problem
from fastsgemm.rungs import kernel_name
from fastsgemm.sim.global_memory import Region, misalignment
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

HALVES = LINE_BYTES // 2  # FP16 numbers of a line in a block of k: 32 hi, 32 lo
PRODUCTS = (kernel_name("11_fp16x3.cu"), kernel_name("11_fp16x3_mma.cu"))

_INFOS = ("info_a", "info_b")  # names of the arrays of A and of B
_GUARD_BLOCKS = 4  # any number is right; a device uses one an SM

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class SplitOperand:
    """An operand as pairs of FP16 numbers. A line is a row of A or a column of B.

    Attributes
    ----------
    pairs : array of uint16, shape (blocks of 32 steps of k, lines, 64)
        The bits of 32 hi and then 32 lo, swizzled, and zeros up to an even number of blocks.
    info : array of int32, shape (lines, 2)
        The exponent of each line and how many elements were left out.
    where : array of int32, shape (lines, 4)
        Where along K those elements are, in any order.
    K : int
    """

    pairs: NDArray[np.uint16]
    info: NDArray[np.int32]
    where: NDArray[np.int32]
    K: int


def source_of(file: str, constants: Mapping[str, int]) -> str:
    """Return the source of a kernel with these constants, and its defaults for the others."""
    return jit_source.with_constants(file, {**jit_source.defaults(file), **constants})


def split(
    matrices: Sequence[Matrix], machine: Machine, early: bool = False
) -> tuple[list[SplitOperand], tuple[Report, ...]]:
    """Split one operand, or two in one launch; return their split forms and the reports of the kernels.

    Parameters
    ----------
    matrices : sequence of ndarray of float32, shape (lines, K)
        A, or the transpose of B. Either dimension has unit stride.
    machine : Machine
    early : bool
        Another kernel of the same product comes before; see `Machine.launch`.
    """
    K = matrices[0].shape[1]
    device = machine.device
    clusters, multiprocessors = splitting.has_clusters(device.arch), device.multiprocessors
    results = [_unwritten(X.shape[0], K) for X in matrices]
    hows = [_stored(X) for X in matrices]
    sides = [
        Side(how.trans, line_vector(how.ld, misalignment(X)), X.shape[0]) for how, X in zip(hows, matrices, strict=True)
    ]
    order = sorted(range(len(sides)), key=lambda number: sides[number].order)
    reports: list[Report] = []
    given: list[SideArguments] = []
    operands: dict[str, Region] = {}
    for number in order:
        X, result, side = matrices[number], results[number], sides[number]
        parts = splitting.maxima_parts(side, K, clusters, multiprocessors)
        names = SideArguments(
            lines=side.lines, X=f"X_{number}", ldx=hows[number].ld, maxima=f"maxima_{number}" if parts else 0,
            maxima_parts=parts, pairs=f"pairs_{number}", info=f"info_{number}", where=f"where_{number}",
        )  # fmt: skip
        if parts:
            maxima = np.empty(parts * side.lines, np.uint32)
            reports.append(_find_maxima(names, side.vec, X, result.info, maxima, machine, early))
            early = True
            operands[names.maxima] = Region(maxima)
        operands |= {
            names.X: Region(X), names.pairs: Region(result.pairs, read=False, write=True, complete=True),
            names.info: Region(result.info, write=True), names.where: Region(result.where, read=False, write=True),
        }  # fmt: skip
        given.append(names)
    ordered = [sides[number] for number in order]
    launch = splitting.split_launch(ordered, K, clusters, multiprocessors, device.shared_limit)
    report = machine.launch(
        source_of("split.cu", launch.constants), kernel_name("split"), launch.blocks, splitting.SPLIT_THREADS,
        launch.shared_bytes, launch.arguments(K, *given), operands, early=early,
    )  # fmt: skip
    return results, (*reports, report)


def _find_maxima(
    names: SideArguments,
    vec: int,
    X: Matrix,
    info: NDArray[np.int32],
    maxima: NDArray[np.uint32],
    machine: Machine,
    early: bool,
) -> Report:
    """Launch ``column_maxima``."""
    operands = {
        names.X: Region(X), names.info: Region(info, write=True),
        names.maxima: Region(maxima, read=False, write=True, complete=True),
    }  # fmt: skip
    return machine.launch(
        source_of("column_maxima.cu", {"VEC": vec}), kernel_name("column_maxima"),
        splitting.maxima_grid(names.lines, names.maxima_parts), splitting.MAXIMA_THREADS, 0,
        names.of_maxima(X.shape[1]), operands, early=early,
    )  # fmt: skip


def _unwritten(lines: int, K: int) -> SplitOperand:
    """Return the arrays of a split operand with what memory may hold before."""
    return SplitOperand(
        np.empty((geometry.stored_blocks(K), lines, HALVES), np.uint16),
        np.full((lines, 2), -1, np.int32),
        np.full((lines, SPARSE), -1, np.int32),
        K,
    )


def _stored(X: Matrix) -> Stored:
    how = stored(X.shape, (X.strides[0] // X.itemsize, X.strides[1] // X.itemsize))
    assert how is not None  # one of the dimensions has unit stride
    return how


def sgemm(
    config: TileConfig | None,
    A: Matrix,
    B: Matrix,
    alpha: float,
    beta: float,
    C: Matrix,
    machine: Machine,
    forced: bool,
    source: Matrix | None = None,
) -> tuple[Report, ...]:
    """Compute C <- alpha * A @ B + beta * C by rung 11, as it is chosen and launched on a device of this name.

    Parameters
    ----------
    config : Fp16x3Config, Fp16x3MmaConfig or None
        None: chosen for the problem.
    A, B : ndarray of float32
        K > 0. Each has a dimension of unit stride.
    alpha, beta : float
        alpha is not 0.
    C : ndarray of float32
        Row-major or column-major; updated in place.
    machine : Machine
    forced : bool
        Rung 11 even where an IEEE kernel is quicker.
    source : ndarray of float32, optional
        What is read in place of C, with the shape of C and any strides.

    Returns
    -------
    tuple of Report
        Of all kernels, in the order of their launches; empty where an IEEE kernel is the choice and C is unchanged.

    Raises
    ------
    ConfigError
        The config is not legal on this architecture.
    DeviceError
        Rung 11 was asked for and the architecture is too old.
    """
    how = stored(C.shape, (C.strides[0] // C.itemsize, C.strides[1] // C.itemsize))
    if how is not None and how.trans:
        return sgemm(config, B.T, A.T, alpha, beta, C.T, machine, forced, None if source is None else source.T)
    device = machine.device
    if forced:
        heuristics.require_tensor_cores(device)
    problem = Problem(C.shape[0], C.shape[1], A.shape[1], _layout(A) + _layout(B))
    if config is None:
        choice = heuristics.choose(device, problem, forced=forced)
        if choice.config is None:
            return ()
        config, swap_ab = choice.config, choice.trans_c
    else:
        heuristics.check_config(device, config)
        swap_ab = heuristics.orientation(device, problem, config)
    return multiply(A, B, alpha, beta, C, config, machine, swap_ab, source)


def _layout(X: Matrix) -> str:
    how = stored(X.shape, (X.strides[0] // X.itemsize, X.strides[1] // X.itemsize))
    return "T" if how is not None and how.trans else "N"


def multiply(
    A: Matrix,
    B: Matrix,
    alpha: float,
    beta: float,
    C: Matrix,
    config: TileConfig,
    machine: Machine | None = None,
    swap_ab: bool = False,
    source: Matrix | None = None,
) -> tuple[Report, ...]:
    """Compute C <- alpha * A @ B + beta * C by the kernels of rung 11.

    Parameters
    ----------
    A, B : ndarray of float32
        Row-major, column-major or padded views.
    alpha, beta : float
    C : ndarray of float32
        Row-major; updated in place.
    config : Fp16x3Config or Fp16x3MmaConfig
        Of the kernel with wgmma, or of that with mma.sync.
    machine : Machine, optional
    swap_ab : bool
        Compute the transpose: the kernel's rows are the columns of C.
    source : ndarray of float32, optional
        What is read in place of C, with the shape of C and any strides.

    Returns
    -------
    tuple of Report
        Of all kernels, in the order of their launches.
    """
    machine = machine or Machine()
    (a, b), before = split([A, B.T], machine)
    exceptions, reports = product(a, b, alpha, beta, C, config, machine, swap_ab, source=source)
    t = _tiling(config, C, A.shape[1], swap_ab, machine)
    guarding = guard(A, B, a, b, alpha, beta, C, exceptions, t, machine, source)
    return (*before, *reports, guarding)


def product(
    a: SplitOperand,
    b: SplitOperand,
    alpha: float,
    beta: float,
    C: Matrix,
    config: TileConfig,
    machine: Machine,
    swap_ab: bool = False,
    text: str | None = None,
    source: Matrix | None = None,
) -> tuple[NDArray[np.int32], tuple[Report, ...]]:
    """Compute all of the product but what the guard does; return what the guard looks at, and the reports.

    See `multiply` for the parameters.

    Parameters
    ----------
    text : str, optional
        The source of the product's kernel, where it is not that of the package.
    """
    t = _tiling(config, C, a.K, swap_ab, machine)
    W = np.zeros((t.parts if t.parts > 1 else 0, t.M, t.ldw), np.float32)
    target, into = (C, C) if t.parts == 1 else (W[0], W)
    ldc = target.strides[0] // C.itemsize
    vec_c = 1 if swap_ab else line_vector(ldc, misalignment(target))
    file = geometry.file_of(config)
    if text is None:
        read = 0 if t.parts > 1 else _together(source, vec_c)
        text = source_of(file, {**config.compiled, "TRANS_C": int(swap_ab), "VEC_C": vec_c, "SOURCE": read})
    exceptions = np.empty(t.tiles, np.int32)
    operands = {
        "pairs_a": Region(a.pairs), "pairs_b": Region(b.pairs), "info_a": Region(a.info), "info_b": Region(b.info),
        "exceptions": Region(exceptions, read=False, write=True, complete=True),
        **_old_and_new(into, beta if t.parts == 1 else 0.0, source if t.parts == 1 else None),
    }  # fmt: skip
    arch = "sm_90a" if isinstance(config, Fp16x3Config) else None
    place = _place(source if t.parts == 1 else None)
    args = t.product_arguments(("pairs_a", "pairs_b"), _INFOS, alpha, beta, ("C", ldc), "exceptions", place)
    report = machine.launch(
        text, kernel_name(file), t.grid, config.threads, config.shared_bytes, args, operands, arch=arch, early=True
    )
    if t.parts == 1:
        return exceptions, (report,)
    return exceptions, (report, _reduce(W, t, a, b, alpha, beta, C, machine, source))


def _tiling(config: TileConfig, C: Matrix, K: int, swap_ab: bool, machine: Machine) -> Tiling:
    return geometry.tiling(config, C.shape[0], C.shape[1], K, swap_ab, machine.device.multiprocessors)


def _reduce(
    W: Matrix,
    t: Tiling,
    a: SplitOperand,
    b: SplitOperand,
    alpha: float,
    beta: float,
    C: Matrix,
    machine: Machine,
    source: Matrix | None,
) -> Report:
    ldc = C.strides[0] // C.itemsize
    vec_c = line_vector(ldc, misalignment(C))
    text = source_of("reduce_fp16x3.cu", {"VEC_C": vec_c, "SOURCE": _together(source, vec_c)})
    args = t.reduction_arguments("W", _INFOS, alpha, beta, ("C", ldc), _place(source))
    operands = {
        "W": Region(W), "info_a": Region(a.info), "info_b": Region(b.info), **_old_and_new(C, beta, source),
    }  # fmt: skip
    grid, block = t.reduction_blocks, geometry.REDUCE_THREADS
    return machine.launch(text, kernel_name("reduce_fp16x3"), grid, block, 0, args, operands, early=True)


def guard(
    A: Matrix,
    B: Matrix,
    a: SplitOperand,
    b: SplitOperand,
    alpha: float,
    beta: float,
    C: Matrix,
    exceptions: NDArray[np.int32],
    t: Tiling,
    machine: Machine,
    source: Matrix | None = None,
) -> Report:
    """Compute what the split left out.

    Parameters
    ----------
    A, B, a, b, alpha, beta, C, machine, source
        See `multiply` and `product`.
    exceptions : array of int32
        From `product`.
    t : Tiling
        Of the product.
    """
    strides = [stride // ITEM for stride in (*A.strides, *B.strides)]
    left_out = (("info_a", "where_a"), ("info_b", "where_b"))
    into = ("C", C.strides[0] // ITEM)
    args = t.guard_arguments(
        A.shape[1], ("A", *strides[:2]), ("B", *strides[2:]), left_out, alpha, beta, into, "exceptions", _place(source)
    )
    operands = {
        "A": Region(A), "B": Region(B), "exceptions": Region(exceptions),
        "info_a": Region(a.info), "where_a": Region(a.where),
        "info_b": Region(b.info), "where_b": Region(b.where), **_old_and_new(C, beta, source),
        "C": Region(C, write=True),  # to which the products of elements left out are added
    }  # fmt: skip
    text = source_of("guard_fp16x3.cu", {"SOURCE": _together(source, 1)})
    name = kernel_name("guard_fp16x3")
    return machine.launch(text, name, _GUARD_BLOCKS, geometry.GUARD_THREADS, 0, args, operands, early=True)


def _place(source: Matrix | None) -> tuple[Any, ...]:
    """Return the arguments of a kernel that say where its source lies."""
    return geometry.NO_SOURCE if source is None else ("S", *(stride // ITEM for stride in source.strides))


def _together(source: Matrix | None, vec_c: int) -> int:
    """Return how many floats of the source a kernel reads at a time that stores so many, or 0 without a source."""
    if source is None:
        return 0
    _, down, right = _place(source)
    return min(vec_c, Source((down, right), misalignment=misalignment(source) % 16).width)


def _old_and_new(C: Matrix, beta: float, source: Matrix | None) -> dict[str, Region]:
    """Return what a kernel writes and what beta multiplies there, as its operands."""
    if source is None:
        return {"C": Region(C, read=beta != 0, write=True)}
    return {"C": Region(C, read=False, write=True), "S": Region(source, read=beta != 0)}
