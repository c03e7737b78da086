"""fastsgemm: float32 matrix multiplication for NVIDIA GPUs, from kernels compiled on the spot."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fastsgemm.config import Config
from fastsgemm.errors import (
    CaptureError,
    CompileError,
    ConfigError,
    DeviceError,
    DeviceMemoryError,
    DeviceMismatchError,
    DriverTooOldError,
    DTypeError,
    FastsgemmError,
    MissingExtraError,
    NoDriverError,
    NoNvrtcError,
    OperandError,
    OverlapError,
    RecordError,
    ScalarError,
    ScalarRangeError,
    ShapeError,
    StreamError,
    TuningError,
    UnknownRungError,
)
from fastsgemm.gemm import sgemm
from fastsgemm.rungs import RUNGS

if TYPE_CHECKING:
    from fastsgemm.heuristics.explanation import explain
    from fastsgemm.tuning.tuner import tune

__version__ = "0.1.0"

__all__ = [
    "RUNGS",
    "CaptureError",
    "CompileError",
    "Config",
    "ConfigError",
    "DTypeError",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceMismatchError",
    "DriverTooOldError",
    "FastsgemmError",
    "MissingExtraError",
    "NoDriverError",
    "NoNvrtcError",
    "OperandError",
    "OverlapError",
    "RecordError",
    "ScalarError",
    "ScalarRangeError",
    "ShapeError",
    "StreamError",
    "TuningError",
    "UnknownRungError",
    "__version__",
    "explain",
    "sgemm",
    "tune",
]


_TUNING = {"tune": "fastsgemm.tuning.tuner", "explain": "fastsgemm.heuristics.explanation"}


def __getattr__(name: str) -> Any:
    """Import what only tuning needs when it is first asked for: `sgemm` starts sooner without it."""
    if name not in _TUNING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_TUNING[name]), name)
    globals()[name] = found
    return found
