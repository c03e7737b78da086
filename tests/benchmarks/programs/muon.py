"""Training a perceptron with the optimizer Muon: each gradient is made orthogonal by Newton-Schulz steps."""

from functools import partial

import torch
from newton_schulz import orthogonal
from torch import nn

TOLERANCE = 1e-2  # of the updates: each iteration makes errors in small singular values larger


def cases(small):
    width, layers, batch = (16, 2, 8) if small else (512, 4, 512)
    return {f"Muon, perceptron of {width} x {layers}, training, batch {batch}": partial(_build, width, layers, batch)}


def _build(width, layers, batch, device):
    with torch.device(device):
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=False), nn.ReLU())]
        model = nn.Sequential(*parts)
        x, wanted = torch.randn(2, batch, width)
    momenta = [torch.zeros_like(weight) for weight in model.parameters()]

    def step():
        model.zero_grad()
        (model(x) - wanted).square().mean().backward()
        updates = []
        with torch.no_grad():
            for weight, momentum in zip(model.parameters(), momenta, strict=True):
                momentum.lerp_(weight.grad, 0.05)
                updates.append(orthogonal(momentum, transposed=True))
                weight.sub_(updates[-1], alpha=1e-3)
        return torch.stack(updates)

    return step
