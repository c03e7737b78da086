"""Rung 11: split A and B, multiply, add up the parts of K, let the guard repair what FP16 pairs cannot express.

The kernels and the order in which they are launched are described in ``cuda_src/README.md``. A column-major C is
computed as C^T = B^T A^T, so everything below is for a row-major one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastsgemm.call.plan import Argument, Draft, Scalar, When, Write, beta_read
from fastsgemm.call.splitting import Pairs, Unsplit, add_split, maxima_bytes, pairs_at
from fastsgemm.config import Fp16x3Config
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import Batch, BatchAndSource
from fastsgemm.geometry.fp16x3 import TileConfig, Tiling
from fastsgemm.geometry.layout import Pair, line_vector
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.heuristics.choice import Choice
from fastsgemm.jit.source import helper_spec, spec

_PURPOSE = "the split operands of fp16x3"
_NO_SOURCE = (0, 0, 0)  # the arguments of a kernel that reads none


def add_product(
    draft: Draft,
    split: tuple[bool, bool],
    choice: Choice,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    source: Matrix | None = None,
) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C for a batch, one product after the other.

    Parameters
    ----------
    draft : Draft
    split : (bool, bool)
        Which of A and B were split before the call.
    choice : Choice
        Without a config where K is 0.
    a, b, c : Matrix
        With a unit stride, unless split before.
    source : Matrix, optional
        What is read in place of C, with any strides, by the kernels that store C.
    """
    if choice.tile is None:
        _add_scale(draft, c, source)
        return
    places = [
        Address(base) if before else None for base, before in zip((Base.SPLIT_A, Base.SPLIT_B), split, strict=True)
    ]
    if c.stored is not None and c.stored.trans:
        a, b, c = b.transposed, a.transposed, c.transposed
        source = source and source.transposed
        places.reverse()
    _add_scale(draft, c, source)
    for index in draft.in_turn(np.ndindex(c.extents)):
        one_a, one_b, one_c = (each.at(index) for each in (a, b, c))
        _Builder(draft, choice, one_a, one_b.transposed, one_c, source and source.at(index)).add(places)


def _add_scale(draft: Draft, c: Matrix, source: Matrix | None) -> None:
    """Add C <- beta * C, or beta times the source, for what has nothing to multiply: the sum of no parts."""
    rows, columns = c.rows_and_columns
    blocks, threads = grid.reduction_blocks(rows, columns, 0)
    nothing = (0,) * len(c.extents)
    batch = Batch(c.extents, nothing, nothing, c.steps)
    last = batch if source is None else BatchAndSource(batch, source)
    draft.add(
        helper_spec("reduce_parts", int(source is not None)), (blocks, *batch.grid), threads,
        (np.int32(rows), np.int32(columns), np.int32(0), 0, 0, Scalar.ALPHA, Scalar.BETA, c, *c.inner_strides, last),
        writes=(Write(c, reads=beta_read(source)),), when=When.READS_NOTHING,
    )  # fmt: skip


class _Target(NamedTuple):
    """Where a kernel stores C or the partial sums, and what beta multiplies there, if that is not C.

    Attributes
    ----------
    C : Matrix
    ld : int
    reads : When or None
        When C is read.
    source : Matrix or None
    """

    C: Matrix
    ld: int
    reads: When | None = None
    source: Matrix | None = None

    @property
    def vec(self) -> int:
        """Floats that can be stored at a time: 4 or 1."""
        return line_vector(self.ld, self.C.misalignment)

    def source_vec(self, vec: int) -> int:
        """Return the floats of the source that a kernel reads at a time that stores `vec`: 0 without a source."""
        return 0 if self.source is None else min(vec, self.source.width)

    @property
    def source_arguments(self) -> tuple[Argument, ...]:
        """Address and strides of the source."""
        return _NO_SOURCE if self.source is None else (self.source, *self.source.inner_strides)


