"""Matrices that lie in memory in every way that a caller may have them, in a buffer whose other elements are 99."""

import numpy as np

LAYOUTS = {
    "row-major": lambda rows, columns: np.full((rows, columns), 99, np.float32),
    "column-major": lambda rows, columns: np.full((columns, rows), 99, np.float32).T,
    "padded": lambda rows, columns: np.full((rows + 1, columns + 3), 99, np.float32)[1:, 2:-1],
    "padded column-major": lambda rows, columns: np.full((columns + 1, rows + 3), 99, np.float32)[1:, 2:-1].T,
    "upwards": lambda rows, columns: np.full((rows, columns + 1), 99, np.float32)[::-1, 1:],
    "leftwards": lambda rows, columns: np.full((rows, columns), 99, np.float32)[:, ::-1],
    "strided": lambda rows, columns: np.full((2 * rows, 3 * columns), 99, np.float32)[::2, ::3],
}


def laid_out(how, values):
    """Return a copy of a matrix that lies as the layout of this name says."""
    matrix = LAYOUTS[how](*values.shape)
    matrix[...] = values
    return matrix
