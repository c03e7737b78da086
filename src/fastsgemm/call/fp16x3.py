"""Rung 11: split A and B, multiply, add up the parts of K, let the guard repair what FP16 pairs cannot express.

The kernels and the order in which they are launched are described in ``cuda_src/README.md``. A column-major C is
computed as C^T = B^T A^T, so everything below is for a row-major one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastsgemm.call import packing, workspace
from fastsgemm.call.arrays import View
from fastsgemm.call.packed_launch import PackedLaunch
from fastsgemm.call.product import check_operands, check_overlap, remember
from fastsgemm.call.product import multiply as multiply_ieee
from fastsgemm.call.split_operand import Place, SplitOperand, Splitter, place_at, splitter
from fastsgemm.call.tensor_map import TensorMap
from fastsgemm.config import Fp16x3Config
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import grid, layout
from fastsgemm.geometry.fp16x3 import TileConfig, Tiling
from fastsgemm.geometry.layout import ITEM, Pair, Stored
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.jit import kernel
from fastsgemm.problem import Problem

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_GUARD_THREADS = _REDUCE_THREADS = 256  # of a block
_PRODUCT_ARGUMENTS = "iiiifPPfPqqP"  # after the tensor maps or the pairs; see `fastsgemm.call.packed_launch`
_REDUCE_ARGUMENTS = "iiiPqqfPPfPq"
_GUARD_ARGUMENTS = "iiifPqqPqqfPqPPPPPii"
_QUAD = 4  # columns of C that a thread of reduce_fp16x3.cu has

Ranges = tuple[int, int, int, int, int, int]
Splits = tuple[SplitOperand | None, SplitOperand | None]


class At(NamedTuple):
    """Where the operands of one call are.

    Attributes
    ----------
    alpha, beta : numpy.float32
    a, b, c : int
        The addresses of A, B and C.
    rows, columns : Place
        The split A and B.
    work : int
        The address of what else the kernels write.
    """

    alpha: np.float32
    beta: np.float32
    a: int
    b: int
    c: int
    rows: Place
    columns: Place
    work: int


@dataclass(frozen=True)
class Split:
    """A step: split a panel of A or B.

    Attributes
    ----------
    of_a : bool
    splitter : Splitter
    offset : int
        Bytes from the operand's first element to the panel's.
    """

    of_a: bool
    splitter: Splitter
    offset: int

    def launch(self, gpu: Gpu, handle: int, at: At) -> None:
        """Launch the kernels."""
        source, place = (at.a, at.rows) if self.of_a else (at.b, at.columns)
        self.splitter.run(gpu, handle, source + self.offset, place, at.work)


@dataclass(frozen=True)
class Product:
    """A step: multiply split operands, into C or into the partial sums.

    Attributes
    ----------
    tiling : Tiling
    product : PackedLaunch
    exceptions, sums : int
        Bytes from the workspace to the words of the tiles, and to the partial sums.
    offset, ldc : int
        Bytes from C to its panel; floats from row to row.
    """

    tiling: Tiling
    product: PackedLaunch
    exceptions: int
    sums: int
    offset: int
    ldc: int

    def launch(self, gpu: Gpu, handle: int, at: At) -> None:
        """Launch the kernel."""
        t = self.tiling
        rows, columns, m, n = (at.columns, at.rows, t.N, t.M) if t.trans_c else (at.rows, at.columns, t.M, t.N)
        if t.parts > 1:
            target = (at.work + self.sums, t.ldw, t.M * t.ldw)
        else:
            target = (at.c + self.offset, self.ldc, 0)
        arguments = (
            m,
            n,
            t.k_blocks,
            t.part_blocks,
            at.alpha,
            rows.info,
            columns.info,
            at.beta,
            *target,
            at.work + self.exceptions,
        )
        if self.product.maps:
            self.product(gpu, handle, *arguments, to=(rows.pairs, columns.pairs))
        else:
            self.product(gpu, handle, rows.pairs, columns.pairs, *arguments)


@dataclass(frozen=True)
class Reduce:
    """A step: add up the partial sums, scale them and store them."""

    tiling: Tiling
    reduction: PackedLaunch
    sums: int
    offset: int
    ldc: int

    def launch(self, gpu: Gpu, handle: int, at: At) -> None:
        """Launch the kernel."""
        t = self.tiling
        self.reduction(
            gpu, handle, t.M, t.N, t.parts, at.work + self.sums, t.ldw, t.M * t.ldw,
            at.alpha, at.rows.info, at.columns.info, at.beta, at.c + self.offset, self.ldc,
        )  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """A step: compute from A and B themselves what their split forms leave out.

    Attributes
    ----------
    strides : tuple of int
        Floats from row to row and from k to k of A, from k to k and from column to column of B.
    offsets : tuple of int
        Bytes from A, B and C to their panels.
    tile : (int, int)
        Rows and columns of C that a word of the exceptions is for.
    """

    M: int
    N: int
    K: int
    guard: PackedLaunch
    strides: tuple[int, int, int, int]
    offsets: tuple[int, int, int]
    ldc: int
    exceptions: int
    tile: Pair

    def launch(self, gpu: Gpu, handle: int, at: At) -> None:
        """Launch the kernel."""
        a_m, a_k, b_k, b_n = self.strides
        to_a, to_b, to_c = self.offsets
        self.guard(
            gpu, handle, self.M, self.N, self.K, at.alpha, at.a + to_a, a_m, a_k, at.b + to_b, b_k, b_n,
            at.beta, at.c + to_c, self.ldc, at.rows.info, at.rows.where, at.columns.info, at.columns.where,
            at.work + self.exceptions, *self.tile,
        )  # fmt: skip


Step = Split | Product | Reduce | Guard


@dataclass(frozen=True)
class Scale:
    """C <- beta * C, for what has nothing to multiply: the sum of no parts.

    Attributes
    ----------
    kernel, config : object
        ``reduce_parts``.
    M, N : numpy.int32
    strides : tuple of int
        Of C in floats.
    """

    kernel: Any
    config: Any
    M: np.int32
    N: np.int32
    strides: Pair

    def launch(self, gpu: Gpu, handle: int, beta: np.float32, c: int) -> None:
        """Launch the kernel."""
        none, alpha = grid.steps(np.int32(0), np.float32(0.0), beta)
        gpu.launch(
            gpu.stream(handle), self.config, self.kernel, self.M, self.N, none, 0, 0, alpha, beta, c, *self.strides
        )


@dataclass(frozen=True)
class Plan:
    """A problem that has been seen.

    Attributes
    ----------
    ranges : tuple of int
        First and one-past-last byte of A, B and C, relative to their first elements.
    packing : tuple of bool
        Which of A, B and C have no unit stride and must be copied first.
    empty : bool
        C has no elements.
    swap_ab : bool
        The steps' A is the caller's B.
    steps : tuple of Step
        None where C is empty, something must be packed, K is 0, or an IEEE kernel is the choice.
    scale : Scale or None
        For alpha = 0 and K = 0.
    rows, columns : SplitArrays or None
        Where the split A and B lie in the workspace; None for one that was split before.
    work : int
        Bytes from the workspace to what the steps write beside them.
    size : int
        Bytes of workspace.
    """

    ranges: Ranges
    packing: packing.Three = (False, False, False)
    empty: bool = False
    swap_ab: bool = False
    steps: tuple[Step, ...] = ()
    scale: Scale | None = None
    rows: geometry.SplitArrays | None = None
    columns: geometry.SplitArrays | None = None
    work: int = 0
    size: int = 0


def multiply(
    gpu: Gpu,
    handle: int,
    a: View,
    b: View,
    c: View,
    alpha: np.float32,
    beta: np.float32,
    config: Any = None,
    splits: Splits = (None, None),
    forced: bool = False,
) -> None:
    """Compute C <- alpha * A @ B + beta * C with the accuracy of FP32; see `fastsgemm.sgemm` for the errors.

    Parameters
    ----------
    gpu : Gpu
        The device, current in this thread.
    handle : int
        The raw stream.
    a, b, c : View
        Address and meta of A, B and C.
    alpha, beta : numpy.float32
    config : Fp16x3Config or Fp16x3MmaConfig, optional
    splits : tuple of SplitOperand or None
        A and B where they were split before.
    forced : bool
        Rung 11 even where an IEEE kernel is predicted to be quicker.
    """
    pa, a_meta = a
    pb, b_meta = b
    pc, c_meta = c
    split_a, split_b = splits
    key = (
        a_meta, b_meta, c_meta, pa & 15, pb & 15, pc & 15,
        "fp16x3", config, split_a is not None, split_b is not None, forced,
    )  # fmt: skip
    plan = gpu.prepared.get(key)
    if plan is None:
        plan = prepare(gpu, handle, (a, b, c), config, splits, forced)
        remember(gpu, key, plan)
    a_low, a_high, b_low, b_high, c_low, c_high = plan.ranges
    if pc + c_low < pa + a_high and pa + a_low < pc + c_high:
        check_overlap("A", pa - pc, c_meta, a_meta)
    if pc + c_low < pb + b_high and pb + b_low < pc + c_high:
        check_overlap("B", pb - pc, c_meta, b_meta)
    if plan.empty:
        return
    if plan.scale is not None and not (alpha and plan.steps):
        plan.scale.launch(gpu, handle, beta, pc)
    elif plan.steps:
        _launch(gpu, handle, plan, (pa, pb, pc), alpha, beta, splits)
    elif any(plan.packing):
        read = (bool(alpha), bool(alpha), bool(beta))
        with packing.packed(gpu, handle, (a, b, c), plan.packing, read) as views:
            multiply(gpu, handle, views[0], views[1], views[2], alpha, beta, config, splits, forced)
    else:
        multiply_ieee(gpu, handle, a, b, c, alpha, beta)


def _launch(
    gpu: Gpu,
    handle: int,
    plan: Plan,
    addresses: tuple[int, int, int],
    alpha: np.float32,
    beta: np.float32,
    splits: Splits,
) -> None:
    pa, pb, pc = addresses
    split_a, split_b = splits
    if plan.swap_ab:
        pa, pb, split_a, split_b = pb, pa, split_b, split_a
    base = workspace.allocate(gpu, handle, plan.size, "the split operands of fp16x3")
    try:
        rows = split_a.place if split_a is not None else place_at(base, plan.rows)  # type: ignore[arg-type]
        columns = split_b.place if split_b is not None else place_at(base, plan.columns)  # type: ignore[arg-type]
        at = At(alpha, beta, pa, pb, pc, rows, columns, base + plan.work)
        for step in plan.steps:
            step.launch(gpu, handle, at)
    finally:
        workspace.free(gpu, handle, base)


def prepare(
    gpu: Gpu,
    handle: int,
    views: tuple[View, View, View],
    config: TileConfig | None,
    splits: Splits,
    forced: bool,
) -> Plan:
    """Check the operands and make ready to launch on them; see `multiply` for the parameters."""
    metas = (views[0][1], views[1][1], views[2][1])
    if forced:
        heuristics.require_tensor_cores(gpu)
    if config is not None:
        heuristics.check_config(gpu, config)
    check_operands(metas)
    matrices = [(tuple(meta[0]), tuple(meta[1])) for meta in metas]
    how = [layout.stored(*matrix) for matrix in matrices]
    ranges = (*layout.byte_range(*matrices[0]), *layout.byte_range(*matrices[1]), *layout.byte_range(*matrices[2]))
    if 0 in matrices[2][0]:
        return Plan(ranges, empty=True)
    packed = (how[0] is None and splits[0] is None, how[1] is None and splits[1] is None, how[2] is None)
    if any(packed):
        return Plan(ranges, packed)
    (M, K), (_, N) = matrices[0][0], matrices[1][0]
    stream = gpu.stream(handle)
    if K == 0:
        return Plan(ranges, scale=_scale(gpu, stream, M, N, matrices[2][1]))
    trans = [one is not None and one.trans for one in how]
    problem = Problem(M, N, K, "NT"[trans[0]] + "NT"[trans[1]])
    if trans[2]:
        problem = problem.transposed
        splits = splits[::-1]
    if forced and max(M, N, K) > heuristics.MAX_EXTENT:
        raise ShapeError(f"M, N and K of rung 11 must each be at most {heuristics.MAX_EXTENT}, got {max(M, N, K)}")
    if config is None:
        choice = heuristics.choose(gpu, problem, (splits[0] is None, splits[1] is None), forced)
        if choice.config is None:
            return Plan(ranges)
        config, trans_c = choice.config, choice.trans_c
    else:
        trans_c = heuristics.orientation(gpu, problem, config)
    operands = [_Operand(matrix, one, view[0] & 15) for matrix, one, view in zip(matrices, how, views, strict=True)]
    a, b, c = operands
    if trans[2]:
        a, b, c = b.transposed, a.transposed, c.transposed
    builder = _Builder(gpu, stream, a, b.transposed, c, config, trans_c, splits)
    return builder.plan(ranges, trans[2], _scale(gpu, stream, M, N, matrices[2][1]))


def _scale(gpu: Gpu, stream: Any, M: int, N: int, strides: Pair) -> Scale:
    from cuda.core import LaunchConfig

    blocks, threads = grid.reduction_blocks(M, N, 0)
    adding = kernel.helper(gpu, "reduce_parts", stream)
    return Scale(adding, LaunchConfig(grid=blocks, block=threads), np.int32(M), np.int32(N), strides)


class _Operand(NamedTuple):
    """A matrix: shape and strides, how the kernels can read it, and its address modulo 16."""

    matrix: tuple[Pair, Pair]
    how: Stored | None
    misalignment: int

    @property
    def transposed(self) -> _Operand:
        (shape, strides), how = self.matrix, self.how
        turned = None if how is None else Stored(not how.trans, how.ld)
        return _Operand((shape[::-1], strides[::-1]), turned, self.misalignment)

    @property
    def lines(self) -> int:
        return self.matrix[0][0]

    @property
    def strides(self) -> Pair:
        return self.matrix[1]


class _Builder:
    """Makes the steps of a plan. `a` is seen as (M, K), `b` as (N, K): lines of both run along K."""

    def __init__(
        self,
        gpu: Gpu,
        stream: Any,
        a: _Operand,
        b: _Operand,
        c: _Operand,
        config: TileConfig,
        trans_c: bool,
        splits: Splits,
    ) -> None:
        assert c.how is not None  # packed else
        self.gpu, self.stream, self.a, self.b, self.c = gpu, stream, a, b, c
        self.config, self.trans_c, self.splits = config, trans_c, splits
        self.ldc = c.how.ld
        self.K = a.matrix[0][1]
        self.steps: list[Step] = []
        self.work = 0  # bytes that the steps write beside the split operands

    def plan(self, ranges: Ranges, swap_ab: bool, scale: Scale) -> Plan:
        """Return the plan: for every panel of A and of B split it, multiply, repair."""
        of_a, of_b = self._panels(0), self._panels(1)
        for number, (m, rows) in enumerate(of_a):
            self._split(True, m, rows)
            for n, columns in of_b:
                if number == 0 or len(of_b) > 1:
                    self._split(False, n, columns)
                self._multiply(m, rows, n, columns)
        where: list[geometry.SplitArrays | None] = []
        size = 0
        for split, operand_panels in zip(self.splits, (of_a, of_b), strict=True):
            if split is not None:
                where.append(None)
                continue
            arrays = geometry.split_arrays(operand_panels[0][1], self.K)
            where.append(geometry.SplitArrays(*(size + offset for offset in arrays)))
            size += arrays.end
        return Plan(
            ranges, swap_ab=swap_ab, steps=tuple(self.steps), scale=scale, rows=where[0], columns=where[1],
            work=size, size=size + self.work,
        )  # fmt: skip

    def _panels(self, side: int) -> list[tuple[int, int]]:
        """Return (first line, lines) of the panels of an operand; one that was split before is whole."""
        own, other = (self.a, self.b) if side == 0 else (self.b, self.a)
        if self.splits[side] is not None:
            return [(0, own.lines)]
        others = other.lines if self.splits[1 - side] is None else 0
        return geometry.panels(own.lines, self.K, others)

    def _split(self, of_a: bool, first: int, lines: int) -> None:
        operand = self.a if of_a else self.b
        if self.splits[0 if of_a else 1] is not None:
            return
        assert operand.how is not None  # packed else
        trans, ld = operand.how.trans, operand.how.ld
        offset = ITEM * first * (1 if trans else ld)
        misalignment = (operand.misalignment + offset) % 16
        made = splitter(self.gpu, self.stream, lines, self.K, trans, ld, misalignment, bool(self.steps))
        self.work = max(self.work, made.maxima_bytes)
        self.steps.append(Split(of_a, made, offset))

    def _multiply(self, m: int, rows: int, n: int, columns: int) -> None:
        tiling = geometry.tiling(self.config, rows, columns, self.K, self.trans_c, self.gpu.multiprocessors)
        sums = tiling.exceptions
        self.work = max(self.work, sums + tiling.partial_sums)
        offset = ITEM * (m * self.ldc + n)
        misalignment = (self.c.misalignment + offset) % 16
        self.steps.append(self._product(tiling, sums, offset, misalignment))
        if tiling.parts > 1:
            vec = 4 if misalignment == 0 and self.ldc % 4 == 0 else 1
            adding = self._kernel("reduce_fp16x3.cu", {"VEC_C": vec})
            blocks = -(-rows * -(-columns // _QUAD) // _REDUCE_THREADS)
            reduction = PackedLaunch(self.gpu, adding, (blocks,), _REDUCE_THREADS, _REDUCE_ARGUMENTS, True)
            self.steps.append(Reduce(tiling, reduction, sums, offset, self.ldc))
        tile = (self.config.BN, self.config.BM) if self.trans_c else (self.config.BM, self.config.BN)
        a_m, a_k = self.a.strides
        b_n, b_k = self.b.strides
        repairing = self._kernel("guard_fp16x3.cu", {"THREADS": _GUARD_THREADS})
        guard = PackedLaunch(self.gpu, repairing, (self.gpu.multiprocessors,), _GUARD_THREADS, _GUARD_ARGUMENTS, True)
        self.steps.append(
            Guard(
                rows, columns, self.K, guard,
                (a_m, a_k, b_k, b_n), (ITEM * m * a_m, ITEM * n * b_n, offset), self.ldc, 0, tile,
            )
        )  # fmt: skip

    def _product(self, tiling: Tiling, sums: int, offset: int, misalignment: int) -> Product:
        config = self.config
        if self.trans_c:
            vec = 1
        elif tiling.parts > 1:
            vec = 2
        else:
            vec = 2 if misalignment % 8 == 0 and self.ldc % 2 == 0 else 1
        constants = config.compiled | {"TRANS_C": int(self.trans_c), "VEC_C": vec}
        multiplying = self._kernel(geometry.file_of(config), constants, config.shared_bytes)
        maps, arguments = [], "PP" + _PRODUCT_ARGUMENTS
        if isinstance(config, Fp16x3Config):
            rows, columns = (tiling.N, tiling.M) if self.trans_c else (tiling.M, tiling.N)
            maps = [TensorMap(rows, tiling.k_blocks, config.BM), TensorMap(columns, tiling.k_blocks, config.BN)]
            arguments = _PRODUCT_ARGUMENTS
        product = PackedLaunch(
            self.gpu,
            multiplying,
            (tiling.grid,),
            config.threads,
            arguments,
            bool(self.steps),
            config.shared_bytes,
            maps,
        )
        return Product(tiling, product, 0, sums, offset, self.ldc)

    def _kernel(self, file: str, constants: dict[str, int], shared_bytes: int = 0) -> Any:
        return kernel.with_constants(self.gpu, file, constants, self.stream, shared_bytes)
