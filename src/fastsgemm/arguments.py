"""Arguments other than arrays: integers, names and switches. NumPy's integers and bools are accepted."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np

from fastsgemm.errors import ArgumentError


def integer(value: Any) -> int | None:
    """Return an integer of any type as an int; None for anything else, bools included."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def is_one_of(value: Any, names: Collection[str]) -> TypeGuard[str]:
    """Return whether a value, of any type, is one of some names."""
    return isinstance(value, str) and value in names


def switch(name: str, value: Any) -> bool:
    """Return a bool or integer as a bool; ArgumentError for anything else, so that "no" does not mean yes."""
    if isinstance(value, np.bool_ | Integral):
        return bool(value)
    raise ArgumentError(f"{name} must be True or False, got {value!r}")


def hint(value: Any, names: Collection[str]) -> str:
    """Return a question with the likely meaning of a misspelt name, or an empty text."""
    matches = difflib.get_close_matches(value.lower(), names, 1, 0.75) if isinstance(value, str) else []
    return f"; did you mean {matches[0]!r}?" if matches else ""


def several(name: str, value: Any, expected: str) -> Iterator[Any]:
    """Return an iterator over the value; ArgumentError, naming what is `expected`, if it has none or is a text."""
    reason: Exception | None = None
    if not isinstance(value, str):
        try:
            return iter(value)
        except Exception as error:
            reason = error
    raise ArgumentError(f"{name} must be {expected}, got {value!r}") from reason


def place(value: Any) -> int | str:
    """Return a device's number or name; ArgumentError if it is neither."""
    number = integer(value)
    if number is not None:
        return number
    if not isinstance(value, str):
        raise ArgumentError(f"device must be the number or the name of a device, got {value!r}")
    return value
