"""The steps that split one operand or both, or panels of their lines, into pairs of FP16 numbers.

What the arrays hold is described in ``cuda_src/device/split_format.cuh``. A *line* is a row of A or a column of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastsgemm.call.plan import Address, Draft
from fastsgemm.geometry import splitting
from fastsgemm.geometry.fp16x3 import SplitArrays
from fastsgemm.geometry.layout import Stored, line_vector
from fastsgemm.geometry.splitting import SideArguments
from fastsgemm.jit import kernel


class Place(NamedTuple):
    """The addresses of a split operand's arrays."""

    pairs: Address
    info: Address
    where: Address


def place_at(address: Address, parts: SplitArrays) -> Place:
    """Return the addresses of arrays that begin at `address`."""
    return Place(address + parts.pairs, address + parts.info, address + parts.where)


class Unsplit(NamedTuple):
    """An operand, or a panel of its lines, that is to be split.

    Attributes
    ----------
    source : Address
    lines : int
        At least 1.
    how : Stored
        As a matrix of (lines, K): with `trans`, neighbouring lines are neighbours in memory, else neighbouring k are.
    misalignment : int
        The address of the source in bytes, modulo any multiple of 16.
    target : Place
    """

    source: Address
    lines: int
    how: Stored
    misalignment: int
    target: Place

    @property
    def side(self) -> splitting.Side:
        """How the kernel sees it."""
        return splitting.Side(self.how.trans, line_vector(self.how.ld, self.misalignment), self.lines)


def maxima_bytes(draft: Draft, K: int, operands: Sequence[Unsplit]) -> int:
    """Return the bytes of workspace that `add_split` needs for the largest magnitudes of the lines."""
    return sum(4 * one.lines * _maxima_parts(draft, K, one) for one in operands)


def _maxima_parts(draft: Draft, K: int, operand: Unsplit) -> int:
    """Return the parts of K whose largest magnitudes a first kernel finds; 0 where one kernel does all."""
    return splitting.maxima_parts(operand.side, K, splitting.has_clusters(draft.gpu.arch), draft.gpu.multiprocessors)


def add_split(draft: Draft, K: int, operands: Sequence[Unsplit], maxima: Address, early: bool) -> None:
    """Add the steps that split one operand, or two in one launch.

    Parameters
    ----------
    draft : Draft
    K : int
        At least 1.
    operands : sequence of Unsplit
    maxima : Address
        Of the bytes that `maxima_bytes` asks for.
    early : bool
        Whether another kernel of the same product comes before.

    Raises
    ------
    CaptureError
        A kernel is not loaded yet and the stream is being captured.
    """
    gpu, handle = draft.gpu, draft.handle
    operands = sorted(operands, key=lambda one: one.side.order)
    sides = []
    for one in operands:
        parts = _maxima_parts(draft, K, one)
        side = SideArguments(
            lines=one.lines, X=one.source, ldx=one.how.ld, maxima=maxima if parts else 0, maxima_parts=parts,
            pairs=one.target.pairs, info=one.target.info, where=one.target.where,
        )  # fmt: skip
        if parts:
            finding = kernel.with_constants(gpu, "column_maxima.cu", {"VEC": one.side.vec}, handle)
            grid = splitting.maxima_grid(one.lines, parts)
            draft.add(
                finding, grid, splitting.MAXIMA_THREADS, *side.of_maxima(K), early=early, only_for="alpha"
            )  # fmt: skip
            early = True
        sides.append(side)
        maxima += 4 * one.lines * parts
    launch = splitting.split_launch(
        [one.side for one in operands], K, splitting.has_clusters(gpu.arch), gpu.multiprocessors, gpu.shared_limit
    )
    loaded = kernel.with_constants(gpu, "split.cu", launch.constants, handle, launch.shared_bytes)
    draft.add(
        loaded, (launch.blocks,), splitting.SPLIT_THREADS, *launch.arguments(K, *sides),
        shared_bytes=launch.shared_bytes, early=early, only_for="alpha",
    )  # fmt: skip
