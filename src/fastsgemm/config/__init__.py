"""The constants of the kernels: one frozen dataclass per kernel family, and the rules for a legal config.

A class declares each constant once: its name as in the kernel, its meaning and its values. Derived values are not
stored. A constant with a default is a feature that the default turns off or sets to its usual value. A rule is a row of
`fastsgemm.config.rules`, from which the kernel's ``static_assert`` is generated, too.
"""

from fastsgemm.config.base import Config
from fastsgemm.config.blocktile import (
    BlockConfig,
    SharedTileConfig,
    ThreadColumnConfig,
    ThreadTileConfig,
    VectorizedConfig,
)
from fastsgemm.config.constant import (
    MAX_EXTENT,
    MAX_REGISTERS,
    MAX_THREADS,
    PAD,
    SEGMENT,
    VECTOR,
    WARP,
    Violation,
)
from fastsgemm.config.fp16x3 import F16DirectConfig, Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.config.pipelined import PipelinedConfig
from fastsgemm.config.skinny import K_GROUP, MAX_ALTERNATED, MAX_PASS, SkinnyConfig, SkinnyInOrderConfig
from fastsgemm.config.warptiled import WarptiledConfig

# fmt: off
__all__ = [
    "K_GROUP",
    "MAX_ALTERNATED",
    "MAX_EXTENT",
    "MAX_PASS",
    "MAX_REGISTERS",
    "MAX_THREADS",
    "PAD",
    "SEGMENT",
    "VECTOR",
    "WARP",
    "BlockConfig",
    "Config",
    "F16DirectConfig",
    "Fp16x3Config",
    "Fp16x3MmaConfig",
    "PipelinedConfig",
    "SharedTileConfig",
    "SkinnyConfig",
    "SkinnyInOrderConfig",
    "ThreadColumnConfig",
    "ThreadTileConfig",
    "VectorizedConfig",
    "Violation",
    "WarptiledConfig",
]
# fmt: on
