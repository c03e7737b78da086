"""Contractions of two arrays, named as in `numpy.einsum`, as batches of strided matrix products.

``bik,bjk->bij`` multiplies a batch of matrices, the second stored transposed. A label of A, B and the result is a batch
dimension; one of A and B only is summed over; one of A and the result is a row dimension, one of B and the result a
column dimension. Pure arithmetic on shapes: nothing here needs JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from fastsgemm.geometry.layout import Meta, row_major
from fastsgemm.problem import FLOAT32, DType, Dtypes

_LABELS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Shape = tuple[int, ...]


class Labels(NamedTuple):
    """The labels of A, B and the result, one character per dimension."""

    a: str
    b: str
    c: str

    @property
    def batch(self) -> str:
        """Labels of all three."""
        return "".join(label for label in self.c if label in self.a and label in self.b)

    @property
    def summed(self) -> str:
        """Labels of A and B alone, in A's order."""
        return "".join(label for label in self.a if label not in self.c)

    @property
    def rows(self) -> str:
        """Labels of A and the result alone, in the result's order."""
        return "".join(label for label in self.c if label not in self.b)

    @property
    def columns(self) -> str:
        """Labels of B and the result alone, in the result's order."""
        return "".join(label for label in self.c if label not in self.a)


def labels_of(subscripts: str) -> Labels:
    """Return the labels of ``ik,kj->ij``."""
    of_a, rest = subscripts.split(",")
    of_b, of_c = rest.split("->")
    return Labels(of_a, of_b, of_c)


def subscripts_of(labels: Labels) -> str:
    """Return the subscripts that have these labels."""
    return f"{labels.a},{labels.b}->{labels.c}"


def fresh(subscripts: str) -> str:
    """Return an unused label. There are more labels than JAX can nest dimensions."""
    return next(label for label in _LABELS if label not in subscripts)


def of_matmul(a: int, b: int) -> str:
    """Return the subscripts of `numpy.matmul` for operands of `a` and `b` dimensions, without broadcasting."""
    batch = [label for label in _LABELS if label not in "kmn"][: max(a, b, 2) - 2]
    of_a, of_b = ("".join(batch[len(batch) - max(0, ndim - 2) :]) for ndim in (a, b))
    rows, columns = "m" * (a > 1), "n" * (b > 1)
    return f"{of_a}{rows}k,{of_b}k{columns}->{''.join(batch)}{rows}{columns}"


def of_broadcast(a: Shape, b: Shape) -> tuple[str, list[int], list[int]]:
    """Return the subscripts of ``A @ B``, and the dimensions of extent 1 that A, and that B, broadcasts along."""
    labels = labels_of(of_matmul(len(a), len(b)))
    of_a, of_b = dict(zip(labels.a, a, strict=True)), dict(zip(labels.b, b, strict=True))
    dropped_a, dropped_b = (
        [d for d, label in enumerate(x) if label in labels.batch and x[label] == 1 != y[label]]
        for x, y in ((of_a, of_b), (of_b, of_a))
    )
    kept_a, kept_b = (
        "".join(label for d, label in enumerate(operand_labels) if d not in dropped)
        for operand_labels, dropped in ((labels.a, dropped_a), (labels.b, dropped_b))
    )
    return subscripts_of(labels._replace(a=kept_a, b=kept_b)), dropped_a, dropped_b


def of_dot_general(a: int, b: int, dimension_numbers: Sequence[Sequence[Sequence[int]]]) -> str:
    """Return the subscripts of ``lax.dot_general`` for operands of `a` and `b` dimensions."""
    (summed_a, summed_b), (batch_a, batch_b) = dimension_numbers
    of_a = list(_LABELS[:a])
    of_b = list(_LABELS[a : a + b])
    for in_a, in_b in [*zip(summed_a, summed_b, strict=True), *zip(batch_a, batch_b, strict=True)]:
        of_b[in_b] = of_a[in_a]
    batch = [of_a[d] for d in batch_a]
    labels = Labels("".join(of_a), "".join(of_b), "")
    rows = [label for label in labels.a if label not in labels.b]
    columns = [label for label in labels.b if label not in labels.a]
    return subscripts_of(labels._replace(c="".join([*batch, *rows, *columns])))


