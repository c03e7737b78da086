"""JSON from files that anybody may have written, by msgspec: what it does not allow is a `RecordError`."""

from __future__ import annotations

from typing import Any

from fastsgemm.errors import RecordError


def decode(text: bytes, type: Any = Any) -> Any:
    """Return the value of a JSON text.

    Parameters
    ----------
    text : bytes
        UTF-8. NaN and infinities are no JSON, and a number beyond float64 is out of range.
    type : type
        What the value must be, as msgspec understands it. `msgspec.Raw` leaves a part as it stands.

    Raises
    ------
    RecordError
        It is no JSON, it is nested deeper than the interpreter's recursion limit, or it has another type.
    """
    import msgspec

    try:
        return msgspec.json.decode(text, type=type)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordError(str(error)) from error


def one_line(text: bytes) -> str:
    """Return a valid JSON text on one line, as ``json.dumps`` spaces it."""
    import msgspec

    return msgspec.json.format(text, indent=0).decode()
