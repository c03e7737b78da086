"""Multiply PyTorch tensors: a batch through a layer, with the bias read by the kernel, and gradients."""

import sys

from fastsgemm import sgemm

try:
    import torch
except ImportError as error:
    print(f"skipped: this needs PyTorch ({error})")
    sys.exit()

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device)
weight = torch.randn(48, 64, device=device)  # as nn.Linear keeps it
bias = torch.randn(48, device=device)

# y = x W^T + bias, in one call: the bias is a row that every row of the result begins with.
y = torch.empty(32, 48, device=device)
sgemm(x, weight.T, 1.0, 1.0, bias.expand(32, 48), out=y)
expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
assert torch.allclose(y.double(), expected, atol=1e-4)

# Tensors that need gradients get them. A batch of products is one launch.
queries, keys = (torch.randn(4, 16, 8, device=device, requires_grad=True) for _ in range(2))
scores = sgemm(queries, keys.transpose(-1, -2))
scores.square().sum().backward()
with torch.no_grad():
    assert torch.allclose(queries.grad, 2 * scores @ keys, atol=1e-3)
print(f"multiplied on {x.device}")
