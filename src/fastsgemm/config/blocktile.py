"""Rungs 1 to 7: a thread computes one element of C, then a column, then a tile of them."""

from dataclasses import dataclass

from fastsgemm.config import constant, rules
from fastsgemm.config.base import Config
from fastsgemm.config.constant import BOOKKEEPING_REGISTERS, VECTOR


@dataclass(frozen=True, repr=False)
class BlockConfig(Config):
    """Rungs 1 and 2: a thread computes one element of C."""

    THREADS = "BM * BN"
    LEAST_REGISTERS = f"3 + {BOOKKEEPING_REGISTERS}"  # a sum and an element of A and of B
    RULES = (rules.threads(THREADS),)


@dataclass(frozen=True, repr=False)
class SharedTileConfig(Config):
    """Rung 3: tiles of A and B in shared memory."""

    BK: constant.BlockK

    THREADS = "BM * BN"
    SHARED_BYTES = rules.TILES
    LEAST_REGISTERS = f"3 + {BOOKKEEPING_REGISTERS}"
    RULES = ((*rules.threads(THREADS), *rules.copies(1), rules.shared(rules.TILES)),)


@dataclass(frozen=True, repr=False)
class ThreadColumnConfig(Config):
    """Rung 4: a thread computes TM rows of one column."""

    BK: constant.BlockK
    TM: constant.ThreadM

    THREADS = "BM * BN / TM"
    SHARED_BYTES = rules.TILES
    LEAST_REGISTERS = f"2 * TM + 1 + {BOOKKEEPING_REGISTERS}"
    RULES = (
        (rules.THREAD_TILES_M,),
        (
            *rules.threads(THREADS),
            *rules.copies(1),
            rules.shared(rules.TILES),
            rules.registers(f"at least {LEAST_REGISTERS}"),
        ),
    )


@dataclass(frozen=True, repr=False)
class ThreadTileConfig(Config):
    """Rung 5: a thread computes a TM x TN thread tile."""

    BK: constant.BlockK
    TM: constant.ThreadM
    TN: constant.ThreadN

    THREADS = "BM * BN / (TM * TN)"
    SHARED_BYTES = rules.TILES
    LEAST_REGISTERS = rules.outer_product("TM", "TN")
    RULES = (
        (rules.THREAD_TILES_M, rules.THREAD_TILES_N),
        (
            *rules.threads(THREADS),
            *rules.copies(1),
            rules.shared(rules.TILES),
            rules.registers(f"at least {LEAST_REGISTERS}"),
        ),
    )


@dataclass(frozen=True, repr=False)
class VectorizedConfig(Config):
    """Rungs 6 and 7: the constants of rung 5, and tiles of whole 128-bit vectors."""

    BK: constant.BlockK
    TM: constant.ThreadM
    TN: constant.ThreadN

    THREADS = "BM * BN / (TM * TN)"
    SHARED_BYTES = rules.TILES
    LEAST_REGISTERS = rules.outer_product("TM", "TN")
    RULES = (
        (rules.THREAD_TILES_M, rules.THREAD_TILES_N),
        (
            *rules.threads(THREADS),
            *rules.copies(VECTOR),
            *rules.vectors("BK", "BM", "BN", "TM", "TN"),
            rules.shared(rules.TILES),
            rules.registers(f"at least {LEAST_REGISTERS}"),
        ),
    )
