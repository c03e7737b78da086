"""Training a recommendation model as DLRM is built: embeddings, two perceptrons, and dot products of all pairs."""

from functools import partial

import torch
from harness import training
from torch import nn
from torch.nn import functional as F


def cases(small):
    batch, tables, rows, width = (8, 3, 20, 8) if small else (2048, 26, 10_000, 64)
    what = f"recommendation with dot products of pairs, training, batch {batch}, {tables} tables x {width}"
    return {what: partial(_build, batch, tables, rows, width)}


class Network(nn.Module):
    DENSE = 13

    def __init__(self, tables, rows, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(self.DENSE, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, chosen):
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(ids) for table, ids in zip(self.tables, chosen, strict=True))], 1)
        dots = torch.bmm(vectors, vectors.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, dots], 1))[:, 0]


def _build(batch, tables, rows, width, device):
    with torch.device(device):
        model = Network(tables, rows, width)
        dense, chosen = torch.randn(batch, Network.DENSE), torch.randint(rows, (tables, batch))
        clicked = torch.rand(batch).round()
    return training(model, lambda: F.binary_cross_entropy_with_logits(model(dense, chosen), clicked))
