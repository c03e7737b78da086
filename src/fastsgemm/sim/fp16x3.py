"""Rung 11 on the simulated device: split A, split B, multiply, add the parts of K, and guard, as a device runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm.geometry.fp16x3 import TileConfig, column_cluster
from fastsgemm.geometry.layout import stored
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.jit import source
from fastsgemm.known_devices import compute_capability
from fastsgemm.problem import Problem
from fastsgemm.rungs import kernel_name
from fastsgemm.sim.global_memory import Region, misalignment
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report
from fastsgemm.sim.tensor_map import TensorMap

BLOCK_K = 32  # steps of k in a block of a split operand
HALVES = 64  # FP16 numbers of a line in a block: 32 hi, 32 lo
PRODUCTS = (kernel_name("11_fp16x3.cu"), kernel_name("11_fp16x3_mma.cu"))
SPARSE = 4  # places of elements left out that are kept for a line

_CLUSTERS = 90  # the first architecture with clusters
_PAIR_BYTES = 2 * HALVES
_LEAST_SHARED = 1024  # bytes of a ring of stages in front of its first multiple of 1024, at most
_WARPGROUP = 128
_GUARD_BLOCKS = 4  # any number is right; a device uses one an SM

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class SplitOperand:
    """An operand as pairs of FP16 numbers. A line is a row of A or a column of B.

    Attributes
    ----------
    pairs : array of uint16, shape (blocks of 32 steps of k, lines, 64)
        The bits of 32 hi and then 32 lo.
    info : array of int32, shape (lines + 1, 2)
        The exponent of each line and how many elements were left out; the last record is padding.
    where : array of int32, shape (lines, 4)
        Where along K those elements are, in any order.
    reports : tuple of Report
        Of the kernels that made it.
    """

    pairs: NDArray[np.uint16]
    info: NDArray[np.int32]
    where: NDArray[np.int32]
    reports: tuple[Report, ...] = ()

    @property
    def lines(self) -> int:
        """Rows of A, or columns of B."""
        return int(self.pairs.shape[1])

    @property
    def blocks(self) -> int:
        """Blocks of 32 steps of k."""
        return int(self.pairs.shape[0])


def source_of(file: str, constants: Mapping[str, int]) -> str:
    """Return the source of a kernel with these constants, and its defaults for the others."""
    return source.with_constants(file, {**source.defaults(file), **constants})


def split(X: Matrix, machine: Machine) -> SplitOperand:
    """Split an operand by the kernel for its order in memory.

    Parameters
    ----------
    X : ndarray of float32, shape (lines, K)
        A, or the transpose of B. Either dimension has unit stride.
    machine : Machine
    """
    lines, K = X.shape
    blocks = _whole(K, BLOCK_K)
    result = SplitOperand(
        np.empty((blocks, lines, HALVES), np.uint16),
        np.zeros((lines + 1, 2), np.int32),
        np.zeros((lines, SPARSE), np.int32),
    )
    operands = {
        "X": Region(X),
        "pairs": Region(result.pairs, read=False, write=True, complete=True),
        "info": Region(result.info, write=True),
        "where": Region(result.where, read=False, write=True),
    }
    how = stored((lines, K), (X.strides[0] // X.itemsize, X.strides[1] // X.itemsize))
    assert how is not None  # one of the dimensions has unit stride
    split_kernels = _split_columns if how.trans else _split_rows
    return replace(result, reports=split_kernels(X, how.ld, machine, operands))


def _split_rows(X: Matrix, ldx: int, machine: Machine, operands: dict[str, Region]) -> tuple[Report, ...]:
    lines, K = X.shape
    threads = 32
    while threads * 32 < K and threads < 1024:
        threads *= 2
    text = source_of("split_rows.cu", {"LINE_THREADS": threads, "VEC": _width(X, ldx)})
    block = max(threads, 256)
    args = [lines, K, "X", ldx, "pairs", "info", "where"]
    grid = _whole(lines, block // threads)
    return (machine.launch(text, kernel_name("split_rows"), grid, block, 0, args, operands),)


def _split_columns(X: Matrix, ldx: int, machine: Machine, operands: dict[str, Region]) -> tuple[Report, ...]:
    lines, K = X.shape
    clusters = compute_capability(machine.device.arch) >= _CLUSTERS
    cluster = column_cluster(K) if clusters else 1
    constants = {"VEC": _width(X, ldx)}
    text = source_of("split_columns.cu", constants | {"CLUSTER": cluster})
    along, block = _whole(lines, 32), 512
    if clusters:
        args: list[Any] = [lines, K, "X", ldx, 0, 0, "pairs", "info", "where"]
        return (machine.launch(text, kernel_name("split_columns"), (along, cluster), block, 0, args, operands),)
    multiprocessors = machine.device.multiprocessors
    across = _whole(lines, 128)
    parts = max(1, min(_whole(K, 64), _whole(4 * multiprocessors, across), 64))
    maxima = np.empty(parts * lines, np.uint32)
    found = {"X": operands["X"], "maxima": Region(maxima, read=False, write=True, complete=True)}
    first = source_of("column_maxima.cu", constants)
    args = [lines, K, "X", ldx, "maxima", "info"]
    finding = machine.launch(
        first, kernel_name("column_maxima"), (across, parts), 256, 0, args, found | {"info": operands["info"]}
    )
    args = [lines, K, "X", ldx, "maxima", parts, "pairs", "info", "where"]
    grid = (along, _whole(4 * multiprocessors, along))
    operands = operands | {"maxima": Region(maxima)}
    return finding, machine.launch(text, kernel_name("split_columns"), grid, block, 0, args, operands)


def sgemm(
    config: TileConfig | None,
    A: Matrix,
    B: Matrix,
    alpha: float,
    beta: float,
    C: Matrix,
    machine: Machine,
    forced: bool,
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
        return sgemm(config, B.T, A.T, alpha, beta, C.T, machine, forced)
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
    return multiply(A, B, alpha, beta, C, config.compiled, machine, swap_ab, config.SPLIT_K)


def _layout(X: Matrix) -> str:
    how = stored(X.shape, (X.strides[0] // X.itemsize, X.strides[1] // X.itemsize))
    return "T" if how is not None and how.trans else "N"


def multiply(
    A: Matrix,
    B: Matrix,
    alpha: float,
    beta: float,
    C: Matrix,
    constants: Mapping[str, int],
    machine: Machine | None = None,
    swap_ab: bool = False,
    parts: int = 1,
) -> tuple[Report, ...]:
    """Compute C <- alpha * A @ B + beta * C by the kernels of rung 11.

    Parameters
    ----------
    A, B : ndarray of float32
        Row-major, column-major or padded views.
    alpha, beta : float
    C : ndarray of float32
        Row-major; updated in place.
    constants : mapping
        BM, BN, STAGES and GROUP_M; and SETS and PROMOTE_STAGES for the kernel with wgmma, or WM and WN for the kernel
        with mma.sync.
    machine : Machine, optional
    swap_ab : bool
        Compute the transpose: the kernel's rows are the columns of C.
    parts : int
        Parts of K that are computed apart and added up; there may be fewer.

    Returns
    -------
    tuple of Report
        Of all kernels, in the order of their launches.
    """
    machine = machine or Machine()
    a, b = split(A, machine), split(B.T, machine)
    exceptions, reports = product(a, b, alpha, beta, C, constants, machine, swap_ab, parts)
    tile = (constants["BN"], constants["BM"]) if swap_ab else (constants["BM"], constants["BN"])
    guarding = guard(A, B, a, b, alpha, beta, C, exceptions, tile, machine)
    return (*a.reports, *b.reports, *reports, guarding)


def product(
    a: SplitOperand,
    b: SplitOperand,
    alpha: float,
    beta: float,
    C: Matrix,
    constants: Mapping[str, int],
    machine: Machine,
    swap_ab: bool = False,
    parts: int = 1,
    text: str | None = None,
) -> tuple[NDArray[np.int32], tuple[Report, ...]]:
    """Compute all of the product but what the guard does; return what the guard looks at, and the reports.

    See `multiply` for the parameters.

    Parameters
    ----------
    text : str, optional
        The source of the product's kernel, where it is not that of the package.
    """
    wgmma = "SETS" in constants
    file = "11_fp16x3.cu" if wgmma else "11_fp16x3_mma.cu"
    rows, columns = (b, a) if swap_ab else (a, b)
    blocks, block_unit = a.blocks, 4 if wgmma else 1
    part_blocks = _whole(_whole(blocks, parts), block_unit) * block_unit
    parts = _whole(blocks, part_blocks)
    BM, BN = constants["BM"], constants["BN"]
    tiles = _whole(rows.lines, BM) * _whole(columns.lines, BN)
    M, N = C.shape
    ldw = _whole(N, 4) * 4
    W = np.zeros((parts if parts > 1 else 0, M, ldw), np.float32)
    target = C if parts == 1 else W[0]
    ld = target.strides[0] // C.itemsize
    pairs_of_floats = not swap_ab and ld % 2 == 0 and misalignment(target) % 8 == 0
    if text is None:
        text = source_of(file, {**constants, "TRANS_C": int(swap_ab), "VEC_C": 2 if pairs_of_floats else 1})
    exceptions = np.empty(tiles, np.int32)
    operands = {
        "pairs_a": Region(rows.pairs), "pairs_b": Region(columns.pairs),
        "rows": Region(rows.info), "columns": Region(columns.info),
        "C": Region(C if parts == 1 else W, read=parts == 1 and beta != 0, write=True),
        "exceptions": Region(exceptions, read=False, write=True, complete=True),
    }  # fmt: skip
    args = [
        rows.lines,
        columns.lines,
        blocks,
        part_blocks,
        alpha,
        "rows",
        "columns",
        beta,
        "C",
        ld,
        M * ldw,
        "exceptions",
    ]
    stage = (BM + BN) * _PAIR_BYTES
    if wgmma:
        maps = [_tensor_map("pairs_a", rows, BM), _tensor_map("pairs_b", columns, BN)]
        grid = min(machine.device.multiprocessors, tiles * parts)
        block, shared = _WARPGROUP * (BM // 64 + 1), _LEAST_SHARED + constants["STAGES"] * (stage + 16)
        report = machine.launch(text, kernel_name(file), grid, block, shared, [*maps, *args], operands, arch="sm_90a")
    else:
        block = BM // constants["WM"] * (BN // constants["WN"]) * 32
        shared = constants["STAGES"] * stage
        report = machine.launch(
            text, kernel_name(file), tiles * parts, block, shared, ["pairs_a", "pairs_b", *args], operands
        )
    if parts == 1:
        return exceptions, (report,)
    return exceptions, (report, _reduce(W, a, b, alpha, beta, C, machine))


def _tensor_map(operand: str, split_operand: SplitOperand, lines: int) -> TensorMap:
    dims = (HALVES, split_operand.lines, split_operand.blocks)
    return TensorMap(operand, dims, (_PAIR_BYTES, _PAIR_BYTES * split_operand.lines), (HALVES, lines, 1))


def _reduce(
    W: Matrix, a: SplitOperand, b: SplitOperand, alpha: float, beta: float, C: Matrix, machine: Machine
) -> Report:
    (M, N), (parts, _, ldw) = C.shape, W.shape
    ldc = C.strides[0] // C.itemsize
    text = source_of("reduce_fp16x3.cu", {"VEC_C": _width(C, ldc)})
    args = [M, N, parts, "W", ldw, M * ldw, alpha, "rows", "columns", beta, "C", ldc]
    operands = {
        "W": Region(W), "rows": Region(a.info), "columns": Region(b.info),
        "C": Region(C, read=beta != 0, write=True),
    }  # fmt: skip
    grid = _whole(M * _whole(N, 4), 256)
    return machine.launch(text, kernel_name("reduce_fp16x3"), grid, 256, 0, args, operands)


def guard(
    A: Matrix,
    B: Matrix,
    a: SplitOperand,
    b: SplitOperand,
    alpha: float,
    beta: float,
    C: Matrix,
    exceptions: NDArray[np.int32],
    tile: tuple[int, int],
    machine: Machine,
) -> Report:
    """Compute what the split left out.

    Parameters
    ----------
    A, B, a, b, alpha, beta, C, machine
        See `multiply` and `product`.
    exceptions : array of int32
        From `product`.
    tile : tuple of int
        Rows and columns of C that an entry of `exceptions` is about.
    """
    (M, N), K = C.shape, A.shape[1]
    strides = [stride // C.itemsize for stride in (*A.strides, *B.strides)]
    args = [M, N, K, alpha, "A", *strides[:2], "B", *strides[2:], beta, "C", C.strides[0] // C.itemsize]
    args += ["rows", "row_where", "columns", "column_where", "exceptions", *tile]
    operands = {
        "A": Region(A), "B": Region(B), "C": Region(C, write=True), "exceptions": Region(exceptions),
        "rows": Region(a.info), "row_where": Region(a.where),
        "columns": Region(b.info), "column_where": Region(b.where),
    }  # fmt: skip
    text = source.plain("guard_fp16x3.cu")
    return machine.launch(text, kernel_name("guard_fp16x3"), _GUARD_BLOCKS, 256, 0, args, operands)


def _width(X: Matrix, ld: int) -> int:
    """Return how many floats a kernel may read or write at a time."""
    return 4 if misalignment(X) % 16 == 0 and ld % 4 == 0 else 1


def _whole(extent: int, size: int) -> int:
    return -(-extent // size)
