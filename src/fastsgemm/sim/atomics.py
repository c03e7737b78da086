"""Atomic additions and maxima. They order nothing else, and meet plain accesses as races; two atomics never race.

Lanes that update one place do so in the order of their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.family import Family, Step, operands, unknown
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.memory import space_address
from fastsgemm.sim.ptx import Instruction, Symbol
from fastsgemm.sim.slots import DTYPES, Slots

_COMPUTE: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "max": np.maximum, "min": np.minimum}
_NOWHERE = "_"


def _atomic(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    space, type_ = match[2], match[4]
    if match[1] == "red":
        place, source = operands(instruction, 2)
        target = None
    else:
        target, place, source = operands(instruction, 3)
    if match[3] not in _COMPUTE:
        raise unknown(instruction)
    compute, dtype = _COMPUTE[match[3]], np.dtype(DTYPES[type_])
    address_of = space_address(instruction, place, slots, space)
    value = slots.reading(source, type_)
    keeps = target is not None and target != Symbol(_NOWHERE)
    result = (slots.register(target), slots.stored(target)) if target is not None and keeps else None

    def step(batch: Batch) -> None:
        address = address_of(batch)
        values = batch.read(value, dtype)
        if space == "global":
            old, owner = batch.memory.update(batch, instruction, address, values, compute)
            batch.counters.accessed_global(index, batch, address, owner, dtype.itemsize)
        else:
            access = batch.shared.access(batch, instruction, address, dtype.itemsize)
            old = batch.shared.update(batch, instruction, access, values, compute)
            batch.counters.accessed_shared(index, batch, access.pattern.storing, dtype.itemsize)
        if result is not None:
            slot, stored = result
            batch.scatter(slot, old.view(stored))

    return step


_SCOPE = r"(?:\.relaxed)?(?:\.(?:cta|cluster|gpu|sys))?"  # which threads see it: here all do
_ATOMIC = re.compile(r"(atom|red)" + _SCOPE + r"\.(shared|global)(?:::cta)?\.(\w+)\.([us]32)")

FAMILIES = (Family(_ATOMIC, _atomic),)
