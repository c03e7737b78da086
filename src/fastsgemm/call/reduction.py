"""The launch that adds up the partial sums of a product whose K is split, in an order that is fixed, and stores C."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastsgemm.call.plan import Draft, Scalar, Write, beta_read
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import Batch, BatchAndSource
from fastsgemm.geometry.layout import Pair
from fastsgemm.geometry.matrix import Matrix
from fastsgemm.jit.source import helper_spec
from fastsgemm.problem import Sym


def add_reduction(
    draft: Draft,
    counts: tuple[int, int, int],
    sums: Matrix | None,
    c: Matrix,
    strides: Pair,
    batch: Batch | BatchAndSource,
    sym: Sym,
    in_order: bool = False,
    **more: Any,
) -> None:
    """Add C <- alpha * (the sum of the parts) + beta * C, or beta times a source.

    `counts` are M, N and the parts, each of which is a row-major matrix behind the one before. Without sums, nothing is
    added to beta * C. `strides` are the elements from one row of C to the next, and from one column to the next, and
    `sym` what of C is stored, as the kernel sees it. The batch has the steps of the partial sums in place of those of
    A. Parts that are `in_order` are segments, whose sum has the order of docs/precision.md. `more` is of the `Launch`.
    """
    source = batch.source if isinstance(batch, BatchAndSource) else None
    M, N, parts = counts
    blocks, threads = grid.reduction_blocks(M, N, parts, in_order, sym)
    draft.add(
        helper_spec("reduce_segments" if in_order else "reduce_parts", int(source is not None), sym),
        (blocks, *batch.grid), threads,
        (
            *map(np.int32, counts), sums or 0, M * N if sums else 0, Scalar.ALPHA, Scalar.BETA, c, *strides, batch,
        ),
        writes=(Write(c, not sym.leaves_one, beta_read(source)),), **more,
    )  # fmt: skip
