"""Rung 11: split A and B, multiply, let the guard repair what FP16 pairs cannot express.

The kernels and the order in which they are launched are described in ``cuda_src/README.md``. A column-major C is
computed as C^T = B^T A^T, so everything below is for a row-major one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from fastsgemm.call import half
from fastsgemm.call.epilogue import Epilogue
from fastsgemm.call.plan import Argument, Draft, When, Write
from fastsgemm.call.splitting import Pairs, Unsplit, add_split, pairs_at
from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.fp16x3 import SplitArrays, Tiling
from fastsgemm.geometry.layout import ITEM, Pair
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.heuristics.choice import Choice
from fastsgemm.jit.source import spec
from fastsgemm.problem import Dtypes, Sym

PURPOSE = "the split operands of fp16x3"


def add_product(
    draft: Draft,
    split: tuple[bool, bool],
    choice: Choice,
    sym: Sym,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    source: Matrix | None = None,
) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C for a batch: of split operands one product after the other.

    Parameters
    ----------
    draft : Draft
    split : (bool, bool)
        Which of A and B were split before the call.
    choice : Choice
    sym : Sym
        What of C is stored.
    a, b, c : Matrix
        With a unit stride, unless split before.
    source : Matrix, optional
        What is read in place of C, with any strides, by the kernels that store C.
    """
    places = [
        Address(base) if before else None for base, before in zip((Base.SPLIT_A, Base.SPLIT_B), split, strict=True)
    ]
    if c.stored is not None and c.stored.trans:
        a, b, c = b.transposed, a.transposed, c.transposed
        source = source and source.transposed
        places.reverse()
        sym = sym.transposed
    if b.is_transpose_of(a):  # the pairs of one are those of the other
        places = [places[0] or places[1]] * 2
    Epilogue(draft, c, source, sym, parts=0).add_reduction(draft, when=When.READS_NOTHING)
    if choice.direct:
        half.add_product(draft, choice, sym, a, b.transposed, c, source)
        return
    for index in draft.in_turn(np.ndindex(c.extents)):
        one_a, one_b, one_c = (each.at(index) for each in (a, b, c))
        _Builder(draft, choice, sym, one_a, one_b.transposed, one_c, source and source.at(index)).add(places)


