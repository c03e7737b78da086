"""A mixture-of-experts block in bfloat16 with a router in float32: a training step, in turns."""

import torch
from harness import in_turns
from torch import nn
from torch.nn import functional as F

from fastsgemm.torch import linear_fp32


def cast(x, weight):
    """What programs do now."""
    return F.linear(x.float(), weight.float())


class Block(nn.Module):
    """Top-k routing to experts of two layers; the router's product is a function of x and the weight."""

    def __init__(self, width, hidden, experts, chosen, router):
        super().__init__()
        self.router, self.chosen = router, chosen
        self.gate = nn.Parameter(torch.randn(experts, width) / width**0.5)  # float32
        self.up = nn.Parameter((torch.randn(experts, width, hidden) / width**0.5).bfloat16())
        self.down = nn.Parameter((torch.randn(experts, hidden, width) / hidden**0.5).bfloat16())

    def forward(self, x):
        probabilities = self.router(x, self.gate).softmax(-1)
        weights, experts = probabilities.topk(self.chosen, -1)
        result = torch.zeros_like(x)
        for number in range(self.up.shape[0]):
            token, slot = (experts == number).nonzero(as_tuple=True)
            hidden = F.silu(x[token] @ self.up[number]) @ self.down[number]
            result = result.index_add(0, token, hidden * weights[token, slot, None].to(x.dtype))
        return result


ROUTERS = {
    "cast to float32": cast,
    "linear_fp32": linear_fp32,
    "linear_fp32, ieee": lambda x, weight: linear_fp32(x, weight, precision="ieee"),
    "bfloat16": lambda x, weight: F.linear(x, weight.to(x.dtype)).float(),
}


def measure(device, small, seconds):
    tokens, width, hidden, experts = (32, 64, 32, 4) if small else (4096, 6144, 1024, 32)
    x = torch.randn(tokens, width, device=device).bfloat16()
    steps = {}
    for name, router in ROUTERS.items():
        torch.manual_seed(0)
        block = Block(width, hidden, experts, 2, router).to(device)

        def step(block=block):
            block.zero_grad()
            block(x).float().square().mean().backward()

        steps[name] = step
    return {"tokens": tokens, "width": width, "experts": experts, "ms": in_turns(steps, device, seconds)}
