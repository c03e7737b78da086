"""Checks of the caller's arguments, made before anything is written. Each error states the limit and the value."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastsgemm.errors import (
    DeviceMismatchError,
    DTypeError,
    OperandError,
    OverlapError,
    ScalarError,
    ScalarRangeError,
    ShapeError,
    StreamError,
)
from fastsgemm.geometry import layout
from fastsgemm.geometry.layout import Meta
from fastsgemm.problem import MAX_EXTENT, DType
from fastsgemm.request import Request

Shape = Sequence[int]

_FLOAT32_MAX = 3.4028235e38  # shown in messages
_ROUNDS_TO_INFINITY = 2.0**128 - 2.0**103  # the smallest number that rounds to infinity in float32


def scalar(name: str, value: Any) -> float:
    """Return alpha or beta, rounded to float32.

    Raises
    ------
    ScalarError
        It is not a real number.
    ScalarRangeError
        It is finite but would round to an infinity.
    """
    if isinstance(value, np.bool_):
        value = bool(value)
    if not isinstance(value, numbers.Real):
        shape = getattr(value, "shape", None)
        hint = "; pass .item(), or multiply the result by it" if shape == () else ""
        if shape:
            hint = "; an array to update is passed as C="
        raise ScalarError(f"{name} must be a real number, got {type(value).__name__}{hint}")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:  # a subclass of Real that cannot be converted
        raise ScalarError(f"{name} must be a real number, got {type(value).__name__}: {error}") from error
    except OverflowError:  # an integer or fraction too large even for float64
        whole: Any = math.trunc(value)
        shown = f"about {'-' if whole < 0 else ''}2**{whole.bit_length() - 1}"
        raise _beyond_float32(name, shown) from None
    if math.isfinite(number) and abs(number) >= _ROUNDS_TO_INFINITY:
        raise _beyond_float32(name, repr(number))
    return float(np.float32(number))


def _beyond_float32(name: str, value: str) -> ScalarRangeError:
    return ScalarRangeError(f"{name} must fit float32, whose largest number is {_FLOAT32_MAX}, got {value}")


def needs_precision(name: str, dtype: str) -> DTypeError:
    """Return the error for an operand of a 16-bit type, by NumPy's name, of a call that names no precision."""
    return DTypeError(
        f"{name} must be float32, got {dtype}; 16-bit operands need a precision by name: 'ieee', which "
        "converts them exactly as they are read, or 'fp16x3', which multiplies on tensor cores"
    )


def immutable_out(dtype: DType) -> DTypeError:
    """Return the error for an `out` of a 16-bit type that cannot be written: the result is a new array, of float32."""
    return DTypeError(f"out must be float32 where arrays are immutable, got {dtype.numpy_name}")


def types(request: Request, dtypes: Sequence[DType]) -> None:
    """Refuse 16-bit operands of a call that names no precision, and a C of another type than it may have.

    `dtypes` are of A, B, what is written and, if that is another array, C; not all are float32.
    """
    named = dict(zip(("A", "B", request.output, "C"), dtypes, strict=False))
    written = dtypes[2]
    first = next(name for name, dtype in named.items() if dtype)
    if not request.takes_halves and first != "C":  # a precision would not help a C
        raise needs_precision(first, named[first].numpy_name)
    if written and request.output == "C":
        raise DTypeError(f"C must be float32, got {written.numpy_name}; only what is passed as out= may have 16 bits")
    if named["C" if "C" in named else request.output] not in (DType.F32, written):
        other = f" or, as {request.output} is, {written.numpy_name}" if written else ""
        raise DTypeError(f"C must be float32{other}, got {named['C'].numpy_name}")


def is_float32(name: str, dtype: DType) -> None:
    """Raise an error if an operand of a call that takes no 16-bit types has one."""
    if dtype:
        raise DTypeError(f"{name} must be float32, got {dtype.numpy_name}")


def no_stream(stream: Any) -> None:
    """Raise an error if a stream is given for host arrays."""
    if stream is not None:
        raise StreamError("stream= is for device arrays only; a call on host arrays returns when the result is there")


def no_output(beta: float) -> None:
    """Raise an error if beta != 0 and there is no C to scale."""
    if beta != 0.0:
        raise ScalarRangeError(f"beta must be 0 when C is not given, got {beta:g}; pass C to accumulate into it")


def unread_source(beta: float) -> None:
    """Raise an error if beta = 0 and C is given beside `out`: it would be left out of the result."""
    if beta == 0.0:
        raise ScalarRangeError(
            "C beside out= is multiplied by beta, which is 0, so it would be left out; pass beta=1 to add it, or no C"
        )


