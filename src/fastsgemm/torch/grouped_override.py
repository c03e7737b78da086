"""The replacement of PyTorch's ``_grouped_mm``, which ``torch.nn.functional.grouped_mm`` calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastsgemm.request import Request, of_call, resolve
from fastsgemm.torch import decisions, execution
from fastsgemm.torch.decisions import Decision
from fastsgemm.torch.overrides import Override, addresses_of


class GroupedOverride(Override):
    """``_grouped_mm``, whose float32 products PyTorch computes one after the other, with the offsets on the host."""

    def __init__(self, name: str, request: Request, device: str) -> None:
        super().__init__(name, request, device)
        self._groups = of_call(resolve(batch_invariant=request.batch_invariant), output="the output")

    def replacement(
        self, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
    ) -> Any:
        """Do what PyTorch's kernel would with these arguments."""
        decision = self._decide_groups(a, b, offs, bias, out_dtype)
        result = self._follow(decision, True, lambda: self._run_groups(decision, a, b, offs))
        if result is None:
            execution.prepare_to_pass_on(a.get_device())
            return self.original(a, b, offs, bias, out_dtype)
        return result

    def _decide_groups(
        self, a: Tensor, b: Tensor, offs: Tensor | None, bias: Tensor | None, out_dtype: Any
    ) -> Decision:
        key: tuple[Any, ...] = (a.dtype, b.dtype, out_dtype, bias is None)
        if a.dtype is b.dtype is torch.float32:
            key += tuple((x.shape, x.stride(), x.get_device()) for x in (a, b))
            key += () if offs is None else (offs.shape, offs.dtype, offs.get_device())
        in_order = self._request.batch_invariant and self._request.tensor_cores
        return self._known(key, lambda: decisions.of_groups(self._operation, a, b, offs, bias, out_dtype, in_order))

    def _run_groups(self, decision: Decision, a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
        result = torch.empty_strided(decision.shape, decision.metas[2].strides, dtype=decision.dtype, device=a.device)
        addresses = addresses_of([a, b, result, *([] if offs is None else [offs])])
        if offs is None:
            views = [*zip(addresses, decision.metas, strict=True)]
            execution.run(decision.ordinal, views, 1.0, 0.0, self._request)
        else:
            execution.multiply_groups(a, b, offs, 1.0, 0.0, self._groups, result)
        return result

    def fake(
        self, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
    ) -> Any:
        """Return a tensor without memory, as for tracing by ``torch.compile``; sizes may be symbols.

        PyTorch's own function refuses the float32 that its kernels take, in 2.13 at least.
        """
        float32 = a.dtype is b.dtype is torch.float32 and out_dtype in (None, torch.float32)
        dimensions = a.dim(), b.dim()
        if not float32 or bias is not None or not set(dimensions) <= {2, 3} or (offs is None) != (dimensions == (3, 3)):
            by_pytorch = torch.ops.aten._grouped_mm.default.py_kernels[torch._C.DispatchKey.Meta]
            return by_pytorch(a, b, offs, bias, out_dtype)
        torch._check(a.shape[-1] == b.shape[-2], lambda: "contraction dimension of mat_a and mat_b must match")
        shape: tuple[Any, ...] = (a.shape[-2], b.shape[-1])
        if a.dim() == b.dim():
            shape = (a.shape[0] if offs is None else offs.shape[0], *shape)
        row = (shape[-1] + 3) // 4 * 4
        return a.new_empty_strided(shape, (shape[-2] * row, row, 1)[-len(shape) :])
