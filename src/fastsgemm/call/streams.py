"""The caller's stream, by the protocol that array libraries share."""

from __future__ import annotations

import operator
from typing import Any

from fastsgemm.errors import StreamError


def handle_of(stream: Any) -> int:
    """Return the raw handle of an object with ``__cuda_stream__``.

    Raises
    ------
    StreamError
        It does not speak the protocol.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise StreamError(f"stream must have __cuda_stream__, as torch, CuPy and cuda.core streams do, got {stream!r}")
    answer = "nothing"
    try:
        answer = protocol()
        version, handle = map(operator.index, answer)
    except Exception as error:
        rule = "must return a version and a handle"
        raise StreamError(f"stream's __cuda_stream__ {rule}, got {answer!r} ({type(error).__name__})") from error
    if version != 0:
        raise StreamError(f"stream speaks version {version} of __cuda_stream__, only version 0 is supported")
    if handle < 0:
        raise StreamError(f"stream's __cuda_stream__ must return a handle of at least 0, got {handle}")
    return handle