def result_shape(
    a: Shape, b: Shape, c: Shape | None = None, source: Shape | None = None, output: str = "C"
) -> tuple[int, ...]:
    """Return the shape of A @ B as numpy.matmul has it, or raise `ShapeError` showing every shape.

    Parameters
    ----------
    a, b : tuple of int
        Shapes of A and B.
    c : tuple of int, optional
        Shape of the array that is written; it must be that of the result.
    source : tuple of int, optional
        Shape of C where another array is written; it must broadcast to that of the result.
    output : str
        What the caller calls the array that is written: ``C`` or ``out``.
    """
    a, b = tuple(a), tuple(b)

    def shown() -> str:
        given = {"A": a, "B": b, "C": source, output: c}  # without a source, `output` is C
        return ", ".join(f"{name} {tuple(shape)}" for name, shape in given.items() if shape is not None)

    for name, shape in (("A", a), ("B", b)):
        if len(shape) == 0:
            raise ShapeError(f"{name} must have at least 1 dimension, got 0: {shown()}")
    columns, rows = a[-1], b[-2] if len(b) > 1 else b[0]
    if columns != rows:
        raise ShapeError(f"A's columns must equal B's rows, got {columns} and {rows}: {shown()}")
    extents = a[-2:-1] + b[-1:] if len(b) > 1 else a[-2:-1]
    result = _broadcast(
        a[:-2], b[:-2], lambda: f"the dimensions of A and B before the last two must broadcast: {shown()}"
    )
    result += extents
    largest = max((columns, *extents))
    if largest > MAX_EXTENT:
        raise ShapeError(f"M, N and K must each be at most {MAX_EXTENT}, got {largest}: {shown()}")
    if c is not None and tuple(c) != result:
        raise ShapeError(f"{output} must have shape {result}: {shown()}")
    if source is not None and _broadcast(source, result, lambda: f"C must broadcast to {result}: {shown()}") != result:
        raise ShapeError(f"C must broadcast to {result}: {shown()}")
    return result


def _broadcast(one: Shape, other: Shape, message: Callable[[], str]) -> tuple[int, ...]:
    if not one and not other:
        return ()
    try:
        return np.broadcast_shapes(tuple(one), tuple(other))
    except ValueError:
        raise ShapeError(message()) from None


def square(a: Shape, b: Shape) -> None:
    """Raise an error unless A @ B is a square matrix, or a batch of them, and so can be symmetric.

    The shape of the result does not say: that of a batch of matrices by a vector may look like a square matrix.
    """
    if len(a) < 2 or len(b) < 2 or a[-2] != b[-1]:
        raise ShapeError(
            f"symmetric=True needs matrices A and B with as many rows of A as columns of B, got A {tuple(a)} and "
            f"B {tuple(b)}"
        )


def exact_shape(name: str, shape: Shape, expected: Shape) -> None:
    """Raise an error if an array that is written has not the shape of the result."""
    if tuple(shape) != tuple(expected):
        raise ShapeError(f"{name} must have shape {tuple(expected)}, got {tuple(shape)}")


def one_device(devices: dict[str, str]) -> None:
    """Raise an error if the operands are on different devices."""
    if len(set(devices.values())) > 1:
        shown = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise DeviceMismatchError(f"all operands must be on one device, got {shown}")


def output(shape: layout.Extents, strides: layout.Extents, readonly: bool, name: str = "C") -> None:
    """Raise an error if the array that is written, `name`, is read-only or some of its elements share memory."""
    if readonly:
        raise OperandError(f"{name} is read-only; pass a writable array, or no {name} to get a new one")
    overlapping = layout.overlaps_itself(tuple(shape), tuple(strides))
    if overlapping is None:
        raise OverlapError(
            f"whether elements of {name} share memory could not be decided within {layout.MOST_OVERLAP_WORK} steps "
            f"(shape {tuple(shape)}, strides {tuple(strides)} elements); pass no {name} to get a new array"
        )
    if overlapping:
        raise OverlapError(
            f"elements of {name} share memory (shape {tuple(shape)}, strides {tuple(strides)} elements); "
            f"an expanded or overlapping view cannot be written; pass a copy of {name}, or no {name} to get a new array"
        )


def overlap(operands: Sequence[tuple[int, Meta]], output: str = "C") -> None:
    """Raise `OverlapError` if what is written, which the caller calls `output`, shares an element with another operand.

    `operands` are addresses and the rest of A, B, what is written and, if it is another array, C.
    """
    address, written = operands[2]
    for name, (other_address, other) in zip(("A", "B", "C"), (*operands[:2], *operands[3:]), strict=False):
        shapes = (tuple(each) for each in (written.shape, written.strides, other.shape, other.strides))
        items = written.dtype.item, other.dtype.item
        apart(name, layout.overlap(other_address - address, *shapes, items), output)


def apart(name: str, shared: bool | None, output: str = "C") -> None:
    """Raise an error if what is written shares memory with operand `name`; None: that could not be decided."""
    if shared is None:
        raise OverlapError(
            f"whether {output} shares an element with {name} could not be decided within "
            f"{layout.MOST_OVERLAP_WORK} steps, because their strides have too little in common; pass a copy "
            f"of {name}, or no {output} to get a new array"
        )
    if shared:
        raise OverlapError(
            f"{output} shares memory with {name}; pass a copy of {name}, or no {output} to get a new array"
        )
