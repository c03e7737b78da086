"""Meta-learning (MAML): the gradient of a loss after three steps of training, through these steps."""

from functools import partial

import torch
from harness import training
from torch import nn
from torch.func import functional_call

INNER = 3  # steps


def cases(small):
    tasks, shots, width = (2, 4, 8) if small else (4, 64, 128)
    what = f"meta-learning, second order, {tasks} tasks, {INNER} inner steps, width {width}"
    return {what: partial(_build, tasks, shots, width)}


def _build(tasks, shots, width, device):
    with torch.device(device):
        model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        x = torch.randn(tasks, 2, shots, 4)
        y = torch.sin(x + torch.randn(tasks, 1, 1, 4)).sum(-1, keepdim=True)

    def error(weights, x, y):
        return (functional_call(model, weights, (x,)) - y).square().mean()

    def loss():
        total = 0.0
        for (seen, unseen), (known, wanted) in zip(x, y, strict=True):
            weights = dict(model.named_parameters())
            for _ in range(INNER):
                slopes = torch.autograd.grad(error(weights, seen, known), [*weights.values()], create_graph=True)
                weights = {name: w - 0.05 * s for (name, w), s in zip(weights.items(), slopes, strict=True)}
            total = total + error(weights, unseen, wanted)
        return total / tasks

    return training(model, loss)
