"""Rung 11: split A and B, multiply, add up the parts of K, let the guard repair what FP16 pairs cannot express.

The kernels and the order in which they are launched are described in ``cuda_src/README.md``. A column-major C is
computed as C^T = B^T A^T, so everything below is for a row-major one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastsgemm.call.matrix import Matrix
from fastsgemm.call.plan import Address, Argument, Base, Boxes, Draft, Scalar
from fastsgemm.call.splitting import Place, Unsplit, add_split, maxima_bytes, place_at
from fastsgemm.config import Fp16x3Config
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import Batch, BatchAndSource, Source
from fastsgemm.geometry.fp16x3 import Operand, TileConfig, Tiling
from fastsgemm.geometry.layout import ITEM, line_vector
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.jit import kernel
from fastsgemm.problem import Problem

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

Split = tuple[bool, bool]  # whether A and B were split before the call


def check(gpu: Gpu, config: TileConfig | None, forced: bool) -> None:
    """Raise an error if the device cannot run rung 11, where that is asked for, or not with this config."""
    if forced:
        heuristics.require_tensor_cores(gpu)
    if config is not None:
        heuristics.check_config(gpu, config)


def add_product(
    draft: Draft,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    config: TileConfig | None,
    split: Split,
    forced: bool,
    extents: tuple[int, ...] = (),
    times: int = 1,
    source: Matrix | None = None,
) -> bool:
    """Add the steps of C <- alpha * A @ B + beta * C; return False, with none added, where an IEEE kernel is quicker.

    Parameters
    ----------
    draft : Draft
    a, b, c : Matrix
        With a unit stride, unless split before.
    config : Fp16x3Config, Fp16x3MmaConfig or None
        None: the heuristics choose. Else legal on the device.
    split : tuple of bool
        Which of A and B were split before the call.
    forced : bool
        Rung 11 even where an IEEE kernel is predicted to be quicker.
    extents : tuple of int
        Of a batch, whose products are computed one after the other; see `Batch`.
    times : int
        How many such batches the call has.
    source : Matrix, optional
        What is read in place of C, with any strides, by the kernels that store C.

    Raises
    ------
    ShapeError
        The batch is too large for rung 11, which is forced.
    CaptureError
        A kernel is not loaded yet and the stream is being captured.
    """
    gpu = draft.gpu
    M, N = c.shape
    K = a.shape[1]
    if K == 0:
        _add_scale(draft, c, extents, source)
        return True
    count = times * math.prod(extents)
    if forced:
        heuristics.require_batch(count)
    elif any(split):
        heuristics.require_batch(count, "split operands are for")
    layout = "".join("NT"[each.how is not None and each.how.trans] for each in (a, b))
    problem = Problem(M, N, K, layout, count)
    places = [
        Address(base) if before else None for base, before in zip((Base.SPLIT_A, Base.SPLIT_B), split, strict=True)
    ]
    if c.how is not None and c.how.trans:
        problem = problem.transposed
        a, b, c = b.transposed, a.transposed, c.transposed
        source = source and source.transposed
        places.reverse()
    if config is None:
        choice = heuristics.choose(gpu, problem, (places[0] is None, places[1] is None), forced)
        if choice.config is None:
            return False
        config, trans_c = choice.config, choice.trans_c
    else:
        trans_c = heuristics.orientation(gpu, problem, config)
    _add_scale(draft, c, extents, source)
    for index in draft.in_turn(np.ndindex(extents)):
        one_a, one_b, one_c = (each.at(index) for each in (a, b, c))
        read = source and source.at(index)
        _Builder(draft, one_a, one_b.transposed, one_c, read, config, trans_c, places).add()
    return True


def _add_scale(draft: Draft, c: Matrix, extents: tuple[int, ...], source: Matrix | None) -> None:
    """Add C <- beta * C, or beta times the source, for what has nothing to multiply: the sum of no parts."""
    blocks, threads = grid.reduction_blocks(*c.shape, 0)
    M, N = map(np.int32, c.shape)
    batch = Batch(extents, (0,) * len(extents), (0,) * len(extents), c.steps)
    last: Batch | BatchAndSource = batch
    constants = {}
    if source is not None:
        last = BatchAndSource(batch, Source(source.strides, source.steps, source.misalignment), source.address)
        constants = {"SOURCE": 1}
    adding = kernel.helper(draft.gpu, "reduce_parts", draft.handle, **constants)
    arguments = (M, N, np.int32(0), 0, 0, Scalar.ALPHA, Scalar.BETA, c.address, *c.strides, last)
    draft.add(adding, (blocks, *batch.grid), threads, *arguments, only_for="no alpha")


class _Target(NamedTuple):
    """Where a kernel stores C or the partial sums, and what beta multiplies there, if that is not C.

    Attributes
    ----------
    C : tuple
        Address and leading dimension.
    vec : int
        Floats that can be stored at a time: 4 or 1.
    source : tuple
        Address and strides.
    together : int
        Floats of the source that can be read at a time: 4 or 1, and 0 without a source.
    """

    C: Operand
    vec: int
    source: Operand = geometry.NO_SOURCE
    together: int = 0


class _Builder:
    """Adds the steps of a product. `a` is seen as (M, K), `b` as (N, K): lines of both run along K.

    `source` is what beta multiplies, if that is not C.
    """

    def __init__(
        self,
        draft: Draft,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        source: Matrix | None,
        config: TileConfig,
        trans_c: bool,
        places: list[Address | None],
    ) -> None:
        assert c.how is not None  # packed else
        self.draft, self.a, self.b, self.c, self.source = draft, a, b, c, source
        self.config, self.trans_c = config, trans_c
        self.ldc = c.how.ld
        self.K = a.shape[1]
        self.before = [place is not None for place in places]
        self.panels = (self._panels(a, b, *self.before), self._panels(b, a, *self.before[::-1]))
        self.places = [self._place(panels[0][1], place) for panels, place in zip(self.panels, places, strict=True)]
        self.work = Address(Base.WORKSPACE, draft.size)  # what the steps write beside the split operands
        self.work_bytes = 0
        self.first = len(draft.steps)

    def _panels(self, own: Matrix, other: Matrix, before: bool, other_before: bool) -> list[tuple[int, int]]:
        """Return (first line, lines) of the panels of an operand; one that was split before is whole."""
        if before:
            return [(0, own.shape[0])]
        return geometry.panels(own.shape[0], self.K, 0 if other_before else other.shape[0])

    def _place(self, lines: int, place: Address | None) -> Place:
        """Return where the arrays of a split operand, or of its largest panel, lie."""
        parts = geometry.split_arrays(lines, self.K)
        return place_at(place or self.draft.reserve(parts.end, "the split operands of fp16x3"), parts)

    def add(self) -> None:
        """For every panel of A and of B split what is not yet split, multiply, repair."""
        of_a, of_b = self.panels
        for number, a in enumerate(of_a):
            for b in of_b:
                needed = ((0, a, b is of_b[0]), (1, b, number == 0 or len(of_b) > 1))
                new = [self._unsplit(side, *panel) for side, panel, now in needed if now and not self.before[side]]
                if new:
                    self._split(new)
                self._multiply(*a, *b)
        self.draft.reserve(self.work_bytes, "the split operands of fp16x3")

    def _split(self, operands: list[Unsplit]) -> None:
        self.work_bytes = max(self.work_bytes, maxima_bytes(self.draft, self.K, operands))
        add_split(self.draft, self.K, operands, self.work, early=self._begun)

    def _unsplit(self, side: int, first: int, lines: int) -> Unsplit:
        """Return a panel of A or of B that is to be split."""
        operand = (self.a, self.b)[side]
        how = operand.how
        assert how is not None  # packed else
        offset = ITEM * first * (1 if how.trans else how.ld)
        return Unsplit(operand.address + offset, lines, how, operand.misalignment + offset, self.places[side])

    @property
    def _begun(self) -> bool:
        """Whether a kernel of this product comes before the next one."""
        return len(self.draft.steps) > self.first

    def _multiply(self, m: int, rows: int, n: int, columns: int) -> None:
        tiling = geometry.tiling(self.config, rows, columns, self.K, self.trans_c, self.draft.gpu.multiprocessors)
        exceptions, sums = self.work, self.work + tiling.exceptions
        self.work_bytes = max(self.work_bytes, tiling.exceptions + tiling.partial_sums)
        into = self._target(m, n)
        if tiling.parts > 1:
            self._add_product(tiling, _Target((sums, tiling.ldw), 4), exceptions)
            self._add_reduction(tiling, sums, into)
        else:
            self._add_product(tiling, into, exceptions)
        self._add_guard(tiling, m, n, into, exceptions)

    def _target(self, m: int, n: int) -> _Target:
        """Return where C is stored from (m, n) on."""
        offset = ITEM * (m * self.ldc + n)
        target = _Target((self.c.address + offset, self.ldc), line_vector(self.ldc, self.c.misalignment + offset))
        if self.source is None:
            return target
        down, right = self.source.strides
        offset = ITEM * (m * down + n * right)
        lying = Source((down, right), misalignment=(self.source.misalignment + offset) % 16)
        return target._replace(source=(self.source.address + offset, down, right), together=lying.width)

    def _add_product(self, tiling: Tiling, into: _Target, exceptions: Address) -> None:
        """Multiply split operands, into C or into the partial sums."""
        config, t = self.config, tiling
        vec = 1 if self.trans_c else into.vec
        constants = config.compiled | {"TRANS_C": int(self.trans_c), "VEC_C": vec, "SOURCE": min(vec, into.together)}
        multiplying = self._kernel(geometry.file_of(config), constants, config.shared_bytes)
        a, b = self.places
        pairs: tuple[Argument, Argument] = (a.pairs, b.pairs)
        if isinstance(config, Fp16x3Config):
            pairs = (Boxes(a.pairs, t.M, t.k_blocks, t.tile[0]), Boxes(b.pairs, t.N, t.k_blocks, t.tile[1]))
        infos = (a.info, b.info)
        self.draft.add(
            multiplying, (t.grid,), config.threads,
            *t.product_arguments(pairs, infos, Scalar.ALPHA, Scalar.BETA, into.C, exceptions, into.source),
            shared_bytes=config.shared_bytes, early=self._begun, only_for="alpha",
        )  # fmt: skip

    def _add_reduction(self, tiling: Tiling, sums: Address, into: _Target) -> None:
        """Add up the partial sums, scale them and store them."""
        t, (a, b) = tiling, self.places
        adding = self._kernel("reduce_fp16x3.cu", {"VEC_C": into.vec, "SOURCE": min(into.vec, into.together)})
        self.draft.add(
            adding, (t.reduction_blocks,), geometry.REDUCE_THREADS,
            *t.reduction_arguments(sums, (a.info, b.info), Scalar.ALPHA, Scalar.BETA, into.C, into.source),
            early=True, only_for="alpha",
        )  # fmt: skip

    def _add_guard(self, tiling: Tiling, m: int, n: int, into: _Target, exceptions: Address) -> None:
        """Compute from A and B themselves what their split forms leave out."""
        a, b = self.places
        (a_m, a_k), (b_n, b_k) = self.a.strides, self.b.strides
        A = (self.a.address + ITEM * m * a_m, a_m, a_k)
        B = (self.b.address + ITEM * n * b_n, b_k, b_n)
        left_out = ((a.info, a.where), (b.info, b.where))
        repairing = self._kernel("guard_fp16x3.cu", {"SOURCE": min(1, into.together)})
        self.draft.add(
            repairing, (self.draft.gpu.multiprocessors,), geometry.GUARD_THREADS,
            *tiling.guard_arguments(
                self.K, A, B, left_out, Scalar.ALPHA, Scalar.BETA, into.C, exceptions, into.source
            ),
            early=True, only_for="alpha",
        )  # fmt: skip

    def _kernel(self, file: str, constants: dict[str, int], shared_bytes: int = 0) -> Kernel:
        return kernel.with_constants(self.draft.gpu, file, constants | {"SYM": 0}, self.draft.handle, shared_bytes)
