"""Rung 10: its search space, which configs suit a problem, and its sizes."""

from fastsgemm import rungs
from fastsgemm.config import SkinnyConfig
from fastsgemm.config.search_limits import SearchLimits
from fastsgemm.problem import Problem
from fastsgemm.tuning.spaces.space import Space
from fastsgemm.tuning.spaces.standard_set import VECTORS, problems

DOTS = problems("1,256,6144,NT 1,256,1024,NT 1,1,1000000,NT")  # tiles of one or two columns, and of many steps of k
NARROW = (
    *VECTORS,
    *problems("1,1024,1024 1,8192,8192 1,16384,1024,NT 2,4096,4096 4,4096,4096 4,11008,4096,NT 8,4096,4096"),
    *problems("16,1024,1024 16,4096,4096 16,4096,4096,NT 4096,32,4096 32,2048,8192 16384,16,64 3,1000,3000"),
    *problems("1111,5,777 8,256,65536 32,32,262144"),
    *DOTS,
)
# An attention for one new token: its scores and their product with the values, for 96 heads of 64 and 1024 tokens.
NARROW_BATCHES = problems("1,1024,64,NT,x96 1,64,1024,x96")
NARROW_ANCHORS = (
    *problems("1,4096,4096 1,4096,4096,NT 4,4096,4096 16,4096,4096 16,4096,4096,NT 16,1024,1024 32,2048,8192"),
    *DOTS,
)


def worth_trying(config: SkinnyConfig, problem: Problem, limits: SearchLimits) -> bool:
    """Whether a tile has about as many rows as C."""
    rows = min(problem.M, problem.N, rungs.NARROW)
    return rows / 4 <= config.BM < 2 * rows


SKINNY = Space(
    "skinny",
    grid={
        "BM": (1, 2, 4, 8, 16, 32),
        "BN": (32, 64, 128),
        "BK": (64, 128, 256, 512),
        "TN": (4,),
        "TK": (4, 8, 16),
        "MIN_BLOCKS": (1,),
        "SPLIT_K": (1,),
    },
    refined=({"MIN_BLOCKS": (1, 2, 3)},),
    worth_trying=worth_trying,
    problems=(*NARROW, *NARROW_BATCHES),
    anchors=NARROW_ANCHORS,
)
