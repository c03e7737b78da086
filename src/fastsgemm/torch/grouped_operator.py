"""The operator ``torch.ops.fastsgemm.grouped_mm(A, B, offsets, alpha=1, beta=0, C=None, *, precision, ...)``.

It does what `fastsgemm.grouped_mm` does, and returns a new row-major tensor and leaves C as it is. Rows or columns that
belong to no group are those of C, or zero without C, so that gradients there are defined. Whatever PyTorch would refuse
raises RuntimeError. It is registered as `fastsgemm.torch.operator` is, and its gradients are products of groups, too,
so they have gradients of every order. They have the types of the operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastsgemm.call import checks
from fastsgemm.call.arrays.library import IN_TRACE, wrong_dtype
from fastsgemm.call.arrays.torch import freed
from fastsgemm.call.grouped import KINDS
from fastsgemm.errors import FastsgemmError, OperandError
from fastsgemm.heuristics.choice import check_grouped
from fastsgemm.problem import Ragged
from fastsgemm.request import Request, of_call, resolve
from fastsgemm.torch import execution
from fastsgemm.torch.operator import (
    LIBRARY,
    LinearInEach,
    apply,
    below_autograd,
    check_type,
    check_written,
    compute,
    is_tracked,
    require,
)

LIBRARY.define(
    "grouped_mm(Tensor A, Tensor B, Tensor offsets, Scalar alpha=1, Scalar beta=0, Tensor? C=None, *, "
    "str? precision=None, bool batch_invariant=False) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_grouped_mm = torch.ops.fastsgemm.grouped_mm.default


def _ragged(A: Tensor, B: Tensor) -> Ragged | None:
    return KINDS.get((A.dim(), B.dim()))


def _shape(
    A: Tensor, B: Tensor, offsets: Tensor, beta: float, C: Tensor | None, options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the shape of the result, which may have symbols, or raise RuntimeError as PyTorch would."""
    ragged, a, b = _ragged(A, B), A.shape, B.shape
    require(
        ragged is not None,
        lambda: f"grouped_mm: A and B must have 2 or 3 dimensions, not both 3, got {A.dim()} and {B.dim()}",
    )
    require(offsets.dim() == 1, lambda: f"grouped_mm: offsets must have 1 dimension, got {offsets.dim()}")
    integers = offsets.dtype in (torch.int32, torch.int64)
    require(integers, lambda: f"grouped_mm: offsets must be int32 or int64, got {offsets.dtype}")
    require(a[-1] == b[-2], lambda: f"grouped_mm: A's columns must equal B's rows, got A {tuple(a)}, B {tuple(b)}")
    groups = offsets.shape[0]
    for name, x in (("A", A), ("B", B)):
        message = f"grouped_mm: {name} must have a matrix for each of the {groups} groups, got {tuple(x.shape)}"
        require(x.dim() == 2 or x.shape[0] == groups, lambda message=message: message)
    for name, x in (("A", A), ("B", B), ("offsets", offsets)):
        _check_operand(name, x, A, options)
    shape = (groups, a[-2], b[-1]) if ragged is Ragged.K else (a[-2], b[-1])
    if C is None:
        require(beta == 0.0, lambda: f"grouped_mm: beta must be 0 when C is not given, got {beta}")
        return shape
    _check_operand("C", C, A, options)
    fits = len(C.shape) == len(shape)
    for mine, given in zip(shape, C.shape, strict=False):
        require(fits and mine == given, lambda: f"grouped_mm: C must have shape {shape}, got {tuple(C.shape)}")
    return shape


def _check_operand(name: str, x: Tensor, A: Tensor, options: Mapping[str, Any]) -> None:
    if name != "offsets" and x.dtype is not torch.float32:
        check_type("grouped_mm", name, x.dtype, options)
    require(
        x.device == A.device,
        lambda: f"grouped_mm: all operands must be on {A.device} as A is, {name} is on {x.device}",
    )


