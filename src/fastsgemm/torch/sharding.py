"""Sharding of products of DTensors: what each device multiplies, by the placements of the operands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

_registered = False


def register() -> None:
    """Register the operator's sharding rule with DTensor once, if the program has imported DTensor.

    Called when an operand is of a subclass: importing DTensor ourselves would take half as long as importing PyTorch.
    """
    global _registered
    if _registered or "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    operator = torch.ops.fastsgemm.sgemm.default
    register_sharding(operator)(lambda *operands, **options: list(_shardings(*operands, **options)))
    # DTensor caches its choice by the operands; of other arguments the key has integers only, unless they are named.
    propagator = DTensor._op_dispatcher.sharding_propagator
    info = RuntimeSchemaInfo(static_kwargkey=["batch_invariant", "symmetric"], needs_pytree=True)
    propagator.op_to_schema_info[operator] = info
    _registered = True


def _shardings(
    A: Any,
    B: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    C: Any = None,
    *,
    precision: str | None = None,
    batch_invariant: bool = False,
    symmetric: bool = False,
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield the placements of the result and of the operands along one dimension of a mesh.

    Shards of a symmetric result are not symmetric, so only its batch is sharded. Partial sums over K are added up
    between devices in no fixed order.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    rows, columns = A.ndim - 2, A.ndim - 1

    def placed(out: Any, a: Any, b: Any) -> tuple[list[Any], list[Any]]:
        return [out], [a, b, *([] if C is None else [out])]

    yield placed(Replicate(), Replicate(), Replicate())
    for d in range(rows):
        yield placed(Shard(d), Shard(d), Shard(d))
    if not symmetric:
        yield placed(Shard(rows), Shard(rows), Replicate())
        yield placed(Shard(columns), Replicate(), Shard(columns))
        if not batch_invariant:
            yield placed(Partial(), Shard(columns), Shard(rows))
