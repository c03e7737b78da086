"""Kernels by products: training a generator on the distance of two samples, and kernel ridge regression by Nyström."""

from functools import partial

import torch
from harness import training
from torch import nn

RIDGE = 1000.0  # a thousandth of the largest eigenvalue, so that the solution is well determined
TOLERANCE = 1e-3  # of the solution: the kernel matrix is ill-conditioned


def cases(small):
    samples, inputs = (16, 4) if small else (2000, 64)
    points, centres = (60, 10) if small else (20_000, 500)
    return {
        f"maximum mean discrepancy, training, {samples} samples x {inputs}": partial(_discrepancy, samples, inputs),
        f"kernel ridge regression, {points:,} points, {centres} centres": partial(_ridge, points, centres, inputs),
    }


def gaussian(x, y, width):
    """Return the Gaussian kernel of all pairs."""
    squares = torch.addmm(y.square().sum(1), x, y.mT, alpha=-2) + x.square().sum(1)[:, None]
    return (squares / (-2 * width)).exp()


def _discrepancy(samples, inputs, device):
    with torch.device(device):
        model = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, inputs))
        noise, wanted = torch.randn(2, samples, inputs)

    def loss():
        made = model(noise)
        same = gaussian(made, made, inputs).mean() + gaussian(wanted, wanted, inputs).mean()
        return same - 2 * gaussian(made, wanted, inputs).mean()

    return training(model, loss)


def _ridge(points, centres, inputs, device):
    with torch.device(device):
        x, y = torch.randn(points, inputs), torch.randn(points, 1)

    def step():
        some = x[:centres]
        between = gaussian(x, some, inputs)
        gram = torch.addmm(gaussian(some, some, inputs), between.mT, between)
        factor = torch.linalg.cholesky_ex(gram + RIDGE * torch.eye(centres, device=device)).L
        return between @ torch.cholesky_solve(between.mT @ y, factor)

    return step
