"""16-bit operands of IEEE kernels: rung 10 reads them as they lie, other rungs get float32 copies.

No curve was measured with 16-bit operands. The time of a float32 product is known or predicted; what is read less is
taken off at the rate of the memory, and what copies read and write is added at the same rate.
"""

from __future__ import annotations

from dataclasses import replace as replaced
from math import prod

from msgspec.structs import replace

from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.matrix import Operand
from fastsgemm.heuristics.alternatives import READER, SKINNY, Search
from fastsgemm.heuristics.device_database import DeviceDatabase
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.selection import EXACT, PREDICTED, Choice
from fastsgemm.problem import FLOAT32
from fastsgemm.request import Request


def as_they_lie(data: DeviceDatabase, a: Operand, b: Operand, c: Operand, extents: tuple[int, ...]) -> Choice:
    """Return how rung 10 computes a product whose 16-bit operands it reads as they lie. C is row-major."""
    problem = replaced(variants.dense_problem(a, b, c, extents=extents), dtypes=FLOAT32)
    pick = Search(data, Request(SKINNY)).pick(problem)
    ms = None if pick.ms is None else _ms_of_fewer_bytes(data, pick.ms, problem.flops, (a, b), problem.batch)
    rule = PREDICTED if pick.rule == EXACT else pick.rule  # no record is of 16-bit operands
    return Choice(pick.taken._replace(ms=ms, rule=rule), ms)


def _ms_of_fewer_bytes(data: DeviceDatabase, ms: float, flops: int, operands: tuple[Operand, ...], batch: int) -> float:
    """Return the time of a product that takes `ms` with float32 operands.

    It is the time that its FMAs take at the rate of the quickest kernel, at least.
    """
    elements = [prod(operand.shape) * batch for operand in operands]
    read = sum(ITEM * count for count in elements)
    if not read:  # K is 0
        return ms
    saved = sum((ITEM - operand.dtype.item) * count for operand, count in zip(operands, elements, strict=True))
    rate, model = data.fitted.packing_bytes_per_ms, data.model(READER)
    less = ms - saved / rate if rate else ms
    least = 0.0 if model is None else flops / model.peak
    return min(ms, max(less, ms * (1.0 - saved / read), least))


def converted(choice: Choice, fitted: Fitted, a: Operand, b: Operand, extents: tuple[int, ...]) -> Choice:
    """Return the choice for float32 operands with the time that it takes to convert what has 16 bits."""
    added = sum(
        cast_ms(fitted, operand, extents)
        for operand, packed in zip((a, b), choice.packs, strict=True)
        if operand.dtype and not packed  # packing converts as it copies
    )
    return choice if choice.ms is None else replace(choice, ms=choice.ms + added)


def cast_ms(fitted: Fitted, operand: Operand, extents: tuple[int, ...]) -> float:
    """Return how long an operand is copied as float32; one that a batch repeats is copied once."""
    copied = prod(extent for extent, step in zip(extents[-len(operand.steps) :], operand.steps, strict=False) if step)
    moved = (operand.dtype.item + ITEM) * prod(operand.shape) * copied
    return fitted.cast_ms + (moved / fitted.packing_bytes_per_ms if fitted.packing_bytes_per_ms else 0.0)
