"""The exceptions of fastsgemm.

Each is also a ``ValueError``, ``TypeError`` or ``RuntimeError``, so that existing ``except`` clauses catch it. When one
is raised, nothing has been written to C.
"""

from __future__ import annotations


class FastsgemmError(Exception):
    """Base class of all errors of fastsgemm."""


class ArgumentError(FastsgemmError, TypeError):
    """An argument of a wrong type or with an unknown name, other than operands, numbers and streams."""


class OperandError(FastsgemmError, ValueError):
    """An array that `sgemm` cannot use, such as a read-only C, a C with stride 0, or a sparse tensor."""


class DTypeError(FastsgemmError, TypeError):
    """An array that is not float32, or an object that is not an array."""


class ShapeError(OperandError):
    """Wrong number of dimensions, shapes that do not fit together, or an extent above the limit."""


class OverlapError(OperandError):
    """C shares memory with A or B, or with itself."""


class DeviceMismatchError(OperandError):
    """The operands are not all on one device."""


class ScalarError(FastsgemmError, TypeError):
    """alpha or beta is not a real number."""


class ScalarRangeError(FastsgemmError, ValueError):
    """alpha or beta exceeds float32, beta is not 0 in a call without C, or it is 0 in one with both C and `out`."""


class StreamError(FastsgemmError, TypeError):
    """A stream without ``__cuda_stream__``, or a stream with host arrays or in code that JAX traces."""


class UnknownRungError(FastsgemmError, ValueError):
    """An unknown name or number of a rung."""


class PrecisionError(FastsgemmError, ValueError):
    """An unknown precision, or one that contradicts another argument.

    That is the rung, the config, a split operand or `batch_invariant`.
    """


class ConfigError(FastsgemmError, ValueError):
    """A config that breaks a rule; the message names every broken rule with its limit and value."""


class DeviceError(FastsgemmError, RuntimeError):
    """Base class of the errors of the machine: driver, device, NVRTC."""


class NoDriverError(DeviceError):
    """There is no NVIDIA driver, or it has no usable device."""


class DriverTooOldError(DeviceError):
    """The driver is older than the CUDA version that the installed packages need."""


class NoNvrtcError(DeviceError):
    """The NVRTC library, which compiles the kernels, is not installed."""


class CompileError(DeviceError):
    """A compiler rejected a kernel, or the launcher of PyTorch's products; the message says why."""


class CaptureError(DeviceError):
    """Memory that must outlive a replay was requested inside a CUDA graph capture."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The device has no memory for a packed operand, a new C or workspace; the message says how many bytes."""


class RecordError(FastsgemmError, ValueError):
    """An invalid line of the tuning database, or a database that cannot be written."""


class TuningError(DeviceError):
    """A tuning run that cannot continue: no candidate works, or another process is tuning the device."""


class MissingExtraError(FastsgemmError, RuntimeError):
    """An optional package is not installed or too old."""
