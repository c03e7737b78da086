"""The launches that split one operand or both, or panels of their lines, into pairs of FP16 numbers.

What the arrays hold is described in ``cuda_src/device/split_format.cuh``. A *line* is a row of A or a column of B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastsgemm.call.plan import Argument, Draft, When, Write
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import splitting
from fastsgemm.geometry.fp16x3 import SPARSE, SplitArrays, line_bytes, stored_blocks
from fastsgemm.geometry.layout import ITEM, LeadingDimension, line_vector
from fastsgemm.geometry.matrix import Address, Matrix
from fastsgemm.geometry.splitting import Side
from fastsgemm.jit.source import spec
from fastsgemm.problem import DType

_NO_SIDE: tuple[Argument, ...] = (np.int32(0), 0, 0, 0, np.int32(0), 0, 0, 0)  # arguments of split.cu


class Pairs(NamedTuple):
    """The arrays of a split operand."""

    # Shape (blocks of 32 steps of k, lines, 64): 32 hi and then 32 lo, swizzled, and zeros up to an even number of
    # blocks. Of a 16-bit operand there is no lo: 32 in place of 64.
    pairs: Matrix
    info: Matrix  # shape (lines, 2): the exponent of each line and how many elements were left out
    where: Matrix  # shape (lines, 4): where along K those elements are, in any order


def pairs_at(address: Address, at: SplitArrays, lines: int, K: int, name: str, dtype: DType = DType.F32) -> Pairs:
    """Return the arrays of an operand, called `name`, whose room at `address` is for as many lines or more."""
    blocks, halves = stored_blocks(K), line_bytes(dtype) // 2
    return Pairs(
        Matrix(
            address + at.pairs, (blocks, lines, halves), (halves * lines, halves, 1), 0, f"pairs of {name}", DType.F16
        ),
        Matrix(address + at.info, (lines, 2), (2, 1), name=f"info of {name}"),
        Matrix(address + at.where, (lines, SPARSE), (SPARSE, 1), name=f"places of {name}"),
    )


class Unsplit(NamedTuple):
    """An operand, or a panel of its lines, that is to be split."""

    matrix: Matrix  # of shape (lines, K), with a unit stride
    target: Pairs

    @property
    def stored(self) -> LeadingDimension:
        """How it lies: with `trans`, neighbouring lines are neighbours in memory, else neighbouring k are."""
        stored = self.matrix.stored
        assert stored is not None  # packed else
        return stored

    @property
    def side(self) -> Side:
        """How the kernel sees it."""
        stored = self.stored
        vec = line_vector(stored.ld, self.matrix.misalignment, self.matrix.item)
        return Side(stored.trans, vec, self.matrix.shape[0], self.matrix.dtype)


def _maxima_parts(traits: DeviceTraits, operand: Unsplit) -> int:
    """Return the parts of K whose largest magnitudes a first kernel finds; 0 where one kernel does all."""
    if splitting.has_clusters(traits.arch):
        return 0
    return splitting.maxima_parts(operand.side, operand.matrix.shape[1], traits.multiprocessors)


def add_split(draft: Draft, operands: Sequence[Unsplit], early: bool) -> None:
    """Add the launches that split one operand, or two of the same K in one launch.

    `early` says whether another kernel of the same product comes before.
    """
    traits, K = draft.traits, operands[0].matrix.shape[1]
    operands = sorted(operands, key=lambda one: one.side.order)
    sides: list[tuple[Argument, ...]] = []
    for one in operands:
        (lines, _), ld, (pairs, info, where) = one.matrix.shape, one.stored.ld, one.target
        parts, largest = _maxima_parts(traits, one), None
        if parts:
            maxima = draft.reserve(ITEM * lines * parts, "the largest magnitudes of lines")
            largest = Matrix(maxima, (parts, lines), (lines, 1), name=f"maxima of {one.matrix.name}")
            draft.add(
                spec("column_maxima.cu", {"VEC": one.side.vec, "TYPE": int(one.side.dtype)}),
                splitting.maxima_grid(lines, parts), splitting.MAXIMA_THREADS,
                (np.int32(lines), np.int32(K), one.matrix, ld, largest, info),
                writes=(Write(largest), Write(info, complete=False, reads=When.ALWAYS)), early=early, when=When.READS,
            )  # fmt: skip
            early = True
        sides.append((np.int32(lines), one.matrix, ld, largest or 0, np.int32(parts), pairs, info, where))
    launch = splitting.split_launch(
        [one.side for one in operands], K, splitting.has_clusters(traits.arch), traits.multiprocessors,
        traits.shared_limit,
    )  # fmt: skip
    first, second = (*sides, _NO_SIDE)[:2]
    writes = [
        write
        for one in operands
        for write in (
            Write(one.target.pairs), Write(one.target.info, complete=False, reads=When.ALWAYS),
            Write(one.target.where, complete=False),
        )
    ]  # fmt: skip
    draft.add(
        spec("split.cu", launch.constants), (launch.blocks,), splitting.SPLIT_THREADS,
        (np.int32(K), np.int32(launch.first_blocks), *first, *second),
        writes=tuple(writes), shared_bytes=launch.shared_bytes, early=early, when=When.READS,
    )  # fmt: skip


def add_split_batch(draft: Draft, matrices: Matrix, target: Pairs) -> None:
    """Add the launch that splits a batch of matrices, of shape (count, lines, K), each into whole periods of lines.

    On a device without clusters of blocks, neighbouring k are neighbours in memory.
    """
    traits, (count, lines, K), stored = draft.traits, matrices.shape, matrices.stored
    assert stored is not None  # packed else
    vec = line_vector(math.gcd(stored.ld, *matrices.steps), matrices.misalignment, matrices.item)
    side = Side(stored.trans, vec, lines, matrices.dtype)
    launch = splitting.split_launch(
        [side], K, splitting.has_clusters(traits.arch), traits.multiprocessors, traits.shared_limit, count
    )
    pairs, info, where = target
    draft.add(
        spec("split.cu", launch.constants | {"BATCHED": 1}), (launch.blocks, count), splitting.SPLIT_THREADS,
        (
            np.int32(K), np.int32(launch.blocks), np.int32(lines), matrices, stored.ld, 0, np.int32(0), *target,
            np.int32(0), 0, matrices.steps[0], *_NO_SIDE[3:],
        ),
        writes=(
            Write(pairs, complete=False), Write(info, complete=False, reads=When.ALWAYS), Write(where, complete=False),
        ),
        shared_bytes=launch.shared_bytes, early=True, when=When.READS,
    )  # fmt: skip
