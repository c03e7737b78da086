"""Products of groups as ``lax.ragged_dot_general`` names their dimensions. Pure arithmetic: nothing here needs JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastsgemm.geometry.layout import Meta, row_major
from fastsgemm.problem import DType, Ragged

Shape = tuple[int, ...]


class RaggedProduct(NamedTuple):
    """A product whose groups divide the rows of A and of the result, or k."""

    ragged: Ragged
    metas: tuple[Meta, ...]  # of A, B and the result, as `fastsgemm.grouped_mm` takes them

    @property
    def flops(self) -> int:
        """2 M N K, if every row or step belongs to a group."""
        a, b, _ = self.metas
        flops: int = 2 * a.shape[0] * a.shape[1] * b.shape[-1]
        return flops


def ragged_product(a: Shape, b: Shape, sizes: Shape, numbers: Any) -> RaggedProduct | None:
    """Return the product of row-major arrays of these shapes; None if it is none of matrices, or shapes are symbolic.

    `sizes` is the shape of the groups' sizes, and `numbers` are JAX's ``RaggedDotDimensionNumbers``.
    """
    if len(sizes) != 1 or not all(isinstance(extent, int) for extent in (*a, *b, *sizes)):
        return None
    (summed_a, summed_b), batch = numbers.dot_dimension_numbers
    (ragged,), group = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    rows = [d for d in range(len(a)) if d not in summed_a]
    columns = [d for d in range(len(b)) if d not in (*summed_b, *group)]
    if any(batch) or not len(summed_a) == len(rows) == len(columns) == 1:
        return None
    kind = Ragged.K if ragged in summed_a else Ragged.ROWS
    shape: Shape = (a[rows[0]], b[columns[0]])
    if kind is Ragged.K:
        shape = (*sizes, *shape)
    operands = _view(a, (*rows, *summed_a)), _view(b, (*group, *summed_b, *columns)), _view(shape, range(len(shape)))
    return RaggedProduct(kind, operands)


def _view(shape: Shape, order: Sequence[int]) -> Meta:
    """Return a row-major array with its dimensions in this order."""
    strides = row_major(shape)
    return Meta(tuple(shape[d] for d in order), tuple(strides[d] for d in order), DType.F32, 0)
