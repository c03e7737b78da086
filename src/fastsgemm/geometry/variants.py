"""How a kernel is called for given operands: swap_ab, problem and variant. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec import Struct

from fastsgemm.config import VECTOR, Config
from fastsgemm.geometry.batch import ONE_PRODUCT, Batch, merged
from fastsgemm.geometry.grid import split
from fastsgemm.geometry.layout import Meta
from fastsgemm.geometry.matrix import Address, Base, Matrix, Operand, operand_of
from fastsgemm.problem import FLOAT32, DType, Dtypes, Problem, Ragged, Sym
from fastsgemm.rungs import Rung


class Call(Struct, frozen=True):
    """The operands in the order in which the kernel takes them."""

    swap_ab: bool  # the kernel computes C^T = B^T A^T, so its A is the caller's B
    problem: Problem
    variant: Variant
    lda: int
    ldb: int
    ldc: int
    batch: Batch = ONE_PRODUCT
    source: Matrix | None = None  # what beta multiplies, if that is not C
    sym: Sym = Sym.WHOLE  # what of C is stored, as the kernel sees it


def call_for(
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    extents: tuple[int, ...] = (),
    source: Matrix | None = None,
    sym: Sym = Sym.WHOLE,
) -> Call:
    """Return how a kernel is called for these operands: with C row-major, A and B swapped if it is not.

    `extents` are those of a batch, along which the operands have their steps. Beta multiplies `source`, or C where that
    is None. `sym` is what is stored of the caller's C.
    """
    swap_ab = c.how.trans
    if swap_ab:
        source, sym = source and source.transposed, sym.transposed
    a, b, c = _with_row_major_c(a, b, c)
    read = 0 if source is None else source.width
    dtypes = Dtypes(a.dtype, b.dtype)
    variant = Variant(a.how.trans, b.how.trans, a.width, b.width, c.width, source=read, dtypes=dtypes)
    batch = Batch(extents, a.steps, b.steps, c.steps)
    problem = Problem(c.shape[0], c.shape[1], a.shape[1], variant.layout, batch.count, bool(sym), dtypes)
    return Call(swap_ab, problem, variant, a.how.ld, b.how.ld, c.how.ld, batch, source, sym)


def _with_row_major_c(a: Operand, b: Operand, c: Operand) -> tuple[Operand, Operand, Operand]:
    """Return the operands in the order in which the kernel takes them: those of C^T = B^T A^T if C is column-major."""
    return (b.transposed, a.transposed, c.transposed) if c.how.trans else (a, b, c)


def problem_of(metas: Sequence[Meta], gram: bool = False) -> Problem:
    """Return the problem of A, B and C as arrays lie, or as their copies do; with `gram`, B is A transposed.

    It is that of the launch: the kernel's rows and columns, and the batch that is left.
    """
    a, b, c = merged(*(Matrix(Address(Base.A), tuple(x.shape), tuple(x.strides), dtype=x.dtype) for x in metas))
    return call_for(a.operand, b.operand, c.operand, extents=c.extents, sym=Sym.BOTH if gram else Sym.WHOLE).problem


def _layout(trans_a: bool, trans_b: bool) -> str:
    """Return ``NN``, ``NT``, ``TN`` or ``TT``, as BLAS spells it."""
    return ("T" if trans_a else "N") + ("T" if trans_b else "N")


def dense_problem(a: Operand, b: Operand, c: Operand, *, extents: tuple[int, ...] = ()) -> Problem:
    """Return the nearest problem whose operands, if they are dense, allow loads as wide as those of a product.

    The database speaks of dense operands. Padded lines, an odd address or packing make loads narrower or wider.
    `extents` are those of a batch.
    """
    a, b, c = _with_row_major_c(a, b, c)
    (M, N), K = c.shape, a.shape[1]
    trans_a, trans_b, width_a, width_b = a.how.trans, b.how.trans, a.width, b.width
    if trans_a:
        M = _of_width(M, width_a)
    else:
        K = _of_width(K, min(width_a, width_b) if trans_b else width_a)
    if not trans_b:
        N = _of_width(N, width_b)
    elif trans_a:
        K = _of_width(K, width_b)
    return Problem(M, N, K, _layout(trans_a, trans_b), prod(extents), dtypes=Dtypes(a.dtype, b.dtype))


def _of_width(extent: int, width: int) -> int:
    """Return the least extent, from this one on, of which a vector of this width is the widest that divides it."""
    return extent + (-extent % VECTOR if width == VECTOR else (width - extent) % (2 * width))


def _needs_swap_ab(rung: Rung, M: int, N: int) -> bool:
    """Whether `rung` swaps A and B, as a rung for few rows does where C has fewer columns than rows."""
    return rung.narrow and N < M


def with_swap_ab(rung: Rung, problem: Problem) -> Problem:
    """Return the problem as `rung` computes it."""
    return problem.transposed if _needs_swap_ab(rung, problem.M, problem.N) else problem


def call_with_swap_ab(rung: Rung, call: Call) -> Call:
    """Return the call as `rung` takes it. With swap_ab, the kernel writes the transposed C where C lies (TRANS_C)."""
    if not _needs_swap_ab(rung, call.problem.M, call.problem.N):
        return call
    v = call.variant
    dtypes = Dtypes(*v.dtypes[::-1])
    variant = Variant(
        not v.trans_b, not v.trans_a, v.vec_b, v.vec_a, v.vec_c, trans_c=True, source=v.source, dtypes=dtypes
    )
    return Call(
        not call.swap_ab, call.problem.transposed, variant, call.ldb, call.lda, call.ldc, call.batch.swapped,
        None if call.source is None else call.source.transposed,
    )  # fmt: skip


def variant_for(rung: Rung, call: Call, config: Config, peeled_tiles: int) -> Variant:
    """Return the variant that `rung` is compiled for, with vector widths that the rung supports.

    The call is as the rung takes it; see `call_with_swap_ab`. The end of K is computed first where K has at most so
    many `peeled_tiles`, a number that is fitted for each architecture; see `fastsgemm.heuristics.fitted.Fitted`.
    """
    batched = call.batch.count > 1
    if not rung.vectorized:
        return Variant(call.variant.trans_a, call.variant.trans_b, batched=batched)
    v = call.variant
    widths = (v.vec_a, v.vec_b) if rung.pairs else (_without_pairs(v.vec_a), _without_pairs(v.vec_b))
    vec_c, trans_c, source, sym = _without_pairs(v.vec_c), v.trans_c, v.source, call.sym
    if rung.splits and split(config, call.problem.K)[0] > 1:  # it writes to workspace, row by row
        vec_c, trans_c, source, sym = 1 if call.problem.N % 4 else 4, False, 0, sym.of_parts
    if rung.single_stores:
        vec_c = 1
    guard = rung.guarded and (call.problem.M < config.BM or call.problem.N < config.BN)
    peel = rung.guarded and _peeled(config, call.problem.K, peeled_tiles)
    return Variant(
        v.trans_a, v.trans_b, *widths, vec_c, guard, trans_c, peel, batched, min(source, vec_c), sym, v.dtypes
    )


def _peeled(config: Config, K: int, peeled_tiles: int) -> bool:
    """Whether the last part of K ends in less than a tile, after at least one whole tile and at most `peeled_tiles`."""
    if config.segment:
        return False  # its steps are the last of a chain
    tile = config.tile_k
    count, chunk = split(config, K)
    whole, end = divmod(K - (count - 1) * chunk, tile)
    return end > 0 and whole > 0 and (whole if count == 1 else chunk // tile) <= peeled_tiles


def _without_pairs(width: int) -> int:
    return 1 if width == 2 else width


class Variant(Struct, frozen=True):
    """How the operands lie, as far as a kernel is compiled for it."""

    trans_a: bool = False  # whether A is stored column-major
    trans_b: bool = False
    # Floats per load or store: 4, 2 or 1 for a load of rung 9, 4 or 1 on the other rungs that vectorise and for C, else
    # always 1. For C, it is 1 where a rung stores single elements.
    vec_a: int = 1
    vec_b: int = 1
    vec_c: int = 1
    # C is smaller than a tile of it in rows or columns; always false on the rungs that look at every edge anyway.
    guard: bool = False
    # C is stored column-major; only rung 10 writes it so, the others compute the transposed product.
    trans_c: bool = False
    # The end of K, where it is no whole tile, is computed first; only on rung 9. Such a kernel leaves out an end that
    # follows no whole tile, so every launch of it has a whole tile in each part of K that has an end.
    peel: bool = False
    batched: bool = False  # the grid has several products along y and z
    # 0: beta multiplies C. 4 or 1: it multiplies the source, of which so many floats are read at a time; always 0 on
    # rungs 1 to 8.
    source: int = 0
    sym: Sym = Sym.WHOLE  # what of C is stored; always WHOLE but on rung 9
    dtypes: Dtypes = FLOAT32  # the types of A and B; always float32 but on rung 10
    ragged: Ragged = Ragged.NOTHING  # what is divided into groups; only on rung 9

    @property
    def layout(self) -> str:
        """``NN``, ``NT``, ``TN`` or ``TT``, as BLAS spells it."""
        return _layout(self.trans_a, self.trans_b)


def dense(problem: Problem) -> tuple[Meta, Meta, Meta]:
    """Return A, B and C where nothing lies between their elements.

    A batch is the first of three dimensions.
    """
    M, N, K = problem.M, problem.N, problem.K
    batch = extents_of(problem)
    a, b, c = (
        Meta(
            (*batch, rows, columns),
            (*(rows * columns for _ in batch), *((1, rows) if letter == "T" else (columns, 1))),
            dtype,
        )
        for (rows, columns), letter, dtype in zip(
            ((M, K), (K, N), (M, N)), (*problem.layout, "N"), (*problem.dtypes, DType.F32), strict=True
        )
    )
    return a, b, c


def extents_of(problem: Problem) -> tuple[int, ...]:
    """Return the extents of the batch of a problem in dense arrays: none for one product."""
    return () if problem.batch == 1 else (problem.batch,)


def dense_operands(problem: Problem) -> tuple[Operand, Operand, Operand]:
    """Return A, B and C of a problem in dense, aligned arrays."""
    a, b, c = map(operand_of, dense(problem))
    return a, b, c


def dense_call(problem: Problem) -> Call:
    """Return how a kernel is called for a problem in dense, aligned arrays.

    The database is asked for the problem of this call: a vector fits both layouts, and a C with one column is computed
    as its transpose.
    """
    sym = Sym.BOTH if problem.symmetric else Sym.WHOLE
    return call_for(*dense_operands(problem), extents=extents_of(problem), sym=sym)
