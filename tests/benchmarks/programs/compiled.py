"""Training a multi-layer perceptron under torch.compile, with a fixed batch and with batches of changing sizes."""

from functools import partial
from itertools import count

import torch
from harness import training
from mlp import LAYERS, perceptron, trained

APART = True  # what is compiled depends on the switch
_copies = count()


def cases(small):
    width, batches, sizes = (64, (16, 16), (8, 12, 10)) if small else (1024, (64, 512), (200, 300, 250))
    modes = ("default", "reduce-overhead")
    what = f"compiled MLP, {width} x {LAYERS}, training, dynamic batches {', '.join(map(str, sizes))}"
    return {
        f"compiled MLP ({mode}), {width} x {LAYERS}, training, batch {batch}": partial(
            trained, width, batch, partial(_compile, small, mode, False)
        )
        for mode, batch in zip(modes, batches, strict=True)
    } | {what: partial(_dynamic, small, width, sizes)}


def _dynamic(small, width, sizes, device):
    """Return a step that trains on batches of some sizes one after the other, by one compiled function."""
    with torch.device(device):
        model = perceptron(width)
        pairs = [torch.randn(2, size, width) for size in sizes]
    called = _compile(small, "default", True, model)
    steps = [training(model, lambda x=x, wanted=wanted: (called(x) - wanted).square().mean()) for x, wanted in pairs]

    def step():
        for one in steps:
            one()
        return model

    return step


def _compile(small, mode, dynamic, model):
    def forward(x):
        return model(x)

    # What was compiled is kept by code object. Another one, so that each kind of products has what is compiled with it.
    forward.__code__ = forward.__code__.replace(co_name=f"forward{next(_copies)}")
    return torch.compile(forward, dynamic=dynamic, **{"backend": "eager"} if small else {"mode": mode})
