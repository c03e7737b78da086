"""One product by kernels of precision ``ieee``.

With split-K, each part of K writes its partial sums to workspace, and a second kernel adds them up, see
`fastsgemm.call.reduction`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fastsgemm.call import packing
from fastsgemm.call.plan import Argument, Draft, Scalar, When, Write, beta_read
from fastsgemm.call.reduction import add_reduction
from fastsgemm.config import PipelinedConfig
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import ITEM, row_major
from fastsgemm.geometry.matrix import Matrix, Operand
from fastsgemm.geometry.variants import Call
from fastsgemm.heuristics import database
from fastsgemm.heuristics.shares import Share
from fastsgemm.heuristics.ways import pack
from fastsgemm.jit.source import rung_spec
from fastsgemm.problem import Sym

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


def add_product(
    draft: Draft,
    shares: Sequence[Share],
    sym: Sym,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    source: Matrix | None = None,
) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C; each operand has a unit stride.

    `sym` says what of C is stored; of a result that is symmetric there is one share. A source is read in place of C,
    with any strides: by the kernel that stores C or, on rungs 1 to 8, by one that copies it to C first.

    Raises
    ------
    ShapeError
        A grid would have more blocks than the hardware allows.
    """
    if source is not None and not all(share.rung.reads_source for share in shares):
        packing.add_copy(draft, source, c, When.BETA)
        source = None
    lying_a, lying_b, lying_c = (each.operand for each in (a, b, c))
    reads = [_read_by(share, lying_a, lying_b) for share in shares]
    packed: dict[tuple[str, Operand], Matrix] = {}  # A and B may be read alike, so by name, too
    for of_a, of_b in reads:  # all copies come first: a share may begin before the one before it has ended
        for name, matrix, lying, read in (("A", a, lying_a, of_a), ("B", b, lying_b, of_b)):
            if read is lying or (name, read) in packed:
                continue
            if b.is_transpose_of(a) and ("A", read.transposed) in packed:  # the lines of one copy serve both
                copy = packed["A", read.transposed].transposed
            elif read.padded:
                copy = packing.add_lines(draft, matrix, lying, read)
            else:
                copy = packing.add_cast(draft, matrix, When.READS)
            packed[name, read] = copy
    for number, (share, (of_a, of_b)) in enumerate(zip(shares, reads, strict=True)):
        (m, _), (n, _) = share.rows, share.columns
        in_a, in_b = packed.get(("A", of_a), a), packed.get(("B", of_b), b)
        if in_a is not a or in_b is not b:
            of_a, of_b = _in_memory(of_a, in_a), _in_memory(of_b, in_b)
        read_a, read_b, written = variants.share(of_a, of_b, lying_c, share.rows, share.columns)
        read_source = None if source is None else source.block((m, n), written.shape)
        call = variants.call_for(read_a, read_b, written, extents=c.extents, source=read_source, sym=sym)
        blocks = (
            in_a.block((m, 0), read_a.readable), in_b.block((0, n), read_b.readable), c.block((m, n), written.shape),
        )  # fmt: skip
        _add_share(draft, share, call, *blocks, early=number > 0)


def _read_by(share: Share, a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Return A and B as a share reads them: packed, as they lie or, of 16 bits where its rung needs it, as float32."""
    a, b = pack(share.packed, a, b)
    return (a, b) if share.rung.reads_halves else (a.cast, b.cast)


def _in_memory(read: Operand, matrix: Matrix) -> Operand:
    """Return how a matrix is read; the lines of one that was packed are known already."""
    return read if read.padded else matrix.operand


def _add_share(draft: Draft, share: Share, call: Call, a: Matrix, b: Matrix, c: Matrix, *, early: bool) -> None:
    """Add the launches that compute one share of a product.

    It may begin early behind another share. That one began after the copies before it had ended, and no share needs the
    results of another; see `cuda_src/device/dependent_launch.cuh`.
    """
    rung, config = share.rung, share.config
    call = variants.call_with_swap_ab(rung, call)
    if call.swap_ab:
        a, b = b, a
    problem = call.problem
    parts, chunk = grid.split(config, problem.K)
    M, N, parts_apart = np.int32(problem.M), np.int32(problem.N), problem.M * problem.N
    variant = variants.variant_for(rung, call, config, database.fitted(draft.traits.arch).peeled_tiles)
    blocks = (grid.blocks(config, problem), *call.batch.grid)
    alpha: Argument = Scalar.ALPHA
    beta: Argument = Scalar.BETA
    last: Argument
    if parts > 1:  # alpha and beta are for the sum
        alpha, beta, ldc = _ONE, _ZERO, problem.N
        count = parts * parts_apart * call.batch.count
        sums = Matrix(draft.reserve(ITEM * count, "the partial sums of split-K"), (count,), (1,), name="W")
        sums_apart = row_major(call.batch.extents, size=parts * parts_apart)
        written, last = Write(sums, not call.sym), replace(call.batch, c=sums_apart)
    else:
        written, ldc = Write(c, not call.sym.leaves_one, beta_read(call.source)), call.ldc
        last = call.batch.with_source(call.source)
    of_parts: list[Argument] = []
    if rung.splits:
        of_parts = [np.int32(chunk), parts_apart]
        if isinstance(config, PipelinedConfig):
            of_parts.append(np.int32(grid.chain(config, problem.K)))
    draft.add(
        rung_spec(rung, config, variant), blocks, config.threads,
        (M, N, Scalar.STEPS, alpha, a, call.lda, b, call.ldb, beta, written.matrix, ldc, *of_parts, last),
        writes=(written,), shared_bytes=config.shared_bytes, early=early,
    )  # fmt: skip
    if parts > 1:
        batch = replace(call.batch, a=sums_apart).with_source(call.source)
        counts, in_order = (problem.M, problem.N, parts), config.segment > 0
        add_reduction(draft, counts, sums, c, call.strides_c, batch, call.sym, in_order, early=True)
