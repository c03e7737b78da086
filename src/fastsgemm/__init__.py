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
    NoDriverError,
    NoNvrtcError,
    OperandError,
    OverlapError,
    ScalarError,
    ScalarRangeError,
    ShapeError,
    StreamError,
    UnknownRungError,
)
from fastsgemm.gemm import sgemm
from fastsgemm.rungs import RUNGS

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
    "NoDriverError",
    "NoNvrtcError",
    "OperandError",
    "OverlapError",
    "ScalarError",
    "ScalarRangeError",
    "ShapeError",
    "StreamError",
    "UnknownRungError",
    "__version__",
    "sgemm",
]
