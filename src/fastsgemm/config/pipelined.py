"""Rung 9: copies run under arithmetic, and K can be sliced and split."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Self

from fastsgemm.config import constant, rules
from fastsgemm.config.base import Config
from fastsgemm.config.constant import BANKS, PAD, VECTOR, WARP, Constant, Violation
from fastsgemm.config.rules import AT_LEAST, AT_MOST, DIVISOR_OF, EQUAL_TO, MULTIPLE_OF, VECTORS_OF, Rule, evaluate

_FEWEST_STAGES = 2

# A tile need not share out evenly: threads left over copy nothing.
_VECTORS = (
    *rules.vectors("BK", "BN"),
    Rule("BM", VECTORS_OF, f"{VECTOR}", rules.WHOLE_VECTORS),
    Rule("TM", VECTORS_OF, f"{VECTOR}", rules.WHOLE_VECTORS),
    Rule("TN", DIVISOR_OF, f"{WARP}", "the lanes of a warp store whole thread tiles of a row of C"),
)
_TOGETHER = "four steps of k are read at a time"
_NEXT = "fragments of the next tile land where its first steps read them, copies before that"
_STEPS = (
    Rule("BK", MULTIPLE_OF, "SLICED_K", _NEXT),
    Rule("BK / SLICED_K", MULTIPLE_OF, "max(FRAGMENTS, 2)", _NEXT),
    Rule("BK / SLICED_K", AT_LEAST, "2 * max(FRAGMENTS, 2)", _NEXT),
    Rule("BK / SLICED_K", MULTIPLE_OF, f"{VECTOR}", _TOGETHER, where="CP_ASYNC == 3"),
    Rule("FRAGMENTS", AT_MOST, f"{VECTOR}", _TOGETHER, where="CP_ASYNC == 3"),
    Rule("CP_ASYNC", AT_LEAST, "2", "more stages are copied past the registers", where=f"STAGES > {_FEWEST_STAGES}"),
)
_ROOM = f"{_FEWEST_STAGES} * {rules.TILES}"  # bytes that are always available after the main loop
_EXCHANGED = "two stages have room for what threads exchange at the end"
_SCRATCH = (
    Rule(
        "4 * (SLICED_K - 1) * (THREADS / SLICED_K) * TN * WNITER", AT_MOST, _ROOM, _EXCHANGED,
        name="partial sums of the slices, set by SLICED_K, TN and WNITER,", unit=" bytes",
    ),
    Rule(  # a row is padded by a float for each TN
        "4 * (THREADS / SLICED_K) * (TN + 1) * WNITER", AT_MOST, _ROOM, _EXCHANGED,
        name="a row of C of every thread, set by WM, WN, TN and WNITER,", unit=" bytes",
    ),
    Rule(  # a padded column of a sub-tile of every warp, of which the transpose of a symmetric C is stored
        f"4 * (THREADS / SLICED_K / {WARP}) * ({WARP} * TM * TN * WNITER / WN + {PAD})", AT_MOST, _ROOM, _EXCHANGED,
        name="a column of a sub-tile of every warp, set by WM, WN, TM, TN and WNITER,", unit=" bytes",
    ),
)  # fmt: skip
_ONE_CHAIN = "SEGMENT gives each segment of K one chain of FMAs"
_ORDER = (
    Rule("SLICED_K", EQUAL_TO, "1", _ONE_CHAIN, where="SEGMENT > 0"),
    Rule("PARTIAL_ACCUMULATORS", EQUAL_TO, "1", _ONE_CHAIN, where="SEGMENT > 0"),
    Rule("SEGMENT", MULTIPLE_OF, "BK", "a segment is whole tiles"),
)


@dataclass(frozen=True, repr=False)
class PipelinedConfig(Config):
    """Rung 9: copies run under arithmetic, and K can be sliced and split."""

    BK: constant.BlockK
    TM: constant.ThreadM
    TN: constant.ThreadN
    WM: constant.WarpM
    WN: constant.WarpN
    WNITER: constant.WarpSubtilesN
    GROUP_M: constant.GroupM = 8
    MIN_BLOCKS: constant.MinBlocks = 1
    ORDER: Annotated[int, Constant("of the outer product; see device/outer_product.cuh", range(6))] = 1
    FRAGMENTS: Annotated[
        int, Constant("buffers for fragments; they are read one step of k less ahead", (1, 2, 4, 8))
    ] = 2
    CP_ASYNC: Annotated[
        int,
        Constant(
            "copies past the registers: 0 none, 1 the untransposed, 2 all, 3 all, and none is transposed", range(4)
        ),
    ] = 1
    SPREAD: Annotated[int, Constant("of a copy over the steps of a tile: 0 at once, 1, 2", range(3))] = 0
    STAGES: Annotated[int, Constant("tiles of A and of B in shared memory", (2, 3, 4, 6, 8))] = 2
    SLICED_K: Annotated[int, Constant("groups of threads that share out the steps of a tile", (1, 2, 4, 8))] = 1
    PARTIAL_ACCUMULATORS: Annotated[int, Constant("chains of FMAs of a sum, about", range(1, 65))] = 1
    SEGMENT: Annotated[
        int, Constant("steps of k in each chain of FMAs; 0: other constants decide", (0, constant.SEGMENT))
    ] = 0
    SPLIT_K: constant.SplitK = 1

    THREADS = rules.THREADS_OF_WARPS + " * SLICED_K"
    LEAST_REGISTERS = (
        rules.outer_product("(TM * WMITER)", "(TN * WNITER)") + " + (CP_ASYNC == 0) * (BK * (BM + BN) / THREADS)"
    )
    RULES = (
        rules.WARP_TILES,
        (
            *rules.threads(THREADS),
            *_VECTORS,
            *_STEPS,
            *_SCRATCH,
            *_ORDER,
            rules.shared(
                "set by BM, BN, BK, TM, TN, CP_ASYNC, STAGES, SLICED_K, PARTIAL_ACCUMULATORS, SEGMENT and SPLIT_K"
            ),
            rules.registers("for WM * WN results and the copied tiles"),
        ),
    )

    @cached_property
    def kernel(self) -> Self:
        """The config without split-K. The length of several chains is an argument of the launch."""
        return self.replace(SPLIT_K=1, SEGMENT=0, PARTIAL_ACCUMULATORS=2 if self.adds_chains else 1)

    @property
    def compiled(self) -> dict[str, int]:
        """The constants that the kernel is compiled for."""
        constants = super().compiled | {"CHAINS": int(self.adds_chains)}
        return {name: value for name, value in constants.items() if name not in ("SEGMENT", "PARTIAL_ACCUMULATORS")}

    @property
    def adds_chains(self) -> bool:
        """Whether a block adds up several chains of FMAs, in shared memory."""
        return self.PARTIAL_ACCUMULATORS > 1 or (self.SEGMENT > 0 and self.SPLIT_K == 1)

    @property
    def thread_results(self) -> int:
        """Results of C that a thread computes."""
        return self.WM * self.WN // WARP

    @property
    def wmiter(self) -> int:
        """Sub-tiles of a warp tile along m."""
        return self.WM * self.WN // (WARP * self.TM * self.TN * self.WNITER)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes: the stages, and the finished chains of every thread."""
        finished = self.BM * self.BN * self.SLICED_K if self.adds_chains else 0
        stage = self._tile_floats(self.BM, self.TM) + self._tile_floats(self.BN, self.TN)
        return 4 * (self.STAGES * stage + finished)

    def _tile_floats(self, extent: int, thread_tile: int) -> int:
        """Return the most floats of a tile of one operand, which with CP_ASYNC = 3 may keep its lines."""
        k_major = self.BK * (extent + PAD)
        if self.CP_ASYNC != 3:
            return k_major
        lines = extent // thread_tile * (self.BK if self.BK % 8 else self.BK + PAD)
        return max(k_major, lines + (thread_tile - 1) * (lines + (self.BK - lines) % BANKS))

    def order_violations(self) -> list[Violation]:
        """Return the violated rules of SEGMENT: each segment is whole tiles, summed in one chain."""
        return [rule.violation(self, 0) for rule in _ORDER if not evaluate(rule.condition, self)]
