"""The replacements of PyTorch's kernels: each multiplies or passes the call on, as decided for its operands.

`Override.multiply` handles a whole call. With the compiled launcher, see `fastsgemm.torch.cpp_launcher`, it is
called for new and unusual calls only. Otherwise every call arrives through `Override.replacement`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastsgemm import log
from fastsgemm.call.arrays import HOST
from fastsgemm.call.arrays.torch import MAX_STORAGE_BYTES, freed
from fastsgemm.errors import FastsgemmError, OverlapError
from fastsgemm.request import Request, of_call
from fastsgemm.switches.base_report import Totals
from fastsgemm.torch import decisions, execution
from fastsgemm.torch.call_report import Line
from fastsgemm.torch.decisions import Decision, Operation

OPERATIONS = {
    "mm": Operation("mm", (2, 2)),
    "addmm": Operation("addmm", (2, 2), adds=True),
    "_addmm_activation": Operation("_addmm_activation", (2, 2), adds=True),
    "bmm": Operation("bmm", (3, 3)),
    "baddbmm": Operation("baddbmm", (3, 3), adds=True),
    "addmv": Operation("addmv", (2, 1), adds=True),
    "dot": Operation("dot", (1, 1)),
    "_grouped_mm": Operation("_grouped_mm", (3, 3)),  # without offsets
}

_MOST_DECISIONS = 16384  # of one operator; then its table is cleared


class Override:
    """One operator in one form, and its decisions.

    Names are such as ``mm``, ``mm.out``, ``addmm_`` or ``mm.dtype``; the last has 16-bit factors and names the type of
    the result.
    """

    def __init__(self, name: str, request: Request, device: str) -> None:
        self.name = name
        operator = name.partition(".")[0]
        self._in_place = operator.endswith("_")
        self._operation = OPERATIONS[operator.removesuffix("_")]
        self._widens = ".dtype" in name
        self.original: Any  # PyTorch's kernel, where Python's kernel is registered
        self._request = of_call(request, output="the output")
        self._fp32_precision = fp32_precision if device == "cuda" else _default_precision
        self._table: dict[Any, Decision] = {}
        self.decisions: dict[int, Decision] = {}  # by number; numbers are not reused
        self._numbers = itertools.count()
        self._counted: Totals[tuple[str, str, str, str]] = Totals()  # of decisions that were forgotten, see `_add_to`

    def lines(self) -> Iterator[Line]:
        """Yield the lines of this override's report."""
        counted = Totals(self._counted)
        self._add_to(counted)
        for (problem, size, reason, note), (calls, flops) in counted.items():
            yield Line(self.name, problem, calls, flops, reason, note, size)

    def count(self, launched: Iterable[tuple[int, int, int]]) -> None:
        """Add the launcher's counts: a decision's number, calls that followed it, calls that allowed TF32."""
        for number, calls, with_tf32 in launched:
            decision = self.decisions.get(number)
            if decision is not None:  # else it was forgotten meanwhile
                decision.count(decision.reason, "", calls)
                decision.count(decisions.TF32, "", with_tf32)

    def release(self) -> None:
        """Forget all decisions, but keep their counts."""
        self._add_to(self._counted)
        self._table.clear()
        self.decisions.clear()

    @property
    def is_full(self) -> bool:
        """Whether its table has reached the limit."""
        return len(self.decisions) >= _MOST_DECISIONS

    def _add_to(self, counted: Totals[tuple[str, str, str, str]]) -> None:
        """Add the counts of all decisions, by problem, size, reason and note."""
        for decision in list(self.decisions.values()):
            for (reason, note), calls in list(decision.outcomes.items()):
                counted.add((decision.problem, decision.size, reason, note), calls, calls * decision.flops)

    def replacement(self, *operands: Any, **keywords: Any) -> Any:
        """Do what PyTorch's kernel would with these arguments."""
        positional = list(operands)
        out_dtype = positional.pop() if self._widens else None
        c = positional.pop(0) if self._operation.adds else None
        a, b = positional
        out = c if self._in_place else keywords.get("out")
        alpha, beta = (keywords.get("alpha", 1), keywords.get("beta", 1)) if self._operation.adds else (None, None)
        result, _ = self.multiply(a, b, c, out, alpha, beta, out_dtype)
        if result is None:
            execution.prepare_to_pass_on(a.get_device())
            return self.original(*operands, **keywords)
        return (
            activated(result, keywords.get("use_gelu", False))
            if self._operation.name == "_addmm_activation"
            else result
        )

    def multiply(
        self, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, alpha: Any, beta: Any, out_dtype: Any
    ) -> tuple[Tensor | None, Decision]:
        """Compute beta * C + alpha * A @ B, count the call, and return the result and the decision.

        The result is None if PyTorch's kernel is to be called. C, alpha and beta are None if nothing is added; without
        `out` the result is a new tensor.
        """
        decision = self._decide(a, b, c, out, out_dtype)
        run = partial(self._run, decision, a, b, c, out, alpha, beta)
        return self._follow(decision, a.dtype not in decisions.HALVES, run), decision

    def _follow(self, decision: Decision, has_float32: bool, run: Callable[[], Tensor]) -> Tensor | None:
        """Multiply, or return None if PyTorch's kernel is to be called, and count the call."""
        reason, note = decision.reason, ""
        setting = self._fp32_precision() if has_float32 and not reason else ""  # about float32 factors
        if setting:
            reason, note = decisions.of_fp32_precision(setting, decision.ordinal, self._request.precision)
        result = None
        if not reason:
            try:
                result = run()
            except Fallback as error:
                reason = error.reason
            except OverlapError:
                reason = decisions.OVERLAP
            except FastsgemmError as error:
                device = "cpu" if decision.ordinal == HOST else f"cuda:{decision.ordinal}"
                raise execution.add_product(error, f"{self.name} of {decision.problem} on {device}") from error
        decision.count(reason, "" if reason else note)
        return result

    def _decide(self, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, out_dtype: Any) -> Decision:
        operands = [x for x in (a, b, c, out) if x is not None]
        rounds = self._request.rounds
        if rounds and not self._widens and a.dtype in decisions.HALVES:
            out_dtype = a.dtype
        factors = {a.dtype, b.dtype}
        key: tuple[Any, ...] = (a.dtype, b.dtype, out_dtype)
        if factors == {torch.float32} if out_dtype is None else factors <= set(decisions.HALVES):
            addresses = [x.data_ptr() for x in operands]
            same = addresses[0] == addresses[1], addresses[-1] == addresses[-2]
            descriptions = [
                (x.shape, x.stride(), x.dtype, x.get_device(), address & 15)
                for x, address in zip(operands, addresses, strict=True)
            ]
            key += (*same, *descriptions)
        return self._known(key, lambda: decisions.make(self._operation, a, b, c, out, out_dtype, rounds))

    def _known(self, key: tuple[Any, ...], make: Callable[[], Decision]) -> Decision:
        """Return the decision with this key, or make it."""
        decision = self._table.get(key)
        if decision is None:
            if self.is_full:
                self.release()
            decision = make()
            decision.number = next(self._numbers)
            log.info(lambda: _told(self.name, decision))
            self.decisions[decision.number] = self._table[key] = decision
        return decision

    def _run(
        self, decision: Decision, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, alpha: Any, beta: Any
    ) -> Tensor:
        """Multiply as decided, and store the plan in the decision."""
        alpha, beta = (1.0, 0.0) if alpha is None else _scalars(alpha, beta)
        result = torch.empty(decision.shape, dtype=decision.dtype, device=a.device) if out is None else out
        addresses = addresses_of([a, b, result, *([] if c is None else [c])])
        views = [*zip(addresses, decision.metas, strict=False)]  # no meta of a C that is the output
        decision.plan = execution.run(decision.ordinal, views, alpha, beta, self._request)
        return result


