"""wgmma: a warpgroup, four warps, multiplies two tiles that lie in shared memory; the first may lie in its registers.

The result is computed at once; `fastsgemm.sim.products` sees to it that nobody uses it, or overwrites the tiles, before
the warpgroup has waited. Known are tiles with k contiguous and a swizzle of 128 or 64 bytes, which is that of their
rows. A tile at the end of an operand may lack lines. A device finds in their place what shared memory held before; here
that is NaN where no bulk copy ever wrote, so a kernel that stores what comes of it is found out.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import BarrierError, SharedAccessError
from fastsgemm.sim.family import Family, Step, items, operands, unknown
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.memory_barriers import UNIT as CHUNK  # 16 bytes, which swizzling moves together
from fastsgemm.sim.ptx import Constant, Instruction, Kernel, Operand, Register, Vector
from fastsgemm.sim.slots import Slots
from fastsgemm.sim.tensor_core import K, first_operand, from_fragments, multiply_add, to_fragments
from fastsgemm.sim.warp import by_warp

_WARPS = 4  # of a warpgroup
_LANES = _WARPS * WARP
_M = 64  # rows of A
_ROWS = 8  # one after the other; the description says where the next eight lie
_ROW_BYTES = {1: 128, 2: 64}  # by the swizzle in a description
_LINE_BITS, _CHUNK_BITS = 7, 4  # the bits of an address from here on number 128 bytes, and the chunks in them
_PLAIN = (Constant(1), Constant(1), Constant(0), Constant(0))  # neither negated nor transposed
_FRAGMENT = 4  # registers of a thread with its elements of A
_PRODUCT = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(b?f16)\.\2")
_MOVES = ("mov.f32", "mov.b32", "mov.u32")


def check_warpgroups(batch: Batch, instruction: Instruction) -> Array:
    """Return which warpgroups execute an instruction.

    Raises
    ------
    BarrierError
        Some threads of a warpgroup do and others do not.
    """
    if batch.width % _LANES:
        raise BarrierError(f"a block of {batch.threads} threads has no whole warpgroups: {instruction.text}")
    executing = batch.current_mask.reshape(-1, _LANES)
    some, whole = executing.any(axis=1), executing.all(axis=1)
    if (some != whole).any():
        lane = int(np.flatnonzero(batch.current_mask.reshape(-1) < np.repeat(some, _LANES))[0])
        raise BarrierError(
            f"{batch.name_of(lane)} does not take part with the rest of its warpgroup at {instruction.place}: "
            f"{instruction.text}"
        )
    return np.asarray(whole)


def accumulators(kernel: Kernel) -> frozenset[Register]:
    """Return the registers that products use, and those that are copied to or from them."""
    products = [one for one in kernel.instructions if _PRODUCT.fullmatch(one.opcode)]
    used = {register for one in products for operand in one.operands[:2] for register in _registers(operand)}
    moves = [set(one.operands) for one in kernel.instructions if used and _is_move(one)]
    grown = bool(used)
    while grown:
        more = {register for move in moves if move & used for register in move} - used
        used |= more  # type: ignore[arg-type]
        grown = bool(more)
    return frozenset(used)


def watch(step: Step, instruction: Instruction, watched: frozenset[Register], slots: Slots) -> Step:
    """Return a step that first checks that no product in flight has the registers that an instruction uses."""
    if not watched or _PRODUCT.fullmatch(instruction.opcode):
        return step
    used = {register for operand in instruction.operands for register in _registers(operand)} & watched
    if not used:
        return step
    if _is_move(instruction):
        target, source = (slots.register(operand) for operand in instruction.operands)

        def moving(batch: Batch) -> None:
            batch.products.move(batch, instruction, source, target)
            step(batch)

        return moving
    numbers = tuple(slots.register(register) for register in used)

    def touching(batch: Batch) -> None:
        batch.products.touch(batch, instruction, numbers)
        step(batch)

    return touching


def _is_move(instruction: Instruction) -> bool:
    registers = all(isinstance(operand, Register) for operand in instruction.operands)
    return instruction.opcode in _MOVES and registers and instruction.guard is None


def _registers(operand: Operand) -> tuple[Register, ...]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return tuple(item for item in items if isinstance(item, Register))


def _product(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    in_registers = isinstance(instruction.operands[1], Vector)
    target, first, second, condition, *rest = operands(instruction, 7 if in_registers else 8)
    columns, of_bfloat16 = int(match[1]), match[2] == "bf16"
    if not isinstance(target, Vector) or len(target.items) != columns // 2 or (*rest,) != _PLAIN[: len(rest)]:
        raise unknown(instruction)
    sums = [(slots.register(item), slots.stored(item)) for item in target.items]
    fragment = [slots.register(item) for item in items(instruction, first, _FRAGMENT)] if in_registers else []
    a = None if in_registers else slots.reading(first, "u64")
    b, accumulate = slots.reading(second, "u64"), slots.reading(condition, "pred")

    def step(batch: Batch) -> None:
        groups = np.flatnonzero(check_warpgroups(batch, instruction))
        numbers = [slot for slot, _ in sums]
        batch.products.start(batch, instruction, [*numbers, *fragment])
        warps = np.repeat(np.isin(np.arange(batch.count // _LANES), groups), _WARPS)
        if a is None:
            left = first_operand([by_warp(batch, slot, np.uint32)[warps] for slot in fragment]).reshape(-1, _M, K)
            left = _floats(left) if of_bfloat16 else left
        else:
            left = _tiles(batch, instruction, a, groups, _M, of_bfloat16)
        right = _tiles(batch, instruction, b, groups, columns, of_bfloat16)
        old = np.zeros((len(groups), _M, columns), np.float32)
        keeps = _uniform(batch, instruction, accumulate, groups)
        if keeps.any():
            registers = [by_warp(batch, slot, np.float32)[warps] for slot in numbers]
            old = np.where(keeps[:, None, None], from_fragments(registers).reshape(old.shape), old)
        result = multiply_add(left, right, old).reshape(-1, _M // _WARPS, columns)
        for (slot, stored), values in zip(sums, to_fragments(result), strict=True):
            batch.scatter(slot, values.view(stored))

    return step


def _uniform(batch: Batch, instruction: Instruction, slot: int, groups: Array) -> Array:
    """Return the value of a register that all threads of each of these warpgroups must have alike."""
    values = batch.whole(batch.registers[slot]).reshape(-1, _LANES)[groups]
    if (values != values[:, :1]).any():
        raise unknown(instruction, "the threads of a warpgroup disagree about an operand")
    return np.asarray(values[:, 0])


def _tiles(
    batch: Batch, instruction: Instruction, slot: int, groups: Array, rows: int, of_bfloat16: bool = False
) -> Array:
    """Return the (warpgroups, rows, 16) tiles that a register describes, as floats, and note that they are read."""
    tiles = []
    for group, description in zip(groups, _uniform(batch, instruction, slot, groups), strict=True):
        address = _places(int(description), rows)
        if address is None:
            raise unknown(instruction, "only tiles with 128- or 64-byte swizzle at multiples of 1024 bytes are known")
        lane = int(group) * _LANES
        row = int(batch.row[lane])
        if int(address.max()) + CHUNK > batch.shared.size:
            nth = int(np.count_nonzero(batch.current_mask[:lane]))
            what = f"reads a tile up to {int(address.max()) + CHUNK}; the block has {batch.shared.size}"
            batch.fail(SharedAccessError, instruction, nth, f"{what} bytes of shared memory")
        warps = int(batch.thread[lane]) // WARP + np.arange(_WARPS)
        units = address.reshape(-1) // CHUNK
        written = batch.mbarriers.check_read(batch, instruction, lane, warps, units)
        batch.products.read(batch.mbarriers, row, warps, units, lane)
        tile = batch.shared.get(row, address).view(np.float16)
        if of_bfloat16:
            tile = _floats(tile)
        tiles.append(
            np.where(np.repeat(written.reshape(address.shape), CHUNK // 2, axis=1), tile, tile.dtype.type(np.nan))
        )
    return np.stack(tiles)


def _floats(bits: Array) -> Array:
    """Return bfloat16 numbers, given as if they were float16, as float32."""
    return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


@lru_cache(maxsize=1024)
def _places(description: int, rows: int) -> Array | None:
    """Return the shared addresses of the 16-byte pieces of a tile, as (rows, pieces of 16 steps of k).

    None where the tile lies in another way than those that are known.
    """
    row_bytes = _ROW_BYTES.get(description >> 62)
    if row_bytes is None or description >> 49 & 7:
        return None
    start, stride = (description & 0x3FFF) * 16, (description >> 32 & 0x3FFF) * 16
    row = np.arange(rows)[:, None]
    piece = np.arange(2 * K // CHUNK)
    plain = start + row // _ROWS * stride + row % _ROWS * row_bytes + piece * CHUNK
    return np.asarray(plain ^ (plain >> _LINE_BITS & row_bytes // CHUNK - 1) << _CHUNK_BITS)


def _simple(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    """fence, commit_group and wait_group."""
    if match[1] == "wait_group":
        (pending,) = operands(instruction, 1)
        if not isinstance(pending, Constant):
            raise unknown(instruction, "it takes a constant")
        return partial(_wait, instruction=instruction, pending=pending.bits)
    operands(instruction, 0)

    def step(batch: Batch) -> None:
        check_warpgroups(batch, instruction)
        if match[1] == "fence":
            batch.products.fence(batch)
        else:
            batch.products.commit(batch)

    return step


def _wait(batch: Batch, instruction: Instruction, pending: int) -> None:
    check_warpgroups(batch, instruction)
    batch.products.wait(batch, batch.mbarriers, pending)


def _registers_of_threads(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    """setmaxnreg: only that whole warpgroups execute it is checked."""

    def step(batch: Batch) -> None:
        check_warpgroups(batch, instruction)

    return step


FAMILIES = (
    Family(_PRODUCT, _product),
    Family(re.compile(r"wgmma\.(fence|commit_group|wait_group)\.sync\.aligned"), _simple),
    Family(re.compile(r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32"), _registers_of_threads),
)
