"""TODO."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastsgemm.errors import ShapeError

LAYOUTS = ("NN", "NT", "TN", "TT")


def parse(text: str) -> Problem:
    """Return the problem written as ``M,N,K`` or ``M,N,K,LAYOUT``.

    Raises
    ------
    ShapeError
        It is not written so, or an extent is out of range.
    """
    parts = [part.strip() for part in text.split(",")]
    layout = parts.pop().upper() if len(parts) == 4 else "NN"
    if len(parts) != 3 or layout not in LAYOUTS or not all(part.isdecimal() for part in parts):
        raise ShapeError(f"a problem is written M,N,K or M,N,K,LAYOUT with a layout of {LAYOUTS}, got {text!r}")
    M, N, K = map(int, parts)
    return checked(Problem(M, N, K, layout))


def checked(problem: Problem) -> Problem:
    """Return `problem` if it has work to tune and a known layout, else raise `ShapeError`."""
    M, N, K = extents = (problem.M, problem.N, problem.K)
    whole = type(M) is type(N) is type(K) is int  # thousands of these are read with the database
    if not whole or min(extents) < 1 or max(extents) > MAX_EXTENT:
        raise ShapeError(f"M, N and K of a tuned problem must be 1 to {MAX_EXTENT}, got {extents}")
    if problem.layout not in LAYOUTS:
        raise ShapeError(f"a layout is one of {LAYOUTS}, got {problem.layout!r}")
    return problem


def octaves(one: Problem, other: Problem) -> float:
    """Return how far apart the extents of two problems are, whatever their layouts."""
    pairs = ((one.M, other.M), (one.N, other.N), (one.K, other.K))
    return sum(abs(math.log2(max(1, a) / max(1, b))) for a, b in pairs)


def spell(problem: Problem) -> str:
    """Return `problem` as `parse` reads it; NN goes without saying."""
    suffix = "" if problem.layout == "NN" else f",{problem.layout}"
    return f"{problem.M},{problem.N},{problem.K}{suffix}"


MAX_EXTENT = 2**31 - 1024  # M, N and K are 32-bit in the kernels, with room for a tile past the end


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
