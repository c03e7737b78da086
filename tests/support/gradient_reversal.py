"""A function of autograd that returns its input, and whose backward is its own. It needs PyTorch."""

import torch


class Reversed(torch.autograd.Function):
    """Gradient reversal, as tensor-parallel copy regions have: it returns its input."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -0.3 * gradient
