"""`linear_fp32`: a linear layer whose result is float32, with float32's accuracy, whatever its operands are."""

from __future__ import annotations

import torch
from torch import Tensor

from fastsgemm.torch import sharding
from fastsgemm.torch.execution import DTYPES
from fastsgemm.torch.operator import LIBRARY  # noqa: F401  (the operator is registered)

_sgemm = torch.ops.fastsgemm.sgemm.default


def linear_fp32(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, precision: str = "fp16x3") -> Tensor:
    """Return x @ weight.T + bias as float32: for router gates, and heads whose logits must not be rounded to 16 bits.

    ``torch.nn.functional.linear(x.float(), weight.float(), bias.float())`` without the casts. Gradients have the types
    of the operands; those of `x` and `weight` are computed in the same precision, and rounded once.

    Parameters
    ----------
    x : Tensor, shape (..., K)
        float32, bfloat16 or float16.
    weight : Tensor, shape (N, K)
        float32, bfloat16 or float16, independent of `x`.
    bias : Tensor, shape (N,), optional
        float32, bfloat16 or float16.
    precision : str
        As in `fastsgemm.sgemm`.

    Returns
    -------
    Tensor, shape (..., N), float32

    Raises
    ------
    RuntimeError
        PyTorch would refuse the operands; see `fastsgemm.torch.operator`.

    Examples
    --------
    >>> gate = fastsgemm.torch.linear_fp32(hidden, router.weight)  # doctest: +SKIP
    """
    if type(x) is not Tensor:  # in inference mode DTensor is dispatched before our autograd kernel
        sharding.register()
    rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)  # without -1: K may be 0
    if bias is None:
        result = _sgemm(rows, weight.mT, precision=precision)
    else:
        if bias.dtype not in DTYPES or bias.shape != weight.shape[:1]:
            raise RuntimeError(
                f"linear_fp32: bias must have shape {tuple(weight.shape[:1])} and be torch.float32, torch.bfloat16 or "
                f"torch.float16, got shape {tuple(bias.shape)} and {bias.dtype}"
            )
        added = bias.float().expand(rows.shape[0], weight.shape[0])
        result = _sgemm(rows, weight.mT, 1.0, 1.0, added, precision=precision)
    return result.reshape(*x.shape[:-1], weight.shape[0])
