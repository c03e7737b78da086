"""Training a net whose weights another net makes for each sample: batches of small products (baddbmm)."""

from functools import partial

import torch
from harness import training
from torch import nn


def cases(small):
    samples, points, width = (3, 4, 8) if small else (128, 64, 32)
    what = f"hypernetwork, training, {samples} samples of {points} points, width {width}"
    return {what: partial(_build, samples, points, width)}


def _build(samples, points, width, device):
    shapes = [(2, width), (width, width), (width, 1)]
    sizes = [(rows + 1) * columns for rows, columns in shapes]
    with torch.device(device):
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, sum(sizes)))
        codes, places, wanted = (torch.randn(samples, *shape) for shape in ((64,), (points, 2), (points, 1)))

    def loss():
        x = places
        for (rows, columns), weights in zip(shapes, model(codes).split(sizes, 1), strict=True):
            matrices = weights.view(samples, rows + 1, columns)
            x = torch.baddbmm(matrices[:, rows:], x.relu(), matrices[:, :rows] / rows**0.5)
        return (x - wanted).square().mean()

    return training(model, loss)
