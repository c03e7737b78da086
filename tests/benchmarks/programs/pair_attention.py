"""Training attention written with matmul and a bias of pairs, as nets of protein structures have it."""

from functools import partial

import torch
from harness import training
from torch import nn


def cases(small):
    tokens, width, pairs, blocks = (8, 16, 8, 1) if small else (128, 256, 32, 4)
    what = f"pair attention by matmul, training, {tokens} x {width}, {tokens} x {tokens} x {pairs}, {blocks} blocks"
    return {what: partial(_build, tokens, width, pairs, blocks)}


class Block(nn.Module):
    HEADS = 4

    def __init__(self, width, pairs):
        super().__init__()
        self.norm, self.pair_norm = nn.LayerNorm(width), nn.LayerNorm(pairs)
        self.of_heads, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Linear(pairs, self.HEADS, bias=False)
        self.left, self.right = nn.Linear(pairs, pairs), nn.Linear(pairs, pairs)

    def forward(self, x, pair):
        tokens, width = x.shape
        q, k, v = self.of_heads(self.norm(x)).view(tokens, 3, self.HEADS, width // self.HEADS).permute(1, 2, 0, 3)
        normed = self.pair_norm(pair)
        scores = q @ k.mT / (width // self.HEADS) ** 0.5 + self.bias(normed).permute(2, 0, 1)
        x = x + self.out((scores.softmax(-1) @ v).transpose(0, 1).reshape(tokens, width))
        # The triangle update: a sum over the third node of the products of two edges, for each channel.
        triangles = torch.einsum("ikc,jkc->ijc", self.left(normed), self.right(normed))
        return x, pair + triangles / tokens


def _build(tokens, width, pairs, blocks, device):
    with torch.device(device):
        model = nn.ModuleList(Block(width, pairs) for _ in range(blocks))
        x, pair, wanted = torch.randn(tokens, width), torch.randn(tokens, tokens, pairs), torch.randn(tokens, width)

    def loss():
        state = x, pair
        for block in model:
            state = block(*state)
        return (state[0] - wanted).square().mean() + state[1].square().mean()

    return training(model, loss)
