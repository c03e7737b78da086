"""The problem sets that a device is tuned for."""

from __future__ import annotations

import random

from fastsgemm.problem import LAYOUTS, Problem

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
HUGE = (Problem(16384, 16384, 16384),)  # only for the default rungs, because every product takes long
SMALL_K = (Problem(4096, 4096, 128), Problem(8192, 8192, 64), Problem(1024, 1024, 32))
LARGE_K = (Problem(256, 256, 16384), Problem(64, 64, 65536), Problem(512, 512, 8192))
VECTORS = (Problem(1, 4096, 4096), Problem(1, 4096, 4096, "NT"))  # the second is how 4096,1,4096 is computed
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

# Only for the default rungs: the scores of an attention and their product with the values, for 96 heads of 64 and 1024
# tokens, and small squares.
BATCHES = (
    Problem(1024, 1024, 64, "NT", 96),
    Problem(1024, 64, 1024, batch=96),
    Problem(512, 512, 512, batch=8),
    Problem(64, 64, 64, batch=512),
    Problem(32, 32, 32, batch=4096),
)
# The same attention for one new token.
NARROW_BATCHES = (Problem(1, 1024, 64, "NT", 96), Problem(1, 64, 1024, batch=96))

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

# When the standard set is tuned, all candidates are tried on the anchors, and the best of them on the other problems.
# All extents are multiples of 4, so that one kernel per candidate serves all anchors.
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
# Anchors with other layouts and odd extents, which need other kernels.
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


def _drawn(count: int) -> tuple[Problem, ...]:
    """Return random problems of 0.5 to 20 GFLOP whose operands need few kernels: layouts and odd extents in turn."""
    generator = random.Random(17)
    found: list[Problem] = []
    while len(found) < count:
        turn, layout = divmod(len(found), len(LAYOUTS))
        M, N, K = (32 * round(2 ** generator.uniform(3.0, 7.5)) + turn % 2 for _ in range(3))
        problem = Problem(M, N, K, LAYOUTS[layout])
        if 5 * 10**8 <= problem.flops <= 2 * 10**10:
            found.append(problem)
    return tuple(found)


# The curves of the standard set are calibrated on these. They are unlike the probes of a curve: narrow, deep, large.
CALIBRATION = _drawn(32)
