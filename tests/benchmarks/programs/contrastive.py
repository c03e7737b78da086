"""Training two encoders so that pairs are alike: the logits are a product of all embeddings with all others (CLIP)."""

from functools import partial

import torch
from harness import training
from torch import nn
from torch.nn import functional as F


def cases(small):
    pairs, inputs, width = (8, 12, 8) if small else (2048, 768, 256)
    return {f"contrastive loss (CLIP), training, {pairs} pairs x {width}": partial(_build, pairs, inputs, width)}


def _build(pairs, inputs, width, device):
    with torch.device(device):
        model = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(2)
        )
        images, texts = torch.randn(2, pairs, inputs)
        labels = torch.arange(pairs)

    def loss():
        of_images, of_texts = F.normalize(model[0](images)), F.normalize(model[1](texts))
        logits = 14 * of_images @ of_texts.mT
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.mT, labels)) / 2

    return training(model, loss)
