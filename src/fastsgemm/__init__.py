"""fastsgemm: float32 matrix multiplication for NVIDIA GPUs, with kernels that are compiled on first use."""

from importlib import import_module

TYPE_CHECKING = False  # type checkers treat it as typing.TYPE_CHECKING, whose import costs time
if TYPE_CHECKING:
    from fastsgemm.call.split_operand import SplitOperand, split
    from fastsgemm.call.workspace import release_workspace
    from fastsgemm.config import (
        BlockConfig,
        Config,
        F16DirectConfig,
        Fp16x3Config,
        PipelinedConfig,
        SharedTileConfig,
        SkinnyConfig,
        SkinnyInOrderConfig,
        ThreadColumnConfig,
        ThreadTileConfig,
        VectorizedConfig,
        WarptiledConfig,
    )
    from fastsgemm.errors import (
        ArgumentError,
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
        PrecisionError,
        RecordError,
        ScalarError,
        ScalarRangeError,
        ShapeError,
        StreamError,
        TuningError,
        UnknownRungError,
    )
    from fastsgemm.gemm import sgemm
    from fastsgemm.grouped import grouped_mm
    from fastsgemm.heuristics.explanation import explain
    from fastsgemm.preparation import prepare
    from fastsgemm.rungs import RUNGS
    from fastsgemm.tuning.tuner import tune

__version__ = "0.1.0"

__all__ = [
    "RUNGS",
    "ArgumentError",
    "BlockConfig",
    "CaptureError",
    "CompileError",
    "Config",
    "ConfigError",
    "DTypeError",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceMismatchError",
    "DriverTooOldError",
    "F16DirectConfig",
    "FastsgemmError",
    "Fp16x3Config",
    "MissingExtraError",
    "NoDriverError",
    "NoNvrtcError",
    "OperandError",
    "OverlapError",
    "PipelinedConfig",
    "PrecisionError",
    "RecordError",
    "ScalarError",
    "ScalarRangeError",
    "ShapeError",
    "SharedTileConfig",
    "SkinnyConfig",
    "SkinnyInOrderConfig",
    "SplitOperand",
    "StreamError",
    "ThreadColumnConfig",
    "ThreadTileConfig",
    "TuningError",
    "UnknownRungError",
    "VectorizedConfig",
    "WarptiledConfig",
    "__version__",
    "explain",
    "grouped_mm",
    "prepare",
    "release_workspace",
    "sgemm",
    "split",
    "tune",
]

_HOMES = {
    "RUNGS": "rungs",
    "SplitOperand": "call.split_operand",
    "explain": "heuristics.explanation",
    "grouped_mm": "grouped",
    "prepare": "preparation",
    "release_workspace": "call.workspace",
    "sgemm": "gemm",
    "split": "call.split_operand",
    "tune": "tuning.tuner",
}  # of the public names that are neither errors nor configs

if not TYPE_CHECKING:  # type checkers use the imports above and accept no other names

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for.

        So the command line can react to Ctrl-C while NumPy is imported, and `sgemm` does not import the tuner.
        """
        if name not in __all__:
            hint = f"; import {__name__}.{name} first" if name in ("blas", "jax", "sim", "torch") else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        home = _HOMES.get(name, "config" if name.endswith("Config") else "errors")
        public = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = public
        return public

    def __dir__() -> list[str]:
        return __all__
