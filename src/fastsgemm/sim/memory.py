"""The instructions that touch memory: loads, stores and asynchronous copies, decoded to functions of a batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fastsgemm.sim.batch import Array, Batch
from fastsgemm.sim.errors import MisalignedError
from fastsgemm.sim.ptx import Address, Constant, Instruction, Operand, Symbol, Vector
from fastsgemm.sim.slots import DTYPES, Slots

Step = Callable[[Batch], None]

_HINTS = r"(?:\.c[agsvu]|\.cs|\.lu|\.wb|\.wt|\.L1::\w+|\.L2::\w+)*"  # cache hints: no effect on what is moved
_ACCESS = re.compile(
    r"(ld|st)(?:\.volatile)?\.(param|global|shared)(?:::cta)?(?:\.nc)?" + _HINTS + r"(?:\.v([24]))?\.([busf]\d+)"
)
_COPY = re.compile(r"cp\.async\.c[ag]\.shared(?:::cta)?\.global" + _HINTS)
_COPY_SIZES = (4, 8, 16)
_WIDEST = 16  # bytes of an access
_SHARED_BITS = np.uint64(0xFFFFFFFF)  # of a shared address


def decode(instruction: Instruction, index: int, slots: Slots) -> Step | None:
    """Return the function that executes an instruction, None where it does not touch memory."""
    opcode = instruction.opcode
    if opcode == "cp.async.commit_group":
        return lambda batch: batch.copies.commit(batch)
    if opcode == "cp.async.wait_group":
        (pending,) = instruction.operands
        assert isinstance(pending, Constant)
        return lambda batch: batch.copies.wait(batch, batch.shared, pending.bits)
    if opcode == "cp.async.wait_all":
        return lambda batch: batch.copies.wait_all(batch, batch.shared)
    if _COPY.fullmatch(opcode):
        return _copy(instruction, index, slots)
    match = _ACCESS.fullmatch(opcode)
    if match is None or match[4] not in DTYPES:
        return None
    kind, space, dtype, count = match[1], match[2], np.dtype(DTYPES[match[4]]), int(match[3] or 1)
    if dtype.itemsize * count > _WIDEST:
        return None
    if space == "param":
        return _load_parameter(instruction, dtype, slots) if (kind, count) == ("ld", 1) else None
    if kind == "ld":
        return _load(instruction, index, slots, space, dtype, count)
    return _store(instruction, index, slots, space, dtype, count)


def narrowest_shared(instructions: list[Instruction]) -> int:
    """Return the bytes of the narrowest shared access among the instructions, at most 4."""
    matches = (_ACCESS.fullmatch(instruction.opcode) for instruction in instructions)
    return min((np.dtype(DTYPES[m[4]]).itemsize for m in matches if m and m[2] == "shared"), default=4) & 7 or 4


def _load_parameter(instruction: Instruction, dtype: np.dtype[Any], slots: Slots) -> Step | None:
    target, source = instruction.operands
    if not (isinstance(source, Address) and isinstance(source.base, Symbol) and source.offset == 0):
        return None
    slot, stored = slots.register(target), slots.stored(target)
    parameter = slots.reading(source.base, "b64")

    def step(batch: Batch) -> None:
        batch.put(slot, _fit(batch.registers[parameter].view(dtype), stored))

    return step


def _load(
    instruction: Instruction, index: int, slots: Slots, space: str, dtype: np.dtype[Any], count: int
) -> Step | None:
    target, source = instruction.operands
    targets = [(slots.register(item), slots.stored(item)) for item in _items(target)]
    address_of = _address(source, slots, space)
    size = dtype.itemsize * count
    used = instruction.used_bytes or size
    if len(targets) != count:
        return None

    def step(batch: Batch) -> None:
        address = address_of(batch)
        if space == "global":
            data, owner = batch.memory.load(batch, instruction, address, dtype, count)
            batch.counters.accessed_global(index, batch, address, owner, size)
        else:
            data = batch.shared.load(batch, instruction, address, dtype, count)
            batch.counters.accessed_shared(index, batch, address, size, used, loading=True)
        for (slot, stored), values in zip(targets, data, strict=True):
            batch.scatter(slot, _fit(values, stored))

    return step


def _store(
    instruction: Instruction, index: int, slots: Slots, space: str, dtype: np.dtype[Any], count: int
) -> Step | None:
    target, source = instruction.operands
    kind = f"b{8 * dtype.itemsize}"
    sources = [slots.reading(item, kind) for item in _items(source)]
    address_of = _address(target, slots, space)
    size = dtype.itemsize * count
    if len(sources) != count:
        return None

    def step(batch: Batch) -> None:
        address = address_of(batch)
        values = [batch.gather(_fit(batch.registers[slot], DTYPES[kind])) for slot in sources]
        if space == "global":
            owner = batch.memory.store(batch, instruction, address, values)
            batch.counters.accessed_global(index, batch, address, owner, size)
        else:
            batch.shared.store(batch, instruction, address, values)
            batch.counters.accessed_shared(index, batch, address, size, size, loading=False)

    return step


def _copy(instruction: Instruction, index: int, slots: Slots) -> Step | None:
    """cp.async, with the optional number of bytes to read; the rest of the target becomes zero."""
    target, source, width, *rest = instruction.operands
    if not isinstance(width, Constant) or width.bits not in _COPY_SIZES or len(rest) > 1:
        return None
    size = width.bits
    to, from_ = _address(target, slots, "shared"), _address(source, slots, "global")
    read_slot = slots.reading(rest[0], "u32") if rest else None

    def step(batch: Batch) -> None:
        address = from_(batch)
        read = np.full(len(address), size, np.int64)
        if read_slot is not None:
            read[:] = _bytes_to_read(batch.gather(batch.registers[read_slot]), size)
        place = to(batch)
        rows = batch.shared.start_copy(batch, instruction, place, size)
        batch.counters.accessed_shared(index, batch, place, size, size, loading=False)
        batch.copies.start(batch, rows, _fetch(instruction, index, batch, address, read, size))

    return step


def _bytes_to_read(value: Array, size: int) -> Array:
    """A predicate says to ignore the source, a number how many bytes of it to read."""
    return np.where(value, 0, size) if value.dtype == np.bool_ else np.minimum(value, size).astype(np.int64)


def _fetch(instruction: Instruction, index: int, batch: Batch, address: Array, read: Array, size: int) -> Array:
    """Read what the copies of the lanes that execute move, as (lanes, bytes)."""
    data = np.zeros((len(address), size), np.uint8)
    if (address % np.uint64(size)).any():
        nth = int(np.flatnonzero(address % np.uint64(size))[0])
        batch.fail(MisalignedError, instruction, nth, f"copies {size} bytes from {int(address[nth]):#x}, no multiple")
    whole = batch.current_mask
    previous = batch.mask
    for amount in np.unique(read[read > 0]):
        chosen = read == amount
        mask = np.zeros(batch.lanes, np.bool_)
        mask[np.flatnonzero(whole)[chosen]] = True
        batch.select(mask)
        unit = int(amount & -amount)  # the widest access that the amount is whole multiples of
        where = address[chosen]
        for at in range(0, int(amount), unit):
            part, owner = batch.memory.load(batch, instruction, where + np.uint64(at), np.uint8, unit)
            data[chosen, at : at + unit] = part.T
        batch.counters.accessed_global(index, batch, where, owner, int(amount))
    batch.select(whole if previous is None else previous)
    return data


def _address(operand: Operand, slots: Slots, space: str) -> Callable[[Batch], Array]:
    """Return a function from a batch to the addresses of the lanes that execute."""
    assert isinstance(operand, Address)
    slot = slots.reading(operand.base, "u64")
    offset = np.uint64(operand.offset & (1 << 64) - 1)

    def address_of(batch: Batch) -> Array:
        address = batch.registers[slot].astype(np.uint64) + offset
        return batch.gather(address & _SHARED_BITS if space == "shared" else address)

    return address_of


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _fit(values: Array, dtype: Any) -> Array:
    """Return values in a register or memory cell of another type: the same bits, cut or extended."""
    return values.view(dtype) if values.dtype.itemsize == np.dtype(dtype).itemsize else values.astype(dtype)
