"""The instructions that touch memory: loads, stores and asynchronous copies, decoded to functions of a batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fastsgemm.sim.alu import SHARED_WINDOW
from fastsgemm.sim.batch import Batch
from fastsgemm.sim.errors import MisalignedError, ParameterAccessError
from fastsgemm.sim.family import Family, Step, items, operands, unknown
from fastsgemm.sim.lanes import Array, first_lane
from fastsgemm.sim.ptx import Address, Constant, Instruction, Operand
from fastsgemm.sim.slots import DTYPES, Slots

# Cache hints, which do not change what is moved. Not .L2::cache_hint, which has an operand more.
_HINTS = r"(?:\.c[agsvu]|\.cs|\.lu|\.wb|\.wt|\.L1::\w+|\.L2::(?:evict_\w+|\d+B))*"
_ACCESS = re.compile(
    r"(?P<kind>ld|st)(?:\.volatile)?(?:\.(?P<space>param|const|global|shared)(?:::cta)?)?(?P<read_only>\.nc)?"
    + _HINTS
    + r"(?:\.v(?P<count>[24]))?\.(?P<type>[busf]\d+)"
)
_COPY = re.compile(r"cp\.async\.c[ag]\.shared(?:::cta)?\.global" + _HINTS)
_COPY_SIZES = (4, 8, 16)
_WIDEST = 16  # bytes of an access
_SHARED_BITS = np.uint64(0xFFFFFFFF)  # of a shared address


def narrowest(instructions: list[Instruction], space: str) -> int:
    """Return the size in bytes of the narrowest access to a memory space among the instructions, at most 4."""
    matches = (_ACCESS.fullmatch(instruction.opcode) for instruction in instructions)
    types = (m["type"] for m in matches if m and m["space"] in (space, None))
    return min([4, *(int(np.dtype(DTYPES[type_]).itemsize) for type_ in types if type_ in DTYPES)])


def _access(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    kind, space, type_, count = match["kind"], match["space"], match["type"], int(match["count"] or 1)
    if type_ not in DTYPES or np.dtype(DTYPES[type_]).itemsize * count > _WIDEST:
        raise unknown(instruction)
    if match["read_only"] and (kind, space) != ("ld", "global"):
        raise unknown(instruction)
    dtype = np.dtype(DTYPES[type_])
    if space in ("param", "const"):
        if kind != "ld":
            raise unknown(instruction)
        return _load_parameter(instruction, space, dtype, count, slots)
    access = _load if kind == "ld" else _store
    if space is not None:
        return access(instruction, index, slots, space, dtype, count)
    to_global, to_shared = (access(instruction, index, slots, s, dtype, count) for s in ("global", "shared"))
    address_of = _address(instruction, instruction.operands[kind == "ld"], slots)

    def step(batch: Batch) -> None:
        in_shared = address_of(batch) - SHARED_WINDOW <= _SHARED_BITS
        batch.only(batch.current_mask & in_shared, to_shared)
        batch.only(batch.current_mask & ~in_shared, to_global)

    return step


def _load_parameter(instruction: Instruction, space: str, dtype: np.dtype[Any], count: int, slots: Slots) -> Step:
    """ld.param or ld.const, whose address may have been picked at run time, such as that of one of two parameters."""
    target, source = operands(instruction, 2)
    targets = [(slots.register(item), slots.stored(item)) for item in items(instruction, target, count)]
    address_of = _address(instruction, source, slots)
    size = dtype.itemsize * count
    name, first, end = "constants", slots.parameter_bytes, slots.constants_end
    if space == "param":
        name, first, end = "parameters", 0, slots.parameter_bytes

    def step(batch: Batch) -> None:
        address = address_of(batch)
        alike = len(address) == 1
        address = address if alike else batch.gather(address)
        outside = (address < np.uint64(first)) | (address + np.uint64(size) > np.uint64(end))
        if outside.any():
            nth = first_lane(outside)
            what = f"reads {size} bytes at {int(address[nth]) - first} of {end - first} bytes of {name}"
            batch.fail(ParameterAccessError, instruction, nth, what)
        places = address.astype(np.int64)[:, None] + np.arange(size)
        values = batch.parameters[places].view(dtype)
        for number, (slot, stored) in enumerate(targets):
            value = _fit(values[:, number], stored)
            if alike:
                batch.put(slot, value)
            else:
                batch.scatter(slot, value)

    return step


def _load(instruction: Instruction, index: int, slots: Slots, space: str, dtype: np.dtype[Any], count: int) -> Step:
    target, source = operands(instruction, 2)
    targets = [(slots.register(item), slots.stored(item)) for item in items(instruction, target, count)]
    address_of = space_address(instruction, source, slots, space)
    size = dtype.itemsize * count
    used = instruction.used_bytes or size
    read_only = ".nc" in instruction.opcode  # the read-only path

    def step(batch: Batch) -> None:
        address = address_of(batch)
        if space == "global":
            data, owner = batch.memory.load(batch, instruction, address, dtype, count, read_only)
            batch.counters.accessed_global(index, batch, address, owner, size)
        else:
            access = batch.shared.access(batch, instruction, address, size)
            data = batch.shared.load(batch, instruction, access, dtype, count)
            batch.counters.accessed_shared(index, batch, access.pattern.loading, used)
        for (slot, stored), values in zip(targets, data, strict=True):
            batch.scatter(slot, _fit(values, stored))

    return step


def _store(instruction: Instruction, index: int, slots: Slots, space: str, dtype: np.dtype[Any], count: int) -> Step:
    target, source = operands(instruction, 2)
    kind = f"b{8 * dtype.itemsize}"
    sources = [slots.reading(item, kind) for item in items(instruction, source, count)]
    address_of = space_address(instruction, target, slots, space)
    size = dtype.itemsize * count

    def step(batch: Batch) -> None:
        address = address_of(batch)
        values = [batch.gather(_fit(batch.registers[slot], DTYPES[kind])) for slot in sources]
        if space == "global":
            owner = batch.memory.store(batch, instruction, address, values)
            batch.counters.accessed_global(index, batch, address, owner, size)
        else:
            access = batch.shared.access(batch, instruction, address, size)
            batch.shared.store(batch, instruction, access, values)
            batch.counters.accessed_shared(index, batch, access.pattern.storing, size)

    return step


def _copy(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    """cp.async, optionally with the number of bytes to read; the rest of the target is set to zero."""
    target, source, width, *rest = operands(instruction, 3, 4)
    if not isinstance(width, Constant) or width.bits not in _COPY_SIZES:
        raise unknown(instruction, f"it copies one of {_COPY_SIZES} bytes")
    size = width.bits
    to, from_ = (
        space_address(instruction, target, slots, "shared"),
        space_address(instruction, source, slots, "global"),
    )
    read_slot = slots.reading(rest[0], "u32") if rest else None

    def step(batch: Batch) -> None:
        address = from_(batch)
        read = np.full(len(address), size, np.int64)
        if read_slot is not None:
            read[:] = _bytes_to_read(batch.gather(batch.registers[read_slot]), size)
        access = batch.shared.access(batch, instruction, to(batch), size)
        rows = batch.shared.start_copy(batch, instruction, access)
        batch.counters.accessed_shared(index, batch, access.pattern.storing, size)
        data, reading = _fetch(instruction, index, batch, address, read, size)
        batch.copies.start(batch, instruction, rows, data, reading)

    return step


def _groups(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    """Commit a group of copies, or wait for groups."""
    if match[1] == "wait_group":
        (pending,) = operands(instruction, 1)
        if not isinstance(pending, Constant):
            raise unknown(instruction, "it takes a constant")
        return lambda batch: batch.copies.wait(batch, pending.bits)
    operands(instruction, 0)
    if match[1] == "commit_group":
        return lambda batch: batch.copies.commit(batch)
    return lambda batch: batch.copies.wait_all(batch)


def _bytes_to_read(value: Array, size: int) -> Array:
    """The last operand of a copy: a predicate says whether to ignore the source, a number how many bytes to read."""
    return np.where(value, 0, size) if value.dtype == np.bool_ else np.minimum(value, size).astype(np.int64)


def _fetch(
    instruction: Instruction, index: int, batch: Batch, address: Array, read: Array, size: int
) -> tuple[Array, Array | None]:
    """Return the bytes that the copies of the executing lanes move, and their source; see `Flight`."""
    data = np.zeros((len(address), size), np.uint8)
    source: Array | None = None
    if (address % np.uint64(size)).any():
        nth = first_lane(address % np.uint64(size))
        batch.fail(MisalignedError, instruction, nth, f"copies {size} bytes from {int(address[nth]):#x}, no multiple")
    if (read == size).all():  # the usual case
        _fetch_alike(batch, instruction, index, address, data)
        return data, batch.memory.start_copy(address, size)
    lanes = batch.executing
    for amount in np.unique(read[read > 0]):
        chosen = read == amount
        mask = np.zeros(batch.count, np.bool_)
        mask[lanes[chosen]] = True
        where = address[chosen]
        part = np.empty((len(where), amount), np.uint8)
        batch.only(mask, partial(_fetch_alike, instruction=instruction, index=index, address=where, data=part))
        data[chosen, :amount] = part
        units = batch.memory.start_copy(where, int(amount))
        if units is not None:
            source = np.full((len(address), size), -1, np.int64) if source is None else source
            source[np.flatnonzero(chosen)[:, None], np.arange(units.shape[1])] = units
    return data, source


def _fetch_alike(batch: Batch, instruction: Instruction, index: int, address: Array, data: Array) -> None:
    """Fill the rows of `data` with bytes from the address of each executing lane."""
    amount = data.shape[1]
    unit = amount & -amount  # the widest access that divides the amount
    for at in range(0, amount, unit):
        part, owner = batch.memory.load(batch, instruction, address + np.uint64(at), np.uint8, unit)
        data[:, at : at + unit] = part.T
    batch.counters.accessed_global(index, batch, address, owner, amount)


def _address(instruction: Instruction, operand: Operand, slots: Slots) -> Callable[[Batch], Array]:
    """Return a function from a batch to the address of each lane, or to one address for all lanes."""
    if not isinstance(operand, Address):
        raise unknown(instruction, "an operand of it is no address")
    slot = slots.reading(operand.base, "u64")
    offset = np.uint64(operand.offset & (1 << 64) - 1)
    return lambda batch: batch.registers[slot].astype(np.uint64) + offset


def space_address(instruction: Instruction, operand: Operand, slots: Slots, space: str) -> Callable[[Batch], Array]:
    """Return a function from a batch to the addresses of the lanes that execute."""
    address_of = _address(instruction, operand, slots)
    if space == "shared":
        return lambda batch: batch.gather(address_of(batch) & _SHARED_BITS)
    return lambda batch: batch.gather(address_of(batch))


def _fit(values: Array, dtype: Any) -> Array:
    """Return the values as a register or memory cell of another type holds them: their bits, cut or extended."""
    return values.view(dtype) if values.dtype.itemsize == np.dtype(dtype).itemsize else values.astype(dtype)


FAMILIES = (
    Family(_ACCESS, _access),
    Family(_COPY, _copy),
    Family(re.compile(r"cp\.async\.(commit_group|wait_group|wait_all)"), _groups),
)
