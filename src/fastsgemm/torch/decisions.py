"""Decides whether an overridden operator multiplies its operands or passes the call on, and why.

A decision depends only on the shapes, strides, dtypes and devices of the operands, so it is made at the first such
call, and later calls look it up. All conditions that decide whether a call is replaced are here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import prod

import torch
from torch import Tensor

from fastsgemm.call.arrays import HOST
from fastsgemm.call.driver import LoadedPlan
from fastsgemm.call.grouped import result_shape
from fastsgemm.errors import ShapeError
from fastsgemm.geometry.layout import Meta, row_major
from fastsgemm.geometry.variants import problem_of
from fastsgemm.problem import MAX_EXTENT, format_problem
from fastsgemm.torch.execution import DTYPES, meta

HALVES = torch.bfloat16, torch.float16
TF32 = "TF32 is allowed"
OVERLAP = "the output shares memory with an operand"
SCALAR = "alpha or beta is no float32 number"
NO_MEMORY = "an operand without memory"


@dataclass(eq=False, slots=True)
class Decision:
    """What is done with operands of these shapes, strides, dtypes and devices."""

    problem: str  # their shapes, for the report
    size: str = ""  # as commands take it
    flops: int = 0  # of one call
    reason: str = ""  # why the call is passed on; empty if it is replaced
    ordinal: int = HOST
    # Of A, B, the output and, where it is a separate tensor, C: everything but their addresses.
    metas: tuple[Meta, ...] = ()
    shape: tuple[int, ...] = ()  # of a new result
    dtype: torch.dtype = torch.float32  # of the result
    plan: LoadedPlan | None = None  # what is launched; None for the host, and before the first call
    number: int = 0  # among the decisions of its override
    # Numbers of calls by reason and note. The usual reason is the decision's own; others depend on more than what the
    # decision knows. Threads that count at the same time may lose a call.
    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)

    def count(self, reason: str, note: str = "", calls: int = 1) -> None:
        """Count calls that were passed on for this reason or, if it is empty, computed, with a note on how."""
        if calls:
            self.outcomes[reason, note] = self.outcomes.get((reason, note), 0) + calls


@dataclass(frozen=True)
class Operation:
    """What an operator multiplies."""

    name: str  # the operator's, without its form
    dimensions: tuple[int, int]  # of A and B
    adds: bool = False  # whether it adds beta * C


def make(
    operation: Operation,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    out: Tensor | None,
    result: torch.dtype | None = None,
    rounds: bool = False,
) -> Decision:
    """Return the decision on a call with factors A and B, addend C and an output, which may be a new tensor.

    `c` is None for an operator that adds nothing, and `out` for a new tensor. If both are the same memory, C is updated
    in place. `result` is the requested dtype of the product of two factors of one 16-bit type, which is theirs only if
    results may be rounded, `rounds`; None for float32 factors.
    """
    operands = [x for x in (a, b, c, out) if x is not None]
    reason = _of_types(operands, result, rounds)
    if reason:
        return Decision(" and ".join(_name(x.dtype) for x in operands[:2]), reason=reason)
    problem = " x ".join(_format_shape(x) for x in (a, b))
    shape = _result_shape(operation, a, b)
    if shape is None:
        return Decision(problem, reason="shapes that do not fit, which PyTorch refuses")
    flops = 2 * a.numel() * (shape[-1] if b.dim() > 1 else 1)
    reason = _of_shapes(shape, a, b, c, out)
    if reason:
        return Decision(problem, flops=flops, reason=reason)
    dtype = torch.float32 if result is None else result
    written = Meta(shape, row_major(shape), DTYPES[dtype], a.get_device()) if out is None else meta(out)
    separate_c = [c] if c is not None and (out is None or not same(c, out)) else []
    metas = (meta(a), meta(b), written, *map(meta, separate_c))
    size = format_problem(problem_of(metas[:3], same(a, b.mT) if a.dim() == b.dim() == 2 else False))
    return Decision(problem, size, flops, ordinal=a.get_device(), metas=metas, shape=shape, dtype=dtype)


def of_groups(
    operation: Operation, a: Tensor, b: Tensor, offsets: Tensor | None, bias: Tensor | None,
    result: torch.dtype | None, tensor_core_order: bool,
) -> Decision:  # fmt: skip
    """Return the decision on a call of ``_grouped_mm``, whose groups of rows, columns or k end at the offsets."""
    reason = _of_types([a, b], None if result is torch.float32 else result, rounds=False)
    if reason:
        return Decision(" and ".join(_name(x.dtype) for x in (a, b)), reason=reason)
    problem = " x ".join(_format_shape(x) for x in (a, b))
    if offsets is not None:
        problem += f" in {offsets.numel()} groups"
    if bias is not None:
        return Decision(problem, reason="a bias")
    shape = _shape_of_groups(operation, a, b, offsets)
    if shape is None:
        return Decision(problem, reason="operands that PyTorch refuses")
    flops = 2 * prod((*a.shape[-2:], b.shape[-1])) * (1 if len(shape) == 2 or offsets is not None else shape[0])
    reason = _of_shapes(shape, a, b, None, None)
    if tensor_core_order and offsets is not None and not reason:
        reason = "the order on tensor cores, which the products of single groups have"
    if reason:
        return Decision(problem, flops=flops, reason=reason)
    row = -(-shape[-1] // 4) * 4  # PyTorch's results have rows of whole 16 bytes
    strides = (shape[-2] * row, row, 1)[-len(shape) :]
    metas = (meta(a), meta(b), Meta(shape, strides, DTYPES[torch.float32], a.get_device()))
    size = format_problem(problem_of(metas, False)) if offsets is None else ""
    return Decision(problem, size, flops, ordinal=a.get_device(), metas=metas, shape=shape)


def _shape_of_groups(operation: Operation, a: Tensor, b: Tensor, offsets: Tensor | None) -> tuple[int, ...] | None:
    """Return the shape of a grouped product, or None if PyTorch refuses the operands."""
    if not all(x.dim() in (2, 3) and _is_aligned(x) for x in (a, b)):
        return None
    if offsets is None:
        return _result_shape(operation, a, b)
    if offsets.dim() != 1 or offsets.dtype is not torch.int32 or offsets.device != a.device:
        return None
    try:
        return result_shape(a.shape, b.shape, len(offsets))[1]
    except ShapeError:
        return None


def _is_aligned(x: Tensor) -> bool:
    """Return whether the lines of matrices are contiguous, and multiples of 16 bytes apart."""
    strides, shape = x.stride()[-2:], x.shape[-2:]
    return any(strides[1 - d] == 1 and strides[d] >= max(1, shape[1 - d]) and strides[d] % 4 == 0 for d in (0, 1))


def same(c: Tensor, out: Tensor) -> bool:
    """Return whether two tensors are the same elements in memory."""
    return c is out or (c.data_ptr() == out.data_ptr() and c.stride() == out.stride() and c.shape == out.shape)


def of_fp32_precision(precision: str, ordinal: int, ours: str) -> tuple[str, str]:
    """Return why a call under this ``fp32_precision`` setting is passed on, or else the note to count it with.

    PyTorch is left to honour the setting. But "bfx9", cuBLAS's emulation of float32 on BF16 tensor cores, exists on
    compute capability 10.x only; elsewhere PyTorch computes float32. `ours` is fastsgemm's precision.
    """
    if precision == "tf32":
        return TF32, ""
    if precision == "bfx9" and not _emulates(ordinal):
        return "", f"fp32_precision 'bfx9' needs compute capability 10.x; computed with precision {ours!r}"
    return f"fp32_precision is {precision!r}", ""


@cache
def _emulates(ordinal: int) -> bool:
    return ordinal != HOST and torch.cuda.get_device_capability(ordinal)[0] == 10


def _of_types(operands: list[Tensor], result: torch.dtype | None, rounds: bool) -> str:
    if result not in (None, torch.float32) and not (rounds and result is operands[0].dtype):
        return f"out_dtype {_name(result)}"
    if operands[0].dtype is not operands[1].dtype and result is not None:
        return "factors of two dtypes, which PyTorch refuses"
    for index, x in enumerate(operands):
        if x.dtype not in ((result or torch.float32,) if result is None or index > 1 else HALVES):
            return f"dtype {_name(x.dtype)}"
        if x.layout is not torch.strided:
            return f"layout {x.layout}"
    if len({x.device for x in operands}) > 1:
        return "operands on different devices, which PyTorch refuses"
    return ""


def _of_shapes(shape: tuple[int, ...], a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None) -> str:
    if 0 in (*a.shape, *b.shape):
        return "an empty operand"
    if max(*a.shape, *b.shape) > MAX_EXTENT:
        return f"an extent above {MAX_EXTENT}"
    if out is not None and out.shape != shape:
        return "the output must be resized"
    if c is not None and c is not out:
        try:
            c.expand(shape)
        except RuntimeError:
            return "shapes that do not fit, which PyTorch refuses"
    return ""


def _result_shape(operation: Operation, a: Tensor, b: Tensor) -> tuple[int, ...] | None:
    """Return the shape of the product, or None if the operands do not fit."""
    if (a.dim(), b.dim()) != operation.dimensions or a.shape[:-2] != b.shape[:-2]:
        return None
    if a.shape[-1] != b.shape[-2 if b.dim() > 1 else 0]:
        return None
    return (*a.shape[:-1], *(b.shape[-1:] if b.dim() > 1 else ()))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _format_shape(x: Tensor) -> str:
    return "(" + ", ".join(map(str, x.shape)) + ")"
