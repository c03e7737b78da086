"""The tree of exceptions: which built-in errors callers may catch them as."""

import pytest

import fastsgemm
from fastsgemm import errors

BASES = {
    "ArgumentError": TypeError,
    "OperandError": ValueError,
    "DTypeError": TypeError,
    "ShapeError": ValueError,
    "OverlapError": ValueError,
    "DeviceMismatchError": ValueError,
    "ScalarError": TypeError,
    "ScalarRangeError": ValueError,
    "StreamError": TypeError,
    "UnknownRungError": ValueError,
    "PrecisionError": ValueError,
    "ConfigError": ValueError,
    "DeviceError": RuntimeError,
    "NoDriverError": RuntimeError,
    "DriverTooOldError": RuntimeError,
    "NoNvrtcError": RuntimeError,
    "CompileError": RuntimeError,
    "CaptureError": RuntimeError,
    "DeviceMemoryError": RuntimeError,
    "TuningError": RuntimeError,
    "RecordError": ValueError,
    "MissingExtraError": RuntimeError,
}


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_each_error_is_public_of_our_own_and_a_builtin(name, base):
    error = getattr(fastsgemm, name)
    assert issubclass(error, fastsgemm.FastsgemmError)
    assert issubclass(error, base)
    assert [builtin for builtin in (ValueError, TypeError, RuntimeError) if issubclass(error, builtin)] == [base]


def test_no_error_is_missing_from_the_table_above():
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == BASES.keys() | {"FastsgemmError"}
    assert defined <= set(fastsgemm.__all__)
