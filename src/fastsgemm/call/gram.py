"""Gram products: B is A transposed, in the same memory, so the result is symmetric. A call tells by its addresses."""

from __future__ import annotations

from collections.abc import Sequence

from fastsgemm.call.arrays.library import Meta
from fastsgemm.geometry.layout import is_transpose
from fastsgemm.request import Request, of_gram


def request_of(request: Request, metas: Sequence[Meta], addresses: Sequence[int]) -> Request:
    """Return the request of a call on operands at these addresses, of which A and B are the first two.

    What is kept for later calls by shapes and alignment must be kept by ``addresses[0] == addresses[1]`` as well.
    """
    if addresses[0] == addresses[1] and is_transpose(metas[0][:2], metas[1][:2]):
        return of_gram(request)
    return request
