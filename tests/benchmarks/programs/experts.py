"""Training a mixture of experts whose layer is a loop: each expert multiplies the tokens that were sent to it."""

from functools import partial

import torch
from harness import training
from torch import nn
from torch.nn import functional as F

TOLERANCE = 1e-2  # of the gradients: a rounding error may send a token to another expert


def cases(small):
    tokens, width, experts = (16, 8, 3) if small else (2048, 256, 16)
    what = f"{experts} experts in a loop, training, {tokens} tokens x {width}"
    return {what: partial(_build, tokens, width, experts)}


class Experts(nn.Module):
    CHOSEN = 2

    def __init__(self, width, experts):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x):
        weights, chosen = self.router(x).softmax(1).topk(self.CHOSEN, 1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = (chosen == number).nonzero(as_tuple=True)  # waits for the device
            result = result.index_add(0, token, expert(x[token]) * weights[token, slot, None])
        return result


def _build(tokens, width, experts, device):
    with torch.device(device):
        model = Experts(width, experts)
        x, wanted = torch.randn(2, tokens, width)
    # A learning rate of zero: with one, tokens change experts from step to step, and products their shapes.
    return training(model, lambda: F.mse_loss(model(x), wanted), lr=0.0)
