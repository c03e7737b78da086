"""Gradients of each sample by torch.func, as private training and influence functions need them."""

from functools import partial

import torch
from torch import nn
from torch.func import functional_call, grad, vmap


def cases(small):
    batch, width, classes = (4, 8, 3) if small else (256, 256, 10)
    return {f"gradients of {batch} samples (vmap of grad), width {width}": partial(_build, batch, width, classes)}


def _build(batch, width, classes, device):
    with torch.device(device):
        layers = [part for _ in range(2) for part in (nn.Linear(width, width), nn.Tanh())]
        model = nn.Sequential(*layers, nn.Linear(width, classes))
        x, labels = torch.randn(batch, width), torch.randint(classes, (batch,))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(given, sample, label):
        return nn.functional.cross_entropy(functional_call(model, given, (sample[None],)), label[None])

    def step():
        gradients = [*vmap(grad(loss), (None, 0, 0))(weights, x, labels).values()]
        norms = sum(each.flatten(1).square().sum(1) for each in gradients).sqrt()
        scale = (1 / norms).clamp(max=1)  # clipped, as in private training
        return torch.cat([torch.einsum("b,b...->...", scale, each).flatten() for each in gradients])

    return step
