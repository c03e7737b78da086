"""Training an MLP mixer: perceptrons along the channels and, on transposed activations, along the patches."""

from functools import partial

import torch
from harness import training
from torch import nn

CLASSES = 100


def cases(small):
    images, size, patch, width, blocks = (2, 16, 8, 16, 1) if small else (32, 128, 16, 256, 6)
    what = f"MLP mixer, training, {images} images of {size} x {size}, {width} wide, {blocks} blocks"
    return {what: partial(_build, images, size, patch, width, blocks)}


def _perceptron(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.patches, self.channels = _perceptron(patches), _perceptron(width)

    def forward(self, x):
        x = x + self.patches(self.norms[0](x).mT).mT
        return x + self.channels(self.norms[1](x))


class Mixer(nn.Module):
    def __init__(self, patches, pixels, width, blocks):
        super().__init__()
        self.embed, self.head = nn.Linear(pixels, width), nn.Linear(width, CLASSES)
        self.blocks = nn.Sequential(*(Block(patches, width) for _ in range(blocks)))

    def forward(self, patches):
        return self.head(self.blocks(self.embed(patches)).mean(1))


def _build(images, size, patch, width, blocks, device):
    with torch.device(device):
        pixels = torch.randn(images, 3, size, size)
        patches = nn.functional.unfold(pixels, patch, stride=patch).mT
        model = Mixer(patches.shape[1], patches.shape[2], width, blocks)
        labels = torch.randint(CLASSES, (images,))
    return training(model, lambda: nn.functional.cross_entropy(model(patches), labels))
