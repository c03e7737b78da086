"""Training a classifier that already knows its samples: most of its gradients are tiny, and many are subnormal."""

from functools import partial

import torch
from harness import training
from torch import nn

TOLERANCE = 1e-2  # of the gradients: logits of hundreds are rounded to 1e-5, which softmax makes a relative error


def cases(small):
    batch, width, classes = (16, 16, 4) if small else (1024, 1024, 100)
    return {f"classifier late in training, batch {batch}, width {width}": partial(_build, batch, width, classes)}


def _build(batch, width, classes, device):
    with torch.device(device):
        layers = [part for _ in range(2) for part in (nn.Linear(width, width), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(width, classes))
        x = torch.randn(batch, width)
    with torch.no_grad():
        model[-1].weight.mul_(1000)  # margins of a hundred, as after many epochs
        labels = model(x).argmax(1)
    return training(model, lambda: nn.functional.cross_entropy(model(x), labels), lr=0.0)
