"""A step of the optimizer Shampoo: two matrices that precondition a gradient, and their inverse fourth roots."""

from functools import partial

import torch

ROOT = 4
ITERATIONS = 8
DECAY, DAMPING = 0.95, 0.1  # the damping, relative to the norm, is what keeps the iteration short
TOLERANCE = 1e-3  # the iteration makes rounding errors larger, as the matrix it inverts is ill-conditioned


def cases(small):
    rows, columns = (64, 32) if small else (2048, 1024)
    return {f"Shampoo, a gradient of {rows} x {columns}": partial(_build, rows, columns)}


def _build(rows, columns, device):
    gradient = torch.randn(rows, columns, device=device) / rows**0.5
    left, right = (torch.eye(n, device=device) for n in (rows, columns))

    def step():
        of_rows = torch.addmm(left, gradient, gradient.mT, beta=DECAY, alpha=1 - DECAY)
        of_columns = torch.addmm(right, gradient.mT, gradient, beta=DECAY, alpha=1 - DECAY)
        return inverse_root(of_rows) @ gradient @ inverse_root(of_columns)

    return step


def inverse_root(matrix):
    """Return the inverse fourth root of a symmetric positive definite matrix, by the coupled Newton iteration.

    Higham, Functions of Matrices (2008), section 7.3. All matrices are polynomials of the given one, so they commute,
    and their products are symmetric.
    """
    n = len(matrix)
    identity = torch.eye(n, device=matrix.device)
    matrix = matrix + DAMPING * matrix.norm() / n**0.5 * identity
    scale = (1 + ROOT) / (2 * matrix.norm())
    power, root = matrix * scale, identity * scale ** (1 / ROOT)
    for _ in range(ITERATIONS):
        factor = ((ROOT + 1) * identity - power) / ROOT
        root = root @ factor
        square = factor @ factor.mT
        power = (square @ square.mT) @ power
    return root
