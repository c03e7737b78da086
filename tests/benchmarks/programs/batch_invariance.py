"""The logits of one prompt, alone and among 63 others: in how many elements they differ."""

from contextlib import nullcontext

import gpt2
import torch

import fastsgemm.torch


def logits(model, ids, how):
    with torch.no_grad(), how:
        return model(input_ids=ids).logits


def measure(device="cuda", small=False):
    model, config = gpt2.model_of(small)
    model = model.to(device).eval()
    tokens, generator = 16 if small else 64, torch.Generator().manual_seed(2)
    ids = torch.randint(config.vocab_size, (64, tokens), generator=generator).to(device)
    found = {"prompts": 64, "tokens": ids.shape[1], "differing": {}, "largest": {}}
    cases = {"PyTorch": lambda: nullcontext()}
    for precision in ("ieee", "fp16x3"):
        for invariant in (False, True):
            name = precision + (", batch-invariant" if invariant else "")
            cases[name] = lambda p=precision, i=invariant: fastsgemm.torch.enabled(p, i, device=device)
    for name, how in cases.items():
        try:
            among = logits(model, ids, how())[0]
            alone = logits(model, ids[:1], how())[0]
        except fastsgemm.FastsgemmError as error:
            found["differing"][name] = str(error)
            continue
        found["differing"][name] = int((among != alone).sum())
        found["largest"][name] = float((among - alone).abs().max() / alone.abs().max())
    found["elements"] = alone.numel()
    return found
