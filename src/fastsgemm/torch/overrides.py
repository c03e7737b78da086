"""The functions that take the place of PyTorch's kernels.

Each looks up what is done with operands like these, see `fastsgemm.torch.decisions`, and multiplies or passes the call
on. This is the hot path: a call seen before reads each operand's shape, strides, dtype and address once, and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fastsgemm.call import driver
from fastsgemm.call.arrays import HOST
from fastsgemm.call.arrays.torch import MAX_STORAGE_BYTES, allocator, freed
from fastsgemm.errors import CaptureError, DeviceMemoryError, FastsgemmError, OverlapError
from fastsgemm.request import Request, of_call
from fastsgemm.torch import compiled, decisions, products
from fastsgemm.torch.decisions import Decision, Kind
from fastsgemm.torch.report import Line

KINDS = {
    "mm": Kind("mm", (2, 2)),
    "addmm": Kind("addmm", (2, 2), adds=True),
    "bmm": Kind("bmm", (3, 3)),
    "baddbmm": Kind("baddbmm", (3, 3), adds=True),
    "addmv": Kind("addmv", (2, 1), adds=True),
    "dot": Kind("dot", (1, 1)),
}

# The function that takes the place of a kernel. PyTorch passes other arguments to each form of an operator, and a
# function that took them all would need a tenth of the time of a call to tell them apart. So its text is completed for
# the form. The alignment of an address is in the key of a decision, because kernels depend on it.
_REPLACEMENT = """
def replacement({parameters}):
    if {others}:
        key = {types}
        (table.get(key) or make(key, a, b, None, None{result})).calls += 1
        return original({given})
    {addresses}
    key = {key}
    decision = table.get(key) or make(key, a, b, {of_decision})
    result = multiply(decision, a, pa, b, pb, {of_product})
    return original({given}) if result is None else result
