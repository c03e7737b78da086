"""An encoder at inference: BERT base."""

from functools import partial

import torch
from transformers import BertConfig, BertModel


def cases(small):
    sequences, tokens = (2, 16) if small else (16, 128)
    return {f"BERT base, inference, {sequences} x {tokens} tokens": partial(_build, small, (sequences, tokens))}


def _build(small, batch, device):
    config = BertConfig(**{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2} if small else {})
    with torch.device(device):
        model = BertModel(config, add_pooling_layer=False).eval()
        ids = torch.randint(config.vocab_size, batch)
    return torch.no_grad()(lambda: model(input_ids=ids).last_hidden_state)
