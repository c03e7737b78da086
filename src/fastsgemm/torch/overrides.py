"""The functions that take the place of PyTorch's kernels.

Each looks up what is done with operands like these, see `fastsgemm.torch.decisions`, and multiplies or passes the call
on. This is the hot path: a call seen before reads each operand's shape, strides, dtype and address once, and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fastsgemm.call import product
from fastsgemm.call.arrays import HOST
from fastsgemm.call.arrays.torch import MAX_STORAGE_BYTES, allocator, freed
from fastsgemm.errors import CaptureError, DeviceMemoryError, FastsgemmError, OverlapError
from fastsgemm.rungs import Rung
from fastsgemm.torch import decisions, products
from fastsgemm.torch.decisions import Decision, Kind
from fastsgemm.torch.report import Line

KINDS = {
    "mm": Kind("mm", (2, 2)),
    "addmm": Kind("addmm", (2, 2)),
    "bmm": Kind("bmm", (3, 3)),
    "baddbmm": Kind("baddbmm", (3, 3)),
    "addmv": Kind("addmv", (2, 1)),
    "dot": Kind("dot", (1, 1)),
}

float32 = torch.float32

_MOST_DECISIONS = 16384  # of one operator; then its table is emptied and starts again


class Override:
    """One operator in one form: its decisions, its replacement, and the kernel that was there before.

    Parameters
    ----------
    name : str
        Such as ``mm``, ``mm.out`` or ``addmm_``.
    original : callable
        The kernel that was there before.
    precision : str
        ``ieee`` or ``fp16x3``.
    rung : Rung or None
        That with one order of summation, or None for the fastest.
    device : str
        ``cuda`` or ``cpu``.
    """

    def __init__(self, name: str, original: Callable[..., Any], precision: str, rung: Rung | None, device: str) -> None:
        self.name = name
        self._kind = KINDS[name.removesuffix(".out").removesuffix("_")]
        self.original = original
        self._precision, self._rung = precision, rung
        self._tf32 = _tf32_allowed if device == "cuda" else _never
        self._empty = allocator(torch, device)
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

    def release(self) -> None:
        """Forget all decisions, and the plans that they hold, but not what they counted."""
        self._count(self._counted)
        self._decisions.clear()

    def _count(self, counted: dict[tuple[str, str, int], int]) -> None:
        for decision in list(self._decisions.values()):
            for reason, calls in ((decision.reason, decision.calls), *decision.other_ends.items()):
                key = (decision.problem, reason, decision.flops)
                counted[key] = counted.get(key, 0) + calls

    def _make(self, key: Any, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None) -> Decision:
        if len(self._decisions) >= _MOST_DECISIONS:
            self.release()
        return self._decisions.setdefault(key, decisions.make(self._kind, a, b, c, out))

    # The replacements. Each is a closure, because a look-up of a local name is cheaper than one of an attribute. There
    # are five, because PyTorch passes other arguments to each form, and reading them in general would take longer. The
    # alignment of an address is in the key, because kernels depend on it.

    def _new(self) -> Callable[..., Any]:
        table, make, multiply, count_types, original = self._tools()

        def new(a: Tensor, b: Tensor) -> Any:
            if a.dtype is not float32 or b.dtype is not float32:
                count_types(a, b)
                return original(a, b)
            pa, pb = a.data_ptr(), b.data_ptr()
            key = (
                a.shape, a.stride(), a.get_device(), pa & 15,
                b.shape, b.stride(), b.get_device(), pb & 15,
            )  # fmt: skip
            result = multiply(table.get(key) or make(key, a, b, None, None), a, pa, b, pb, None, 0)
            return original(a, b) if result is None else result

        return new

    def _out(self) -> Callable[..., Any]:
        table, make, multiply, count_types, original = self._tools()

        def into(a: Tensor, b: Tensor, *, out: Tensor) -> Any:
            if a.dtype is not float32 or b.dtype is not float32:
                count_types(a, b)
                return original(a, b, out=out)
            pa, pb, pc = a.data_ptr(), b.data_ptr(), out.data_ptr()
            key = (
                a.shape, a.stride(), a.get_device(), pa & 15,
                b.shape, b.stride(), b.get_device(), pb & 15,
                out.shape, out.stride(), out.dtype, out.get_device(), pc & 15,
            )  # fmt: skip
            result = multiply(table.get(key) or make(key, a, b, None, out), a, pa, b, pb, out, pc)
            return original(a, b, out=out) if result is None else result

        return into

    def _new_sum(self) -> Callable[..., Any]:
        table, make, multiply, count_types, original = self._tools()

        def new_sum(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
            if a.dtype is not float32 or b.dtype is not float32:
                count_types(a, b)
                return original(c, a, b, beta=beta, alpha=alpha)
            pa, pb, ps = a.data_ptr(), b.data_ptr(), c.data_ptr()
            key = (
                a.shape, a.stride(), a.get_device(), pa & 15,
                b.shape, b.stride(), b.get_device(), pb & 15,
                c.shape, c.stride(), c.dtype, c.get_device(), ps & 15,
            )  # fmt: skip
            decision = table.get(key) or make(key, a, b, c, None)
            result = multiply(decision, a, pa, b, pb, None, 0, c, ps, alpha, beta)
            return original(c, a, b, beta=beta, alpha=alpha) if result is None else result

        return new_sum

    def _out_sum(self) -> Callable[..., Any]:
        table, make, multiply, count_types, original = self._tools()

        def into_sum(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor) -> Any:
            if a.dtype is not float32 or b.dtype is not float32:
                count_types(a, b)
                return original(c, a, b, beta=beta, alpha=alpha, out=out)
            pa, pb, pc, ps = a.data_ptr(), b.data_ptr(), out.data_ptr(), c.data_ptr()
            key = (
                a.shape, a.stride(), a.get_device(), pa & 15,
                b.shape, b.stride(), b.get_device(), pb & 15,
                c.shape, c.stride(), c.dtype, c.get_device(), ps & 15, ps == pc,
                out.shape, out.stride(), out.dtype, out.get_device(), pc & 15,
            )  # fmt: skip
            decision = table.get(key) or make(key, a, b, c, out)
            result = multiply(decision, a, pa, b, pb, out, pc, c, ps, alpha, beta)
            return original(c, a, b, beta=beta, alpha=alpha, out=out) if result is None else result

        return into_sum

    def _in_place(self) -> Callable[..., Any]:
        table, make, multiply, count_types, original = self._tools()

        def in_place(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
            if a.dtype is not float32 or b.dtype is not float32:
                count_types(a, b)
                return original(c, a, b, beta=beta, alpha=alpha)
            pa, pb, pc = a.data_ptr(), b.data_ptr(), c.data_ptr()
            key = (
                a.shape, a.stride(), a.get_device(), pa & 15,
                b.shape, b.stride(), b.get_device(), pb & 15,
                c.shape, c.stride(), c.dtype, c.get_device(), pc & 15,
            )  # fmt: skip
            decision = table.get(key) or make(key, a, b, c, c)
            result = multiply(decision, a, pa, b, pb, c, pc, c, pc, alpha, beta)
            return original(c, a, b, beta=beta, alpha=alpha) if result is None else result

        return in_place

    def _tools(self) -> tuple[Any, ...]:
        """Return what every replacement needs."""
        return self._decisions, self._make, self._multiplier(), self._counter_of_types(), self.original

    def _counter_of_types(self) -> Callable[[Tensor, Tensor], None]:
        """Return the function that counts a call whose factors are not both float32. It needs nothing else of them."""
        table, make = self._decisions, self._make

        def count_types(a: Tensor, b: Tensor) -> None:
            key = a.dtype, b.dtype
            (table.get(key) or make(key, a, b, None, None)).calls += 1

        return count_types

    def _multiplier(self) -> Callable[..., Tensor | None]:
        """Return the function that does what was decided: it returns the result, or None where PyTorch's kernel is due.

        It takes the decision; A, B, the output and C, each with its address; alpha and beta. For the output None and 0
        ask for a new tensor. Nothing is added where there are no C, alpha and beta.
        """
        otherwise, current, tf32, empty, name = (
            self._run_otherwise, products.current_stream, self._tf32, self._empty, self.name,
        )  # fmt: skip

        def multiply(
            decision: Decision, a: Tensor, pa: int, b: Tensor, pb: int, out: Tensor | None, pc: int,
            c: Tensor | None = None, ps: int = 0, alpha: Any = None, beta: Any = None,
        ) -> Tensor | None:  # fmt: skip
            reason = decision.reason or (decisions.TF32 if tf32() else "")
            if reason:
                _count_passed_on(decision, reason)
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
                                plan.launch(gpu, handle, pa, pb, pc, alpha, beta, 0, 0, ps)
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
                decision.calls += 1
                return out
            _count_passed_on(decision, reason)
            return None

        return multiply

    def _run_otherwise(self, decision: Decision, pa: int, pb: int, pc: int, ps: int, alpha: float, beta: float) -> None:
        """Multiply on the host, for the first time, on a new stream, or where the output may share memory."""
        metas, precision, rung = decision.metas, self._precision, self._rung
        addresses = (pa, pb, pc, ps)[: len(metas)]
        gpu = products.gpu_of(decision.ordinal)
        if gpu is None:
            a, b, c, *source = zip(addresses, metas, strict=True)
            products.on_host(a, b, c, alpha, beta, precision, rung, *source)
            return
        switched = gpu.enter()
        try:
            handle = products.stream_of(gpu)
            plan = decision.plan or products.plan_of(gpu, handle, metas, addresses, precision, rung)
            if not plan.apart(pa, pb, pc, ps):
                product.check_overlap(metas, addresses, "the output")
            decision.gpu, decision.plan = gpu, plan
            plan.launch(gpu, handle, pa, pb, pc, alpha, beta, 0, 0, ps)
        finally:
            if switched:
                gpu.leave()


class PassedOn(Exception):
    """A call that PyTorch's own kernel takes; it never leaves this module."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _count_passed_on(decision: Decision, reason: str) -> None:
    if reason == decision.reason:
        decision.calls += 1
    else:
        decision.other_ends[reason] = decision.other_ends.get(reason, 0) + 1


def _require_memory(*given: tuple[Tensor, int]) -> None:
    if any(freed(x, address) for x, address in given):
        raise PassedOn(decisions.NO_MEMORY)


def _scalars(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Return both as float32, or leave it to PyTorch what to say about them."""
    try:
        return products.scalar("alpha", alpha), products.scalar("beta", beta)
    except FastsgemmError:
        raise PassedOn(decisions.SCALAR) from None


def _never() -> bool:
    return False


def _reader_of_tf32() -> Callable[[], bool]:
    """Return a function that says whether the user allows TF32 in float32 products of CUDA tensors."""
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)  # since PyTorch 2.9
    if getter is not None:
        return lambda: getter("cuda", "matmul") == "tf32"
    return torch._C._get_cublas_allow_tf32


_tf32_allowed = _reader_of_tf32()