class _Builder:
    """Adds the launches of a product. `a` is seen as (M, K), `b` as (N, K): lines of both run along K.

    `source` is what beta multiplies, if that is not C. Where `a` is `b`, its pairs serve for both.
    """

    def __init__(
        self, draft: Draft, choice: Choice, sym: Sym, a: Matrix, b: Matrix, c: Matrix, source: Matrix | None
    ) -> None:
        assert isinstance(choice.config, Fp16x3Config | Fp16x3MmaConfig)  # see `add_product`
        self.draft, self.operands, self.c, self.source = draft, (a, b), c, source
        self.config = choice.config
        self.trans_c, self.gram = choice.trans_c, b.transposed.is_transpose_of(a)
        self.sym = sym
        self.K = a.shape[1]
        self.first = len(draft.launches)

    def add(self, places: list[Address | None]) -> None:
        """For every panel of A and of B split what is not yet split, multiply, repair.

        Parameters
        ----------
        places : list of Address or None
            Of A and B where they were split before.
        """
        self.before = [place is not None for place in places]
        panels = self._panels(places)
        begins, rooms = self._rooms(places, panels)
        done: list[Pair | None] = [None, None]  # the panels that are split now
        for each in self.draft.in_turn(product(*panels)):
            rows, columns = each
            m, n = rows[0], columns[0]
            if (self.sym is Sym.LOWER and m < n) or (self.sym is Sym.UPPER and n < m):
                continue
            pairs = [
                pairs_at(begin, room, lines, self.K, operand.name, operand.dtype)
                for begin, room, (_, lines), operand in zip(begins, rooms, each, self.operands, strict=True)
            ]
            one = self.gram and m == n
            sides = [0] if one else [0, 1]
            self._split([
                Unsplit(self.operands[side].block((each[side][0], 0), (each[side][1], self.K)), pairs[side])
                for side in sides
                if places[side] is None and done[side] != each[side]
            ])  # fmt: skip
            for side in sides:
                done[side] = each[side]
            self._multiply(rows, columns, pairs[0], pairs[0] if one else pairs[1])

    def _panels(self, places: Sequence[Address | None]) -> list[list[Pair]]:
        """Return (first line, lines) of the panels of both operands; one that was split before is whole.

        So are those of a symmetric result that is no Gram product: its triangles come from one product.
        """
        (M, _), (N, _) = shapes = [operand.shape for operand in self.operands]
        to_split = [0 if place is not None else lines for place, (lines, _) in zip(places, shapes, strict=True)]
        whole: list[list[Pair]] = [[(0, M)], [(0, N)]]
        if (self.sym and not self.gram) or (self.gram and len(geometry.panels(M, self.K, 0)) == 1):
            return whole
        return [
            geometry.panels(lines, self.K, to_split[1 - side]) if lines else whole[side]
            for side, lines in enumerate(to_split)
        ]

    def _rooms(
        self, places: Sequence[Address | None], panels: Sequence[Sequence[Pair]]
    ) -> tuple[list[Address], list[SplitArrays]]:
        """Return where the split panels of both operands lie. One that is both has one place."""
        rooms = [  # the first panel is the largest
            geometry.split_arrays(of_one[0][1], self.K, operand.dtype)
            for of_one, operand in zip(panels, self.operands, strict=True)
        ]
        begins: list[Address] = []
        for place, room in zip(places, rooms, strict=True):
            if begins and self.gram and len(panels[0]) == 1:
                place = begins[0]
            begins.append(place or self.draft.reserve(room.end, PURPOSE))
        return begins, rooms

    def _split(self, operands: list[Unsplit]) -> None:
        if operands:
            add_split(self.draft, operands, early=self._begun)

    @property
    def _begun(self) -> bool:
        """Whether a kernel of this product comes before the next one."""
        return len(self.draft.launches) > self.first

    def _multiply(self, rows: Pair, columns: Pair, a: Pairs, b: Pairs) -> None:
        """Multiply a panel of A by one of B, whose lines are given as first and how many."""
        (m, M), (n, N) = rows, columns
        sym = self.sym if m == n else Sym.WHOLE
        # A block above the diagonal is computed as the transpose of the one below it, so that it has the same bits.
        trans_c = self.trans_c or (self.sym is not Sym.WHOLE and m < n)
        multiprocessors = self.draft.traits.multiprocessors
        tiling = geometry.tiling(self.config, M, N, self.K, trans_c, multiprocessors, sym)
        exceptions = self.draft.reserve(ITEM * tiling.tiles, PURPOSE)
        words = Matrix(exceptions, (tiling.tiles,), (1,), name="exceptions")
        source = self.source and self.source.block((m, n), (M, N))
        epilogue = Epilogue(self.draft, self.c.block((m, n), (M, N)), source, sym, tiling.parts)
        self._add_product(tiling, a, b, epilogue, words)
        self._add_guard(tiling, a, b, (m, n), epilogue, words)
        epilogue.add_reduction(self.draft, when=When.READS)

    def _add_product(self, t: Tiling, a: Pairs, b: Pairs, epilogue: Epilogue, exceptions: Matrix) -> None:
        """Multiply split operands."""
        config = self.config
        constants = config.compiled | epilogue.constants(t.trans_c)
        pairs, infos, lines = [a.pairs, b.pairs], [a.info, b.info], [t.M, t.N]
        if isinstance(config, Fp16x3Config):
            constants["SPLIT_BEFORE"] = t.split_before(self.before)
            constants["EXCHANGED"] = int(self.trans_c)  # not of a block that is the mirror of one below the diagonal
        types = [operand.dtype for operand in self.operands]
        if t.trans_c:
            for of_both in (pairs, infos, lines, types):
                of_both.reverse()
        constants |= {"ONE_A": int(types[0] > 0), "ONE_B": int(types[1] > 0), "GROUPED": 0}
        constants["STAGES"], shared_bytes = geometry.ring(config, Dtypes(*types))
        extents = map(np.int32, (*lines, t.k_blocks, t.part_blocks))
        self.draft.add(
            spec(geometry.file_of(config), constants), (t.grid,), config.threads,
            (
                *pairs, *extents, epilogue.alpha, *infos, epilogue.beta, epilogue.matrix, epilogue.ld,
                epilogue.part_stride, exceptions, *epilogue.source_arguments(t.trans_c),
            ),
            writes=(
                Write(epilogue.matrix, complete=False, reads=epilogue.reads), Write(exceptions, not epilogue.sym),
            ),
            shared_bytes=shared_bytes, early=self._begun, when=When.READS,
        )  # fmt: skip

    def _add_guard(self, t: Tiling, a: Pairs, b: Pairs, first: Pair, epilogue: Epilogue, exceptions: Matrix) -> None:
        blocks = [
            operand.block((line, 0), (lines, self.K))
            for operand, line, lines in zip(self.operands, first, (t.M, t.N), strict=True)
        ]
        add_guard(self.draft, t, blocks, (a, b), epilogue, exceptions, epilogue.source_arguments())


def add_guard(
    draft: Draft, t: Tiling, operands: Sequence[Matrix], pairs: Sequence[Pairs], epilogue: Epilogue,
    exceptions: Matrix, last: Sequence[Argument],
) -> None:  # fmt: skip
    """Add the launch that computes from A and B themselves what their split forms leave out.

    A is (M, K). B is seen as (N, K), or as a matrix of this shape for each group of rows. The `last` arguments are
    those for the source and, of groups, the `GroupedRows`.
    """
    (A, B), (a, b) = operands, pairs
    constants = {"SOURCE": epilogue.source_vec(1), "SYM": int(epilogue.sym)}
    constants |= {"TYPE_A": int(A.dtype), "TYPE_B": int(B.dtype), "GROUPED": int(bool(B.extents))}
    draft.add(
        spec("guard_fp16x3.cu", constants), (draft.traits.multiprocessors,), geometry.GUARD_THREADS,
        (
            *map(np.int32, (t.M, t.N, A.shape[1])), epilogue.alpha, A, *A.strides, B, *B.inner_strides[::-1],
            epilogue.beta, epilogue.matrix, epilogue.ld, np.int32(t.parts), epilogue.part_stride,
            a.info, a.where, b.info, b.where, exceptions, *map(np.int32, t.tile), *last,
        ),
        writes=(Write(epilogue.matrix, complete=False, reads=When.ALWAYS),), early=True, when=When.READS,
    )  # fmt: skip
