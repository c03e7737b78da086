"""What an overridden operator does with operands like these: multiply them, or pass the call on, and why.

A decision depends only on the shapes, strides, dtypes and devices of the operands. So it is made at the first call with
such operands, and each later one is a look-up. All conditions that decide whether a call is replaced are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastsgemm.call.arrays import HOST, Meta
from fastsgemm.problem import MAX_EXTENT

TF32 = "TF32 is allowed"
OVERLAP = "the output shares memory with an operand"
CAPTURE = "first call of this problem, inside a CUDA graph capture"
SCALAR = "alpha or beta is no float32 number"
NO_MEMORY = "an operand without memory"


_NO_META: Meta = ((), (), HOST, None, False)  # of a call that is passed on


class Decision:
    """What is done with operands like these.

    Attributes
    ----------
    problem : str
        Their shapes, for the report.
    flops : int
        Of one call.
    reason : str
        Why the call is passed on; empty if it is replaced.
    ordinal : int
        The number of the device, or `HOST`.
    gpu : Gpu or None
        The device; None for the host, and before the first call.
    plan : Plan or None
        What is launched; None for the host, and before the first call.
    a, b, c : Meta
        What `fastsgemm.call` needs to know of A, B and C beside their addresses.
    shape, strides : tuple of int
        Of a new result.
    calls : int
        How many calls came to this end. Threads that count at the same time may lose one.
    other_ends : dict
        How many calls had another end, by reason: those that depend on more than the operands' kinds.
    """

    __slots__ = (
        *("a", "b", "c", "shape", "strides", "gpu", "plan", "ordinal"),
        *("problem", "flops", "reason", "calls", "other_ends"),
    )

    def __init__(self, problem: str, flops: int = 0, reason: str = "") -> None:
        self.problem, self.flops, self.reason = problem, flops, reason
        self.calls = 0
        self.other_ends: dict[str, int] = {}
        self.gpu: Any = None
        self.plan: Any = None
        self.ordinal = HOST
        self.a = self.b = self.c = _NO_META
        self.shape: tuple[int, ...] = ()
        self.strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kind:
    """How an operator's operands are matrices.

    Attributes
    ----------
    name : str
        The operator, without its form.
    dimensions : (int, int, int)
        Of A, B and the result.
    """

    name: str
    dimensions: tuple[int, int, int]

    def matrices(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        """Return A, B and C with two dimensions each, as views of the same memory.

        `a`, `b` and `c` are (shape, strides). A vector is a column, that of a dot product's left side a row.
        """
        if self.dimensions == (2, 1, 1):
            return a, _column(b), _column(c)
        if self.dimensions == (1, 1, 0):
            return ((1, *a[0]), (0, *a[1])), _column(b), ((1, 1), (1, 1))
        if self.dimensions == (3, 3, 3):
            a, b, c = ((shape[1:], strides[1:]) for shape, strides in (a, b, c))
        return a, b, c


def _column(x: Any) -> Any:
    return (*x[0], 1), (*x[1], 1)


MATRICES = (2, 2, 2)
BATCHES = (3, 3, 3)


def make(kind: Kind, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None) -> Decision:
    """Return the decision of a call.

    Parameters
    ----------
    kind : Kind
    a, b : Tensor
        The factors.
    c : Tensor, optional
        What is added, or None for an operator that adds nothing.
    out : Tensor, optional
        What is written, or None for a new tensor. It is `c` for the form in place.
    """
    given = [x for x in (a, b, c, out) if x is not None]
    reason = _of_types(given)
    if reason:
        return Decision(" and ".join(str(x.dtype).removeprefix("torch.") for x in given[:2]), 0, reason)
    problem = " x ".join(_shown(x) for x in (a, b))
    shape = _result_shape(kind, a, b)
    if shape is None:
        return Decision(problem, 0, "shapes that do not fit, which PyTorch refuses")
    flops = 2 * a.numel() * (shape[-1] if len(shape) > 1 else 1)
    reason = _of_shapes(kind, shape, a, b, c, out)
    if reason:
        return Decision(problem, flops, reason)
    decision = Decision(problem, flops)
    decision.shape, decision.strides = shape, _row_major(shape)
    decision.ordinal = ordinal = a.get_device()
    written = (shape, decision.strides) if out is None else (tuple(out.shape), out.stride())
    metas = kind.matrices((a.shape, a.stride()), (b.shape, b.stride()), written)
    decision.a, decision.b, decision.c = ((tuple(s), tuple(t), ordinal, None, False) for s, t in metas)
    return decision


def _of_types(given: list[Tensor]) -> str:
    for x in given:
        if x.dtype is not torch.float32:
            return f"dtype {str(x.dtype).removeprefix('torch.')}"
        if x.layout is not torch.strided:
            return f"layout {x.layout}"
    if len({x.device for x in given}) > 1:
        return "operands on different devices, which PyTorch refuses"
    return ""


def _of_shapes(kind: Kind, shape: tuple[int, ...], a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None) -> str:
    if 0 in (*a.shape, *b.shape):
        return "an empty operand"
    if max(*a.shape, *b.shape) > MAX_EXTENT:
        return f"an extent above {MAX_EXTENT}"
    if kind.dimensions == BATCHES and shape[0] != 1:
        return "a batch"
    if out is not None and out.shape != shape:
        return "the output must be resized"
    if c is not None and c is not out:
        try:
            c.expand(shape)
        except RuntimeError:
            return "shapes that do not fit, which PyTorch refuses"
    return ""


def _result_shape(kind: Kind, a: Tensor, b: Tensor) -> tuple[int, ...] | None:
    """Return the shape of the product, or None if there is none."""
    if (a.dim(), b.dim()) != kind.dimensions[:2]:
        return None
    if kind.dimensions == (1, 1, 0):
        return () if a.shape == b.shape else None
    if kind.dimensions == (2, 1, 1):
        return (a.shape[0],) if a.shape[1] == b.shape[0] else None
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return None
    return (*a.shape[:-1], b.shape[-1])


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _shown(x: Tensor) -> str:
    return "(" + ", ".join(map(str, x.shape)) + ")"
