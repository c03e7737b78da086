"""The functions that take the place of PyTorch's kernels.

Each looks up what is done with operands like these, see `fastsgemm.torch.decisions`, and multiplies or passes the call
on. This is the hot path: a call seen before reads each operand's shape, strides, dtype and address once, and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fastsgemm.errors import CaptureError, FastsgemmError, OverlapError
from fastsgemm.torch import decisions, products
from fastsgemm.torch.decisions import Decision, Kind
from fastsgemm.torch.products import ONE, ZERO
from fastsgemm.torch.report import Line

KINDS = {
    "mm": Kind("mm", decisions.MATRICES),
    "addmm": Kind("addmm", decisions.MATRICES),
    "bmm": Kind("bmm", decisions.BATCHES),
    "baddbmm": Kind("baddbmm", decisions.BATCHES),
    "addmv": Kind("addmv", (2, 1, 1)),
    "dot": Kind("dot", (1, 1, 0)),
}

_MOST_DECISIONS = 16384  # of one operator; then its table is emptied and starts again


class Override:
    """One operator in one form: its decisions, its replacement, and the kernel that was there before.

    Parameters
    ----------
    name : str
        Such as ``mm``, ``mm.out`` or ``addmm_``.
    original : callable
        PyTorch's kernel.
    precision : str
        ``ieee`` or ``fp16x3``.
    device : str
        ``cuda`` or ``cpu``.
    """

    def __init__(self, name: str, original: Callable[..., Any], precision: str, device: str) -> None:
        self.name = name
        self._kind = KINDS[name.removesuffix(".out").removesuffix("_")]
        self._original = original
        self._precision = precision
        self._tf32 = _tf32_allowed if device == "cuda" else _never
        self._empty = _empty_strided(device)
        self._decisions: dict[Any, Decision] = {}
        self._counted: dict[tuple[str, str, int], int] = {}  # of tables that were emptied
        adds, form = self._kind.name in ("addmm", "baddbmm", "addmv"), name[len(self._kind.name) :]
        self.function = {
            (False, ""): self._new,
            (False, ".out"): self._out,
            (True, ""): self._new_sum,
            (True, ".out"): self._out_sum,
            (True, "_"): self._in_place,
        }[adds, form]()

    def lines(self) -> Iterator[Line]:
        """What this override has done so far."""
        counted = dict(self._counted)
        self._count(counted)
        for (problem, reason, flops), calls in counted.items():
            if calls:
                yield Line(self.name, problem, calls, calls * flops, reason)

    def _count(self, counted: dict[tuple[str, str, int], int]) -> None:
        for decision in list(self._decisions.values()):
            for reason, calls in ((decision.reason, decision.calls), *decision.other_ends.items()):
                key = (decision.problem, reason, decision.flops)
                counted[key] = counted.get(key, 0) + calls

    def _make(self, key: Any, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None) -> Decision:
        if len(self._decisions) >= _MOST_DECISIONS:
            self._count(self._counted)
            self._decisions.clear()
        try:
            decision = decisions.make(self._kind, a, b, c, out)
        except FastsgemmError as error:
            raise products.named(error, self._described(a, b)) from error
        return self._decisions.setdefault(key, decision)

    def _described(self, a: Tensor, b: Tensor) -> str:
        return f"{self.name} of {tuple(a.shape)} and {tuple(b.shape)} on {a.device}"

    # The replacements. Each is a closure, because a look-up of a local name is cheaper than one of an attribute.

    def _new(self) -> Callable[..., Any]:
        table, run, pass_on, tf32, empty = self._decisions, self._run, self._pass_on, self._tf32, self._empty

        def new(a: Tensor, b: Tensor) -> Any:
            key = (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device())
            decision = table.get(key) or self._make(key, a, b, None, None)
            if decision.reason or tf32():
                return pass_on(decision, "", a, b)
            result = empty(decision, a)
            other = run(decision, a, b, result, ONE, ZERO, (a, b), {})
            return result if other is None else other

        return new

    def _out(self) -> Callable[..., Any]:
        table, run, pass_on, tf32 = self._decisions, self._run, self._pass_on, self._tf32

        def into(a: Tensor, b: Tensor, *, out: Tensor) -> Any:
            key = (
                (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device()),
                (out.shape, out.stride(), out.dtype, out.get_device()),
            )
            decision = table.get(key) or self._make(key, a, b, None, out)
            if decision.reason or tf32():
                return pass_on(decision, "", a, b, out=out)
            other = run(decision, a, b, out, ONE, ZERO, (a, b), {"out": out})
            return out if other is None else other

        return into

    def _new_sum(self) -> Callable[..., Any]:
        table, run, pass_on, tf32, empty = self._decisions, self._run, self._pass_on, self._tf32, self._empty
        scalars = self._scalars

        def new_sum(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
            key = (
                (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device()),
                (c.shape, c.dtype, c.get_device()),
            )
            decision = table.get(key) or self._make(key, a, b, c, None)
            if decision.reason or tf32():
                return pass_on(decision, "", c, a, b, beta=beta, alpha=alpha)
            alpha32, beta32 = scalars(alpha, beta)
            if alpha32 is None:
                return pass_on(decision, decisions.SCALAR, c, a, b, beta=beta, alpha=alpha)
            result = empty(decision, a)
            if beta32:
                result.copy_(c)
            other = run(decision, a, b, result, alpha32, beta32, (c, a, b), {"beta": beta, "alpha": alpha})
            return result if other is None else other

        return new_sum

    def _out_sum(self) -> Callable[..., Any]:
        table, run, pass_on, tf32, scalars = self._decisions, self._run, self._pass_on, self._tf32, self._scalars

        def into_sum(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor) -> Any:
            key = (
                (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device()),
                (c.shape, c.dtype, c.get_device(), out.shape, out.stride(), out.dtype, out.get_device()),
            )
            decision = table.get(key) or self._make(key, a, b, c, out)
            if decision.reason or tf32():
                return pass_on(decision, "", c, a, b, beta=beta, alpha=alpha, out=out)
            alpha32, beta32 = scalars(alpha, beta)
            if alpha32 is None:
                return pass_on(decision, decisions.SCALAR, c, a, b, beta=beta, alpha=alpha, out=out)
            if beta32 and c is not out and (c.data_ptr() != out.data_ptr() or c.stride() != out.stride()):
                if _may_overlap(out, a, b, c):  # C is copied into the output before the product reads A and B
                    return pass_on(decision, decisions.OVERLAP, c, a, b, beta=beta, alpha=alpha, out=out)
                out.copy_(c)
            given = {"beta": beta, "alpha": alpha, "out": out}
            other = run(decision, a, b, out, alpha32, beta32, (c, a, b), given)
            return out if other is None else other

        return into_sum

    def _in_place(self) -> Callable[..., Any]:
        table, run, pass_on, tf32, scalars = self._decisions, self._run, self._pass_on, self._tf32, self._scalars

        def in_place(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
            key = (
                (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device()),
                (c.shape, c.stride(), c.dtype, c.get_device()),
            )
            decision = table.get(key) or self._make(key, a, b, c, c)
            if decision.reason or tf32():
                return pass_on(decision, "", c, a, b, beta=beta, alpha=alpha)
            alpha32, beta32 = scalars(alpha, beta)
            if alpha32 is None:
                return pass_on(decision, decisions.SCALAR, c, a, b, beta=beta, alpha=alpha)
            other = run(decision, a, b, c, alpha32, beta32, (c, a, b), {"beta": beta, "alpha": alpha})
            return c if other is None else other

        return in_place

    def _run(
        self,
        decision: Decision,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        alpha: Any,
        beta: Any,
        given: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """Multiply, or return what the original kernel returns if this turns out to be impossible."""
        try:
            pa, pb, gpu = a.data_ptr(), b.data_ptr(), decision.gpu
            if not (pa and pb):
                return self._pass_on(decision, decisions.NO_MEMORY, *given, **options)
            views = (pa, decision.a), (pb, decision.b), (c.data_ptr(), decision.c)
            if gpu is None:
                products.on_host(*views, alpha, beta, self._precision)
            else:
                products.on_device(gpu, *views, alpha, beta, self._precision)
        except OverlapError:
            return self._pass_on(decision, decisions.OVERLAP, *given, **options)
        except CaptureError:
            return self._pass_on(decision, decisions.CAPTURE, *given, **options)
        except FastsgemmError as error:
            raise products.named(error, self._described(a, b)) from error
        decision.calls += 1
        return None

    def _pass_on(self, decision: Decision, reason: str, *given: Any, **options: Any) -> Any:
        """Call the original kernel. Without a reason it is the decision's, or that TF32 is allowed."""
        if decision.reason:
            decision.calls += 1
        else:
            reason = reason or decisions.TF32
            decision.other_ends[reason] = decision.other_ends.get(reason, 0) + 1
        return self._original(*given, **options)

    @staticmethod
    def _scalars(alpha: Any, beta: Any) -> tuple[Any, Any]:
        """Return both as float32, or None twice if PyTorch must decide what to say about them."""
        try:
            return products.scalar("alpha", alpha), products.scalar("beta", beta)
        except FastsgemmError:
            return None, None


