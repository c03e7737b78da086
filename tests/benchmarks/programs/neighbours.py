"""The nearest neighbours of points among themselves, by Euclidean distance."""

from functools import partial

import torch

NEIGHBOURS = 10


def cases(small):
    points, width = (200, 32) if small else (10_000, 784)
    return {f"{NEIGHBOURS} nearest neighbours, {points:,} points x {width}": partial(_build, points, width)}


def _build(points, width, device):
    x = torch.randn(points, width, device=device)

    def step():
        squares = x.square().sum(1)
        distances = torch.addmm(squares, x, x.mT, alpha=-2).add_(squares[:, None])
        return distances.topk(NEIGHBOURS + 1, largest=False).values  # a point is its own nearest

    return step
