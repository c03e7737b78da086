"""The sizes of every rung that is for squares: the standard set, and its anchors."""

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
SMALL_K = (Problem(4096, 4096, 128), Problem(8192, 8192, 64), Problem(1024, 1024, 32))
LARGE_K = (Problem(256, 256, 16384), Problem(64, 64, 65536), Problem(512, 512, 8192))
VECTORS = (Problem(1, 4096, 4096), Problem(1, 4096, 4096, "NT"))  # the second is how 4096,1,4096 is computed
TRANSPOSED = tuple(Problem(n, n, n, layout) for n in (1024, 4096) for layout in LAYOUTS[1:])

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
