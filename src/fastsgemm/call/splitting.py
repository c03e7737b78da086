"""The steps that split one operand or both, or panels of their lines, into pairs of FP16 numbers.

What the arrays hold is described in ``cuda_src/device/split_format.cuh``. A *line* is a row of A or a column of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastsgemm.call.plan import Address, Argument, Draft
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.fp16x3 import MAXIMA_LINES, MAXIMA_THREADS, SPLIT_THREADS, Side, SplitArrays
from fastsgemm.geometry.layout import Stored
from fastsgemm.jit import kernel
from fastsgemm.known_devices import compute_capability

CLUSTERS = 90  # the first with clusters of blocks


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
        The address of the source modulo 16, in bytes.
    target : Place
    """

    source: Address
    lines: int
    how: Stored
    misalignment: int
    target: Place

    @property
    def side(self) -> Side:
        """How the kernel sees it."""
        return Side(self.how.trans, 4 if self.misalignment == 0 and self.how.ld % 4 == 0 else 1, self.lines)


def maxima_bytes(draft: Draft, K: int, operands: Sequence[Unsplit]) -> int:
    """Return the bytes of workspace that `add_split` needs for the largest magnitudes of the lines."""
    return sum(4 * one.lines * _maxima_parts(draft, K, one) for one in operands)


def _maxima_parts(draft: Draft, K: int, operand: Unsplit) -> int:
    """Return the parts of K whose largest magnitudes a first kernel finds; 0 where one kernel does all."""
    if not operand.how.trans or _has_clusters(draft):
        return 0
    return geometry.maxima_parts(operand.lines, K, draft.gpu.multiprocessors)


def _has_clusters(draft: Draft) -> bool:
    return compute_capability(draft.gpu.arch) >= CLUSTERS


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
    arguments: list[Argument] = []
    for one in operands:
        lines, ld = np.int32(one.lines), one.how.ld
        parts = _maxima_parts(draft, K, one)
        if parts:
            finding = kernel.with_constants(gpu, "column_maxima.cu", {"VEC": one.side.vec}, handle)
            draft.add(
                finding, (-(-one.lines // MAXIMA_LINES), parts), MAXIMA_THREADS,
                lines, np.int32(K), one.source, ld, maxima, one.target.info, early=early, only_for="alpha",
            )  # fmt: skip
            early = True
        arguments += [lines, one.source, ld, maxima if parts else 0, np.int32(parts), *one.target]
        maxima += 4 * one.lines * parts
    if len(operands) == 1:
        arguments += [np.int32(0), 0, 0, 0, np.int32(0), 0, 0, 0]
    sides = [one.side for one in operands]
    launch = geometry.split_launch(sides, K, _has_clusters(draft), gpu.multiprocessors, gpu.shared_limit)
    splitting = kernel.with_constants(gpu, "split.cu", launch.constants, handle, launch.shared_bytes)
    draft.add(
        splitting, (launch.blocks,), SPLIT_THREADS, np.int32(K), np.int32(launch.first_blocks), *arguments,
        shared_bytes=launch.shared_bytes, early=early, only_for="alpha",
    )  # fmt: skip
