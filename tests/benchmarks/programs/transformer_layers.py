"""PyTorch's own transformer layers: an encoder at inference, which takes a path of its own, and training a decoder."""

from functools import partial

import torch
from harness import training
from torch import nn


def cases(small):
    size = (2, 4, 16) if small else (16, 64, 256)
    return {
        "nn.TransformerEncoder, inference, {} x {} tokens x {}".format(*size): partial(_encoder, *size),
        "nn.TransformerDecoder, training, {} x {} tokens x {}".format(*size): partial(_decoder, *size),
    }


def _encoder(batch, tokens, width, device):
    with torch.device(device):
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, activation="gelu")
        model = nn.TransformerEncoder(layer, 4).eval()
        x = torch.randn(batch, tokens, width)
    return torch.no_grad()(lambda: model(x))


def _decoder(batch, tokens, width, device):
    with torch.device(device):
        layer = nn.TransformerDecoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        model = nn.TransformerDecoder(layer, 2)
        x, memory, wanted = torch.randn(3, batch, tokens, width)
    return training(model, lambda: (model(x, memory) - wanted).square().mean())
