"""Principal components: the covariance of many points, and its leading eigenvectors by subspace iteration."""

from functools import partial

import torch

COMPONENTS = 64
ITERATIONS = 10


def cases(small):
    points, width = (500, 64) if small else (100_000, 1024)
    return {f"{COMPONENTS} principal components, {points:,} points x {width}": partial(_build, points, width)}


def _build(points, width, device):
    # Variances that fall by a tenth per component, so that the iteration separates them.
    x = torch.randn(points, width, device=device) * 0.9 ** torch.arange(width, device=device)
    start = torch.randn(width, COMPONENTS, device=device)

    def step():
        centred = x - x.mean(0)
        covariance = (centred.mT @ centred) / (points - 1)
        basis = start
        for _ in range(ITERATIONS):
            basis = torch.linalg.qr(covariance @ basis)[0]
        return (basis.mT @ covariance @ basis).diagonal().sort(descending=True).values

    return step
