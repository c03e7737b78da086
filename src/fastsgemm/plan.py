"""From checked operands to everything a launch needs: variant, grid and the kernel's arguments.

Pure arithmetic; the card and the simulated device launch from the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsgemm.config import Config
from fastsgemm.errors import ShapeError
from fastsgemm.layout import Pair, Stored, vector_width
from fastsgemm.rungs import Rung
from fastsgemm.source import Variant

MAX_EXTENT = 2**31 - 1024  # M, N and K are 32-bit in the kernels, with room for a tile past the end
MAX_BLOCKS = 2**31 - 1  # of a one-dimensional grid

PEELED = 16  # tiles of K: in so few it tells that a copy is waited for, in more how the main loop is compiled

_ZERO = np.float32(0.0)
_MINUS_ZERO = np.float32(-0.0)  # as alpha it adds nothing to beta * C, not even the sign of a zero
_NO_STEPS = np.int32(0)


@dataclass(frozen=True)
class Operand:
    """A matrix that the kernels can read as it lies.

    Attributes
    ----------
    shape : (int, int)
    how : Stored
    misalignment : int
        The address of element (0, 0) modulo 16, in bytes.
    """

    shape: Pair
    how: Stored
    misalignment: int = 0

    @property
    def transposed(self) -> Operand:
        """The same memory seen as the transposed matrix."""
        return Operand(self.shape[::-1], Stored(not self.how.trans, self.how.ld), self.misalignment)

    @property
    def width(self) -> int:
        """Floats that a load of this operand may have: 4, 2 or 1."""
        return vector_width(self.how, self.shape, self.misalignment)


@dataclass(frozen=True)
class Problem:
    """What is asked of a kernel, as far as the choice of its constants goes.

    Attributes
    ----------
    M, N, K : int
        C is (M, N), A is (M, K), B is (K, N).
    layout : str
        ``NN``, ``NT``, ``TN`` or ``TT``: whether A and B are row-major (N) or column-major (T).
    """

    M: int
    N: int
    K: int
    layout: str = "NN"

    @property
    def transposed(self) -> Problem:
        """The same product as C^T = B^T A^T."""
        return Problem(self.N, self.M, self.K, _TRANSPOSED[self.layout])

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each step of each element."""
        return 2 * self.M * self.N * self.K


_TRANSPOSED = {"NN": "TT", "NT": "NT", "TN": "TN", "TT": "NN"}


@dataclass(frozen=True)
class Call:
    """The operands in the order in which the kernel takes them.

    Attributes
    ----------
    swapped : bool
        The kernel computes C^T = B^T A^T, so its A is the caller's B.
    problem : Problem
    variant : Variant
    lda, ldb, ldc : int
    """

    swapped: bool
    problem: Problem
    variant: Variant
    lda: int
    ldb: int
    ldc: int

    @property
    def strides_c(self) -> tuple[int, int]:
        """Of C in floats, down and to the right."""
        return (1, self.ldc) if self.variant.trans_c else (self.ldc, 1)


def call_for(a: Operand, b: Operand, c: Operand) -> Call:
    """Return how a kernel is called for these operands: with C row-major, A and B swapped if it is not."""
    swapped = c.how.trans
    if swapped:
        a, b, c = b.transposed, a.transposed, c.transposed
    variant = Variant(a.how.trans, b.how.trans, a.width, b.width, c.width)
    problem = Problem(c.shape[0], c.shape[1], a.shape[1], variant.layout)
    return Call(swapped, problem, variant, a.how.ld, b.how.ld, c.how.ld)


def _turned(rung: Rung, M: int, N: int) -> bool:
    """Whether `rung` computes the transposed product: it is for few rows, and these are few columns."""
    return rung.narrow and N < M


def facing(rung: Rung, problem: Problem) -> Problem:
    """Return the problem as `rung` computes it."""
    return problem.transposed if _turned(rung, problem.M, problem.N) else problem


def call_facing(rung: Rung, call: Call) -> Call:
    """Return the call as `rung` takes it; a transposed C is written where it is."""
    if not _turned(rung, call.problem.M, call.problem.N):
        return call
    v = call.variant
    variant = Variant(not v.trans_b, not v.trans_a, v.vec_b, v.vec_a, v.vec_c, trans_c=True)
    return Call(not call.swapped, call.problem.transposed, variant, call.ldb, call.lda, call.ldc)


def variant_for(rung: Rung, call: Call, config: Config) -> Variant:
    """Return the variant that `rung` is compiled for: of the vector widths, those that it has.

    Parameters
    ----------
    rung : Rung
    call : Call
        As `rung` takes it; see `call_facing`.
    config : Config
    """
    if not rung.vectorized:
        return Variant(call.variant.trans_a, call.variant.trans_b)
    v = call.variant
    widths = (v.vec_a, v.vec_b) if rung.pairs else (_without_pairs(v.vec_a), _without_pairs(v.vec_b))
    vec_c, trans_c = _without_pairs(v.vec_c), v.trans_c
    if rung.splits and split(config, call.problem.K)[0] > 1:  # it writes to workspace, row by row
        vec_c, trans_c = 1 if call.problem.N % 4 else 4, False
    guard = rung.guarded and (call.problem.M < config.BM or call.problem.N < config.BN)
    peel = rung.guarded and _peeled(config, call.problem.K)
    return Variant(v.trans_a, v.trans_b, *widths, vec_c, guard, trans_c, peel)


def _peeled(config: Config, K: int) -> bool:
    """Whether the last part of K has an end that is no whole tile, beside one tile at least and not many."""
    tile = config.BK or 1
    count, chunk = split(config, K)
    whole, end = divmod(K - (count - 1) * chunk, tile)
    return end > 0 and whole > 0 and (whole if count == 1 else chunk // tile) <= PEELED


def _without_pairs(width: int) -> int:
    return 1 if width == 2 else width


def split(config: Config, K: int) -> tuple[int, int]:
    """Return into how many parts K is divided, and the steps of each; the last may have fewer.

    A part is whole tiles, so there may be fewer parts than SPLIT_K says.
    """
    tile = config.BK or 1
    chunk = max(1, -(-K // (tile * (config.SPLIT_K or 1)))) * tile
    return max(1, -(-K // chunk)), chunk


def steps(K: np.int32, alpha: np.float32, beta: np.float32) -> tuple[np.int32, np.float32]:
    """Return the K and the alpha that a kernel is launched with: no steps where A and B are not to be read."""
    if K and alpha:
        return K, alpha
    return _NO_STEPS, _MINUS_ZERO if beta else _ZERO


def tiles(config: Config, problem: Problem) -> int:
    """Return the number of tiles of C, for a problem as the rung computes it."""
    return -(-problem.M // config.BM) * -(-problem.N // config.BN)


def blocks(config: Config, problem: Problem) -> int:
    """Return the number of blocks of the one-dimensional grid, one a tile of C and part of K.

    Parameters
    ----------
    config : Config
    problem : Problem
        As the rung computes it; see `facing`.

    Raises
    ------
    ShapeError
        The grid would be larger than the hardware allows.
    """
    count = tiles(config, problem)
    if config.SPLIT_K:
        count *= split(config, problem.K)[0]
    if count > MAX_BLOCKS:
        raise ShapeError(
            f"C of {problem.M} x {problem.N} needs {count} blocks of {config.BM} x {config.BN}, "
            f"the limit of a grid is {MAX_BLOCKS}"
        )
    return count
