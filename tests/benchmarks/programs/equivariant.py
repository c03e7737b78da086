"""Training layers that are equivariant under rotations (e3nn): tensor products with spherical harmonics."""

from functools import partial

import torch
from e3nn import o3
from harness import training

IRREPS = o3.Irreps("32x0e + 16x1o + 8x2e")
HARMONICS = o3.Irreps.spherical_harmonics(2)
LAYERS = 2


def cases(small):
    points = 50 if small else 4096
    return {f"equivariant layers (e3nn), training, {points:,} points": partial(_build, points)}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.products = torch.nn.ModuleList(
            o3.FullyConnectedTensorProduct(IRREPS, HARMONICS, IRREPS) for _ in range(LAYERS)
        )
        self.linears = torch.nn.ModuleList(o3.Linear(IRREPS, IRREPS) for _ in range(LAYERS))

    def forward(self, x, directions):
        harmonics = o3.spherical_harmonics(HARMONICS, directions, normalize=True)
        for product, linear in zip(self.products, self.linears, strict=True):
            x = x + linear(product(x, harmonics))
        return x


def _build(points, device):
    model = Network().to(device)
    x, wanted = (IRREPS.randn(points, -1, device=device) for _ in range(2))
    directions = torch.randn(points, 3, device=device)
    return training(model, lambda: (model(x, directions) - wanted).square().mean())