def extents(labels: Labels, a: Shape, b: Shape) -> dict[str, int]:
    """Return the extent of each label."""
    return dict(zip(labels.a + labels.b, (*a, *b), strict=True))


def shape_of_result(labels: Labels, a: Shape, b: Shape) -> Shape:
    """Return the shape of the result."""
    sizes = extents(labels, a, b)
    return tuple(sizes[label] for label in labels.c)


def flops(labels: Labels, a: Shape, b: Shape) -> int:
    """Return 2 M N K, times the batch."""
    return 2 * prod(extents(labels, a, b).values())


class _Group(NamedTuple):
    """Neighbouring labels that form one strided dimension in each operand."""

    extent: int
    strides: tuple[int, ...]  # in the operands that have these labels, in elements


def metas(
    labels: Labels, a: Shape, b: Shape, dtypes: Dtypes = FLOAT32, fold: bool = True, written: DType = DType.F32
) -> tuple[Meta, ...] | None:
    """Return A, B and the result as matrices, or None if their summed labels do not merge into one dimension in both.

    The arrays are row-major, A and B of these types and the result of the type `written`. Row or column dimensions that
    do not merge into one become batch dimensions, with stride 0 in the other operand. Without `fold`, as for symmetric
    results, the matrices have only the last row and column dimension of the result.
    """
    sizes = extents(labels, a, b)
    of_a = dict(zip(labels.a, row_major(a), strict=True))
    of_b = dict(zip(labels.b, row_major(b), strict=True))
    of_c = dict(zip(labels.c, row_major(shape_of_result(labels, a, b)), strict=True))

    def groups(group_labels: str, *operands: dict[str, int], merge: bool = fold) -> list[_Group]:
        parts = [_Group(sizes[label], tuple(strides[label] for strides in operands)) for label in group_labels]
        return _merge(parts) if merge else parts

    summed = groups(labels.summed, of_a, of_b, merge=True)
    if len(summed) > 1:
        return None
    k = summed[0] if summed else _Group(1, (0, 0))
    rows, columns = groups(labels.rows, of_a, of_c), groups(labels.columns, of_b, of_c)
    n = _take(columns, lambda group: fold and group.strides[1] == 1)
    readable = k.strides[0] == 1 or k.extent == 1
    m = _take(rows, lambda group: fold and (group.strides[1] == 1 if readable else group.strides[0] == 1))
    batch = [
        *[(sizes[label], of_a[label], of_b[label], of_c[label]) for label in labels.batch],
        *[(group.extent, group.strides[0], 0, group.strides[1]) for group in rows],
        *[(group.extent, 0, group.strides[0], group.strides[1]) for group in columns],
    ]
    matrices = (
        ((m.extent, k.extent), (m.strides[0], k.strides[0])), ((k.extent, n.extent), (k.strides[1], n.strides[0])),
        ((m.extent, n.extent), (m.strides[1], n.strides[1])),
    )  # fmt: skip
    return tuple(
        Meta((*[d[0] for d in batch], *shape), (*[d[1 + number] for d in batch], *strides), dtype)
        for number, ((shape, strides), dtype) in enumerate(zip(matrices, (*dtypes, written), strict=True))
    )


def _take(groups: list[_Group], preferred: Callable[[_Group], bool]) -> _Group:
    """Remove and return the group of the matrices' rows or columns: a preferred one, or else the last."""
    if not groups:
        return _Group(1, (0, 0))
    index = next((i for i, group in enumerate(groups) if preferred(group)), len(groups) - 1)
    return groups.pop(index)


def _merge(groups: list[_Group]) -> list[_Group]:
    """Merge neighbours that form one strided dimension in every operand; those of extent 1 merge with any."""
    joined: list[_Group] = []
    for group in groups:
        if joined and group.extent == 1:
            continue
        if joined and joined[-1].extent == 1:
            joined[-1] = group
        elif joined and all(
            outer == group.extent * inner for outer, inner in zip(joined[-1].strides, group.strides, strict=True)
        ):
            joined[-1] = _Group(joined[-1].extent * group.extent, group.strides)
        else:
            joined.append(group)
    return joined
