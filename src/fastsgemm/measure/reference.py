"""The float64 product that a ladder compares results with, and a description of wrong elements."""

from __future__ import annotations

import math

import numpy as np

_MOST_FLOPS = 2 * 10**10  # limit of the float64 product on the host: about a second on two cores
_UNIT = 2.0**-24  # largest relative error of a rounding to float32
_ROUNDINGS = 8  # standard deviations that bound the error of a correct element
_MOST_SPANS = 4  # ranges of rows, or of columns, with wrong elements that are listed


def largest_error(K: int) -> float:
    """Return the error limit of a correct result: K roundings add up as a random walk. TF32 is far above it."""
    return 2 * _UNIT * math.sqrt(K)


class Reference:
    """The product in float64, plus `c`, on as many rows of C as can be computed in about a second."""

    def __init__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> None:
        (M, K), N = a.shape, b.shape[1]
        self._operands = a, b, c
        count = min(M, max(1, _MOST_FLOPS // (2 * N * K)))
        # The indices of all rows, or of a random sample.
        self.rows = np.sort(np.random.default_rng(1).choice(M, count, replace=False))
        self.limit = largest_error(K)
        self._values = self._product(self.rows)

    def error(self, result: np.ndarray) -> float:
        """Return ||C - C64||_F / ||C64||_F on these rows; NaN if any element of C is NaN."""
        if np.isnan(result).any():
            return math.nan
        return float(np.linalg.norm(result[self.rows] - self._values) / np.linalg.norm(self._values))

    def mismatch(self, result: np.ndarray) -> str | None:
        """Describe the wrong elements, and what the first should be; None for a result within the error limit.

        An element is wrong if it is further from the reference than the roundings of its sum explain. If none is, the
        one with the largest error is named.
        """
        if self.error(result) <= self.limit:
            return None
        not_written = np.flatnonzero(np.isnan(result).any(axis=1))  # rows with NaN
        rows = np.union1d(self.rows, not_written[: len(self.rows)])
        expected, actual = self._product(rows), result[rows]
        deviation = np.abs(actual - expected)
        wrong = ~(deviation <= _ROUNDINGS * _UNIT * self._sum_magnitudes(rows))
        if not wrong.any():
            wrong = deviation == deviation.max()
        i, j = (int(index[0]) for index in np.nonzero(wrong))
        spans = f"{_spans('row', rows[wrong.any(axis=1)])} and {_spans('column', np.flatnonzero(wrong.any(axis=0)))}"
        return (
            f"C[{rows[i]}, {j}] is {actual[i, j]:.9g}, expected {expected[i, j]:.9g}; "
            f"{np.count_nonzero(wrong)} of {wrong.size} elements are wrong, in {spans}"
        )

    def _product(self, rows: np.ndarray) -> np.ndarray:
        a, b, c = self._operands
        product: np.ndarray = a[rows].astype(np.float64) @ b.astype(np.float64)
        return product if c is None else product + c[rows]

    def _sum_magnitudes(self, rows: np.ndarray) -> np.ndarray:
        """Return the approximate magnitude of the elements' partial sums, to which each rounding is relative."""
        a, b, c = self._operands
        norms_a, norms_b = (np.linalg.norm(x.astype(np.float64), axis=axis) for x, axis in ((a[rows], 1), (b, 0)))
        size: np.ndarray = np.outer(norms_a, norms_b)
        return size if c is None else size + np.abs(c[rows])


def _spans(noun: str, numbers: np.ndarray) -> str:
    """Describe the rows or columns with these ascending numbers.

    >>> _spans("row", np.array([0, 1, 2, 7]))
    'rows 0-2, 7'
    """
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    shown = ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts[:_MOST_SPANS])
    more = f" and {len(numbers) - sum(map(len, parts[:_MOST_SPANS]))} more" if len(parts) > _MOST_SPANS else ""
    return f"{noun}{'s' * (len(numbers) > 1)} {shown}{more}"
