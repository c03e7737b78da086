"""The problems that a card is tuned for, and how one is written on a command line."""

from __future__ import annotations

import math

from fastsgemm import plan
from fastsgemm.errors import ShapeError
from fastsgemm.layout import Pair, Stored, stored
from fastsgemm.plan import MAX_EXTENT, Call, Operand, Problem

LAYOUTS = ("NN", "NT", "TN", "TT")
_MOST_DIGITS = 20  # Python refuses to read more than 4300

SQUARES = tuple(Problem(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192))
RAGGED = (
    Problem(1000, 1000, 1000),
    Problem(3000, 3000, 3000),
    Problem(4095, 4097, 4093),
    Problem(2047, 1025, 511),
    Problem(333, 777, 555),
    Problem(129, 131, 127),
)
TALL = (Problem(65536, 64, 64), Problem(100000, 96, 96), Problem(8192, 128, 1024), Problem(4096, 32, 4096))
WIDE = (Problem(128, 4096, 4096), Problem(16, 4096, 4096), Problem(64, 8192, 512))
LARGE = (Problem(2048, 11008, 4096),)
HUGE = (Problem(16384, 16384, 16384),)  # for what `sgemm` uses: every try takes a while
SMALL_K = (Problem(4096, 4096, 128), Problem(8192, 8192, 64), Problem(1024, 1024, 32))
LARGE_K = (Problem(256, 256, 16384), Problem(64, 64, 65536), Problem(512, 512, 8192))
VECTORS = (Problem(1, 4096, 4096), Problem(1, 4096, 4096, "NT"))  # the second is 4096, 1, 4096
TRANSPOSED = tuple(Problem(n, n, n, layout) for n in (1024, 4096) for layout in LAYOUTS[1:])

NARROW = (
    *VECTORS,
    Problem(1, 1024, 1024),
    Problem(1, 8192, 8192),
    Problem(1, 16384, 1024, "NT"),
    Problem(2, 4096, 4096),
    Problem(4, 4096, 4096),
    Problem(4, 11008, 4096, "NT"),
    Problem(8, 4096, 4096),
    Problem(16, 1024, 1024),
    Problem(16, 4096, 4096),
    Problem(16, 4096, 4096, "NT"),
    Problem(4096, 32, 4096),
    Problem(32, 2048, 8192),
    Problem(16384, 16, 64),
    Problem(3, 1000, 3000),
    Problem(1111, 5, 777),
    Problem(8, 256, 65536),
    Problem(32, 32, 262144),
)

STANDARD: tuple[Problem, ...] = (
    *SQUARES,
    *RAGGED,
    *TALL,
    *WIDE,
    *LARGE,
    *SMALL_K,
    *LARGE_K,
    *VECTORS,
    *TRANSPOSED,
)

# Where all candidates are tried when the standard set is tuned; the best of these are tried on the rest. Their extents
# are multiples of 4, so one kernel a candidate serves all of them.
ANCHORS: tuple[Problem, ...] = (
    Problem(4096, 4096, 4096),
    Problem(2048, 2048, 2048),
    Problem(1024, 1024, 1024),
    Problem(512, 512, 512),
    Problem(256, 256, 256),
    Problem(8192, 128, 1024),
    Problem(16, 4096, 4096),
    Problem(4096, 4096, 128),
)
# Other layouts and odd extents.
VARIANT_ANCHORS: tuple[Problem, ...] = (
    *(Problem(4096, 4096, 4096, layout) for layout in LAYOUTS[1:]),
    Problem(4095, 4097, 4093),
    Problem(2047, 1025, 511),
    Problem(333, 777, 555),
)
NARROW_ANCHORS: tuple[Problem, ...] = (
    Problem(1, 4096, 4096),
    Problem(1, 4096, 4096, "NT"),
    Problem(4, 4096, 4096),
    Problem(16, 4096, 4096),
    Problem(16, 4096, 4096, "NT"),
    Problem(16, 1024, 1024),
    Problem(32, 2048, 8192),
)


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


def dense(problem: Problem) -> tuple[tuple[Pair, Pair], ...]:
    """Return shape and strides of A, B and C where nothing lies between their elements."""
    M, N, K = problem.M, problem.N, problem.K
    shapes = ((M, K), (K, N), (M, N))
    return tuple(
        (shape, (1, shape[0]) if letter == "T" else (shape[1], 1))
        for shape, letter in zip(shapes, (*problem.layout, "N"), strict=True)
    )


def call(problem: Problem) -> Call:
    """Return how a kernel is called for a problem in dense, aligned arrays.

    Its problem is the one that the database is asked for: a vector has no layout of its own, and C with one column is
    computed as its transpose.
    """
    a, b, c = (Operand(shape, stored(shape, strides) or Stored(False, 0)) for shape, strides in dense(problem))
    return plan.call_for(a, b, c)


def octaves(one: Problem, other: Problem) -> float:
    """Return how far apart the extents of two problems are, whatever their layouts."""
    pairs = ((one.M, other.M), (one.N, other.N), (one.K, other.K))
    return sum(abs(math.log2(max(1, a) / max(1, b))) for a, b in pairs)


def text(problem: Problem) -> str:
    """Return `problem` as `parse` reads it; NN goes without saying."""
    suffix = "" if problem.layout == "NN" else f",{problem.layout}"
    return f"{problem.M},{problem.N},{problem.K}{suffix}"
