"""Rung 11 for 16-bit operands that lie so that tensor cores take them as they are: ``11_half.cu``."""

from __future__ import annotations

import numpy as np

from fastsgemm.call.plan import Argument, Draft, Scalar, When, Write, beta_read
from fastsgemm.call.reduction import add_reduction
from fastsgemm.config import HalfConfig
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.batch import ONE_PRODUCT
from fastsgemm.geometry.fp16x3 import BLOCK_K
from fastsgemm.geometry.layout import ITEM, line_vector
from fastsgemm.geometry.matrix import Matrix
from fastsgemm.geometry.tensor_map import TensorMap
from fastsgemm.heuristics.choice import Choice
from fastsgemm.jit.source import spec
from fastsgemm.problem import Dtypes, Sym

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


def add_product(
    draft: Draft, choice: Choice, sym: Sym, a: Matrix, b: Matrix, c: Matrix, source: Matrix | None = None
) -> None:
    """Add the launches of one product C <- alpha * A @ B + beta * C, or with beta times a source.

    For A and B see `fastsgemm.geometry.fp16x3.is_direct`; `b` is seen as (N, K). C is row-major.
    """
    config, (M, K), N = choice.config, a.shape, b.shape[0]
    assert isinstance(config, HalfConfig) and a.stored is not None and b.stored is not None and c.stored is not None
    t = geometry.tiling(config, M, N, K, choice.trans_c, draft.traits.multiprocessors, sym)
    into, ldc, read, of_source = c, c.stored.ld, beta_read(source), source
    alpha: Argument = Scalar.ALPHA
    beta: Argument = Scalar.BETA
    of_kernel = sym
    if t.parts > 1:  # alpha and beta are for the sum
        alpha, beta, ldc, read, of_source = _ONE, _ZERO, N, None, None
        of_kernel = Sym.LOWER if sym else sym  # what adds the parts up stores both triangles
        sums = draft.reserve(ITEM * t.parts * M * N, "the partial sums of split-K")
        into = Matrix(sums, (t.parts, M, N), (M * N, N, 1), name="W")
    vec = 1 if t.trans_c else line_vector(ldc, into.misalignment)
    operands, strides = [(a, a.stored.ld, M), (b, b.stored.ld, N)], of_source.inner_strides if of_source else (0, 0)
    if t.trans_c:
        operands.reverse()
        strides = strides[::-1]
    (first, lda, rows), (second, ldb, columns) = operands
    constants = {
        "TRANS_C": int(t.trans_c), "VEC_C": vec, "SOURCE": min(vec, of_source.width) if of_source else 0,
        "SYM": int(of_kernel), "TYPE": int(a.dtype or b.dtype), "FLOAT_A": int(a.dtype is not b.dtype),
    }  # fmt: skip
    maps = [
        TensorMap(each.dtype, K, lines, ld, min(box, lines) if each.dtype else box)
        for (each, ld, lines), box in zip(operands, (config.BM, config.BN), strict=True)
    ]
    constants["STAGES"], shared_bytes = geometry.ring(config, Dtypes(operands[0][0].dtype, operands[1][0].dtype))
    draft.add(
        spec(geometry.file_of(config), config.compiled | constants), (t.grid,), config.threads,
        (
            *maps, first, lda, second, ldb, *map(np.int32, (rows, columns, K, BLOCK_K * t.part_blocks)), alpha, beta,
            into, ldc, M * N, of_source or 0, *strides,
        ),
        writes=(Write(into, not of_kernel, read),), shared_bytes=shared_bytes, when=When.READS,
    )  # fmt: skip
    if t.parts > 1:
        last = ONE_PRODUCT.with_source(source)
        add_reduction(draft, (M, N, t.parts), into, c, c.inner_strides, last, sym, early=True, when=When.READS)
