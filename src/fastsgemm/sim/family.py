"""`Family`: a pattern of opcodes, and the function that decodes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.errors import UnknownInstructionError
from fastsgemm.sim.ptx import Instruction, Operand, Vector
from fastsgemm.sim.slots import Slots

Step = Callable[[Batch], None]


@dataclass(frozen=True)
class Family:
    """Some opcodes that are decoded by one function."""

    pattern: re.Pattern[str]  # of the whole opcode
    # From an instruction, its index in the kernel, the slots and the match to the function that executes it in the
    # lanes that do. Guards are not its business.
    decode: Callable[[Instruction, int, Slots, re.Match[str]], Step]


def unknown(instruction: Instruction, why: str = "the simulated device does not have it") -> UnknownInstructionError:
    """Return the error for an instruction that cannot be decoded."""
    return UnknownInstructionError(
        f"instruction {instruction.opcode!r} at {instruction.place}: {why}: {instruction.text}"
    )


def operands(instruction: Instruction, *counts: int) -> tuple[Operand, ...]:
    """Return the operands of an instruction that takes one of these counts of them."""
    given = instruction.operands
    if len(given) not in counts:
        raise unknown(instruction, f"it takes {' or '.join(map(str, counts))} operands, not {len(given)}")
    return given


def items(instruction: Instruction, operand: Operand, count: int) -> tuple[Operand, ...]:
    """Return the parts of an operand that has so many: of a vector, or itself alone."""
    parts = operand.items if isinstance(operand, Vector) else (operand,)
    if len(parts) != count:
        raise unknown(instruction, f"an operand of it has {len(parts)} elements, not {count}")
    return parts