def _product(
    A: Tensor, B: Tensor, offsets: Tensor, alpha: float = 1.0, beta: float = 0.0, C: Tensor | None = None,
    **options: Any,
) -> Tensor:  # fmt: skip
    shape = _shape(A, B, offsets, beta, C, options)
    request = _request(options)
    try:
        alpha, beta = execution.scalar("alpha", alpha), execution.scalar("beta", beta)
        for name, x in (("A", A), ("B", B), ("offsets", offsets), ("C", A if C is None else C)):
            if freed(x, x.data_ptr()):
                raise RuntimeError(f"grouped_mm: {name} has no memory: it was freed")
        if not (A.numel() and B.numel()):
            if C is None:
                return A.new_zeros(shape, dtype=torch.float32)
            return _scaled(C, _ragged(A, B), offsets, beta).contiguous()
        if C is None:
            made = A.new_empty if _ragged(A, B) is Ragged.K else A.new_zeros
            result = made(shape, dtype=torch.float32)
        else:
            result = C.clone(memory_format=torch.contiguous_format)
        if result.numel():
            execution.multiply_groups(A, B, offsets, alpha, beta, request, result)
    except FastsgemmError as error:
        shapes = f"grouped_mm of {tuple(A.shape)} and {tuple(B.shape)} on {A.device}"
        raise execution.add_product(error, shapes) from error
    return result


def _fake(
    A: Tensor, B: Tensor, offsets: Tensor, alpha: float = 1.0, beta: float = 0.0, C: Tensor | None = None,
    **options: Any,
) -> Tensor:  # fmt: skip
    _request(options)
    return A.new_empty(_shape(A, B, offsets, beta, C, options), dtype=torch.float32)


def _request(options: Mapping[str, Any]) -> Request:
    request = of_call(resolve(**options), output="the result")
    check_grouped(request)
    return request


def _scaled(x: Tensor, ragged: Ragged | None, offsets: Tensor, beta: float) -> Tensor:
    """Return beta * x in the groups, and x elsewhere."""
    if ragged is Ragged.K:
        return beta * x
    if beta == 1.0 or not offsets.shape[0]:
        return x.clone()
    place = torch.arange(x.shape[0 if ragged is Ragged.ROWS else 1], device=x.device)
    inside = place < offsets.amax()  # an offset below the one before counts as that one
    return torch.where(inside.unsqueeze(1) if ragged is Ragged.ROWS else inside, beta * x if beta else 0.0, x)


