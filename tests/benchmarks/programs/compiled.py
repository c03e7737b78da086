"""Training a multi-layer perceptron under torch.compile."""

from functools import partial
from itertools import count

import torch
from mlp import LAYERS, trained

APART = True  # what is compiled depends on the switch
_copies = count()


def cases(small):
    width, batches = (64, (16,)) if small else (1024, (64, 256, 2048))
    modes = ("default", "reduce-overhead")
    return {
        f"compiled MLP ({mode}), {width} x {LAYERS}, training, batch {batch}": partial(
            trained, width, batch, partial(_compile, small, mode)
        )
        for mode in modes
        for batch in batches
    }


def _compile(small, mode, model):
    def forward(x):
        return model(x)

    # What was compiled is kept by code object. Another one, so that each kind of products has what is compiled with it.
    forward.__code__ = forward.__code__.replace(co_name=f"forward{next(_copies)}")
    return torch.compile(forward, dynamic=False, **{"backend": "eager"} if small else {"mode": mode})
