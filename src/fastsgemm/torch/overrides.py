"""What takes the place of PyTorch's kernels: multiply or pass the call on, as was decided for operands like these.

`Override.multiply` does a whole call. Where the launcher could be compiled, see `fastsgemm.torch.launcher`, it comes
here only with calls that it does not know, and with unusual ones. Otherwise every call does, through
`Override.replacement`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fastsgemm.call.arrays import HOST
from fastsgemm.call.arrays.torch import MAX_STORAGE_BYTES, freed
from fastsgemm.errors import FastsgemmError, OverlapError
from fastsgemm.request import Request, of_call
from fastsgemm.switches.report import Totals
from fastsgemm.torch import decisions, products
from fastsgemm.torch.decisions import Decision, Kind
from fastsgemm.torch.report import Line

KINDS = {
    "mm": Kind("mm", (2, 2)),
    "addmm": Kind("addmm", (2, 2), adds=True),
    "_addmm_activation": Kind("_addmm_activation", (2, 2), adds=True),
    "bmm": Kind("bmm", (3, 3)),
    "baddbmm": Kind("baddbmm", (3, 3), adds=True),
    "addmv": Kind("addmv", (2, 1), adds=True),
    "dot": Kind("dot", (1, 1)),
}

_MOST_DECISIONS = 16384  # of one operator; then its table is emptied and starts again


class Override:
    """One operator in one form, and its decisions.

    A name is such as ``mm``, ``mm.out``, ``addmm_`` or ``mm.dtype``. The last has 16-bit factors and a float32 result.
    """

    def __init__(self, name: str, request: Request, device: str) -> None:
        self.name = name
        operator = name.partition(".")[0]
        self._in_place = operator.endswith("_")
        self._kind = KINDS[operator.removesuffix("_")]
        self._widens = ".dtype" in name
        self.original: Any  # the kernel that was there before, where Python's kernel is registered
        self._request = of_call(request, output="the output")
        # The program's wish is about float32 factors.
        self._wish = fp32_precision if device == "cuda" and not self._widens else _no_wish
        self._table: dict[Any, Decision] = {}
        self.decisions: dict[int, Decision] = {}  # by their number, which no other one gets later
        self._numbers = itertools.count()
        self._counted: Totals[tuple[str, str, str]] = Totals()  # of decisions that were forgotten, see `_add_to`

    def lines(self) -> Iterator[Line]:
        """What this override has done so far."""
        counted = Totals(self._counted)
        self._add_to(counted)
        for (problem, reason, note), (calls, flops) in counted.items():
            yield Line(self.name, problem, calls, flops, reason, note)

    def count(self, launched: Iterable[tuple[int, int, int]]) -> None:
        """Count calls that never came here: a decision's number, how many did as decided, how many allowed TF32."""
        for number, calls, with_tf32 in launched:
            decision = self.decisions.get(number)
            if decision is not None:  # else it was forgotten meanwhile
                decision.count(decision.reason, "", calls)
                decision.count(decisions.TF32, "", with_tf32)

    def release(self) -> None:
        """Forget all decisions, but not what they counted."""
        self._add_to(self._counted)
        self._table.clear()
        self.decisions.clear()

    @property
    def is_full(self) -> bool:
        """Whether it has as many decisions as it may."""
        return len(self.decisions) >= _MOST_DECISIONS

    def _add_to(self, counted: Totals[tuple[str, str, str]]) -> None:
        """Add what all decisions counted, by problem, reason and note."""
        for decision in list(self.decisions.values()):
            for (reason, note), calls in list(decision.ends.items()):
                counted.add((decision.problem, reason, note), calls, calls * decision.flops)

    def replacement(self, *operands: Any, **named: Any) -> Any:
        """Compute what PyTorch's kernel would, for its arguments."""
        given = list(operands)
        out_dtype = given.pop() if self._widens else None
        c = given.pop(0) if self._kind.adds else None
        a, b = given
        out = c if self._in_place else named.get("out")
        alpha, beta = (named.get("alpha", 1), named.get("beta", 1)) if self._kind.adds else (None, None)
        result, _ = self.multiply(a, b, c, out, alpha, beta, out_dtype)
        if result is None:
            products.prepare_to_pass_on(a.get_device())
            return self.original(*operands, **named)
        return activated(result, named.get("use_gelu", False)) if self._kind.name == "_addmm_activation" else result

    def multiply(
        self, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, alpha: Any, beta: Any, out_dtype: Any
    ) -> tuple[Tensor | None, Decision]:
        """Compute beta * C + alpha * A @ B, count the call, and return the result and what was decided.

        The result is None where PyTorch's kernel is due. C, alpha and beta are None where nothing is added; without
        `out` the result is a new tensor.
        """
        decision = self._decide(a, b, c, out, out_dtype)
        reason, note = decision.reason, ""
        wish = "" if reason else self._wish()
        if wish:
            reason, note = decisions.of_wish(wish, decision.ordinal, self._request.precision)
        result = None
        if not reason:
            try:
                result = self._run(decision, a, b, c, out, alpha, beta)
            except PassedOn as passed:
                reason = passed.reason
            except OverlapError:
                reason = decisions.OVERLAP
            except FastsgemmError as error:
                place = "cpu" if decision.ordinal == HOST else f"cuda:{decision.ordinal}"
                raise products.named(error, f"{self.name} of {decision.problem} on {place}") from error
        decision.count(reason, "" if reason else note)
        return result, decision

    def _decide(self, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, out_dtype: Any) -> Decision:
        operands = [x for x in (a, b, c, out) if x is not None]
        factors = {a.dtype, b.dtype}
        key: tuple[Any, ...] = (a.dtype, b.dtype, out_dtype)
        usual = factors <= set(decisions.HALVES) if self._widens else factors == {torch.float32}
        if usual:
            addresses = [x.data_ptr() for x in operands]
            same = addresses[0] == addresses[1], addresses[-1] == addresses[-2]
            described = [
                (x.shape, x.stride(), x.dtype, x.get_device(), address & 15)
                for x, address in zip(operands, addresses, strict=True)
            ]
            key += (*same, *described)
        decision = self._table.get(key)
        if decision is None:
            if self.is_full:
                self.release()
            decision = decisions.make(self._kind, a, b, c, out, out_dtype)
            decision.number = next(self._numbers)
            self.decisions[decision.number] = self._table[key] = decision
        return decision

    def _run(
        self, decision: Decision, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, alpha: Any, beta: Any
    ) -> Tensor:
        """Multiply as was decided, and remember the plan."""
        alpha, beta = (1.0, 0.0) if alpha is None else _scalars(alpha, beta)
        result = torch.empty(decision.shape, dtype=torch.float32, device=a.device) if out is None else out
        tensors = [a, b, result, *([] if c is None else [c])]
        addresses = [x.data_ptr() for x in tensors]
        if any(
            address < MAX_STORAGE_BYTES and freed(x, address) for x, address in zip(tensors, addresses, strict=True)
        ):
            raise PassedOn(decisions.NO_MEMORY)
        views = [*zip(addresses, decision.metas, strict=False)]  # no meta of a C that is the output
        decision.plan = products.run(decision.ordinal, views, alpha, beta, self._request)
        return result


class PassedOn(Exception):
    """A call that PyTorch's own kernel takes; it never leaves this module."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def activated(x: Tensor, gelu: bool) -> Tensor:
    """Apply the activation of ``_addmm_activation`` in place, as PyTorch does on the tensor's device."""
    if gelu:
        return torch.ops.aten.gelu_(x, approximate="tanh" if x.is_cuda else "none")
    return torch.relu_(x)


def _scalars(alpha: Any, beta: Any) -> tuple[float, float]:
    """Return both as float32, or leave it to PyTorch what to say about them."""
    try:
        return products.scalar("alpha", alpha), products.scalar("beta", beta)
    except FastsgemmError:
        raise PassedOn(decisions.SCALAR) from None


def _no_wish() -> str:
    return ""


_getter: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # since PyTorch 2.9, as the switch is


def fp32_precision() -> str:
    """Return which precision the user wishes float32 products of CUDA tensors to have.

    That is "tf32", "bfx9" (since PyTorch 2.15) or what later versions have, and empty for that of float32.
    """
    wish: str = _getter("cuda", "matmul")
    return "" if wish in ("ieee", "none") else wish
