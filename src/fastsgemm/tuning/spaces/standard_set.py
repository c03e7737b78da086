"""The sizes of every rung that is for squares: the standard set, and its anchors."""

from fastsgemm.problem import LAYOUTS, Problem, parse


def problems(text: str) -> tuple[Problem, ...]:
    """Return the problems that are spelled in a text; see `fastsgemm.problem.format_problem`."""
    return tuple(map(parse, text.split()))


VECTORS = problems("1,4096,4096 1,4096,4096,NT")  # the second is how 4096,1,4096 is computed

STANDARD = (
    *(Problem(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)),
    *problems("1000,1000,1000 3000,3000,3000 4095,4097,4093 2047,1025,511 333,777,555 129,131,127"),  # ragged
    *problems("65536,64,64 100000,96,96 8192,128,1024 4096,32,4096"),  # tall
    *problems("128,4096,4096 16,4096,4096 64,8192,512 2048,11008,4096"),  # wide
    *problems("4096,4096,128 8192,8192,64 1024,1024,32"),  # small K
    *problems("256,256,16384 64,64,65536 512,512,8192"),  # large K
    *VECTORS,
    *(Problem(n, n, n, layout) for n in (1024, 4096) for layout in LAYOUTS[1:]),
)

# When the standard set is tuned, all candidates are tried on the anchors, and the best of them on the other problems.
# All extents are multiples of 4, so that one kernel per candidate serves all anchors.
ANCHORS = problems(
    "4096,4096,4096 2048,2048,2048 1024,1024,1024 512,512,512 256,256,256 8192,128,1024 16,4096,4096 4096,4096,128"
)
