"""The steps that split an operand, or a panel of its lines, into pairs of FP16 numbers.

What the arrays hold is described in ``cuda_src/device/split_format.cuh``. A *line* is a row of A or a column of B.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastsgemm.call.plan import Address, Argument, Draft
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.fp16x3 import SplitArrays
from fastsgemm.geometry.layout import Stored
from fastsgemm.jit import kernel
from fastsgemm.known_devices import compute_capability

CLUSTERS = 90  # the first with clusters of blocks
_ROW_THREADS = 256  # of a block of split_rows.cu, at least
_COLUMN_THREADS = 512  # of a block of split_columns.cu
_COLUMN_LINES = 32  # of a block of split_columns.cu
_MAXIMA_THREADS, _MAXIMA_LINES = 256, 128  # of a block of column_maxima.cu


class Place(NamedTuple):
    """The addresses of a split operand's arrays."""

    pairs: Address
    info: Address
    where: Address


def place_at(address: Address, parts: SplitArrays) -> Place:
    """Return the addresses of arrays that begin at `address`."""
    return Place(address + parts.pairs, address + parts.info, address + parts.where)


def maxima_bytes(draft: Draft, lines: int, K: int, trans: bool) -> int:
    """Return the bytes of workspace that `add_split` needs for the largest magnitudes of the lines."""
    return 4 * lines * _maxima_parts(draft, lines, K) if trans else 0


def _maxima_parts(draft: Draft, lines: int, K: int) -> int:
    """Return the parts of K whose largest magnitudes a first kernel finds; 0 where one kernel does all."""
    if compute_capability(draft.gpu.arch) >= CLUSTERS:
        return 0
    return geometry.maxima_parts(lines, K, draft.gpu.multiprocessors)


def add_split(
    draft: Draft,
    source: Address,
    lines: int,
    K: int,
    how: Stored,
    misalignment: int,
    target: Place,
    maxima: Address,
    early: bool,
) -> None:
    """Add the steps that split what lies at `source`.

    Parameters
    ----------
    draft : Draft
    source : Address
    lines, K : int
        At least 1.
    how : Stored
        As a matrix of (lines, K): with `trans`, neighbouring lines are neighbours in memory, else neighbouring k are.
    misalignment : int
        The address of the source modulo 16, in bytes.
    target : Place
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
    vec = 4 if misalignment == 0 and how.ld % 4 == 0 else 1
    given = (np.int32(lines), np.int32(K), source, how.ld)
    if not how.trans:
        per_line = geometry.line_threads(K)
        threads = max(per_line, _ROW_THREADS)
        rows = kernel.with_constants(gpu, "split_rows.cu", {"LINE_THREADS": per_line, "VEC": vec}, handle)
        blocks = -(-lines // (threads // per_line))
        draft.add(rows, (blocks,), threads, *given, *target, early=early, only_for="alpha")
        return
    across = -(-lines // _COLUMN_LINES)
    parts = _maxima_parts(draft, lines, K)
    largest: tuple[Argument, Argument] = (0, np.int32(0))  # a null pointer, and no parts
    cluster = down = geometry.column_cluster(K)
    if parts:
        first = kernel.with_constants(gpu, "column_maxima.cu", {"VEC": vec}, handle)
        grid = (-(-lines // _MAXIMA_LINES), parts)
        draft.add(first, grid, _MAXIMA_THREADS, *given, maxima, target.info, early=early, only_for="alpha")
        cluster, down, largest = 1, max(1, -(-4 * gpu.multiprocessors // across)), (maxima, np.int32(parts))
        early = True
    constants = {"VEC": vec, "CLUSTER": cluster, "THREADS": _COLUMN_THREADS}
    columns = kernel.with_constants(gpu, "split_columns.cu", constants, handle)
    grid = (across, down)
    draft.add(columns, grid, _COLUMN_THREADS, *given, *largest, *target, early=early, only_for="alpha")
