"""Generating text token by token with a small Llama and its cache of keys and values; the likeliest token is taken."""

from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
LARGE = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 16384}


def cases(small):
    size, batch, prompt, tokens = (SMALL, 2, 4, 2) if small else (LARGE, 4, 32, 4)
    what = f"Llama, {size['hidden_size']} wide, generating {tokens} tokens after {prompt}, batch {batch}"
    return {what: partial(_build, size, batch, prompt, tokens)}


def _build(size, batch, prompt, tokens, device):
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **size)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
        ids = torch.randint(config.vocab_size, (batch, prompt))

    def generate():
        seen = model(input_ids=ids, use_cache=True)
        for _ in range(tokens):
            following = seen.logits[:, -1:].argmax(-1)
            seen = model(input_ids=following, past_key_values=seen.past_key_values, use_cache=True)
        return seen.logits

    return torch.no_grad()(generate)
