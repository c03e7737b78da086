"""Serve a layer: compile before the first request, and split a weight once for `precision="fp16x3"`."""

import numpy as np

import fastsgemm

INPUTS, OUTPUTS = 256, 192
BATCHES = [1, 8, 32]  # the numbers of rows that requests have

try:
    import torch

    on_device = torch.cuda.is_available()
except ImportError:
    on_device = False

generator = np.random.default_rng(0)


def array(*shape):
    """Return random float32 numbers, on the device if PyTorch can use one."""
    values = generator.standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(values).cuda() if on_device else values


weight = array(INPUTS, OUTPUTS)

# Before the first request: the kernels for every number of rows. Without a GPU there is nothing to load.
if on_device:
    print(fastsgemm.prepare(BATCHES, OUTPUTS, INPUTS))

# Requests.
for rows in (8, 1, 32, 8):
    x = array(rows, INPUTS)
    y = fastsgemm.sgemm(x, weight)
    assert abs(y - x @ weight).max() < 1e-3

# With a bias, which the kernel reads where it lies while it writes y.
bias = array(OUTPUTS)
x, y = array(32, INPUTS), array(32, OUTPUTS)
if on_device:
    print(fastsgemm.prepare(32, OUTPUTS, INPUTS, source="row"))
fastsgemm.sgemm(x, weight, 1.0, 1.0, bias, out=y)
assert abs(y - (x @ weight + bias)).max() < 1e-3

# With tensor cores: the weight is split into FP16 pairs once, and each request splits its input only.
if on_device:
    print(fastsgemm.prepare(32, OUTPUTS, INPUTS, precision="fp16x3", split="B"))
    split = fastsgemm.split(weight)
    x = array(32, INPUTS)
    y = fastsgemm.sgemm(x, split, precision="fp16x3")
    assert abs(y.double() - x.double() @ weight.double()).max() < 1e-3
    print("the same with a split weight")
