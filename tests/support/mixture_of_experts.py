"""A layer of experts trained for some steps, as transformers computes it with grouped products. It needs PyTorch."""

from itertools import pairwise

import torch

TOKENS, EXPERTS, WIDTH, HIDDEN, CHOSEN = 40, 4, 8, 12, 2


def by_loop(rows, b, ends):
    """Multiply the rows of each group by its own matrix, in the type of the operands."""
    bounds = [0, *ends.tolist()]
    return torch.cat([rows[i:j] @ b[g] for g, (i, j) in enumerate(pairwise(bounds))])


def layer(product, x, gate, up, down):
    """Sort the tokens by expert, multiply, activate, multiply, and add up each token's results with its weights."""
    scores, which = (x @ gate).softmax(-1).topk(CHOSEN)
    order = which.flatten().argsort(stable=True)
    ends = torch.histc(which.flatten().float(), bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
    rows = order // CHOSEN
    y = product(torch.nn.functional.silu(product(x[rows], up, ends)), down, ends)
    return torch.zeros_like(x).index_add(0, rows, y * scores.flatten()[order, None])


def trained(product, dtype, device="cpu"):
    """Return the losses of five steps and the weights after them."""
    generator = torch.Generator().manual_seed(3)
    x, target = (torch.randn(TOKENS, WIDTH, generator=generator).to(device, dtype) for _ in range(2))
    shapes = (WIDTH, EXPERTS), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)
    weights = [(torch.randn(*shape, generator=generator) / 3).to(device, dtype) for shape in shapes]
    weights = [weight.requires_grad_() for weight in weights]
    optimizer, losses = torch.optim.SGD(weights, lr=0.5), []
    for _ in range(5):
        loss = (layer(product, x, *weights) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), *weights


def assert_learns_as_in_float64(product, device="cpu"):
    """Compare with a loop in float64."""
    found, wanted = trained(product, torch.float32, device), trained(by_loop, torch.float64)
    assert wanted[0][-1] < 0.98 * wanted[0][0]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double().cpu(), other, rtol=1e-4, atol=1e-5)
