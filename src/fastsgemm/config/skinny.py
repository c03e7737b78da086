"""Rung 10, for a C of few rows, and its kernel with the fixed order of docs/batch-invariance.md."""

from dataclasses import dataclass
from typing import Annotated

from fastsgemm.config import constant, rules
from fastsgemm.config.base import Config
from fastsgemm.config.constant import BOOKKEEPING_REGISTERS, MAX_THREADS, PAD, SEGMENT, STATIC_SHARED, WARP, Constant
from fastsgemm.config.rules import AT_LEAST, AT_MOST, EQUAL_TO, MULTIPLE_OF, POWER_OF_TWO, Rule

K_GROUP = 4  # steps of k that a thread reads at a time
MAX_ALTERNATED = 16  # most results of a thread that have two accumulators each
MAX_PASS = 8192  # most floats of partial sums that are added up at a time
MAX_SKINNY = 32  # rows of a block

_THREADS = "(BN / TN) * (BK / TK)"
_SHARES = "partial sums share out evenly"


@dataclass(frozen=True, repr=False)
class SkinnyConfig(Config):
    """Rung 10: for a C of few rows."""

    BK: Annotated[int, Constant("steps of k between two barriers")]
    TN: Annotated[int, Constant("columns of C that a thread computes")]
    TK: Annotated[int, Constant("steps of BK that a thread computes, and has on their way")]
    MIN_BLOCKS: constant.MinBlocks = 1
    SPLIT_K: constant.SplitK = 1

    THREADS = _THREADS
    RULES = (
        (
            Rule("BN", MULTIPLE_OF, "TN", "threads cover the block tile"),
            Rule("BK", MULTIPLE_OF, "TK", "threads cover the block tile"),
            Rule("BM", POWER_OF_TWO, "", _SHARES),
            Rule("BM", AT_MOST, f"{MAX_SKINNY}", "the sums of BM * TN results stay in registers"),
            Rule("TK", MULTIPLE_OF, f"{K_GROUP}", "k is taken in groups of four"),
        ),
        (
            Rule("TN", POWER_OF_TWO, "", _SHARES),
            Rule("BN / TN", POWER_OF_TWO, "", _SHARES),
            Rule("BK / TK", POWER_OF_TWO, "", _SHARES),
            *rules.threads(_THREADS, least=WARP),
            Rule("THREADS", AT_LEAST, "BM", _SHARES, name=f"threads of a block, {_THREADS},"),
            Rule(
                "STATIC_SHARED_BYTES", AT_MOST, f"{STATIC_SHARED}", "the limit of static shared memory",
                name="shared memory of a block, set by BM, BN, BK, TN and TK,", unit=" bytes",
            ),
            rules.registers("for BM * TN results and TK * TN loads"),
        ),
    )  # fmt: skip

    @property
    def sliced_k(self) -> int:
        """Groups of threads of a block that share out k."""
        return self.BK // self.TK

    @property
    def partial_accumulators(self) -> int:
        """Accumulators per result."""
        return 2 if self.TK > K_GROUP and self.BM * self.TN <= MAX_ALTERNATED else 1

    @property
    def static_shared_bytes(self) -> int:
        """The most static shared memory that a variant needs, in bytes: A, B and C are transposed.

        It holds two tiles of A, or the partial sums of the rows added up in one pass; see ``cuda_src/10_skinny.cu``.
        """
        rows = self.BM
        while rows > 1 and (rows * self.TN > self.sliced_k or rows * self.sliced_k * self.BN > MAX_PASS):
            rows //= 2
        adders = max(1, self.threads // (rows * self.BN))
        sums = rows * self.BN * (self.sliced_k + adders) + adders * (self.BN * (self.BM + 1) + PAD)
        tile = self.TK * self.BM * (self.sliced_k + (self.BM > K_GROUP))
        return 4 * max(2 * tile, sums)

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        sums = self.BM * self.TN * self.partial_accumulators
        return sums + self.TK * self.TN + K_GROUP + BOOKKEEPING_REGISTERS


_STAGES_OF_WARPS = f"4 * WARPS * (STAGES * (BN * (BK + {PAD}) + BK) + BN)"


@dataclass(frozen=True, repr=False)
class SkinnyInOrderConfig(Config):
    """Rung 10 with the fixed order of docs/batch-invariance.md: for a C of one row or column.

    If SPLIT_K is not 1, each segment of K is a part with blocks of its own.
    """

    BM: Annotated[int, Constant("rows of C that a block computes", (1,))]
    BN: Annotated[int, Constant("columns of C that a block computes, one per lane", (1, 2, 4, 8, 16, 32))]
    BK: Annotated[int, Constant("steps of k in a tile", (8, 16, 32, 64, 128, 256, 512, 1024))]
    WARPS: Annotated[int, Constant("warps of a block, each with a segment of K", range(1, MAX_THREADS // WARP + 1))]
    STAGES: Annotated[int, Constant("tiles of A and of B of each warp in shared memory", range(1, 65))]
    SPLIT_K: constant.SplitK = 1

    THREADS = f"{WARP} * WARPS"  # one warp suffices, because it copies for itself
    # The stages of each warp, and the sums of their segments. A tile of B has padded lines if B is transposed.
    SHARED_BYTES = _STAGES_OF_WARPS
    LEAST_REGISTERS = f"1 + {BOOKKEEPING_REGISTERS}"
    RULES = (
        (
            Rule("STAGES", AT_LEAST, "2", "copies run under arithmetic"),
            *rules.threads(THREADS, least=WARP),
            Rule("WARPS", EQUAL_TO, "1", "SPLIT_K gives each segment of K a block of its own", where="SPLIT_K > 1"),
            rules.shared(_STAGES_OF_WARPS),
        ),
    )

    @property
    def segment(self) -> int:
        """Steps of k in each chain of FMAs."""
        return SEGMENT

    @property
    def compiled(self) -> dict[str, int]:
        """The constants that the kernel is compiled for."""
        return super().compiled | {"SEGMENT": SEGMENT}
