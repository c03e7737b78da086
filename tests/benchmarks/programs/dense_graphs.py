"""Training graph nets with dense adjacency matrices: convolution, and attention in a batch of small graphs."""

from functools import partial

import torch
from harness import training
from torch import nn
from torch.nn import functional as F

CLASSES = 10


def cases(small):
    convolution, graphs = ((20, 8), (3, 6, 8)) if small else ((3000, 128), (64, 48, 64))
    return {
        "dense graph convolution, training, {} nodes x {}".format(*convolution): partial(_convolution, *convolution),
        "graph attention, training, {} graphs of {} nodes x {}".format(*graphs): partial(_attention, *graphs),
    }


class Convolution(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(width, n) for n in (width, width, CLASSES))

    def forward(self, x, adjacency):
        for layer in (self.first, self.second):
            x = (adjacency @ layer(x)).relu()
        return self.head(x)


class Attention(nn.Module):
    LAYERS = 3

    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(self.LAYERS))
        self.ends = nn.ParameterList(torch.randn(width, 2) / width**0.5 for _ in range(self.LAYERS))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x, adjacency):
        for layer, ends in zip(self.layers, self.ends, strict=True):
            values = layer(x)
            source, target = (values @ ends).chunk(2, -1)
            scores = F.leaky_relu(source + target.mT).masked_fill(~adjacency, -torch.inf)
            x = x + F.elu(scores.softmax(-1) @ values)
        return self.head(x.mean(1))


def _convolution(nodes, width, device):
    with torch.device(device):
        model = Convolution(width)
        x, labels = torch.randn(nodes, width), torch.randint(CLASSES, (nodes,))
        edges = (torch.rand(nodes, nodes) < 8 / nodes).float() + torch.eye(nodes)
    adjacency = edges / edges.sum(1, keepdim=True)
    return training(model, lambda: F.cross_entropy(model(x, adjacency), labels))


def _attention(graphs, nodes, width, device):
    with torch.device(device):
        model = Attention(width)
        x, labels = torch.randn(graphs, nodes, width), torch.randint(CLASSES, (graphs,))
        adjacency = (torch.rand(graphs, nodes, nodes) < 0.2) | torch.eye(nodes, dtype=torch.bool)
    return training(model, lambda: F.cross_entropy(model(x, adjacency), labels))
