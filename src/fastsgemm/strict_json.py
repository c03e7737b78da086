"""Decodes JSON from untrusted files with msgspec; invalid input is a `RecordError`."""

from __future__ import annotations

from typing import Any

import msgspec

from fastsgemm.errors import RecordError


def decode(text: bytes, type: Any) -> Any:
    """Return the value of a JSON text in UTF-8, without NaN, infinities and numbers beyond float64.

    `type` is a type in msgspec's sense; `msgspec.Raw` leaves a part undecoded.

    Raises
    ------
    RecordError
        The text is not JSON, is nested deeper than the interpreter's recursion limit, or has another type.
    """
    if not text.isascii():
        try:
            text.decode()  # msgspec does not check what it leaves undecoded
        except UnicodeDecodeError as error:
            raise RecordError(str(error)) from error
    return decode_with(msgspec.json.Decoder(type), text)


def decode_with(decoder: Any, text: bytes) -> Any:
    """Do `decode` with a decoder of msgspec, for many texts of one type."""
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # the first is a ValueError since msgspec 0.21
        raise RecordError(str(error)) from error


def one_line(text: bytes) -> str:
    """Return a valid JSON text on one line, spaced like ``json.dumps``."""
    return msgspec.json.format(text, indent=0).decode()
