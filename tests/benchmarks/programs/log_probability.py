"""The log-probabilities of given tokens, as reinforcement learning asks for them: a bfloat16 head, float32 logits."""

import torch
from harness import in_turns
from mixture import cast

from fastsgemm import sgemm, split
from fastsgemm.torch import linear_fp32


def measure(device, small, seconds):
    tokens, width, vocabulary = (8, 64, 100) if small else (512, 4096, 151936)
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=device).bfloat16()
    head = (torch.randn(vocabulary, width, device=device) / width**0.5).bfloat16()
    wanted = torch.randint(vocabulary, (tokens, 1), device=device)
    products = {
        "cast to float32": lambda: cast(hidden, head),
        "bfloat16": lambda: (hidden @ head.t()).float(),
        "linear_fp32": lambda: linear_fp32(hidden, head),
    }
    if device == "cuda":
        weight = split(head.t())
        products["split once"] = lambda: sgemm(hidden, weight, precision="fp16x3")

    def pass_of(product):
        with torch.no_grad():
            return product().log_softmax(-1).gather(1, wanted)

    exact = (hidden.double() @ head.double().t()).log_softmax(-1).gather(1, wanted)
    errors = {name: float((pass_of(product) - exact).abs().max()) for name, product in products.items()}
    steps = {name: lambda product=product: pass_of(product) for name, product in products.items()}
    return {"tokens": tokens, "vocabulary": vocabulary, "errors": errors, "ms": in_turns(steps, device, seconds)}
