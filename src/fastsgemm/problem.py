"""A problem: M, N, K and a layout; how it is written, and how far two of them are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastsgemm.errors import ShapeError

_MOST_DIGITS = 20  # Python refuses to read more than 4300

LAYOUTS: tuple[str, ...] = ("NN", "NT", "TN", "TT")


def parse(text: str) -> Problem:
    """Return the problem written as ``M,N,K`` or ``M,N,K,LAYOUT``, or ``N`` for M = N = K.

    Raises
    ------
    ShapeError
        It is not written so, or an extent is out of range.
    """
    parts = [part.strip() for part in text.split(",")]
    layout = parts.pop().upper() if len(parts) == 4 else "NN"
    digits = all(part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts)
    if len(parts) not in (1, 3) or layout not in LAYOUTS or not digits:
        raise ShapeError(
            f"a problem is written N, M,N,K or M,N,K,LAYOUT with numbers of 1 to {MAX_EXTENT} and a layout of "
            f"{', '.join(LAYOUTS)}, got {text!r}"
        )
    M, N, K = map(int, parts if len(parts) == 3 else 3 * parts)
    return checked(Problem(M, N, K, layout))


def checked(problem: Problem) -> Problem:
    """Return `problem` if it has work to tune and a known layout, else raise `ShapeError`."""
    M, N, K = extents = (problem.M, problem.N, problem.K)
    whole = type(M) is type(N) is type(K) is int  # thousands of these are read with the database
    if not whole or min(extents) < 1 or max(extents) > MAX_EXTENT:
        raise ShapeError(f"M, N and K must be 1 to {MAX_EXTENT}, got {extents}")
    if problem.layout not in LAYOUTS:
        raise ShapeError(f"a layout is one of {LAYOUTS}, got {problem.layout!r}")
    return problem


def checked_batch(count: int) -> int:
    """Return the number of products of a batch, or raise `ShapeError`."""
    if type(count) is not int or count < 1:
        raise ShapeError(f"a batch has at least 1 product, got {count!r}")
    return count


def octaves(one: Problem, other: Problem) -> float:
    """Return how far apart the extents of two problems are, whatever their layouts."""
    pairs = ((one.M, other.M), (one.N, other.N), (one.K, other.K))
    return sum(abs(math.log2(max(1, a) / max(1, b))) for a, b in pairs)


def spell(problem: Problem) -> str:
    """Return `problem` as `parse` reads it, which reads no batch; NN goes without saying, and so does one product."""
    suffix = "" if problem.layout == "NN" else f",{problem.layout}"
    batch = "" if problem.batch == 1 else f",x{problem.batch}"
    return f"{problem.M},{problem.N},{problem.K}{suffix}{batch}"


MAX_EXTENT = 2**31 - 2**16  # M, N and K are 32-bit in the kernels, with room for the largest tile past the end


@dataclass(frozen=True)
class Problem:
    """What is asked of a kernel, as far as the choice of its constants goes.

    Attributes
    ----------
    M, N, K : int
        C is (M, N), A is (M, K), B is (K, N).
    layout : str
        ``NN``, ``NT``, ``TN`` or ``TT``: whether A and B are row-major (N) or column-major (T).
    batch : int
        How many such products are computed at once.
    """

    M: int
    N: int
    K: int
    layout: str = "NN"
    batch: int = 1

    @property
    def transposed(self) -> Problem:
        """The same product as C^T = B^T A^T."""
        return Problem(self.N, self.M, self.K, _TRANSPOSED[self.layout], self.batch)

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each step of each element."""
        return 2 * self.M * self.N * self.K * self.batch


_TRANSPOSED = {"NN": "TT", "NT": "NT", "TN": "TN", "TT": "NN"}
