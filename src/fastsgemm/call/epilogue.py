"""How the sums of a product become C: what the kernels that multiply store, and the launch that adds up parts of K."""

from __future__ import annotations

from math import prod

import numpy as np

from fastsgemm.call.plan import Argument, Draft, Scalar, When, Write, beta_read
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import Batch
from fastsgemm.geometry.layout import ITEM, line_vector, row_major
from fastsgemm.geometry.matrix import Matrix
from fastsgemm.jit.source import helper_spec
from fastsgemm.problem import Sym


class Epilogue:
    """What the kernels of a product store, and where.

    That is C itself or, with several parts of K (split-K), the sums over each part, in workspace: with an alpha of 1
    and a beta of 0, of a symmetric C the lower triangle alone. The launch of `add_reduction` adds them up to C.

    Parameters
    ----------
    draft : Draft
    c : Matrix
        The C of one product, or of a batch, as the kernels see it, with a unit stride.
    source : Matrix or None
        What beta multiplies, if that is not C.
    sym : Sym
        What of C is stored.
    parts : int
        Of K. Without any, nothing is added to beta * C.

    Attributes
    ----------
    alpha, beta : Scalar or float32
    source, sym : Matrix or None, Sym
        Those of the kernels that multiply, as are alpha and beta.
    matrix : Matrix
        Where they store.
    ld : int
        Its leading dimension.
    steps : tuple of int
        Elements from what is stored of one product to that of the next, along each extent of a batch.
    reads : When or None
        When they read what was there.
    parts, part_stride : int
        Parts of K, and the elements from the sums over one to those over the next.
    """

    alpha: Argument = Scalar.ALPHA
    beta: Argument = Scalar.BETA

    def __init__(self, draft: Draft, c: Matrix, source: Matrix | None, sym: Sym, parts: int) -> None:
        assert c.stored is not None  # packed else
        self.parts, self.part_stride = parts, prod(c.rows_and_columns)
        self._whole = c, source, sym
        self.matrix, self.ld, self.steps, self.reads = c, c.stored.ld, c.steps, beta_read(source)
        self.source, self.sym = source, sym
        if parts > 1:
            shape = (*c.extents, parts, *c.rows_and_columns)
            sums = draft.reserve(ITEM * prod(shape), "the partial sums of split-K")
            self.matrix = Matrix(sums, shape, row_major(shape), name="W")
            self.ld, self.steps, self.reads = shape[-1], self.matrix.strides[:-3], None
            self.alpha, self.beta, self.source, self.sym = np.float32(1.0), np.float32(0.0), None, sym.of_parts

    @property
    def write(self) -> Write:
        """What a kernel writes that stores every element."""
        return Write(self.matrix, not self.sym.leaves_one, self.reads)

    def source_vec(self, vec: int) -> int:
        """Return the elements of the source that a kernel reads at a time that stores `vec`: 0 without a source."""
        return 0 if self.source is None else min(vec, self.source.width)

    def constants(self, trans_c: bool) -> dict[str, int]:
        """Return the constants of a product of rung 11 that say what it stores, with `trans_c` column by column."""
        vec = 1 if trans_c else line_vector(self.ld, self.matrix.misalignment, self.matrix.item)
        return {"TRANS_C": int(trans_c), "VEC_C": vec, "SOURCE": self.source_vec(vec), "SYM": int(self.sym)}

    @property
    def types(self) -> dict[str, int]:
        """The constants that say of which types the elements are that are stored, and those that beta multiplies."""
        return _types(self.matrix, self.source)

    def source_arguments(self, trans_c: bool = False) -> tuple[Argument, ...]:
        """Return the arguments of a kernel of rung 11 for the source: where it lies, and its strides."""
        if self.source is None:
            return (0, 0, 0)
        down, right = self.source.inner_strides
        return (self.source, right, down) if trans_c else (self.source, down, right)

    def add_reduction(self, draft: Draft, in_order: bool = False, when: When = When.ALWAYS) -> None:
        """Add the launch that adds up the parts, if there is not just one, and stores C.

        Parts that are `in_order` are segments, whose sum has the order of docs/batch-invariance.md.
        """
        if self.parts == 1:
            return
        c, source, sym = self._whole
        M, N = c.rows_and_columns
        blocks, threads = grid.reduction_blocks(M, N, self.parts, in_order, sym)
        if in_order:
            kernel = helper_spec("reduce_segments", SOURCE=source is not None, SYM=sym)
        else:
            vec = 1 if N % 4 or sym else c.width
            read = 0 if source is None else min(vec, source.width)
            kernel = helper_spec("reduce_parts", VEC_C=vec, SOURCE=read, SYM=sym, **_types(c, source))
        batch = Batch(c.extents, self.steps, self.steps, c.steps)
        sums = (self.matrix, self.part_stride) if self.parts else (0, 0)
        draft.add(
            kernel, (blocks, *batch.grid), threads,
            (
                *map(np.int32, (M, N, self.parts)), *sums, Scalar.ALPHA, Scalar.BETA, c, *c.inner_strides,
                batch.with_source(source),
            ),
            writes=(Write(c, not sym.leaves_one, beta_read(source)),), early=self.parts > 1, when=when,
        )  # fmt: skip


def _types(written: Matrix, source: Matrix | None) -> dict[str, int]:
    return {"TYPE_C": int(written.dtype), "TYPE_OLD": int((source or written).dtype)}
