"""The product in float64 that a ladder compares results with, and what is wrong with a result."""

from __future__ import annotations

import math

import numpy as np

_MOST_FLOPS = 2 * 10**10  # limit of the float64 product on the host: about a second on two cores
_UNIT = 2.0**-24  # largest relative error of a rounding to float32
_ROUNDINGS = 8  # the error of a correct element stays below so many standard deviations
_MOST_SPANS = 4  # that are listed of the rows, or of the columns, with wrong elements


def largest_error(K: int) -> float:
    """Return the largest error of a right result: roundings of K FMAs add up as a random walk. TF32 is far above it."""
    return 2 * _UNIT * math.sqrt(K)


class Reference:
    """The product in float64, plus `c`, on as many rows of C as can be computed in about a second."""

    def __init__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> None:
        (M, K), N = a.shape, b.shape[1]
        self._given = a, b, c
        count = min(M, max(1, _MOST_FLOPS // (2 * N * K)))
        # The indices of the rows: of all, or of a random sample.
        self.rows = np.sort(np.random.default_rng(1).choice(M, count, replace=False))
        self.limit = largest_error(K)
        self._values = self._product(self.rows)

    def error(self, result: np.ndarray) -> float:
        """Return ||C - C64||_F / ||C64||_F on these rows; NaN if any element of C is NaN."""
        if np.isnan(result).any():
            return math.nan
        return float(np.linalg.norm(result[self.rows] - self._values) / np.linalg.norm(self._values))

    def mismatch(self, result: np.ndarray) -> str | None:
        """Return which elements are wrong, and what the first should be; None for a result whose error is in the limit.

        An element is wrong if it is further from the reference than the roundings of its sum explain. If none is, the
        one with the largest error is told.
        """
        if self.error(result) <= self.limit:
            return None
        not_written = np.flatnonzero(np.isnan(result).any(axis=1))  # elements of them are NaN
        rows = np.union1d(self.rows, not_written[: len(self.rows)])
        expected, got = self._product(rows), result[rows]
        off = np.abs(got - expected)
        wrong = ~(off <= _ROUNDINGS * _UNIT * self._size_of_sums(rows))
        if not wrong.any():
            wrong = off == off.max()
        i, j = (int(index[0]) for index in np.nonzero(wrong))
        places = f"{_spans('row', rows[wrong.any(axis=1)])} and {_spans('column', np.flatnonzero(wrong.any(axis=0)))}"
        return (
            f"C[{rows[i]}, {j}] is {got[i, j]:.9g}, expected {expected[i, j]:.9g}; "
            f"{np.count_nonzero(wrong)} of {wrong.size} elements are wrong, in {places}"
        )

    def _product(self, rows: np.ndarray) -> np.ndarray:
        a, b, c = self._given
        product: np.ndarray = a[rows].astype(np.float64) @ b.astype(np.float64)
        return product if c is None else product + c[rows]

    def _size_of_sums(self, rows: np.ndarray) -> np.ndarray:
        """Return what the partial sums of elements are about as large as; each rounding errs relative to them."""
        a, b, c = self._given
        of_a, of_b = (np.linalg.norm(x.astype(np.float64), axis=axis) for x, axis in ((a[rows], 1), (b, 0)))
        size: np.ndarray = np.outer(of_a, of_b)
        return size if c is None else size + np.abs(c[rows])


def _spans(what: str, numbers: np.ndarray) -> str:
    """Return a few words for the rows or columns with these numbers, which ascend.

    >>> _spans("row", np.array([0, 1, 2, 7]))
    'rows 0-2, 7'
    """
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    shown = ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts[:_MOST_SPANS])
    more = f" and {len(numbers) - sum(map(len, parts[:_MOST_SPANS]))} more" if len(parts) > _MOST_SPANS else ""
    return f"{what}{'s' * (len(numbers) > 1)} {shown}{more}"
