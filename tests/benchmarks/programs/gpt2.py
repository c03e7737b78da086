"""Train GPT-2 (124M) in FP32 for some steps, with PyTorch's products and with fastsgemm's.

Rounding errors grow while a model is trained. How much they do without a difference in the products is measured, too:
by a run of plain PyTorch whose weights begin half a unit in the last place away. The losses hardly show it, so the
gradients of the first step are compared.
"""

import copy
import math
import statistics
import time
from contextlib import nullcontext
from functools import cache, partial

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from with_switch import compare

import fastsgemm


@cache
def _initial(device, small):
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512} if small else {}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **size)
    with torch.device(device):
        return GPT2LMHeadModel(config), config


def model_of(device, small):
    """Return a model with the same weights each time, and its config."""
    model, config = _initial(device, small)
    return copy.deepcopy(model), config


def prepare(config, rows):
    """Compile the kernels of all products of a training step, on all cores."""
    width, words = config.n_embd, config.vocab_size
    widths = (width, 3 * width, 4 * width)
    fastsgemm.prepare(rows, widths, widths, ("NN", "NT"))  # of the layers, and the gradients of their operands
    fastsgemm.prepare(widths, widths, rows, "TN")  # the gradients of their weights
    fastsgemm.prepare(rows, words, width, "NT")
    fastsgemm.prepare(rows, width, words, "NN")
    fastsgemm.prepare(words, width, rows, "TN")


def train(device, small, batch, how, steps, disturbed=False):
    """Return the losses, the gradients of the first step as one vector, and the median time of a step in ms."""
    model, config = model_of(device, small)
    if disturbed:
        torch.manual_seed(3)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.0 + 2.0**-24 * torch.randint(-1, 2, p.shape, device=device))
    model = model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = torch.Generator().manual_seed(1)
    losses, times = [], []
    with how:
        for _ in range(steps):
            ids = torch.randint(config.vocab_size, batch, generator=data).to(device)
            started = time.perf_counter()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            if not losses:
                gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())  # waits for the device
            times.append(1e3 * (time.perf_counter() - started))
    return (losses, gradients), statistics.median(times[steps // 4 :])


def measure(device="cuda", small=False):
    steps = 4 if small else 20
    batches = [(2, 32)] if small else [(4, 256), (8, 512)]  # texts, and tokens of each
    return {"steps": steps, "runs": [_run(device, small, batch, steps) for batch in batches]}


def _run(device, small, batch, steps):
    if device == "cuda":
        prepare(model_of(device, small)[1], math.prod(batch))
    run = partial(train, device, small, batch)
    found = compare(run, steps, _difference, device, small)
    found["ms"], results = found.pop("times"), found.pop("results")
    results["PyTorch, disturbed"], _ = run(nullcontext(), steps, disturbed=True)
    found["difference"]["PyTorch, disturbed"] = _difference(results["PyTorch, disturbed"], results["PyTorch"])
    return {
        "batch": batch,
        "compared": "gradients",
        "losses": {name: losses for name, (losses, _) in results.items()},
        **found,
    }


def _difference(result, plain):
    """The difference of the gradients of the first step, relative to their norm."""
    (_, gradients), (_, exact) = result, plain
    return float((gradients.double() - exact.double()).norm() / exact.double().norm())
