"""The operator ``torch.ops.fastsgemm.sgemm(A, B, alpha=1, beta=0, C=None, *, precision, batch_invariant, symmetric)``.

It returns alpha * A @ B + beta * C as a new row-major tensor and leaves C as it is. A is (..., M, K), B is (..., K, N)
and C is (..., M, N), on one CUDA device or on the CPU. C and the result are float32; so are A and B, or bfloat16 or
float16 where `precision` is given, and gradients have the types of the operands. The dimensions before the last two are
those of a batch, the same in all operands; `Tensor.expand` shares an operand across the batch. Whatever PyTorch would
refuse for `torch.mm` or `torch.bmm` raises RuntimeError. alpha and beta are numbers, as those of
`torch.addmm` are: a tensor would lose its gradient, so it is refused. Multiply the result or an operand by it instead.

It is registered with ``Library.define`` and ``impl``, because ``custom_op`` costs more than the product of small
matrices. The gradient is an ``autograd.Function`` above it whose backward calls the operator again, so gradients of
every order and forward-mode derivatives work, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from fastsgemm.call import checks
from fastsgemm.call.arrays.library import IN_TRACE, wrong_dtype
from fastsgemm.call.arrays.torch import freed
from fastsgemm.call.checks import needs_precision
from fastsgemm.call.driver import LoadedPlan
from fastsgemm.errors import FastsgemmError
from fastsgemm.problem import MAX_EXTENT
from fastsgemm.request import Request, resolve
from fastsgemm.torch import cpp_launcher, execution, sharding

LIBRARY = torch.library.Library("fastsgemm", "DEF")
LIBRARY.define(
    "sgemm(Tensor A, Tensor B, Scalar alpha=1, Scalar beta=0, Tensor? C=None, *, str? precision=None, "
    "bool batch_invariant=False, bool symmetric=False) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_sgemm = torch.ops.fastsgemm.sgemm.default


def require(condition: Any, message: Callable[..., str]) -> None:
    """Raise RuntimeError with the message unless the condition, which may be symbolic, holds.

    A plain True skips ``torch._check``, whose calls would take half of the operator's time.
    """
    if condition is not True:
        torch._check(condition, message)


def _shape(
    A: Tensor, B: Tensor, beta: float, C: Tensor | None, symmetric: bool = False, **options: Any
) -> tuple[Any, ...]:
    """Return the shape of the result, which may have symbols, or raise RuntimeError as PyTorch would.

    The limits of the kernels are not checked here: on symbols they would become guards.
    """
    operands = (("A", A), ("B", B)) if C is None else (("A", A), ("B", B), ("C", C))
    shape = _shape_of({name: x.shape for name, x in operands}, beta)
    if symmetric:
        require(shape[-2] == shape[-1], lambda: f"sgemm: symmetric=True needs a square result, got {tuple(shape)}")
    for name, x in operands:
        if x.dtype is not torch.float32:
            check_type("sgemm", name, x.dtype, options)
        require(
            x is A or x.device == A.device,
            lambda name=name, x=x: f"sgemm: all operands must be on {A.device} as A is, {name} is on {x.device}",
        )
    return shape


def check_type(operator: str, name: str, dtype: torch.dtype, options: Mapping[str, Any]) -> None:
    """Raise RuntimeError for a bad dtype: only A and B may have 16 bits, and only with a precision given."""
    named = options.get("precision") is not None or options.get("batch_invariant", False)
    half = dtype in execution.DTYPES and name != "C"
    more = "; 16-bit operands need a precision by name: 'ieee' or 'fp16x3'" if half else ""
    require(half and named, lambda: f"{operator}: {name} must be torch.float32, got {dtype}{more}")


def _shape_of(shapes: Mapping[str, Sequence[Any]], beta: float) -> tuple[Any, ...]:
    """Return the result's shape from the operands' shapes by name, or raise RuntimeError as PyTorch would."""
    A, B, C = shapes["A"], shapes["B"], shapes.get("C")
    for name, shape in shapes.items():
        require(
            len(shape) >= 2,
            lambda name=name, shape=shape: f"sgemm: {name} must have at least 2 dimensions, got {len(shape)}",
        )
        if shape is not A:
            _require_batch(name, shape, A)
    require(A[-1] == B[-2], lambda: f"sgemm: A's columns must equal B's rows, got A {tuple(A)} and B {tuple(B)}")
    M, N = A[-2], B[-1]
    if C is None:
        require(beta == 0.0, lambda: f"sgemm: beta must be 0 when C is not given, got {beta}")
    else:
        require(C[-2] == M, lambda: f"sgemm: C must have {M} rows, got {tuple(C)}")
        require(C[-1] == N, lambda: f"sgemm: C must have {N} columns, got {tuple(C)}")
    return (*A[:-1], N)


def _require_batch(name: str, shape: Sequence[Any], A: Sequence[Any]) -> None:
    """Raise RuntimeError unless the dimensions before the last two are those of A; each may be a symbol."""

    def message() -> str:
        return (
            f"sgemm: all operands must have the dimensions {tuple(A[:-2])} of A before the last two, {name} has "
            f"{tuple(shape[:-2])}"
        )

    require(len(shape) == len(A), message)
    for i in range(len(A) - 2):
        require(shape[i] == A[i], message)


# Implementations take A, B, alpha, beta and C, as far as they are given, and the options by name.


def _product(*operands: Any, **options: Any) -> Tensor:
    return _product_and_plan(*operands, **options)[0]


def _product_and_plan(
    A: Tensor, B: Tensor, alpha: float = 1.0, beta: float = 0.0, C: Tensor | None = None, **options: Any
) -> tuple[Tensor, LoadedPlan | None]:
    """Return the result and, where it was computed on a device, its plan."""
    shape = _shape(A, B, beta, C, **options)
    request = resolve(**options)
    try:
        alpha32, beta32 = execution.scalar("alpha", alpha), execution.scalar("beta", beta)
        if max(*shape[-2:], A.shape[-1]) > MAX_EXTENT:
            checks.result_shape(A.shape, B.shape)  # raises
        result = A.new_empty(shape, dtype=torch.float32)
        if result.numel() == 0:
            return result, None
        if A.numel() == 0:
            return (result.copy_(C).mul_(beta32) if C is not None and beta32 else result.zero_()), None
        for name, x in (("A", A), ("B", B)) if C is None else (("A", A), ("B", B), ("C", C)):
            if freed(x, x.data_ptr()):
                raise RuntimeError(f"sgemm: {name} has no memory: it was freed")
        plan = execution.multiply(A, B, C if beta32 else None, alpha32, beta32, request, result)
        if C is not None and not beta32:
            plan = None  # it takes no C, which later calls like this one may read
    except FastsgemmError as error:
        shapes = f"sgemm of {tuple(A.shape)} and {tuple(B.shape)} on {A.device}"
        raise execution.add_product(error, shapes) from error
    return result, plan


def _fake(
    A: Tensor, B: Tensor, alpha: float = 1.0, beta: float = 0.0, C: Tensor | None = None, **options: Any
) -> Tensor:
    resolve(**options)
    return A.new_empty(_shape(A, B, beta, C, **options), dtype=torch.float32)


_Options = dict[str, Any]  # precision, batch_invariant and symmetric


_PLAIN = (Tensor, torch.nn.Parameter)
_TRANSPOSITIONS = ("TransposeBackward0", "PermuteBackward0", "TBackward0")  # nodes of the graph


class _TransposedView:
    """A factor that is the transposed view of the other, and whose gradient flows straight to that.

    The gradients of both factors are then one product, unless the gradient of the view can be seen: by a hook on it,
    registered before the product or after, or through the view itself, if it still exists.
    """

    def __init__(self, view: Tensor, of_a: bool) -> None:
        self._view, self.of_a = weakref.ref(view), of_a  # whether it is a view of A
        node: Any = view.grad_fn
        handles = [register(_no_hook) for register in (view.register_hook, node.register_hook, node.register_prehook)]
        # Later hooks go into the same dictionaries, which belong to the graph.
        self._hooks = [handle.hooks_dict_ref() for handle in handles]
        for handle in handles:
            handle.remove()

    @property
    def is_watched(self) -> bool:
        """Whether its gradient can be seen."""
        return self._view() is not None or any(self._hooks)

    def used(self, saved: Tensor) -> Tensor:
        """Return the view if it exists unchanged, else the saved tensor, for gradients of gradients."""
        view = self._view()
        return saved if view is None or view.data_ptr() != saved.data_ptr() else view


def _no_hook(*_: Any) -> None:
    """Do nothing; registering this gives access to the dictionaries of hooks."""


def _transposed_view(A: Tensor, B: Tensor) -> _TransposedView | None:
    """Return the factor that is a transposed view of the other, as in ``X @ X.mT``; None if that isn't certain.

    Between the two, the graph has only the transposition. Not so after a function that returns its input or a view of
    it, which has a backward of its own, after ``X.data = ...``, or for a lazily negated factor.
    """
    base, view = (A, B) if B._base is A else (B, A)
    if view._base is not base or type(A) not in _PLAIN or type(B) not in _PLAIN or torch.compiler.is_compiling():
        return None
    if A.shape != B.mT.shape or A.stride() != B.mT.stride():
        return None
    if A.data_ptr() != B.data_ptr() or A.is_neg() or B.is_neg():
        return None
    node = view.grad_fn
    if node is None or node.name() not in _TRANSPOSITIONS:
        return None
    [(source, number)] = node.next_functions
    if base.grad_fn is None:
        straight = getattr(source, "variable", None) is base
    else:
        straight = source is base.grad_fn and number == base.output_nr
    return _TransposedView(view, base is A) if straight else None


class LinearInEach(torch.autograd.function._SingleLevelFunction):
    """An operator with its derivatives: linear in A, in B and in C.

    It belongs to a single level of torch.func. A `torch.autograd.Function` would start from the outermost level again,
    which is wrong below the dispatcher.
    """

    apply: ClassVar[Callable[..., Any]]


def compute(product: Callable[..., Tensor], *operands: Any, **options: Any) -> Tensor:
    """Return what an operator computes below autograd, in the forward of its `LinearInEach`."""
    if not torch._C._are_functorch_transforms_active():
        return below_autograd(product, *operands, **options)
    # `apply` disabled both modes, but the outer levels of torch.func still have to see this product.
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        return below_autograd(product, *operands, **options)


def below_autograd(product: Callable[..., Tensor], *operands: Any, **options: Any) -> Tensor:
    """Return what an operator computes below autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return product(*operands, **options)