class _Differentiable(LinearInEach):
    """A and B are divided alike in a product and in its gradients, whatever is ragged."""

    @staticmethod
    def forward(
        A: Tensor, B: Tensor, offsets: Tensor, alpha: float, beta: float, C: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        return compute(_grouped_mm, A, B, offsets, alpha, beta, C, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, B, offsets, ctx.alpha, ctx.beta, _, ctx.options = inputs
        ctx.ragged, ctx.shape, ctx.dtypes = _ragged(A, B), output.shape, (A.dtype, B.dtype)
        of_a, of_b, *_ = ctx.needs_input_grad  # the gradient of one factor needs the other
        ctx.save_for_backward(A if of_b else None, B if of_a else None, offsets)
        ctx.save_for_forward(A, B, offsets)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        A, B, offsets = ctx.saved_tensors
        of_a, of_b, *_, of_c, _ = ctx.needs_input_grad
        a = _grouped_mm(gradient, B.mT, offsets, ctx.alpha, **ctx.options).to(ctx.dtypes[0]) if of_a else None
        b = _grouped_mm(A.mT, gradient, offsets, ctx.alpha, **ctx.options).to(ctx.dtypes[1]) if of_b else None
        return a, b, None, None, None, _scaled(gradient, ctx.ragged, offsets, ctx.beta) if of_c else None, None

    @staticmethod
    def jvp(
        ctx: Any, a: Tensor | None, b: Tensor | None, ends: None, alpha: None, beta: None, c: Tensor | None, *_: None
    ) -> Any:
        A, B, offsets = ctx.saved_tensors
        parts = [] if c is None else [_scaled(c, ctx.ragged, offsets, ctx.beta)]
        if a is not None:
            parts.append(_grouped_mm(a, B, offsets, ctx.alpha, **ctx.options))
        if b is not None:
            parts.append(_grouped_mm(A, b, offsets, ctx.alpha, **ctx.options))
        return sum(parts[1:], parts[0]) if parts else A.new_zeros(ctx.shape, dtype=torch.float32)


def _with_gradient(
    A: Tensor, B: Tensor, offsets: Tensor, alpha: float = 1.0, beta: float = 0.0, C: Tensor | None = None,
    **options: Any,
) -> Tensor:  # fmt: skip
    if is_tracked(A, B, C):
        return apply(_Differentiable, A, B, offsets, alpha, beta, C, options)
    return below_autograd(_grouped_mm, A, B, offsets, alpha, beta, C, **options)


def _batched(info: Any, batch_dims: tuple[int | None, ...], *operands: Any, **options: Any) -> tuple[Tensor, int]:
    """The rule of `torch.func.vmap`: a product after the other."""

    def product(i: int) -> Tensor:
        given = [
            x if dim is None else x.select(dim, i) if info.batch_size else x.new_zeros(x.movedim(dim, 0).shape[1:])
            for x, dim in zip(operands, batch_dims, strict=False)
        ]
        return _grouped_mm(*given, **options)

    return torch.stack([product(i) for i in range(max(1, info.batch_size))])[: info.batch_size], 0


LIBRARY.impl("grouped_mm", _product, "CPU")
LIBRARY.impl("grouped_mm", _product, "CUDA")
LIBRARY.impl("grouped_mm", _with_gradient, "Autograd")
torch.library.register_fake("fastsgemm::grouped_mm", _fake, lib=LIBRARY)
torch.library.register_vmap("fastsgemm::grouped_mm", _batched, lib=LIBRARY)


def in_trace(
    A: Any, B: Any, offsets: Any, alpha: Any, beta: Any, C: Any, precision: Any, batch_invariant: Any, stream: Any,
    out: Any,
) -> Tensor:  # fmt: skip
    """Add the product to the traced graph. Numbers and shapes may be symbols, which must not be read."""
    if not all(x is None or isinstance(x, Tensor) for x in (A, B, offsets, C)) or stream is not None or out is not None:
        raise IN_TRACE("A")
    numbers = int, float, torch.SymInt, torch.SymFloat
    alpha = alpha if isinstance(alpha, numbers) else checks.scalar("alpha", alpha)
    beta = beta if isinstance(beta, numbers) else checks.scalar("beta", beta)
    return grouped_mm(A, B, offsets, alpha, beta, C, precision, batch_invariant)


def grouped_mm(
    A: Tensor, B: Tensor, offsets: Any, alpha: float, beta: float, C: Tensor | None, precision: str | None,
    batch_invariant: bool,
) -> Tensor:  # fmt: skip
    """Do `fastsgemm.grouped_mm` through PyTorch's dispatcher: for tensors with gradients, tangents or no memory.

    C is updated in place and returned.
    """
    if not isinstance(offsets, Tensor):
        raise OperandError(f"offsets must be a tensor where A, B or C has gradients, got {type(offsets).__name__}")
    for name, x in (("A", A), ("B", B)):
        if x.dtype not in execution.DTYPES:
            raise wrong_dtype(x.dtype)(name)
        if x.dtype is not torch.float32 and precision is None and not batch_invariant:
            raise checks.needs_precision(name, str(x.dtype).removeprefix("torch."))
    if C is not None:
        check_written(C, A, B)
    options = {"precision": precision, "batch_invariant": batch_invariant}
    result = _grouped_mm(A, B, offsets, alpha, beta, C, **options)
    return result if C is None else C.copy_(result)
