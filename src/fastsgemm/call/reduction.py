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

    Parameters
    ----------
    draft : Draft
    counts : (int, int, int)
        M, N and the parts, each of which is a row-major matrix behind the one before.
    sums : Matrix or None
        None: there are no parts, so nothing is added to beta * C.
    c : Matrix
    strides : (int, int)
        Elements from one row of C to the next, and from one column to the next, as the kernel sees C.
    batch : Batch or BatchAndSource
        With the steps of the partial sums in place of those of A.
    sym : Sym
        What of C is stored, as the kernel sees it.
    in_order : bool
        The parts are segments, whose sum has the order of docs/precision.md.
    more
        Of the `Launch`.
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
