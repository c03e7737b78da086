"""Likelihoods with covariance matrices: a Gaussian process by Cholesky, and a Kalman filter of many series."""

from functools import partial

import torch
from harness import training
from torch import nn

TOLERANCE = 1e-3  # of the gradients: the inverse of a covariance makes rounding errors larger


def cases(small):
    points, inputs = (30, 4) if small else (1500, 16)
    series, states, seen, steps = (3, 4, 2, 2) if small else (256, 32, 16, 16)
    return {
        f"Gaussian process by Cholesky, fitting, {points} points x {inputs}": partial(_process, points, inputs),
        f"Kalman filter, {steps} steps of {series} series, {states} states": partial(
            _filter, series, states, seen, steps
        ),
    }


class Kernel(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.lengths, self.noise = nn.Parameter(torch.zeros(inputs)), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x):
        scaled = x * (-self.lengths).exp()
        squares = scaled.square().sum(1)
        distances = squares[:, None] + squares - 2 * scaled @ scaled.mT
        return (-distances / (2 * x.shape[1])).exp() + self.noise.exp() * torch.eye(len(x), device=x.device)


def _process(points, inputs, device):
    with torch.device(device):
        model = Kernel(inputs)
        x = torch.randn(points, inputs)
        y = torch.sin(x).sum(1, keepdim=True)

    def loss():
        factor = torch.linalg.cholesky_ex(model(x)).L
        whitened = torch.linalg.solve_triangular(factor, y, upper=False)
        return whitened.square().sum() / (2 * points) + factor.diagonal().log().mean()

    return training(model, loss, lr=0.01)


def _filter(series, states, seen, steps, device):
    with torch.device(device):
        move = torch.eye(states) + torch.randn(states, states) * 0.1 / states**0.5
        look = torch.randn(seen, states) / states**0.5
        observed = torch.randn(steps, series, seen, 1)
        start, spread = torch.zeros(series, states, 1), torch.eye(states).repeat(series, 1, 1)
        noise, error = 0.1 * torch.eye(states), 0.5 * torch.eye(seen)

    def step():
        mean, covariance = start, spread
        for y in observed:
            mean, covariance = move @ mean, move @ covariance @ move.mT + noise
            cross = covariance @ look.mT
            factor = torch.linalg.cholesky_ex(look @ cross + error).L
            gain = torch.cholesky_solve(cross.mT, factor).mT
            mean = mean + gain @ (y - look @ mean)
            covariance = covariance - gain @ cross.mT
        return mean

    return step
