"""A decoder in bfloat16, in one order of summation: which logits depend on the batch, and what a step takes.

Attention is eager, so that every product is one that the switch replaces. The rest, such as norms and the softmax of
attention, is PyTorch's, and must not depend on the batch either.
"""

import statistics
from contextlib import nullcontext

import torch
from harness import TURNS, WARM_UP, turns, wall_ms
from transformers import LlamaConfig, LlamaForCausalLM

import fastsgemm.torch

SEQUENCES = 32
LENGTHS = (1, 7, 16, 100, 128)  # tokens of the sequences whose logits are compared
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96, "heads": 4}
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "vocab_size": 32000, "heads": 16}


def model_of(size, device):
    heads = size["heads"]
    options = {name: value for name, value in size.items() if name != "heads"}
    config = LlamaConfig(num_attention_heads=heads, num_key_value_heads=heads, **options)
    config._attn_implementation = "eager"
    with torch.device(device):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def measure(device, small, seconds):
    torch.manual_seed(0)
    size, tokens = (SMALL, 8) if small else (LARGE, 128)
    model = model_of(size, device).eval()
    ids = torch.randint(size["vocab_size"], (SEQUENCES, tokens), device=device)
    ways = {"PyTorch": nullcontext, "null": nullcontext, "one order": lambda: in_order(device)}

    def forward(ids):
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits

    def train(ids):
        model.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    lengths = [length for length in LENGTHS if length <= tokens]
    differing, elements, passed_on = {}, 0, []
    for name, way in ways.items():
        with way() as switch:
            pairs = [(forward(ids[:, :n])[5], forward(ids[5:6, :n])[0]) for n in lengths]
        differing[name] = sum(int((among != alone).sum()) for among, alone in pairs)
        elements = sum(among.numel() for among, _ in pairs)
        if switch is not None:
            passed_on = sorted({f"{line.operator}: {line.reason}" for line in switch.report().passed_on})
    steps = {
        f"forward, {SEQUENCES} x {tokens} tokens": lambda: forward(ids),
        f"forward, 1 x {tokens} tokens": lambda: forward(ids[:1]),
        f"forward, {SEQUENCES} x 1 token": lambda: forward(ids[:, :1]),
        f"training, 8 x {tokens} tokens": lambda: train(ids[:8]),
    }
    return {
        "what": f"Llama, {size['hidden_size']} wide, {size['num_hidden_layers']} layers",
        "sequences": SEQUENCES,
        "tokens": tokens,
        "lengths": lengths,
        "elements": elements,
        "differing": differing,
        "passed_on": passed_on,
        "ms": {what: times_of(step, ways, device, seconds / len(steps)) for what, step in steps.items()},
    }


def in_order(device):
    return fastsgemm.torch.enabled("fp16x3", batch_invariant=True, device=device)


def times_of(step, ways, device, seconds):
    """Return the median time of a step in each way, in ms; ways take turns."""
    for way in ways.values():
        with way():
            step()
    first_ms = wall_ms(step, 1, device)
    repeated = max(1, round(1e3 * seconds / (TURNS * len(ways)) / first_ms))
    times = {name: [] for name in ways}
    for turn in turns(TURNS, list(ways)):
        for name in turn:
            with in_order(device):  # turning the switch leaves the host's caches cold
                pass
            with ways[name]():
                for _ in range(WARM_UP):
                    step()
                times[name].append(wall_ms(step, repeated, device))
    return {name: statistics.median(each) for name, each in times.items()}
