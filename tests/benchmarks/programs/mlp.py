"""Training a multi-layer perceptron with a large batch."""

from functools import partial

import torch
from harness import training
from torch import nn

LAYERS = 4


def cases(small):
    width, batch = (64, 32) if small else (2048, 4096)
    return {f"MLP, {width} x {LAYERS}, training, batch {batch}": partial(trained, width, batch, lambda model: model)}


def perceptron(width):
    return nn.Sequential(*(part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.GELU())))


def trained(width, batch, compiled, device):
    """Return a training step; `compiled` returns what is called in place of the model."""
    with torch.device(device):
        model = perceptron(width)
        x, wanted = torch.randn(batch, width), torch.randn(batch, width)
    called = compiled(model)
    return training(model, lambda: (called(x) - wanted).square().mean())
