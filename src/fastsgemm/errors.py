"""Every exception that fastsgemm raises on purpose, as one small tree.

Each is also a ``ValueError``, ``TypeError`` or ``RuntimeError``, so that callers' ``except`` clauses keep
working. Whenever one of them is raised nothing has been written to ``C``.
"""

from __future__ import annotations


class FastsgemmError(Exception):
    """Base of all errors of fastsgemm."""


class ArgumentError(FastsgemmError, TypeError):
    """An argument that `sgemm` does not take; the message says which one does the same."""


class OperandError(FastsgemmError, ValueError):
    """An array that `sgemm` cannot use as given: read-only C, stride 0 in C, a tensor that requires grad."""


class DTypeError(FastsgemmError, TypeError):
    """An array that is not float32, or an object that is not an array."""


class ShapeError(OperandError):
    """Wrong number of dimensions, shapes that do not fit together, or an extent above the limit."""


class OverlapError(OperandError):
    """C shares memory with A or B, or with itself."""


class DeviceMismatchError(OperandError):
    """The operands do not live on one device."""


class ScalarError(FastsgemmError, TypeError):
    """alpha or beta is not a real number."""


class ScalarRangeError(FastsgemmError, ValueError):
    """alpha or beta is a real number that float32 or the call does not allow."""


class StreamError(FastsgemmError, TypeError):
    """A stream that does not speak ``__cuda_stream__``, or one given where nothing is asynchronous."""


class UnknownRungError(FastsgemmError, ValueError):
    """No rung of that name or number."""


class PrecisionError(FastsgemmError, ValueError):
    """A precision that there is not, or one that does not go with the rung, the config or a split operand."""


class ConfigError(FastsgemmError, ValueError):
    """A configuration that breaks a rule; the message names every broken rule with its limit and value."""


class DeviceError(FastsgemmError, RuntimeError):
    """Something about the machine: the base of the errors below."""


class NoDriverError(DeviceError):
    """There is no NVIDIA driver, or it has no usable device."""


class DriverTooOldError(DeviceError):
    """The driver is older than the CUDA version that the installed packages need."""


class NoNvrtcError(DeviceError):
    """The NVRTC library, which compiles the kernels, is not installed."""


class CompileError(DeviceError):
    """NVRTC refused a kernel; the message carries its log."""


class CaptureError(DeviceError):
    """A problem was met for the first time inside a CUDA graph capture, where nothing may be compiled."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The device has no room for an operand's copy, a new C or workspace; the message says how many bytes."""


class RecordError(FastsgemmError, ValueError):
    """A line of the tuning database that cannot be used, or a database that cannot be written."""


class TuningError(DeviceError):
    """A tuning run that cannot go on: no candidate works, or another process is tuning the device."""


class MissingExtraError(FastsgemmError, RuntimeError):
    """A package that an extra brings is not installed."""
