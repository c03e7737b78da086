"""Groups of rows by rung 11: split A and the B of all groups, multiply, repair. See ``device/grouped_rows.cuh``."""

from __future__ import annotations

import numpy as np

from fastsgemm.call import packing
from fastsgemm.call.epilogue import Epilogue
from fastsgemm.call.fp16x3 import PURPOSE, add_guard
from fastsgemm.call.plan import Draft, When, Write
from fastsgemm.call.splitting import Unsplit, add_split, add_split_batch, pairs_at
from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import splitting
from fastsgemm.geometry.batch import GroupedRows
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.matrix import Matrix
from fastsgemm.heuristics.choice import Choice
from fastsgemm.jit.source import spec
from fastsgemm.problem import Dtypes, Sym


def add_product(
    draft: Draft, choice: Choice, ends: Matrix, a: Matrix, b: Matrix, c: Matrix, source: Matrix | None
) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C for groups of rows, unless A and B are not read.

    A is (T, K), B is (G, K, N) and C, which is row-major, (T, N). A and B have any strides.
    """
    config, multiprocessors = choice.config, draft.traits.multiprocessors
    assert isinstance(config, Fp16x3Config | Fp16x3MmaConfig)  # groups are always split
    (T, K), (groups, _, N) = a.shape, b.shape
    lines_b = geometry.grouped_lines(N, groups)
    a, b = _splittable(draft, a, b)
    of_a, of_b = (
        pairs_at(draft.reserve(room.end, PURPOSE), room, lines, K, operand.name, operand.dtype)
        for operand, lines in ((a, T), (b, lines_b))
        for room in [geometry.split_arrays(lines, K, operand.dtype)]
    )
    add_split(draft, [Unsplit(a, of_a)], early=False)
    add_split_batch(draft, b.transposed, of_b)
    t = geometry.grouped_tiling(config, T, N, K, groups, multiprocessors, most=True)
    words = Matrix(draft.reserve(ITEM * t.tiles, PURPOSE), (t.tiles,), (1,), name="exceptions")
    epilogue = Epilogue(draft, c, source, Sym.WHOLE, t.parts)
    *of_source, source_column = epilogue.source_arguments()
    assert isinstance(source_column, int)
    last = GroupedRows(ends, b.steps[0], source_column)
    dtypes = Dtypes(a.dtype, b.dtype)
    constants = config.compiled | epilogue.constants(False)
    constants |= {"ONE_A": int(a.dtype > 0), "ONE_B": int(b.dtype > 0), "GROUPED": 1}
    if isinstance(config, Fp16x3Config):
        constants |= {"SPLIT_BEFORE": 0, "EXCHANGED": 0}
    constants["STAGES"], shared_bytes = geometry.ring(config, dtypes)
    draft.add(
        spec(geometry.file_of(config), constants), (t.grid,), config.threads,
        (
            of_a.pairs, of_b.pairs, *map(np.int32, (T, N, t.k_blocks, t.part_blocks)), epilogue.alpha, of_a.info,
            of_b.info, epilogue.beta, epilogue.matrix, epilogue.ld, epilogue.part_stride, words, *of_source, last,
        ),
        writes=(Write(epilogue.matrix, complete=False, reads=epilogue.reads), Write(words, complete=False)),
        shared_bytes=shared_bytes, early=True, when=When.READS,
    )  # fmt: skip
    add_guard(draft, t, (a, b.transposed), (of_a, of_b), epilogue, words, (*of_source, last))


def _splittable(draft: Draft, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return A and B as the kernels that split read them: with a unit stride, themselves or copies."""
    if a.stored is None:
        a = packing.add_packed(draft, a)
    # Without clusters of blocks, a kernel of its own finds the maxima of strided lines, of one matrix only.
    one_kernel = splitting.has_clusters(draft.traits.arch) or (b.stored is not None and b.stored.trans)
    if b.stored is None or not one_kernel:
        b = packing.add_packed(draft, b.transposed).transposed
    return a, b
