"""Training adapters of low rank (LoRA) on a small GPT-2 whose own weights are frozen."""

from functools import partial

import torch
from gpt2 import SMALL, model_of
from harness import training
from torch import nn
from transformers.pytorch_utils import Conv1D


def cases(small):
    size = SMALL if small else {"n_embd": 512, "n_layer": 6, "n_head": 8, "vocab_size": 8192}
    rank, batch = (2, (2, 16)) if small else (8, (4, 128))
    what = f"adapters of rank {rank} on GPT-2, {size['n_embd']} wide, training, {batch[0]} x {batch[1]} tokens"
    return {what: partial(_build, size, rank, batch)}


class Adapter(nn.Module):
    """A frozen linear layer of GPT-2 and the product of two narrow matrices beside it."""

    def __init__(self, layer, rank):
        super().__init__()
        inputs, outputs = layer.weight.shape
        self.layer = layer
        self.down = nn.Parameter(torch.randn(inputs, rank, device=layer.weight.device) / inputs**0.5)
        self.up = nn.Parameter(torch.randn(rank, outputs, device=layer.weight.device) * 0.01)

    def forward(self, x):
        return self.layer(x) + 2 * (x @ self.down @ self.up)


def _build(size, rank, batch, device):
    model = model_of(size, device).requires_grad_(False)
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, Conv1D):
                setattr(module, name, Adapter(child, rank))
    ids = torch.randint(size["vocab_size"], batch, device=device)
    return training(model, lambda: model(input_ids=ids, labels=ids).loss)