def _may_overlap(out: Tensor, *others: Tensor) -> bool:
    memory = out.untyped_storage().data_ptr()
    return any(x.untyped_storage().data_ptr() == memory for x in others)


def _never() -> bool:
    return False


def _reader_of_tf32() -> Callable[[], bool]:
    """Return a function that says whether the user allows TF32 in float32 products of CUDA tensors."""
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)  # since PyTorch 2.9
    if getter is not None:
        return lambda: getter("cuda", "matmul") == "tf32"
    return torch._C._get_cublas_allow_tf32


_tf32_allowed = _reader_of_tf32()


def _empty_strided(device: str) -> Callable[[Decision, Tensor], Tensor]:
    """Return a function that allocates a result on the device of an operand.

    Where PyTorch has it, this uses the function that its compiler's generated code calls, which takes a third of the
    time of `torch.empty`. It allocates on the current device.
    """
    float32 = torch.float32
    quick = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}", None)
    if quick is None:
        return lambda decision, like: torch.empty(decision.shape, dtype=float32, device=like.device)
    if device == "cpu":
        return lambda decision, like: quick(decision.shape, decision.strides, float32)

    current = torch._C._cuda_getDevice if hasattr(torch._C, "_cuda_getDevice") else lambda: -1

    def empty(decision: Decision, like: Tensor) -> Tensor:
        if decision.ordinal != current():
            return torch.empty(decision.shape, dtype=float32, device=like.device)
        return quick(decision.shape, decision.strides, float32)

    return empty
