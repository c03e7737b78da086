"""Rung 11 for 16-bit operands that lie so that tensor cores take them as they are: ``11_half.cu``."""

from __future__ import annotations

from math import prod

import numpy as np

from fastsgemm.call.epilogue import Epilogue
from fastsgemm.call.plan import Draft, When
from fastsgemm.config import F16DirectConfig
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.batch import Batch
from fastsgemm.geometry.fp16x3 import BLOCK_K
from fastsgemm.geometry.matrix import Matrix
from fastsgemm.geometry.tensor_map import TensorMap
from fastsgemm.heuristics.choice import Choice
from fastsgemm.jit.source import spec
from fastsgemm.problem import Dtypes, Sym

MAX_WORKS = 2**32 - 1  # tiles of all parts and products, as the kernel counts them


def add_product(
    draft: Draft, choice: Choice, sym: Sym, a: Matrix, b: Matrix, c: Matrix, source: Matrix | None = None
) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C for a batch, or with beta times a source.

    For A and B see `fastsgemm.geometry.fp16x3.is_direct`; `b` is seen as (N, K). C is row-major.
    """
    config, (M, K), N = choice.config, a.rows_and_columns, b.rows_and_columns[0]
    assert isinstance(config, F16DirectConfig) and a.stored is not None and b.stored is not None
    t = geometry.tiling(config, M, N, K, choice.trans_c, draft.traits.multiprocessors, sym, prod(c.extents))
    if t.works > MAX_WORKS:
        raise ShapeError(f"a batch of {prod(c.extents)} products has {t.works} tiles, the limit is {MAX_WORKS}")
    epilogue = Epilogue(draft, c, source, sym, t.parts)
    operands = [(a, a.stored.ld, M), (b, b.stored.ld, N)]
    if t.trans_c:
        operands.reverse()
    (first, lda, rows), (second, ldb, columns) = operands
    constants = epilogue.constants(t.trans_c) | epilogue.types
    constants |= {"TYPE": int(a.dtype or b.dtype), "FLOAT_A": int(a.dtype is not b.dtype)}
    maps = [
        TensorMap(each.dtype, K, lines, ld, min(box, lines) if each.dtype else box)
        for (each, ld, lines), box in zip(operands, (config.BM, config.BN), strict=True)
    ]
    source, batch = epilogue.source, Batch(c.extents, a.steps, b.steps, epilogue.steps)
    if t.trans_c:
        source, batch = source and source.transposed, batch.swapped
    constants["STAGES"], shared_bytes = geometry.ring(config, Dtypes(operands[0][0].dtype, operands[1][0].dtype))
    draft.add(
        spec(geometry.file_of(config), config.compiled | constants), (t.grid,), config.threads,
        (
            *maps, first, lda, second, ldb, *map(np.int32, (rows, columns, K, BLOCK_K * t.part_blocks)),
            epilogue.alpha, epilogue.beta, epilogue.matrix, epilogue.ld, epilogue.part_stride,
            batch.with_source(source),
        ),
        writes=(epilogue.write,), shared_bytes=shared_bytes, when=When.READS,
    )  # fmt: skip
    epilogue.add_reduction(draft, when=When.READS)
