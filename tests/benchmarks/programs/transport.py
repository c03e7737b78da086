"""Optimal transport of two samples by Sinkhorn's iteration, whose products are of a matrix and a few vectors."""

from functools import partial

import torch

ITERATIONS = 50


def cases(small):
    points, inputs, several = (20, 4, 3) if small else (2000, 32, 8)
    return {
        f"Sinkhorn, {points} points x {inputs}, {several} weightings, {ITERATIONS} iterations": partial(
            _build, points, inputs, several
        )
    }


def _build(points, inputs, several, device):
    with torch.device(device):
        x, y = torch.randn(2, points, inputs)
        rows, columns = torch.rand(2, points, several).softmax(1)

    def step():
        cost = torch.addmm(y.square().sum(1), x, y.mT, alpha=-2) + x.square().sum(1)[:, None]
        kernel = (-cost / (4 * inputs)).exp()
        v = torch.ones_like(columns)
        for _ in range(ITERATIONS):
            u = rows / (kernel @ v)
            v = columns / (kernel.mT @ u)
        return (u * ((kernel * cost) @ v)).sum(0)

    return step
