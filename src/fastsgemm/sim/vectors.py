"""``mov`` between one register and the registers of its parts: ``mov.b32 {low, high}, both`` and back."""

from __future__ import annotations

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.family import Step, operands, unknown
from fastsgemm.sim.ptx import Instruction, Operand, Symbol, Vector
from fastsgemm.sim.slots import Slots

_SINK = Symbol("_")  # a part that is not wanted
_WIDTHS = {"mov.b32": 32, "mov.b64": 64}


def packs(instruction: Instruction) -> bool:
    """Return whether an instruction is such a mov."""
    return instruction.opcode in _WIDTHS and any(isinstance(operand, Vector) for operand in instruction.operands)


def decode(instruction: Instruction, slots: Slots) -> Step:
    """Return the function that executes the mov."""
    target, source = operands(instruction, 2)
    width = _WIDTHS[instruction.opcode]
    if isinstance(target, Vector) and not isinstance(source, Vector):
        return _unpack(target.items, source, width, slots)
    if isinstance(source, Vector) and not isinstance(target, Vector):
        return _pack(target, source.items, width, slots)
    raise unknown(instruction)


def _unpack(parts: tuple[Operand, ...], source: Operand, width: int, slots: Slots) -> Step:
    value = slots.reading(source, f"b{width}")
    targets = [(number, slots.register(part), slots.stored(part)) for number, part in enumerate(parts) if part != _SINK]
    part_bits = width // len(parts)
    wide, narrow = np.dtype(f"u{width // 8}"), np.dtype(f"u{part_bits // 8}")

    def step(batch: Batch) -> None:
        bits = batch.registers[value].view(wide)
        for number, slot, stored in targets:
            batch.put(slot, (bits >> wide.type(number * part_bits)).astype(narrow).view(stored))

    return step


def _pack(target: Operand, parts: tuple[Operand, ...], width: int, slots: Slots) -> Step:
    slot, stored = slots.register(target), slots.stored(target)
    part_bits = width // len(parts)
    values = [slots.reading(part, f"b{part_bits}") for part in parts]
    wide, narrow = np.dtype(f"u{width // 8}"), np.dtype(f"u{part_bits // 8}")

    def step(batch: Batch) -> None:
        bits = np.zeros(1, wide)
        for number, value in enumerate(values):
            part = batch.registers[value].view(narrow).astype(wide)
            bits = bits | part << wide.type(number * part_bits)
        batch.put(slot, bits.view(stored))

    return step