"""

# Of calls that `decisions.make` need not see the operands of: their condition, and the key of their decision.
_NOT_FLOAT32 = "a.dtype is not float32 or b.dtype is not float32", "a.dtype, b.dtype"
_NOT_HALVES = (
    "out_dtype is not float32 or a.dtype is not b.dtype or a.dtype not in halves", "a.dtype, b.dtype, out_dtype",
)  # fmt: skip

_KEY = "{0}.shape, {0}.stride(), {0}.get_device(), p{0} & 15"

# By whether it adds and form: its parameters, what the kernel that was there before is given, C and the output as
# `decisions.make` takes them, and the output, C, alpha and beta as `multiply` does.
_FORMS = {
    (False, ""): ("a, b", "a, b", "None, None", "None, 0"),
    (False, ".out"): ("a, b, *, out", "a, b, out=out", "None, out", "out, pout"),
    (True, ""): (
        "c, a, b, *, beta=1, alpha=1", "c, a, b, beta=beta, alpha=alpha", "c, None", "None, 0, c, pc, alpha, beta",
    ),
    (True, ".out"): (
        "c, a, b, *, beta=1, alpha=1, out", "c, a, b, beta=beta, alpha=alpha, out=out", "c, out",
        "out, pout, c, pc, alpha, beta",
    ),
    (True, "_"): (
        "c, a, b, *, beta=1, alpha=1", "c, a, b, beta=beta, alpha=alpha", "c, c", "c, pc, c, pc, alpha, beta",
    ),
    (False, ".dtype"): ("a, b, out_dtype", "a, b, out_dtype", "None, None", "None, 0"),
    (False, ".dtype_out"): ("a, b, out_dtype, *, out", "a, b, out_dtype, out=out", "None, out", "out, pout"),
    (True, ".dtype"): (
        "c, a, b, out_dtype, *, beta=1, alpha=1", "c, a, b, out_dtype, beta=beta, alpha=alpha", "c, None",
        "None, 0, c, pc, alpha, beta",
    ),
    (True, ".dtype_out"): (
        "c, a, b, out_dtype, *, beta=1, alpha=1, out", "c, a, b, out_dtype, beta=beta, alpha=alpha, out=out", "c, out",
        "out, pout, c, pc, alpha, beta",
    ),
}  # fmt: skip

_MOST_DECISIONS = 16384  # of one operator; then its table is emptied and starts again


class Override:
    """One operator in one form: its decisions, its replacement, and the kernel that was there before.

    A name is such as ``mm``, ``mm.out``, ``addmm_`` or ``mm.dtype``. The last has 16-bit factors and a float32 result.
    """

    def __init__(self, name: str, original: Callable[..., Any], request: Request, device: str) -> None:
        self.name = name
        self._kind = KINDS[name.partition(".")[0].removesuffix("_")]
        widens = ".dtype" in name
        self.original = original
        self._request = request
        self._wish = _fp32_precision if device == "cuda" and not widens else _no_wish  # it is about float32 factors
        self._empty = allocator(torch, device)
        self._decisions: dict[Any, Decision] = {}
        self._counted: dict[tuple[str, str, str, int], int] = {}  # of tables that were emptied
        self.function = self._replacement(name[len(self._kind.name) :])

    def lines(self) -> Iterator[Line]:
        """What this override has done so far."""
        counted = dict(self._counted)
        self._count(counted)
        for (problem, reason, note, flops), calls in counted.items():
            if calls:
                yield Line(self.name, problem, calls, calls * flops, reason, note)

    def release(self) -> None:
        """Forget all decisions, but not what they counted."""
        self._count(self._counted)
        self._decisions.clear()

    def _count(self, counted: dict[tuple[str, str, str, int], int]) -> None:
        for decision in list(self._decisions.values()):
            usual = (decision.reason, ""), decision.calls
            for (reason, note), calls in (usual, *decision.other_ends.items()):
                key = (decision.problem, reason, note, decision.flops)
                counted[key] = counted.get(key, 0) + calls

    def _make(
        self, key: Any, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, result: torch.dtype | None = None
    ) -> Decision:
        if len(self._decisions) >= _MOST_DECISIONS:
            self.release()
        compiled.renew()
        return self._decisions.setdefault(key, decisions.make(self._kind, a, b, c, out, result))

    def _replacement(self, form: str) -> Callable[..., Any]:
        """Return the function that PyTorch calls, for an operator of this form.

        A form is empty for a new tensor, ``.out``, ``_`` for in place, or ``.dtype`` and ``.dtype_out``.
        """
        parameters, given, of_decision, of_product = _FORMS[self._kind.adds, form]
        operands = [name for name in ("a", "b", "c", "out") if name in parameters.replace(",", "").split()]
        same = ", pa == pb" + (", pc == pout" if len(operands) == 4 else "")
        widens = "out_dtype" in parameters
        (others, types), result = (_NOT_HALVES, ", out_dtype") if widens else (_NOT_FLOAT32, "")
        typed = operands[0 if widens else 2 :]  # the others are float32
        text = _REPLACEMENT.format(
            parameters=parameters,
            given=given,
            others=others,
            types=types,
            result=result,
            addresses="; ".join(f"p{name} = {name}.data_ptr()" for name in operands),
            key=", ".join(map(_KEY.format, operands)) + "".join(f", {name}.dtype" for name in typed) + same,
            of_decision=of_decision + result,
            of_product=of_product,
        )
        names: dict[str, Any] = {"table": self._decisions, "make": self._make, "multiply": self._multiplier()}
        names |= {"original": self.original, "float32": torch.float32, "halves": decisions.HALVES, "__name__": __name__}
        exec(compile(text, f"<replacement of {self.name}>", "exec"), names)
        return names["replacement"]

    def _multiplier(self) -> Callable[..., Tensor | None]:
        """Return the function that does what was decided: it returns the result, or None where PyTorch's kernel is due.

        It takes the decision; A, B, the output and C, each with its address; alpha and beta. For the output None and 0
        ask for a new tensor. Nothing is added where there are no C, alpha and beta.
        """
        otherwise, current, wish, empty, name = (
            self._run_otherwise, products.current_stream, self._wish, self._empty, self.name,
        )  # fmt: skip

        def multiply(
            decision: Decision, a: Tensor, pa: int, b: Tensor, pb: int, out: Tensor | None, pc: int,
            c: Tensor | None = None, ps: int = 0, alpha: Any = None, beta: Any = None,
        ) -> Tensor | None:  # fmt: skip
            reason, note, wished = decision.reason, "", wish()
            if wished and not reason:
                reason, note = decisions.of_wish(wished, decision.ordinal, self._request.precision)
            if reason:
                decision.count(reason)
                return None
            try:
                alpha, beta = (1.0, 0.0) if alpha is None else _scalars(alpha, beta)
                if out is None:
                    out = empty(decision.shape, decision.strides, decision.ordinal, a)
                    pc = out.data_ptr()
                if c is None:
                    c, ps = out, pc
                if pa < MAX_STORAGE_BYTES or pb < MAX_STORAGE_BYTES or pc < MAX_STORAGE_BYTES or ps < MAX_STORAGE_BYTES:
                    _require_memory((a, pa), (b, pb), (out, pc), (c, ps))
                try:
                    plan, gpu = decision.plan, decision.gpu
                    if plan is None:
                        otherwise(decision, pa, pb, pc, ps, alpha, beta)
                    else:
                        handle = current(decision.ordinal)
                        if handle not in gpu.streams or not plan.apart(pa, pb, pc, ps):
                            otherwise(decision, pa, pb, pc, ps, alpha, beta)
                        else:
                            switched = gpu.enter()
                            try:
                                plan.launch(handle, (pa, pb, pc, 0, 0, ps), alpha, beta)
                            finally:
                                if switched:
                                    gpu.leave()
                except DeviceMemoryError:
                    products.empty_cache(decision.ordinal)
                    otherwise(decision, pa, pb, pc, ps, alpha, beta)
            except PassedOn as passed:
                reason = passed.reason
            except OverlapError:
                reason = decisions.OVERLAP
            except CaptureError:
                reason = decisions.CAPTURE
            except FastsgemmError as error:
                place = "cpu" if decision.ordinal == HOST else f"cuda:{decision.ordinal}"
                raise products.named(error, f"{name} of {decision.problem} on {place}") from error
            else:
                if note:
                    decision.count("", note)
                else:
                    decision.calls += 1
                return out
            decision.count(reason)
            return None

        return multiply

    def _run_otherwise(self, decision: Decision, pa: int, pb: int, pc: int, ps: int, alpha: float, beta: float) -> None:
        """Multiply on the host, for the first time, on a new stream, or where the output may share memory."""
        metas, request = decision.metas, self._request
        operands = [*zip((pa, pb, pc, ps), metas, strict=False)]
        gpu = products.gpu_of(decision.ordinal)
        if gpu is None:
            a, b, c, *source = operands
            products.on_host(a, b, c, alpha, beta, request, *source)
            return
        switched = gpu.enter()
        try:
            request = of_call(request, output="the output")
            plan = driver.multiply(gpu, products.stream_of(gpu), request, operands, alpha, beta)
            decision.gpu, decision.plan = gpu, plan
        finally:
            if switched:
                gpu.leave()


class PassedOn(Exception):
    """A call that PyTorch's own kernel takes; it never leaves this module."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _require_memory(*given: tuple[Tensor, int]) -> None:
    if any(freed(x, address) for x, address in given):
        raise PassedOn(decisions.NO_MEMORY)


def _scalars(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Return both as float32, or leave it to PyTorch what to say about them."""
    try:
        return products.scalar("alpha", alpha), products.scalar("beta", beta)
    except FastsgemmError:
        raise PassedOn(decisions.SCALAR) from None


def _no_wish() -> str:
    return ""


_getter: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # since PyTorch 2.9, as the switch is


def _fp32_precision() -> str:
    """Return which precision the user wishes float32 products of CUDA tensors to have.

    That is "tf32", "bfx9" (since PyTorch 2.15) or what later versions have, and empty for that of float32.
    """
    wish: str = _getter("cuda", "matmul")
    return "" if wish in ("ieee", "none") else wish
