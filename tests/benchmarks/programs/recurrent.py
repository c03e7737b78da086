"""Recurrent nets written by hand: every step in time is two small products and some elementwise operators."""

from functools import partial

import torch
from harness import training
from torch import nn


def cases(small):
    lstm, gru = ((3, 4, 16), (3, 4, 16)) if small else ((32, 64, 256), (64, 16, 128))
    return {
        "LSTM by hand, training, {} steps of {} x {}".format(*lstm): partial(_train_lstm, *lstm),
        "GRU by hand, inference, {} steps of {} x {}".format(*gru): partial(_run_gru, *gru),
    }


class Cell(nn.Module):
    """The weights of a recurrent cell with some gates."""

    def __init__(self, width, gates):
        super().__init__()
        self.of_input, self.of_state = (nn.Parameter(torch.randn(width, gates * width) / width**0.5) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(gates * width))


def lstm(cell, xs):
    """Return the last state of an LSTM after inputs (time, batch, width)."""
    state, memory = torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    for x in xs:
        gates = torch.addmm(cell.bias, x, cell.of_input) + state @ cell.of_state
        keep, write, read, new = gates.chunk(4, 1)
        memory = keep.sigmoid() * memory + write.sigmoid() * new.tanh()
        state = read.sigmoid() * memory.tanh()
    return state


def gru(cell, xs):
    """Return the last state of a GRU after inputs (time, batch, width)."""
    state = torch.zeros_like(xs[0])
    for x in xs:
        reset, update, new = torch.addmm(cell.bias, x, cell.of_input).chunk(3, 1)
        of_reset, of_update, of_new = (state @ cell.of_state).chunk(3, 1)
        update = (update + of_update).sigmoid()
        state = update * state + (1 - update) * (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return state


def _train_lstm(steps, batch, width, device):
    with torch.device(device):
        cell = Cell(width, 4)
        xs, wanted = torch.randn(steps, batch, width), torch.randn(batch, width)
    return training(cell, lambda: (lstm(cell, xs) - wanted).square().mean())


def _run_gru(steps, batch, width, device):
    with torch.device(device):
        cell = Cell(width, 3)
        xs = torch.randn(steps, batch, width)
    return torch.no_grad()(lambda: gru(cell, xs))
