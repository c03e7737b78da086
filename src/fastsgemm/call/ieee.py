"""One product by kernels of precision ``ieee``."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fastsgemm.call import packing
from fastsgemm.call.epilogue import Epilogue
from fastsgemm.call.plan import Argument, Draft, Scalar, When
from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.matrix import Matrix, Operand
from fastsgemm.geometry.variants import Call
from fastsgemm.heuristics import database
from fastsgemm.heuristics.alternatives import pack
from fastsgemm.heuristics.selection import Choice
from fastsgemm.jit.source import rung_spec
from fastsgemm.problem import Sym
from fastsgemm.rungs import Rung


def add_product(
    draft: Draft, choice: Choice, sym: Sym, a: Matrix, b: Matrix, c: Matrix, source: Matrix | None = None
) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C; each operand has a unit stride.

    `sym` says what of C is stored. A source is read in place of C, with any strides: by the kernel that stores C or, on
    rungs 1 to 8, by one that copies it to C first.

    Raises
    ------
    ShapeError
        A grid would have more blocks than the hardware allows.
    """
    rung, lying_a, lying_b = choice.rung, a.operand, b.operand
    if source is not None and not rung.reads_source:
        packing.add_copy(draft, source, c, When.BETA)
        source = None
    of_a, of_b = pack(choice.packs, lying_a, lying_b)
    if not rung.reads_halves:
        of_a, of_b = of_a.cast, of_b.cast
    in_a = a if of_a is lying_a else _copied(draft, a, lying_a, of_a)
    if in_a is not a and of_b == of_a.transposed and b.is_transpose_of(a):  # the lines of one copy serve both
        in_b = in_a.transposed
    else:
        in_b = b if of_b is lying_b else _copied(draft, b, lying_b, of_b)
    if in_a is not a or in_b is not b:
        of_a, of_b = _in_memory(of_a, in_a), _in_memory(of_b, in_b)
    call = variants.call_for(of_a, of_b, c.operand, extents=c.extents, source=source, sym=sym)
    _add_launches(draft, rung, choice.config, call, in_a, in_b, c)


def _copied(draft: Draft, matrix: Matrix, lying: Operand, read: Operand) -> Matrix:
    """Return the copy of A or B that a kernel reads: packed or, of 16 bits where its rung needs it, as float32."""
    return packing.add_lines(draft, matrix, lying, read) if read.padded else packing.add_cast(draft, matrix, When.READS)


def _in_memory(read: Operand, matrix: Matrix) -> Operand:
    """Return how a matrix is read; the lines of one that was packed are known already."""
    return read if read.padded else matrix.operand


def _add_launches(draft: Draft, rung: Rung, config: Config, call: Call, a: Matrix, b: Matrix, c: Matrix) -> None:
    """Add the launch of a rung's kernel and, where K is split, of the one that adds the parts up."""
    call = variants.call_with_swap_ab(rung, call)
    if call.swap_ab:
        a, b, c = b, a, c.transposed
    problem = call.problem
    parts, chunk = grid.split(config, problem.K)
    variant = variants.variant_for(rung, call, config, database.fitted(draft.traits.arch).peeled_tiles)
    blocks = (grid.blocks(config, problem), *call.batch.grid)
    epilogue = Epilogue(draft, c, call.source, call.sym, parts)
    of_parts: list[Argument] = []
    if rung.splits:
        of_parts = [np.int32(chunk), epilogue.part_stride]
        if isinstance(config, PipelinedConfig):
            of_parts.append(np.int32(grid.chain(config, problem.K)))
    draft.add(
        rung_spec(rung, config, variant), blocks, config.threads,
        (
            np.int32(problem.M), np.int32(problem.N), Scalar.STEPS, epilogue.alpha, a, call.lda, b, call.ldb,
            epilogue.beta, epilogue.matrix, epilogue.ld, *of_parts,
            replace(call.batch, c=epilogue.steps).with_source(epilogue.source),
        ),
        writes=(epilogue.write,), shared_bytes=config.shared_bytes,
    )  # fmt: skip
    epilogue.add_reduction(draft, in_order=config.segment > 0)
