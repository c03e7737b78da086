"""Training a neural ordinary differential equation: the classical Runge-Kutta method through a small net."""

from functools import partial

import torch
from harness import training
from torch import nn


def cases(small):
    steps, batch, state, width = (2, 8, 4, 16) if small else (16, 512, 16, 128)
    what = f"neural ODE, training, {steps} Runge-Kutta steps of {batch} x {state}, width {width}"
    return {what: partial(_build, steps, batch, state, width)}


def field(state, width):
    """Return a net that maps a state to its derivative."""
    return nn.Sequential(
        nn.Linear(state, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, state)
    )


def runge_kutta(slope, x, steps):
    """Return the state after a unit of time."""
    h = 1 / steps
    for _ in range(steps):
        first = slope(x)
        second = slope(x + h / 2 * first)
        third = slope(x + h / 2 * second)
        fourth = slope(x + h * third)
        x = x + h / 6 * (first + 2 * second + 2 * third + fourth)
    return x


def _build(steps, batch, state, width, device):
    with torch.device(device):
        model = field(state, width)
        x, wanted = torch.randn(batch, state), torch.randn(batch, state)
    return training(model, lambda: (runge_kutta(model, x, steps) - wanted).square().mean())
