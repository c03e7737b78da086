"""From the operands' layout to one kernel launch: the config, the variant, the grid and the kernel's arguments.

Nothing here needs a GPU. A real device and the simulated device launch what this module returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import ONE_PRODUCT, Batch, BatchAndSource, Source
from fastsgemm.geometry.layout import ITEM, Pair, row_major
from fastsgemm.geometry.variants import Call, Operand, Variant
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import choose
from fastsgemm.heuristics.ways import pack
from fastsgemm.jit.source import HELPERS
from fastsgemm.request import Request
from fastsgemm.rungs import Rung

_PACK = HELPERS["pack"]
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


class KernelLaunch(Struct, frozen=True):
    """One product as its kernel takes it, without the addresses, alpha and beta.

    Attributes
    ----------
    rung : Rung
    config : Config
    variant : Variant
    swap_ab : bool
        The kernel computes C^T = B^T A^T, so its A is the caller's B.
    grid : tuple of int
        Blocks: along x those of one product, along y and z, where there are several, the products.
    parts : numpy.int32
        Number of parts of K; 1 means that K is not split.
    M, N, K : numpy.int32
        The kernel's problem: M and N are exchanged if `swap_ab` is true.
    lda, ldb, ldc : int
        Leading dimensions in elements, in the kernel's order.
    chunk : numpy.int32
        Steps of k in each part; the last may have fewer.
    parts_apart : int
        Elements between the partial sums of two neighbouring parts.
    chain : tuple of numpy.int32
        Steps of k in each chain of FMAs, on a rung that can add several up, else nothing.
    strides_c : (int, int)
        Elements from one row of C to the next, and from one column to the next, in the kernel's order.
    batch : Batch
        In the kernel's order.
    source : Source or None
        In the kernel's order: what beta multiplies, if that is not C.
    """

    rung: Rung
    config: Config
    variant: Variant
    swap_ab: bool
    grid: tuple[int, ...]
    parts: np.int32
    M: np.int32
    N: np.int32
    K: np.int32
    lda: int
    ldb: int
    ldc: int
    chunk: np.int32
    parts_apart: int
    chain: tuple[np.int32, ...]
    strides_c: tuple[int, int]
    batch: Batch = ONE_PRODUCT
    source: Source | None = None

    def arguments(self, a: Any, b: Any, c: Any, K: Any, alpha: Any, beta: Any, source: Any = None) -> tuple[Any, ...]:
        """Return the kernel's arguments.

        Parameters
        ----------
        a, b, c : object
            What stands for the caller's A, B and C: addresses of a later call or, simulated, names.
        K, alpha, beta : object
            As `fastsgemm.geometry.grid.steps` has them, or what stands for them.
        source : object
            What stands for the source, where there is one.
        """
        if self.swap_ab:
            a, b = b, a
        given = (self.M, self.N, K, alpha, a, self.lda, b, self.ldb, beta, c, self.ldc)
        parts = (self.chunk, self.parts_apart, *self.chain) if self.rung.splits else ()
        return (*given, *parts, self._last(self.batch, source))

    @property
    def reduction(self) -> str:
        """The kernel that adds the partial sums up."""
        return "reduce_segments" if self.config.segment else "reduce_parts"

    @property
    def reduction_constants(self) -> dict[str, int]:
        """Its constants that are not those of `fastsgemm.jit.source.HELPERS`."""
        return {} if self.source is None else {"SOURCE": 1}

    def partial_arguments(self, a: Any, b: Any, workspace: Any, K: Any) -> tuple[Any, ...]:
        """Return the same for a product whose partial sums go to `workspace`; alpha and beta are applied later."""
        if self.swap_ab:
            a, b = b, a
        batch = replace(self.batch, c=self._sums_apart)
        return (
            self.M, self.N, K, _ONE, a, self.lda, b, self.ldb, _ZERO, workspace, int(self.N),
            self.chunk, self.parts_apart, *self.chain, batch,
        )  # fmt: skip

    def reduction_arguments(self, workspace: Any, c: Any, alpha: Any, beta: Any, source: Any = None) -> tuple[Any, ...]:
        """Return the arguments of `reduction`, which adds the partial sums up and applies alpha and beta."""
        last = self._last(replace(self.batch, a=self._sums_apart), source)
        return (self.M, self.N, self.parts, workspace, self.parts_apart, alpha, beta, c, *self.strides_c, last)

    def _last(self, batch: Batch, source: Any) -> Batch | BatchAndSource:
        return batch if self.source is None else BatchAndSource(batch, self.source, source)

    @property
    def partial_sums(self) -> int:
        """The number of partial sums of all products."""
        return int(self.parts) * self.parts_apart * self.batch.count

    @property
    def _sums_apart(self) -> tuple[int, ...]:
        return row_major(self.batch.extents, size=int(self.parts) * self.parts_apart)


class Share(Struct, frozen=True):
    """What one kernel computes of a product: all of C, or its upper or lower rows, or its left or right columns.

    Attributes
    ----------
    rung : Rung
    config : Config
    a, b : Operand
        All of A and B as the kernel gets them: as they lie, or packed.
    rows, columns : (int, int)
        The first of C, and how many.
    """

    rung: Rung
    config: Config
    a: Operand
    b: Operand
    rows: Pair
    columns: Pair

    @property
    def firsts(self) -> tuple[Pair, Pair, Pair]:
        """The elements of A, B and C at which it begins."""
        (m, _), (n, _) = self.rows, self.columns
        return (m, 0), (0, n), (m, n)

    def operands(self, c: Operand) -> tuple[Operand, Operand, Operand]:
        """Return what it reads of A and B, and writes of C."""
        return variants.share(self.a, self.b, c, self.rows, self.columns)


def choose_shares(
    device: DeviceTraits,
    rung: Rung | None,
    config: Config | None,
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    extents: tuple[int, ...] = (),
) -> tuple[Share, ...]:
    """Return how a product is computed; see `fastsgemm.heuristics.choice.choose`. `extents` are those of a batch."""
    real, in_order = rungs.resolved(rung)
    choice = choose(device, Request(real, config, batch_invariant=in_order), a, b, c, extents)
    return tuple(Share(one.rung, one.config, *pack(one.packed, a, b), one.rows, one.columns) for one in choice.shares)


class PackLaunch(Struct, frozen=True):
    """How ``pack`` is launched for one operand.

    Attributes
    ----------
    blocks, threads : int
    size : int
        Of the packed operand, in bytes.
    lines, length : numpy.int32
        Of the packed operand, in elements.
    from_line, from_step : int
        Elements from one line to the next in the operand as it lies, and from one element of a line to the next.
    to_line : int
        Elements from one packed line to the next.
    """

    blocks: int
    threads: int
    size: int
    lines: np.int32
    length: np.int32
    from_line: int
    from_step: int
    to_line: int

    def arguments(self, source: Any, target: Any) -> tuple[Any, ...]:
        """Return the kernel's arguments, given what stands for the addresses."""
        return (self.lines, self.length, source, self.from_line, self.from_step, target, self.to_line)


