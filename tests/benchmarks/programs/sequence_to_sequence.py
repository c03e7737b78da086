"""Training a sequence-to-sequence net: an encoder and a decoder of LSTM cells, and attention by matmul between them."""

from functools import partial

import torch
from harness import training
from torch import nn
from torch.nn import functional as F


def cases(small):
    size = (3, 4, 16, 50) if small else (16, 64, 256, 4000)
    what = "sequence to sequence with attention, training, {} steps of {} x {}, {} words".format(*size)
    return {what: partial(_build, *size)}


class Network(nn.Module):
    def __init__(self, width, words):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder, self.decoder = nn.LSTMCell(width, width), nn.LSTMCell(2 * width, width)
        self.head = nn.Linear(2 * width, words)

    def forward(self, source, target):
        state, seen = None, []
        for word in self.words(source):
            state = self.encoder(word, state)
            seen.append(state[0])
        keys = torch.stack(seen, 1)  # (batch, time, width)
        context, said = torch.zeros_like(state[0]), []
        for word in self.words(target):
            state = self.decoder(torch.cat([word, context], 1), state)
            scores = torch.matmul(keys, state[0][:, :, None])[..., 0]
            context = torch.matmul(scores.softmax(1)[:, None], keys)[:, 0]
            said.append(torch.cat([state[0], context], 1))
        return self.head(torch.stack(said))


def _build(steps, batch, width, words, device):
    with torch.device(device):
        model = Network(width, words)
        source, target, labels = (torch.randint(words, (steps, batch)) for _ in range(3))
    return training(model, lambda: F.cross_entropy(model(source, target).flatten(0, 1), labels.flatten()))
