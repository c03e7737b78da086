"""Checks of the caller's arguments, made before anything is written. Each error states the limit and the value."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from fastsgemm import rungs
from fastsgemm.config import Config
from fastsgemm.errors import DeviceMismatchError, OperandError, OverlapError, ScalarError, ScalarRangeError, ShapeError
from fastsgemm.geometry import layout
from fastsgemm.problem import MAX_EXTENT
from fastsgemm.rungs import Rung

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
    if not isinstance(value, numbers.Real):
        raise ScalarError(f"{name} must be a real number, got {type(value).__name__}")
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


def no_output(beta: float) -> None:
    """Raise an error if beta != 0 and there is no C to scale."""
    if beta != 0.0:
        raise ScalarRangeError(f"beta must be 0 when C is not given, got {beta:g}; pass C to accumulate into it")


def shapes(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None) -> tuple[int, int, int]:
    """Return M, N, K, or raise `ShapeError` showing every shape."""
    for name, shape in (("A", a), ("B", b), ("C", c)):
        if shape is not None and len(shape) != 2:
            raise ShapeError(f"{name} must have 2 dimensions, got {len(shape)}: {_shown(a, b, c)}")
    if a[1] != b[0]:
        raise ShapeError(f"A's columns must equal B's rows, got {a[1]} and {b[0]}: {_shown(a, b, c)}")
    if c is not None and tuple(c) != (a[0], b[1]):
        raise ShapeError(f"C must have shape (M, N) = {(a[0], b[1])}: {_shown(a, b, c)}")
    largest = max(*a, b[1])
    if largest > MAX_EXTENT:
        raise ShapeError(f"M, N and K must each be at most {MAX_EXTENT}, got {largest}: {_shown(a, b, c)}")
    return a[0], b[1], a[1]


def _shown(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None) -> str:
    return f"A {tuple(a)}, B {tuple(b)}" + ("" if c is None else f", C {tuple(c)}")


def c_shape(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    """Raise an error if C is not (M, N)."""
    if tuple(shape) != expected:
        raise ShapeError(f"C must have shape (M, N) = {expected}, got {tuple(shape)}")


def one_device(devices: dict[str, str]) -> None:
    """Raise an error if the operands are on different devices."""
    if len(set(devices.values())) > 1:
        shown = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise DeviceMismatchError(f"all operands must be on one device, got {shown}")


def config(rung: Rung | None, config: Config | None, shared_limit: int) -> Rung | None:
    """Return the rung of an explicit config, after checking that the config is legal for it.

    Without a config it is `rung`, which may be None: then the heuristics choose.

    Raises
    ------
    ConfigError
        No rung has these constants, or they are illegal on a device with this much shared memory for a block, in bytes.
    """
    if config is not None:
        rung = rung or rungs.of_config(config)
        rung.check(config, shared_limit)
    return rung


def output(shape: layout.Pair, strides: layout.Pair, readonly: bool) -> None:
    """Raise an error if C is read-only or some of its elements share memory."""
    if readonly:
        raise OperandError("C is read-only; pass a writable array, or no C to get a new one")
    if layout.overlaps_itself(shape, strides):
        raise OverlapError(
            f"elements of C share memory (shape {tuple(shape)}, strides {tuple(strides)} elements); "
            "an expanded or overlapping view cannot be written"
        )


def apart(name: str, shared: bool | None) -> None:
    """Raise an error if C shares memory with operand `name`; `shared` is None if that could not be decided."""
    if shared is None:
        raise OverlapError(
            f"whether C shares an element with {name} could not be decided within {layout.MOST_OVERLAP_WORK} steps, "
            f"because their strides have too little in common; pass a copy of {name}, or no C to get a new array"
        )
    if shared:
        raise OverlapError(f"C shares memory with {name}; pass a copy of {name}, or no C to get a new array")