class _Differentiable(LinearInEach):
    @staticmethod
    def forward(
        A: Tensor,
        B: Tensor,
        alpha: float,
        beta: float,
        C: Tensor | None,
        options: _Options,
        view: _TransposedView | None,
    ) -> Tensor:
        return compute(_sgemm, A, B, alpha, beta, C, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, B, ctx.alpha, ctx.beta, _, options, ctx.view = inputs
        ctx.options = {name: value for name, value in options.items() if name != "symmetric"}  # derivatives aren't
        ctx.dtypes = A.dtype, B.dtype
        if ctx.view is not None:  # a new view is saved, because saving this one would keep it alive
            with torch.enable_grad():
                A, B = (A, A.mT) if ctx.view.of_a else (B.mT, B)
            ctx.save_for_backward(A, B)
            return
        of_a, of_b, *_ = ctx.needs_input_grad  # the gradient of one factor needs the other
        ctx.save_for_backward(A if of_b else None, B if of_a else None)
        ctx.save_for_forward(A, B)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        A, B = ctx.saved_tensors
        of_a, of_b, *_, of_c, _, _ = ctx.needs_input_grad
        a = b = None
        if ctx.view is not None and not ctx.view.is_watched and A.data_ptr() == B.data_ptr():
            symmetric_gradient = gradient + gradient.mT
            if ctx.view.of_a:
                a = _sgemm(symmetric_gradient, A, ctx.alpha, **ctx.options).to(A.dtype)
            else:
                b = _sgemm(B, symmetric_gradient, ctx.alpha, **ctx.options).to(B.dtype)
        else:
            if ctx.view is not None:
                A, B = (A, ctx.view.used(B)) if ctx.view.of_a else (ctx.view.used(A), B)
            a = _sgemm(gradient, B.mT, ctx.alpha, **ctx.options).to(ctx.dtypes[0]) if of_a else None
            b = _sgemm(A.mT, gradient, ctx.alpha, **ctx.options).to(ctx.dtypes[1]) if of_b else None
        return a, b, None, None, ctx.beta * gradient if of_c else None, None, None

    @staticmethod
    def jvp(ctx: Any, a: Tensor | None, b: Tensor | None, alpha: None, beta: None, c: Tensor | None, *_: None) -> Any:
        A, B = ctx.saved_tensors
        parts = [] if c is None or ctx.beta == 0.0 else [ctx.beta * c]
        if a is not None:
            parts.append(_sgemm(a, B, ctx.alpha, **ctx.options))
        if b is not None:
            parts.append(_sgemm(A, b, ctx.alpha, **ctx.options))
        return sum(parts[1:], parts[0]) if parts else A.new_zeros((*A.shape[:-1], B.shape[-1]), dtype=torch.float32)


def apply(function: type[LinearInEach], *operands: Any) -> Any:
    """Apply a function at the dispatcher's current level of torch.func, if any."""
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return function.apply(*operands)
    return function.apply(*operands)


def is_tracked(A: Tensor, B: Tensor, C: Tensor | None) -> bool:
    """Return whether derivatives of a product are recorded, or may be in forward mode."""
    requires_grad = A.requires_grad or B.requires_grad or (C is not None and C.requires_grad)
    return (torch.is_grad_enabled() and requires_grad) or forward_ad._current_level >= 0


def _with_gradient(
    A: Tensor, B: Tensor, alpha: float = 1.0, beta: float = 0.0, C: Tensor | None = None, **options: Any
) -> Tensor:
    if type(A) not in _PLAIN or type(B) not in _PLAIN:
        sharding.register()
    if is_tracked(A, B, C):
        plain = forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()
        view = _transposed_view(A, B) if plain and A.requires_grad and B.requires_grad else None
        return apply(_Differentiable, A, B, alpha, beta, C, options, view)
    return below_autograd(_sgemm, A, B, alpha, beta, C, **options)


def _batched(
    info: Any,
    batch_dims: tuple[int | None, ...],
    A: Tensor,
    B: Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    C: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, int]:
    """The rule of `torch.func.vmap`: fold the batch into M or N if only one of two matrices has it."""
    of_a, of_b, *_, of_c = (*batch_dims[:4], batch_dims[4] if len(batch_dims) > 4 else None)
    size = info.batch_size
    A = A if of_a is None else A.movedim(of_a, 0)
    B = B if of_b is None else B.movedim(of_b, 0)
    C = C if C is None or of_c is None else C.movedim(of_c, 0)
    operands = [("A", A, of_a), ("B", B, of_b), ("C", C, of_c)]
    # Shapes of one product, because errors are about what the caller's function sees.
    shapes = {name: x.shape if dim is None else x.shape[1:] for name, x, dim in operands if x is not None}
    *batch, M, N = _shape_of(shapes, beta)
    C = _repeated(C, size) if C is not None and of_c is None else C
    one_product = not (batch or options.get("symmetric"))  # a symmetric result has no more rows than columns
    if one_product and of_a is not None and of_b is None:
        rows = None if C is None else C.flatten(0, 1)
        return _sgemm(A.flatten(0, 1), B, alpha, beta, rows, **options).unflatten(0, (size, M)), 0
    if one_product and of_a is None and of_b is not None:
        columns = B.movedim(0, 1).flatten(1, 2)
        side = None if C is None else C.movedim(0, 1).flatten(1, 2)
        return _sgemm(A, columns, alpha, beta, side, **options).unflatten(1, (size, N)), 1
    A = _repeated(A, size) if of_a is None else A
    B = _repeated(B, size) if of_b is None else B
    return _sgemm(A, B, alpha, beta, C, **options), 0


def _repeated(x: Tensor, size: int) -> Tensor:
    """Return a tensor expanded by a leading batch dimension of `size`."""
    return x.unsqueeze(0).expand(size, *x.shape)


cpp_launcher.serve(_product_and_plan)
LIBRARY.impl("sgemm", _product, "CPU")
LIBRARY.impl("sgemm", _product, "CUDA")
LIBRARY.impl("sgemm", _with_gradient, "Autograd")
torch.library.register_fake("fastsgemm::sgemm", _fake, lib=LIBRARY)
torch.library.register_vmap("fastsgemm::sgemm", _batched, lib=LIBRARY)


def in_trace(request: Request, A: Any, B: Any, alpha: Any, beta: Any, C: Any, stream: Any, out: Any) -> Tensor:
    """Add the product to the traced graph. Numbers and shapes may be symbols, which must not be read."""
    tensors = all(x is None or isinstance(x, Tensor) for x in (A, B, C))
    if not (tensors and request.has_operator and stream is None and out is None):
        raise IN_TRACE("A")
    numbers = int, float, torch.SymInt, torch.SymFloat
    alpha = alpha if isinstance(alpha, numbers) else checks.scalar("alpha", alpha)
    beta = beta if isinstance(beta, numbers) else checks.scalar("beta", beta)
    return sgemm(request, A, B, alpha, beta, C)


def sgemm(request: Request, A: Tensor, B: Tensor, alpha: float, beta: float, C: Tensor | None) -> Tensor:
    """Do `fastsgemm.sgemm` through PyTorch's dispatcher: for tensors with gradients, tangents or no memory.

    C is updated in place and returned. In traced code, whose shapes and numbers may be symbols, only what needs no
    value is checked; the operator checks the rest when it runs.
    """
    options = {
        "precision": request.precision if request.takes_halves else None, "batch_invariant": request.batch_invariant,
        "symmetric": bool(request.symmetric),
    }  # fmt: skip
    operands = {"A": A, "B": B} if C is None else {"A": A, "B": B, "C": C}
    for name, x in operands.items():
        if x.dtype is not torch.float32:
            if x.dtype not in execution.DTYPES or name == "C":
                raise wrong_dtype(x.dtype)(name)
            if not request.takes_halves:
                raise needs_precision(name, str(x.dtype).removeprefix("torch."))
    checks.one_device({name: "the host" if x.is_cpu else str(x.device) for name, x in operands.items()})
    if not torch.compiler.is_compiling():
        checks.result_shape(A.shape, B.shape, None if C is None else C.shape)
        if request.symmetric:
            checks.square(A.shape, B.shape)
    if C is not None:
        check_written(C, A, B)
    a = A.unsqueeze(0) if A.dim() == 1 else A
    b = B.unsqueeze(1) if B.dim() == 1 else B
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, *A.shape[-2:-1], *(B.shape[-1:] if B.dim() > 1 else ()))
    if C is not None and torch.compiler.is_compiling():
        fits = len(C.shape) == len(shape) and all(x == y for x, y in zip(C.shape, shape, strict=True))
        require(fits, lambda: f"sgemm: C must have shape {shape}, got {tuple(C.shape)}")
    if a.dim() > 2 and b.dim() == 2 and not request.symmetric:  # one product of more rows
        a = a.flatten(0, -2)
    elif batch:
        a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    c = None if C is None else C.reshape((*a.shape[:-1], b.shape[-1]))
    result = _sgemm(a, b, alpha, beta, c, **options)
    if a is not A or b is not B:
        result = result.reshape(shape)
    return result if C is None else C.copy_(result)


def check_written(C: Tensor, A: Tensor, B: Tensor) -> None:
    """Refuse a C that shares memory with A, B or itself, as for tensors without gradients.

    In traced code and in transforms tensors have no memory, so C is only compared as an object.
    """
    for name, x in (("A", A), ("B", B)):
        checks.apart(name, x is C)
    if torch.compiler.is_compiling():
        return
    try:
        operands = [execution.view(x) for x in (A, B, C)]
    except RuntimeError:
        return
    _, written = operands[2]
    checks.output(written.shape, written.strides, readonly=False)
    checks.overlap(operands)
