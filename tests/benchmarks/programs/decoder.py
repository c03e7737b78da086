"""Training a decoder that is wider than GPT-2 (124M) and has half its layers."""

from functools import partial

from gpt2 import SMALL, trained


def cases(small):
    size = SMALL if small else {"n_embd": 1024, "n_layer": 6, "n_head": 16}
    sequences, tokens = (2, 16) if small else (2, 256)
    what = f"decoder, {size['n_embd']} wide, {size['n_layer']} layers, training, {sequences} x {tokens} tokens"
    return {what: partial(trained, size, (sequences, tokens))}
