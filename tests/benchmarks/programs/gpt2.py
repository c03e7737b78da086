"""Training GPT-2 (124M)."""

from functools import partial

import torch
from harness import training
from transformers import GPT2Config, GPT2LMHeadModel

SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512}


def cases(small):
    batches = [(2, 32)] if small else [(2, 256)]
    size = SMALL if small else {}
    return {f"GPT-2 (124M), training, {b} x {t} tokens": partial(trained, size, (b, t)) for b, t in batches}


def model_of(size, device):
    """Return a model with random weights and without dropout."""
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **size)
    with torch.device(device):
        return GPT2LMHeadModel(config)


def trained(size, batch, device):
    """Return a training step of a model of this size on random tokens."""
    model = model_of(size, device)
    ids = torch.randint(model.config.vocab_size, batch, device=device)
    return training(model, lambda: model(input_ids=ids, labels=ids).loss)
