"""fastsgemm in PyTorch: an operator, and a switch that makes PyTorch's own products run on fastsgemm.

Importing this module registers ``torch.ops.fastsgemm.sgemm`` and ``grouped_mm``; `fastsgemm.torch.operator` and
`fastsgemm.torch.grouped_operator` describe them. They have gradients of any order, and work in ``torch.compile`` and
``torch.export`` and under ``torch.func``.

`enable` replaces the float32 products of CUDA tensors in the whole process: matrix products, linear layers, einsum, and
their gradients. ``python -m fastsgemm.torch script.py`` does so for an unmodified program.

Examples
--------
>>> import fastsgemm.torch
>>> with fastsgemm.torch.enabled() as switch:          # doctest: +SKIP
...     model(batch).sum().backward()
>>> print(switch.report())                             # doctest: +SKIP
"""

from fastsgemm.errors import MissingExtraError

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":  # PyTorch is installed, but one of its dependencies is not
        raise
    raise MissingExtraError(
        "fastsgemm.torch needs PyTorch 2.6 or later, which is not installed; https://pytorch.org says how"
    ) from None

_OLDEST = (2, 6)
if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
    raise MissingExtraError(f"fastsgemm.torch needs PyTorch 2.6 or later, got {torch.__version__}; update it")

from fastsgemm.torch import grouped_operator as _grouped_operator  # noqa: E402, F401  (registers grouped_mm)
from fastsgemm.torch import operator as _operator  # noqa: E402, F401  (registers sgemm)
from fastsgemm.torch.call_report import Line, Report  # noqa: E402
from fastsgemm.torch.execution import OutOfMemoryError  # noqa: E402
from fastsgemm.torch.kernel_switch import OPERATORS, Switch, disable, enable, enabled, report  # noqa: E402
from fastsgemm.torch.linear import linear_fp32  # noqa: E402

__all__ = [
    "OPERATORS",
    "Line",
    "OutOfMemoryError",
    "Report",
    "Switch",
    "disable",
    "enable",
    "enabled",
    "linear_fp32",
    "report",
]
