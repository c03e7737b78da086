"""Five Newton-Schulz steps, which make a matrix orthogonal, as the optimizer Muon does with a gradient."""

from functools import partial

import torch

STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
TOLERANCE = 1e-3  # each step makes small singular values, and the rounding errors in them, 3.4 times larger


def cases(small):
    n = 64 if small else 4096
    return {f"{STEPS} Newton-Schulz steps, {n} x {n}": partial(_build, n)}


def _build(n, device):
    gradient = torch.randn(n, n, device=device)
    a, b, c = COEFFICIENTS

    def step():
        X = gradient / gradient.norm()
        for _ in range(STEPS):
            A = X @ X.mT
            B = torch.addmm(A, A, A, beta=b, alpha=c)
            X = torch.addmm(X, B, X, beta=a)
        return X

    return step