def pack_launch(operand: Operand, packed: Operand) -> PackLaunch:
    """Return how an operand is packed.

    Parameters
    ----------
    operand : Operand
        As it lies.
    packed : Operand
        What `Operand.packed` returned.
    """
    lines, length = operand.shape[::-1] if packed.how.trans else operand.shape
    along = operand.how.trans == packed.how.trans  # the lines run as in the operand
    tile = _PACK["TILE"]
    return PackLaunch(
        -(-lines // tile) * -(-length // tile),
        _PACK["THREADS"],
        ITEM * lines * packed.how.ld,
        np.int32(lines),
        np.int32(length),
        operand.how.ld if along else 1,
        1 if along else operand.how.ld,
        packed.how.ld,
    )


def kernel_launch(arch: str, rung: Rung, config: Config, call: Call) -> KernelLaunch:
    """Return how `rung` is launched for a call.

    Parameters
    ----------
    arch : str
        The architecture of the device, whose fitted numbers the database has.
    rung : Rung
    config : Config
        Legal for the rung on the device.
    call : Call
        The operands in the order that makes C row-major; see `fastsgemm.geometry.variants.call_for`.

    Raises
    ------
    ShapeError
        The grid would have more blocks than the hardware allows.
    """
    call = variants.call_with_swap_ab(rung, call)
    problem = call.problem
    parts, chunk = grid.split(config, problem.K)
    return KernelLaunch(
        rung,
        config,
        variants.variant_for(rung, call, config, database.fitted(arch).peeled_tiles),
        call.swap_ab,
        (grid.blocks(config, problem), *call.batch.grid),
        np.int32(parts),
        np.int32(problem.M),
        np.int32(problem.N),
        np.int32(problem.K),
        call.lda,
        call.ldb,
        call.ldc,
        np.int32(chunk),
        problem.M * problem.N,
        (np.int32(grid.chain(config, problem.K)),) if isinstance(config, PipelinedConfig) else (),
        call.strides_c,
        call.batch,
        call.source,
    )
