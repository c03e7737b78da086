"""Training a net of graph convolutions and one of sampled neighbours (torch_geometric)."""

from functools import partial

import torch
from harness import training
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv

CLASSES = 16


def cases(small):
    nodes, width = (50, 8) if small else (10_000, 128)
    layers = {"GCN": GCNConv, "GraphSAGE": SAGEConv}
    return {
        f"{name} (torch_geometric), training, {nodes:,} nodes x {width}": partial(_build, layer, nodes, width)
        for name, layer in layers.items()
    }


def _build(layer, nodes, width, device):
    with torch.device(device):
        model = nn.ModuleList([layer(width, width), layer(width, width), layer(width, CLASSES)])
        x, labels = torch.randn(nodes, width), torch.randint(CLASSES, (nodes,))
        edges = torch.randint(nodes, (2, 8 * nodes))

    def loss():
        y = x
        for convolution in model[:-1]:
            y = convolution(y, edges).relu()
        return nn.functional.cross_entropy(model[-1](y, edges), labels)

    return training(model, loss)
