"""Rung 7: its search space. Its sizes are the standard set."""

from fastsgemm.tuning.spaces.space import Space

AUTOTUNED = Space(
    "autotuned",
    grid={"BM": (64, 128, 256), "BN": (64, 128, 256), "BK": (8, 16, 32, 64), "TM": (4, 8, 16), "TN": (4, 8, 16)},
)
