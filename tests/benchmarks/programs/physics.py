"""Training physics-informed nets: an equation's residual has second derivatives of the net, which autograd takes."""

from functools import partial

import torch
from harness import training
from torch import nn


def cases(small):
    points, width = (16, 16) if small else (2048, 64)
    what = f"physics-informed net (heat equation), training, {points} points, width {width}"
    return {what: partial(_build, points, width)}


def _build(points, width, device):
    with torch.device(device):
        model = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )  # fmt: skip
        place, time = (torch.rand(points, 1, requires_grad=True) for _ in range(2))

    def loss():
        u = model(torch.cat([place, time], 1))
        of_place, of_time = torch.autograd.grad(u.sum(), (place, time), create_graph=True)
        curvature = torch.autograd.grad(of_place.sum(), place, create_graph=True)[0]
        start = model(torch.cat([place, torch.zeros_like(time)], 1)) - torch.sin(torch.pi * place)
        return (of_time - 0.1 * curvature).square().mean() + start.square().mean()

    return training(model, loss)
