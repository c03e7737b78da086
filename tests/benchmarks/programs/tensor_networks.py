"""Tensor networks by einsum: training a matrix product state as a classifier, and contracting two of them."""

from functools import partial

import torch
from harness import training
from torch import nn

PHYSICAL = 2


def cases(small):
    sites, bond, batch, classes = (4, 4, 8, 3) if small else (32, 32, 256, 10)
    length, width = (3, 4) if small else (24, 64)
    return {
        f"matrix product state, training, {sites} sites, bond {bond}, batch {batch}": partial(
            _train_state, sites, bond, batch, classes
        ),
        f"tensor network, contracting {length} x 4 tensors, bond {width}": partial(_contract, length, width),
    }


class State(nn.Module):
    def __init__(self, sites, bond, classes):
        super().__init__()
        # Near the identity, so that the product of many matrices neither vanishes nor explodes.
        noise = torch.randn(sites, bond, PHYSICAL, bond) * 0.3 / bond**0.5
        self.cores = nn.Parameter(noise + torch.eye(bond)[:, None])
        self.ends = nn.Parameter(torch.randn(bond))
        self.labels = nn.Parameter(torch.randn(bond, classes) / bond**0.5)

    def forward(self, pixels):
        state = self.ends.expand(len(pixels), -1)
        for site, core in enumerate(self.cores):
            state = torch.einsum("bl,lpr,bp->br", state, core, pixels[:, site])
            state = state / state.norm(dim=1, keepdim=True)
        return state @ self.labels


def _train_state(sites, bond, batch, classes, device):
    with torch.device(device):
        model = State(sites, bond, classes)
        light = torch.rand(batch, sites)
        labels = torch.randint(classes, (batch,))
    pixels = torch.stack([light, 1 - light], 2)
    return training(model, lambda: nn.functional.cross_entropy(model(pixels), labels))


def _contract(length, bond, device):
    pair = torch.randn(length, 2, bond, PHYSICAL, bond, device=device) / bond**0.5
    gates = torch.randn(length, PHYSICAL, PHYSICAL, device=device)

    def overlap():
        left = torch.eye(bond, device=device)
        for (upper, lower), gate in zip(pair, gates, strict=True):
            left = torch.einsum("ab,apc,pq,bqd->cd", left, upper, gate, lower)
            left = left / left.norm()
        return left

    return overlap