class _Builder:
    """Adds the launches of a product. `a` is seen as (M, K), `b` as (N, K): lines of both run along K.

    `source` is what beta multiplies, if that is not C.
    """

    def __init__(self, draft: Draft, choice: Choice, a: Matrix, b: Matrix, c: Matrix, source: Matrix | None) -> None:
        assert c.stored is not None and choice.tile is not None  # packed else; see `add_product`
        self.draft, self.operands, self.c, self.source = draft, (a, b), c, source
        self.config: TileConfig = choice.tile
        self.trans_c = choice.trans_c
        self.ldc = c.stored.ld
        self.K = a.shape[1]
        self.first = len(draft.launches)

    def add(self, places: list[Address | None]) -> None:
        """For every panel of A and of B split what is not yet split, multiply, repair.

        Parameters
        ----------
        places : list of Address or None
            Of A and B where they were split before.
        """
        a, b = self.operands
        self.before = [place is not None for place in places]
        panels = (self._panels(a, b, places), self._panels(b, a, places[::-1]))
        rooms = [geometry.split_arrays(of_one[0][1], self.K) for of_one in panels]  # the first panel is the largest
        begins = [place or self.draft.reserve(room.end, _PURPOSE) for place, room in zip(places, rooms, strict=True)]
        self.work = Address(Base.WORKSPACE, self.draft.size)  # what is written beside the split operands
        self.work_bytes = 0
        of_a, of_b = panels
        for number, rows in enumerate(of_a):
            for columns in of_b:
                pairs = [
                    pairs_at(begin, room, lines, self.K, operand.name)
                    for begin, room, (_, lines), operand in zip(
                        begins, rooms, (rows, columns), self.operands, strict=True
                    )
                ]
                needed = (columns is of_b[0], number == 0 or len(of_b) > 1)
                self._split([
                    Unsplit(operand.block((first, 0), (lines, self.K)), target)
                    for operand, target, (first, lines), place, now in zip(
                        self.operands, pairs, (rows, columns), places, needed, strict=True
                    )
                    if now and place is None
                ])  # fmt: skip
                self._multiply(rows, columns, *pairs)
        self.draft.reserve(self.work_bytes, _PURPOSE)

    def _panels(self, own: Matrix, other: Matrix, places: list[Address | None]) -> list[Pair]:
        """Return (first line, lines) of the panels of an operand; one that was split before is whole."""
        if places[0] is not None:
            return [(0, own.shape[0])]
        return geometry.panels(own.shape[0], self.K, 0 if places[1] is not None else other.shape[0])

    def _split(self, operands: list[Unsplit]) -> None:
        if operands:
            self.work_bytes = max(self.work_bytes, maxima_bytes(self.draft.traits, operands))
            add_split(self.draft, operands, self.work, early=self._begun)

    @property
    def _begun(self) -> bool:
        """Whether a kernel of this product comes before the next one."""
        return len(self.draft.launches) > self.first

    def _multiply(self, rows: Pair, columns: Pair, a: Pairs, b: Pairs) -> None:
        """Multiply a panel of A by one of B, whose lines are given as first and how many."""
        (m, M), (n, N) = rows, columns
        tiling = geometry.tiling(self.config, M, N, self.K, self.trans_c, self.draft.traits.multiprocessors)
        exceptions = Matrix(self.work, (tiling.tiles,), (1,), name="exceptions")
        self.work_bytes = max(self.work_bytes, tiling.exceptions + tiling.partial_sums)
        source = self.source and self.source.block((m, n), (M, N))
        into = _Target(self.c.block((m, n), (M, N)), self.ldc, beta_read(source), source)
        if tiling.parts > 1:
            shape, strides = (tiling.parts, M, tiling.ldw), (M * tiling.ldw, tiling.ldw, 1)
            sums = Matrix(self.work + tiling.exceptions, shape, strides, name="W")
            self._add_product(tiling, a, b, _Target(sums, tiling.ldw), exceptions)
            self._add_reduction(tiling, a, b, sums, into)
        else:
            self._add_product(tiling, a, b, into, exceptions)
        self._add_guard(tiling, a, b, (m, n), into, exceptions)

    def _add_product(self, t: Tiling, a: Pairs, b: Pairs, into: _Target, exceptions: Matrix) -> None:
        """Multiply split operands, into C or into the partial sums."""
        config, vec = self.config, 1 if self.trans_c else into.vec
        constants = config.compiled | {"TRANS_C": int(self.trans_c), "VEC_C": vec, "SOURCE": into.source_vec(vec), "SYM": 0}
        pairs, infos, lines, source = [a.pairs, b.pairs], [a.info, b.info], [t.M, t.N], into.source_arguments
        if isinstance(config, Fp16x3Config):
            constants["SPLIT_BEFORE"] = t.split_before(self.before)
        if self.trans_c:
            for of_both in (pairs, infos, lines):
                of_both.reverse()
            source = (source[0], *source[:0:-1])
        extents = map(np.int32, (*lines, t.k_blocks, t.part_blocks))
        self.draft.add(
            spec(geometry.file_of(config), constants), (t.grid,), config.threads,
            (
                *pairs, *extents, Scalar.ALPHA, *infos, Scalar.BETA, into.C, into.ld, t.M * t.ldw, exceptions, *source,
            ),
            writes=(Write(into.C, complete=False, reads=into.reads), Write(exceptions)),
            shared_bytes=config.shared_bytes, early=self._begun, when=When.READS,
        )  # fmt: skip

    def _add_reduction(self, t: Tiling, a: Pairs, b: Pairs, sums: Matrix, into: _Target) -> None:
        """Add up the partial sums, scale them and store them."""
        constants = {"VEC_C": into.vec, "SOURCE": into.source_vec(into.vec), "SYM": 0}
        self.draft.add(
            spec("reduce_fp16x3.cu", constants), (t.reduction_blocks,), geometry.REDUCE_THREADS,
            (
                *map(np.int32, (t.M, t.N, t.parts)), sums, t.ldw, t.M * t.ldw, Scalar.ALPHA, a.info, b.info,
                Scalar.BETA, into.C, into.ld, *into.source_arguments,
            ),
            writes=(Write(into.C, complete=False, reads=into.reads),), early=True, when=When.READS,
        )  # fmt: skip

    def _add_guard(self, t: Tiling, a: Pairs, b: Pairs, first: Pair, into: _Target, exceptions: Matrix) -> None:
        """Compute from A and B themselves what their split forms leave out."""
        A, B = (
            operand.block((line, 0), (lines, self.K))
            for operand, line, lines in zip(self.operands, first, (t.M, t.N), strict=True)
        )
        self.draft.add(
            spec("guard_fp16x3.cu", {"SOURCE": into.source_vec(1), "SYM": 0}), (self.draft.traits.multiprocessors,),
            geometry.GUARD_THREADS,
            (
                *map(np.int32, (t.M, t.N, self.K)), Scalar.ALPHA, A, *A.strides, B, *B.strides[::-1],
                Scalar.BETA, into.C, into.ld, a.info, a.where, b.info, b.where, exceptions,
                *map(np.int32, t.tile), *into.source_arguments,
            ),
            writes=(Write(into.C, complete=False, reads=When.ALWAYS),), early=True, when=When.READS,
        )  # fmt: skip
