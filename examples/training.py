"""Train a network twice, with PyTorch's products and with fastsgemm's: one line more, and the same losses."""

import sys
from contextlib import nullcontext

try:
    import torch
except ImportError as error:
    print(f"skipped: this needs PyTorch ({error})")
    sys.exit()

import fastsgemm.torch

device = "cuda" if torch.cuda.is_available() else "cpu"  # CPU tensors are there to try it out


def train(steps):
    """Return the losses of a regression."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(256, 64, device=device)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(steps):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


losses = {}
for name, products in (("PyTorch", nullcontext()), ("fastsgemm", fastsgemm.torch.enabled("fp16x3", device=device))):
    with products as switch:
        losses[name] = train(20)
print(switch.report())
for plain, ours in zip(losses["PyTorch"], losses["fastsgemm"], strict=True):
    assert abs(plain - ours) < 1e-3 * plain
assert losses["fastsgemm"][-1] < losses["fastsgemm"][0]
