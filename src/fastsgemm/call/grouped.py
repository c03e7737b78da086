"""`make_grouped_plan`: products of one shape but for a ragged extent, whose groups only the device knows.

The extent is the rows of A, the columns of B, or K. Group g begins where group g - 1 ends; the ends are the offsets, a
vector in device memory. Rung 9 computes all groups by one launch with as many blocks as any offsets can need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fastsgemm import log
from fastsgemm.call import arrays, checks, grouped_fp16x3, packing
from fastsgemm.call.plan import Draft, Plan, Scalar, When, Write, beta_read
from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceTraits, info_of
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import GroupedBatch
from fastsgemm.geometry.layout import Meta, byte_range
from fastsgemm.geometry.matrix import Address, Base, Matrix, operand_of
from fastsgemm.geometry.variants import Call, Variant
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import check_grouped, choose_grouped
from fastsgemm.heuristics.selection import Choice
from fastsgemm.jit.source import rung_spec
from fastsgemm.problem import MAX_BATCH, MAX_EXTENT, DType, Dtypes, Problem, Ragged
from fastsgemm.request import Request

KINDS = {(2, 3): Ragged.ROWS, (2, 2): Ragged.K, (3, 2): Ragged.COLUMNS}  # by the dimensions of A and of B
NAMES = ("A", "B", "C", "S")  # of the operands, for the counts of the simulated device


def result_shape(a: Sequence[int], b: Sequence[int], groups: int) -> tuple[Ragged, tuple[int, ...]]:
    """Return what is ragged of operands of these shapes, and the shape of the result.

    Raises
    ------
    ShapeError
        The shapes do not fit together, or an extent is above the limit.
    """
    a, b = tuple(a), tuple(b)
    shown = f"A {a}, B {b}, offsets ({groups},)"
    ragged = KINDS.get((len(a), len(b)))
    if ragged is None:
        raise ShapeError(
            f"A and B must have 2 or 3 dimensions, not both 3 with offsets, got {len(a)} and {len(b)}: {shown}"
        )
    if a[-1] != b[-2]:
        raise ShapeError(f"A's columns must equal B's rows, got {a[-1]} and {b[-2]}: {shown}")
    for name, shape in (("A", a), ("B", b)):
        if len(shape) == 3 and shape[0] != groups:
            raise ShapeError(f"{name} must have a matrix for each of the {groups} groups, got {shape[0]}: {shown}")
    largest = max(*a[-2:], *b[-2:], groups)
    if largest > MAX_EXTENT:
        raise ShapeError(f"extents and the number of groups must be at most {MAX_EXTENT}, got {largest}: {shown}")
    result = (a[-2], b[-1])
    return ragged, (groups, *result) if ragged is Ragged.K else result


def problem_of(metas: Sequence[Meta], groups: int) -> Problem:
    """Return the problem of groups of an A and a B as they lie, or as their copies do."""
    ragged, _ = result_shape(metas[0].shape, metas[1].shape, groups)
    a, b = map(operand_of, metas[:2])
    layout = "NT"[a.how.trans] + "NT"[b.how.trans]
    return Problem(a.shape[0], b.shape[1], a.shape[1], layout, groups, dtypes=Dtypes(a.dtype, b.dtype), ragged=ragged)


def make_grouped_plan(
    traits: DeviceTraits, request: Request, metas: Sequence[Meta], ends: Meta, addresses: Sequence[int]
) -> Plan:
    """Return what a grouped product launches on a device with these traits.

    `metas` and `addresses` are those of A, B, what is written and, if that is another array, C. `ends` is the vector of
    offsets, in 32-bit words. The plan is for all addresses that are the same modulo 16 bytes; the ends lie at
    `Base.OFFSETS`.

    Raises
    ------
    DTypeError, OperandError, ShapeError, OverlapError, DeviceMismatchError
        The operands cannot be used as given.
    ConfigError
        The database has no config that is legal on this device.
    """
    _check(request, metas, ends, addresses)
    groups = ends.shape[0]
    ragged, _ = result_shape(metas[0].shape, metas[1].shape, groups)
    bases = (Base.A, Base.B, Base.C, Base.SOURCE)
    operands = [
        Matrix(Address(base), tuple(meta.shape), tuple(meta.strides), address & 15, name, meta.dtype)
        for base, name, meta, address in zip(bases, NAMES, metas, addresses, strict=False)
    ]
    draft = Draft(traits)
    if 0 not in operands[2].shape and groups:
        offsets = Matrix(Address(Base.OFFSETS), tuple(ends.shape), tuple(ends.strides), 0, "offsets")
        _add_groups(draft, request, ragged, offsets, *operands)
    (first, last), (low, high) = (byte_range(tuple(each.shape), tuple(each.strides)) for each in (metas[2], ends))
    return replace(draft.plan(operands[0].shape[-1], operands), of_offsets=(first - high, last - low))


def plan_of(traits: DeviceTraits, request: Request, problem: Problem, source: bool = False) -> Plan:
    """Return the plan of groups in dense arrays at aligned addresses, with a matrix as C beside what is written or not.

    Raises
    ------
    ConfigError, PrecisionError
        See `fastsgemm.heuristics.choice.check_grouped`.
    """
    check_grouped(request)
    *metas, ends = dense_operands(problem)
    metas += metas[2:] * source
    return make_grouped_plan(traits, request, metas, ends, range(0, 16 * len(metas), 16))


def _check(request: Request, metas: Sequence[Meta], ends: Meta, addresses: Sequence[int]) -> None:
    """Refuse operands that cannot be computed with."""
    operands = list(zip(("A", "B", request.output, "C"), metas, strict=False))
    named = [*operands, ("offsets", ends)]
    for name, meta in named:
        if meta.fault is not None:
            raise meta.fault(name)
    checks.one_device({
        name: "the host" if meta.device == arrays.HOST else f"cuda:{meta.device}" for name, meta in named
    })  # fmt: skip
    check_offsets(ends.shape)
    _, shape = result_shape(metas[0].shape, metas[1].shape, ends.shape[0])
    for name, meta in operands[2:]:
        checks.exact_shape(name, meta.shape, shape)
    written = metas[2]
    checks.output(tuple(written.shape), tuple(written.strides), readonly=written.readonly, name=request.output)
    check_types(request, [meta.dtype for meta in metas])
    for (name, meta), address in zip(operands, addresses, strict=True):
        item = meta.dtype.item
        fault = arrays.misaligned(address, meta.shape, tuple(item * step for step in meta.strides), item)
        if fault is not None:
            raise fault(name)


def dense_operands(problem: Problem) -> tuple[Meta, Meta, Meta, Meta]:
    """Return A, B, the result and the offsets of groups where nothing lies between their elements.

    A column-major operand that has a matrix for each group has column-major matrices.
    """
    each = variants.dense(dataclasses.replace(problem, ragged=Ragged.NOTHING, batch=1))
    groups, shared = problem.batch, {Ragged.ROWS: 1, Ragged.COLUMNS: 0, Ragged.K: 2}[problem.ragged]
    a, b, c = (
        replace(x, shape=(groups, *x.shape), strides=(x.shape[0] * x.shape[1], *x.strides)) if place == shared else x
        for place, x in enumerate(each)
    )
    return a, b, c, Meta((groups,), (1,))


def check_types(request: Request, dtypes: Sequence[DType]) -> None:
    """Refuse a C or `out` of 16 bits, and operands of 16 bits in a call that names no precision.

    `dtypes` are of A, B, what is written and, if that is another array, C.
    """
    for name, dtype in zip((request.output, "C"), dtypes[2:], strict=False):
        checks.is_float32(name, dtype)
    if any(dtypes):
        checks.types(request, dtypes)


def check_offsets(shape: Sequence[int]) -> None:
    """Raise `ShapeError` unless offsets of this shape are a vector."""
    if len(shape) != 1:
        raise ShapeError(f"offsets must have 1 dimension, got {len(shape)}: {tuple(shape)}")


def _add_groups(
    draft: Draft, request: Request, ragged: Ragged, ends: Matrix, a: Matrix, b: Matrix, written: Matrix,
    source: Matrix | None = None,
) -> None:  # fmt: skip
    """Add the launches of all groups, with those that copy operands that no kernel can read or write."""
    c = written
    if written.stored is None:
        c = packing.reserve(draft, written)
        # Rows or columns beyond the last group stay what they are.
        packing.add_copy(draft, written, c, When.BETA if ragged is Ragged.K else When.ALWAYS)
    assert c.stored is not None  # packed else
    if c.stored.trans:  # a kernel writes rows, so it computes C^T = B^T A^T
        turned = ragged.transposed, b.transposed, a.transposed, c.transposed, source and source.transposed
        _add_product(draft, request, ends, *turned)
    else:
        _add_product(draft, request, ends, ragged, a, b, c, source)
    if c is not written:
        packing.add_copy(draft, c, written)


def _add_product(
    draft: Draft, request: Request, ends: Matrix, ragged: Ragged, a: Matrix, b: Matrix, c: Matrix,
    source: Matrix | None,
) -> None:  # fmt: skip
    """Add the launches of a row-major C: by the rung that is chosen."""
    groups = ends.shape[0]
    call = _call(a, b, c, source, groups)
    dtypes = Dtypes(a.dtype, b.dtype)
    problem = dataclasses.replace(call.problem, batch=min(groups, MAX_BATCH), dtypes=dtypes, ragged=ragged)
    choice = choose_grouped(info_of(draft.traits), request, problem)
    log.info(lambda: choice.of(problem))
    if not choice.tensor_cores:
        _add_launch(draft, choice, problem, ends, a, b, c, source)
        return
    grouped_fp16x3.add_product(draft, choice, ends, a, b, c, source)
    ieee = choose_grouped(info_of(draft.traits), request.ieee, problem)
    _add_launch(draft, ieee, problem, ends, a, b, c, source, When.READS_NOTHING)


def _call(a: Matrix, b: Matrix, c: Matrix, source: Matrix | None, groups: int) -> Call:
    """Return how rung 9 is called for the groups as a batch, in which what is divided is the same for all."""
    each_a, each_b, each_c = (_of_each_group(x, groups) for x in (a, b, c))
    return variants.call_for(
        each_a.operand, each_b.operand, each_c.operand, extents=(groups,),
        source=None if source is None else _of_each_group(source, groups),
    )  # fmt: skip


def _readable(draft: Draft, operand: Matrix) -> Matrix:
    """Return an operand as rung 9 reads it: float32 with a unit stride, itself or a copy."""
    if operand.dtype:
        return packing.add_cast(draft, operand, When.READS)
    return operand if operand.stored is not None else packing.add_packed(draft, operand)


def _add_launch(
    draft: Draft, choice: Choice, problem: Problem, ends: Matrix, a: Matrix, b: Matrix, c: Matrix,
    source: Matrix | None, when: When = When.ALWAYS,
) -> None:  # fmt: skip
    """Add the launch of rung 9 for all groups; where A and B are not read, they are not copied for it."""
    if when is When.ALWAYS:
        a, b = (_readable(draft, x) for x in (a, b))
    config, groups = choice.config, ends.shape[0]
    assert isinstance(config, PipelinedConfig)
    call = _call(a, b, c, source, groups)
    chunk = grid.split(config, problem.K)[1]
    kernel = rung_spec(choice.rung, config, _variant(draft.traits, call, choice, problem.ragged))
    draft.add(
        kernel, (_blocks(config, problem, groups),), config.threads,
        (
            np.int32(problem.M), np.int32(problem.N), Scalar.STEPS, Scalar.ALPHA, a, call.lda, b, call.ldb, Scalar.BETA,
            c, call.ldc, np.int32(chunk), 0, np.int32(grid.chain(config, problem.mean.K)),
            GroupedBatch(call.batch, ends, call.source),
        ),
        writes=(Write(c, problem.ragged is Ragged.K, beta_read(call.source)),), shared_bytes=config.shared_bytes,
        when=when,
    )  # fmt: skip


def _of_each_group(x: Matrix, groups: int) -> Matrix:
    """Return the matrix of each group as float32, as rung 9 reads it; what is divided is the same for all."""
    shape, strides = (x.shape, x.strides) if len(x.shape) == 3 else ((groups, *x.shape), (0, *x.strides))
    return Matrix(x.address, shape, strides, x.misalignment, x.name)


def _variant(traits: DeviceTraits, call: Call, choice: Choice, ragged: Ragged) -> Variant:
    """Return the variant of the kernel: a group may be smaller than a tile, and begin at any element of a line."""
    variant = variants.variant_for(choice.rung, call, choice.config, database.fitted(traits.arch).peeled_tiles)
    lines_of_a = variant.trans_a == (ragged is Ragged.ROWS)  # whether groups divide the lines of A
    lines_of_b = variant.trans_b == (ragged is Ragged.K)
    vec_a = 1 if ragged is not Ragged.COLUMNS and lines_of_a else variant.vec_a
    vec_b = 1 if ragged is not Ragged.ROWS and lines_of_b else variant.vec_b
    vec_c = 1 if ragged is Ragged.COLUMNS else variant.vec_c
    return replace(
        variant, vec_a=vec_a, vec_b=vec_b, vec_c=vec_c, source=min(variant.source, vec_c), guard=True, batched=False,
        peel=variant.peel and ragged is not Ragged.K, ragged=ragged,
    )  # fmt: skip


def _blocks(config: PipelinedConfig, problem: Problem, groups: int) -> int:
    """Return as many blocks as any offsets can need.

    Raises
    ------
    ShapeError
        The grid would be larger than the hardware allows.
    """
    tiles_m, tiles_n = -(-problem.M // config.BM), -(-problem.N // config.BN)
    if problem.ragged is Ragged.ROWS:
        tiles_m = _most_tiles(problem.M, config.BM, groups)
    elif problem.ragged is Ragged.COLUMNS:
        tiles_n = _most_tiles(problem.N, config.BN, groups)
    blocks = tiles_m * tiles_n * (groups if problem.ragged is Ragged.K else 1)
    if blocks > grid.MAX_BLOCKS:
        raise ShapeError(
            f"{groups} groups of a product with M, N and K of {problem.M}, {problem.N} and {problem.K} need {blocks} "
            f"blocks of {config.BM} x {config.BN}, the limit of a grid is {grid.MAX_BLOCKS}"
        )
    return blocks


def _most_tiles(extent: int, tile: int, groups: int) -> int:
    """Return the most tiles that so many groups can have: those of one row each but for one with all others."""
    filled = min(groups, extent)  # groups that are not empty
    return filled + (extent - filled) // tile
