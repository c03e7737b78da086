"""The logits of one prompt, alone and among 63 others: in how many elements they differ.

What PyTorch does between the products, such as normalization and attention, must not depend on the batch either.
"""

from contextlib import nullcontext

import gpt2
import torch

import fastsgemm.torch


def logits(model, ids, how):
    with torch.no_grad(), how:
        return model(input_ids=ids).logits


def measure(device, small, seconds):
    torch.manual_seed(0)
    model = gpt2.model_of(gpt2.SMALL if small else {}, device).eval()
    ids = torch.randint(model.config.vocab_size, (64, 16 if small else 64), device=device)
    found = {"prompts": 64, "tokens": ids.shape[1], "differing": {}, "largest": {}}
    enabled = fastsgemm.torch.enabled
    cases = {
        "PyTorch": nullcontext,
        "ieee": lambda: enabled(device=device),
        "fp16x3": lambda: enabled("fp16x3", device=device),
        "ieee, batch-invariant": lambda: enabled(batch_invariant=True, device=device),
    }
    for name, how in cases.items():
        among = logits(model, ids, how())[0]
        alone = logits(model, ids[:1], how())[0]
        found["differing"][name] = int((among != alone).sum())
        found["largest"][name] = float((among - alone).abs().max() / alone.abs().max())
    found["elements"] = alone.numel()
    return found
