"""Training a continuous normalizing flow (torchdiffeq) in two dimensions, with the exact trace of the Jacobian."""

from functools import partial

import torch
from harness import training
from neural_ode import field
from torchdiffeq import odeint


def cases(small):
    steps, batch, width = (2, 8, 16) if small else (4, 1024, 64)
    what = f"continuous flow (torchdiffeq), training, {steps} steps, batch {batch}"
    return {what: partial(_build, steps, batch, width)}


def _build(steps, batch, width, device):
    with torch.device(device):
        model = field(2, width)
        x, times = torch.randn(batch, 2) * 0.5 + 1, torch.linspace(0, 1, steps + 1)

    def slope(_, states):
        point = states[0].requires_grad_()
        speed = model(point)
        trace = sum(torch.autograd.grad(speed[:, i].sum(), point, create_graph=True)[0][:, i] for i in range(2))
        return speed, -trace

    def loss():
        points, logarithms = odeint(slope, (x.clone(), torch.zeros(batch, device=device)), times, method="rk4")
        return (points[-1].square().sum(1) / 2 - logarithms[-1]).mean()

    return training(model, loss)
