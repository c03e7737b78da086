"""fastsgemm: float32 matrix multiplication for NVIDIA GPUs, from kernels compiled on the spot."""

from fastsgemm.config import Config
from fastsgemm.errors import (
    CaptureError,
    CompileError,
    ConfigError,
    DeviceError,
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
from fastsgemm.explain import explain
from fastsgemm.gemm import sgemm
from fastsgemm.rungs import RUNGS
from fastsgemm.tuner import tune

__version__ = "0.1.0"

__all__ = [
    "RUNGS",
    "CaptureError",
    "CompileError",
    "Config",
    "ConfigError",
    "DTypeError",
    "DeviceError",
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
