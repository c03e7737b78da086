"""Five Newton-Schulz steps, which make a matrix orthogonal, as the optimizer Muon does with a gradient.

The operands of X X^T show that it is symmetric. That its square is so, only the program knows. One case multiplies it
by itself, as Muon is usually written. The other multiplies it by its transpose, which is the same and can be seen.
"""

from functools import partial

import torch

STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
TOLERANCE = 1e-3  # each step makes small singular values, and the rounding errors in them, 3.4 times larger


def cases(small):
    n = 64 if small else 2048
    what = f"{STEPS} Newton-Schulz steps, {n} x {n}"
    return {f"{what}, A A": partial(_build, n, False), f"{what}, A A^T": partial(_build, n, True)}


def orthogonal(gradient, transposed):
    """Return a matrix with the singular vectors of `gradient`, whose singular values are near 1."""
    a, b, c = COEFFICIENTS
    X = gradient / gradient.norm()
    for _ in range(STEPS):
        A = X @ X.mT
        B = torch.addmm(A, A, A.mT if transposed else A, beta=b, alpha=c)
        X = torch.addmm(X, B, X, beta=a)
    return X


def _build(n, transposed, device):
    gradient = torch.randn(n, n, device=device)
    return lambda: orthogonal(gradient, transposed)
