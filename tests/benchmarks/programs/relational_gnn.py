"""Training a relational graph network: two layers, and an embedding of each node."""

from functools import partial

import torch
from harness import training
from torch_geometric.nn import RGCNConv

CLASSES = 16


def cases(small):
    nodes, width, relations = (200, 16, 3) if small else (20_000, 256, 16)
    what = f"relational GNN, training, {relations} relations, {nodes:,} nodes x {width}"
    return {what: partial(_build, nodes, width, relations)}


class Network(torch.nn.Module):
    def __init__(self, nodes, width, relations):
        super().__init__()
        self.nodes = torch.nn.Parameter(torch.randn(nodes, width))
        self.first = RGCNConv(width, width, relations)
        self.second = RGCNConv(width, CLASSES, relations)

    def forward(self, edges, kinds):
        return self.second(self.first(self.nodes, edges, kinds).relu(), edges, kinds)


def _build(nodes, width, relations, device):
    with torch.device(device):
        model = Network(nodes, width, relations)
        edges = torch.randint(nodes, (2, 8 * nodes))
        kinds = torch.randint(relations, (8 * nodes,))
        labels = torch.randint(CLASSES, (nodes,))
    return training(model, lambda: torch.nn.functional.cross_entropy(model(edges, kinds), labels))
