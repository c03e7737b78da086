"""Rung 11: FP32 accuracy from three FP16 products on tensor cores."""

from dataclasses import dataclass
from typing import Annotated

from fastsgemm.config import constant, rules
from fastsgemm.config.base import Config
from fastsgemm.config.constant import BOOKKEEPING_REGISTERS, WARP, WARPGROUP, Constant
from fastsgemm.config.rules import AT_LEAST, AT_MOST, Rule

_LINES = "(BM + BN) * 128"  # bytes of a stage: a row of A or a column of B has 32 steps of hi and of lo
_MULTIPLY_REGISTERS = 232  # of a multiplying thread; the copying warpgroup releases its registers

# Tiles begin at multiples of 1024 bytes, and each stage has two memory barriers of 8 bytes.
_RING = f"1024 + STAGES * ({_LINES} + 16)"


@dataclass(frozen=True, repr=False)
class Fp16x3Config(Config):
    """Rung 11: tensor cores on Hopper, with FP32 accuracy from three FP16 products."""

    BM: Annotated[int, Constant("rows of C that a block computes, 64 per warpgroup", (64, 128))] = 128
    BN: Annotated[int, Constant("columns of C that a block computes", (16, 32, 64, 128))] = 128
    PROMOTE_STAGES: Annotated[int, Constant("stages of 32 steps of k between promotions of the sums", (1, 2))] = 2
    STAGES: Annotated[int, Constant("tiles of A and of B in shared memory", range(1, 65))] = 7
    GROUP_M: constant.GroupM = 8
    SPLIT_K: constant.SplitK = 1

    STEPS = 32
    THREADS = f"{WARPGROUP} * (BM / 64 + 1)"  # the multiplying warpgroups and a copying one
    SHARED_BYTES = _RING
    LEAST_REGISTERS = "3 * BN / 2 + 32"
    RULES = (
        (
            rules.shared(_RING),
            Rule("STAGES", AT_LEAST, "4", "the stages of a promotion are released once those of the next are full"),
            Rule(LEAST_REGISTERS, AT_MOST, f"{_MULTIPLY_REGISTERS}", "the sets fit in the registers"),
        ),
    )


@dataclass(frozen=True, repr=False)
class F16DirectConfig(Config):
    """Rung 11 on Hopper for unsplit operands: two of one 16-bit type, or bfloat16 and float32."""

    BM: Annotated[int, Constant("rows of C that a block computes, 64 per warpgroup", (64, 128))] = 128
    BN: Annotated[int, Constant("columns of C that a block computes", (16, 32, 64, 128, 256))] = 128
    STAGES: Annotated[int, Constant("tiles of A and of B in shared memory", range(1, 65))] = 6
    GROUP_M: constant.GroupM = 8
    SPLIT_K: constant.SplitK = 1

    STEPS = 64
    THREADS = Fp16x3Config.THREADS
    SHARED_BYTES = f"{_RING} + BM / 16 * 1280"  # each multiplying warp stages its stores in memory of its own
    LEAST_REGISTERS = "BN / 2 + 32"  # the sums
    RULES = (
        (
            rules.shared(SHARED_BYTES),
            Rule("STAGES", AT_LEAST, "2", "a stage is filled again once the one after it is full"),
        ),
    )


@dataclass(frozen=True, repr=False)
class Fp16x3MmaConfig(Config):
    """Rung 11 on devices without wgmma: the same arithmetic by mma.sync."""

    BM: Annotated[int, Constant("rows of C that a block computes", (64, 128))] = 128
    BN: Annotated[int, Constant("columns of C that a block computes", (64, 128))] = 128
    WM: Annotated[int, Constant("rows of C that a warp computes", (32, 64))] = 64
    WN: Annotated[int, Constant("columns of C that a warp computes", (32, 64))] = 32
    STAGES: Annotated[int, Constant("tiles of A and of B in shared memory", range(1, 9))] = 3
    GROUP_M: constant.GroupM = 8
    SPLIT_K: constant.SplitK = 1

    STEPS = 32
    THREADS = rules.THREADS_OF_WARPS
    SHARED_BYTES = f"STAGES * {_LINES}"
    LEAST_REGISTERS = f"3 * WM * WN / {WARP} + {BOOKKEEPING_REGISTERS}"  # three sums of every element
    RULES = (
        (
            Rule("STAGES", AT_LEAST, "2", "one stage is filled while another is used"),
            *rules.threads(THREADS),
            rules.shared(SHARED_BYTES),
            rules.registers(f"at least {LEAST_REGISTERS}"),
        ),
    )
