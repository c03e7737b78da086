"""Tensor cores as a warp uses them: ldmatrix and mma.sync.

The arithmetic of a step of 16 along K is a model. Products of FP16 numbers are exact, they and the accumulator are
added in float64, and the sum is truncated towards zero to float32. The hardware aligns the terms to the largest and
drops what lies below a few bits more than float32 has; so its last bits may differ from these.
"""

from __future__ import annotations

import re

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.family import Family, Step, items, operands
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.memory import space_address
from fastsgemm.sim.ptx import Instruction
from fastsgemm.sim.slots import Slots
from fastsgemm.sim.warp import by_warp, check_whole_warps

K = 16  # steps of an instruction
_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return a @ b.T + c as tensor cores do, see above.

    A and B are float16 of shape (tiles, M, 16) and (tiles, N, 16), C is float32 of shape (tiles, M, N).
    """
    left, right = a.astype(np.float64), b.astype(np.float64)
    total = np.zeros(c.shape)
    with np.errstate(all="ignore"):  # Inf and NaN are values here
        for k in range(K):
            total += left[:, :, k, None] * right[:, None, :, k]
        return truncate(total + c)


def truncate(x: Array) -> Array:
    """Round float64 to float32 towards zero; what overflows becomes infinite, and every NaN the canonical one."""
    nearest = x.astype(np.float32)
    away = np.isfinite(nearest) & (np.abs(nearest.astype(np.float64)) > np.abs(x))
    nearest.view(np.uint32)[away] -= np.uint32(1)
    nearest[np.isnan(nearest)] = _NAN
    return nearest


def _load_matrices(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    """ldmatrix: lane l names row l % 8 of matrix l / 8, and gets two neighbours of row l / 4 of every matrix."""
    target, source = operands(instruction, 2)
    targets = [(slots.register(item), slots.stored(item)) for item in items(instruction, target, 4)]
    address_of = space_address(instruction, source, slots, "shared")

    def step(batch: Batch) -> None:
        check_whole_warps(batch, instruction)
        access = batch.shared.access(batch, instruction, address_of(batch), 16)
        words = batch.shared.load(batch, instruction, access, np.uint32, 4)
        batch.counters.accessed_shared(index, batch, access.pattern.loading, 16)
        by_row = words.reshape(4, -1, 4, 8)  # word of a row, warp, matrix, row
        for matrix, (slot, stored) in enumerate(targets):
            own = by_row[:, :, matrix, :].transpose(1, 2, 0)  # warp, row, word: lanes in order
            batch.scatter(slot, np.ascontiguousarray(own).reshape(-1).view(stored))

    return step


def _multiply(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    target, first, second, third = operands(instruction, 4)
    targets = [(slots.register(item), slots.stored(item)) for item in items(instruction, target, 4)]
    a, b, c = (
        [slots.reading(item, type_) for item in items(instruction, operand, count)]
        for operand, type_, count in ((first, "b32", 4), (second, "b32", 2), (third, "f32", 4))
    )

    def step(batch: Batch) -> None:
        check_whole_warps(batch, instruction)
        executing = slice(None) if batch.executing_warps is None else batch.executing_warps
        left = first_operand([by_warp(batch, slot, np.uint32)[executing] for slot in a])
        right = np.concatenate([_halves(by_warp(batch, slot, np.uint32)[executing]) for slot in b], axis=2)
        old = [by_warp(batch, slot, np.float32)[executing] for slot in c]
        result = multiply_add(left, right, from_fragments(old))
        for (slot, stored), values in zip(targets, to_fragments(result), strict=True):
            batch.scatter(slot, values.view(stored))

    return step


def first_operand(registers: list[Array]) -> Array:
    """Return the (warps, 16, 16) float16 tiles of A that warps hold in four registers."""
    quarters = [_halves(words) for words in registers]
    rows = [np.concatenate(quarters[half::2], axis=2) for half in (0, 1)]  # registers 0 and 2 have rows 0 to 7
    return np.concatenate(rows, axis=1)


def from_fragments(registers: list[Array]) -> Array:
    """Return the (warps, 16, columns) tiles that warps hold in registers, four for every eight columns."""
    eights = []
    for j in range(0, len(registers), 4):
        halves = [np.stack(registers[j + 2 * h : j + 2 * h + 2], axis=2).reshape(-1, 8, 8) for h in (0, 1)]
        eights.append(np.concatenate(halves, axis=1))
    return np.concatenate(eights, axis=2)


def to_fragments(tiles: Array) -> list[Array]:
    """Return the registers for (warps, 16, columns) tiles, each with an entry for every lane of the warps."""
    registers = []
    for j in range(0, tiles.shape[2], 8):
        for h in (0, 8):
            part = np.ascontiguousarray(tiles[:, h : h + 8, j : j + 8]).reshape(-1, WARP, 2)
            registers += [
                np.ascontiguousarray(part[:, :, 0]).reshape(-1),
                np.ascontiguousarray(part[:, :, 1]).reshape(-1),
            ]
    return registers


def _halves(words: Array) -> Array:
    """Return the 8 x 8 float16 matrices that warps hold in one register: two neighbours a lane, four lanes a row."""
    return np.ascontiguousarray(words).view(np.float16).reshape(-1, 8, 8)


FAMILIES = (
    Family(re.compile(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared(?:::cta)?\.b16"), _load_matrices),
    Family(re.compile(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32"), _multiply),
)