def addresses_of(tensors: list[Tensor]) -> list[int]:
    """Return where tensors lie, or let PyTorch's kernel take the call if one has no memory."""
    addresses = [x.data_ptr() for x in tensors]
    if any(address < MAX_STORAGE_BYTES and freed(x, address) for x, address in zip(tensors, addresses, strict=True)):
        raise Fallback(decisions.NO_MEMORY)
    return addresses


def _told(operator: str, decision: Decision) -> str:
    """Return what is done with calls like this one, for people."""
    what = f"{operator} of {decision.size or decision.problem}"
    return f"passes on {what}: {decision.reason}" if decision.reason else f"replaces {what}"


class Fallback(Exception):
    """PyTorch's own kernel is to take the call; this never leaves an override."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def activated(x: Tensor, gelu: bool) -> Tensor:
    """Apply the activation of ``_addmm_activation`` in place, as PyTorch does on the tensor's device."""
    if gelu:
        return torch.ops.aten.gelu_(x, approximate="tanh" if x.is_cuda else "none")
    return torch.relu_(x)


def _scalars(alpha: Any, beta: Any) -> tuple[float, float]:
    """Return both as float32, or leave the error to PyTorch."""
    try:
        return execution.scalar("alpha", alpha), execution.scalar("beta", beta)
    except FastsgemmError:
        raise Fallback(decisions.SCALAR) from None


def _default_precision() -> str:
    return ""


_get_fp32_precision: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # since PyTorch 2.9, as the switch is


def fp32_precision() -> str:
    """Return the program's precision setting for float32 products of CUDA tensors.

    That is "tf32", "bfx9" (since PyTorch 2.15) or what later versions have, and empty for float32.
    """
    setting: str = _get_fp32_precision("cuda", "matmul")
    return "" if setting in ("ieee", "none") else setting
