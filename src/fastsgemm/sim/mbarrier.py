"""The instructions of memory barriers: making one, arriving, and waiting for the end of a phase."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from fastsgemm.sim.batch import Batch
from fastsgemm.sim.family import Family, Step, operands, unknown
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.memory import space_address
from fastsgemm.sim.ptx import Instruction, Symbol
from fastsgemm.sim.slots import Slots

_SPACE = r"\.shared(?:::cta)?\.b64"
WAIT = re.compile(r"mbarrier\.try_wait\.parity" + _SPACE)
_NOWHERE = Symbol("_")


def decode_wait(instruction: Instruction, slots: Slots) -> Callable[[Batch], Array]:
    """Return a function that says which of the lanes that execute need not wait any longer, as (lanes,) bool.

    The instruction may return without success after a while. Here it does not: its lanes wait until it succeeds.
    """
    target, place, parity = operands(instruction, 3)
    slot = slots.predicate(target)
    address_of = space_address(instruction, place, slots, "shared")
    phase = slots.reading(parity, "u32")

    def poll(batch: Batch) -> Array:
        parities = batch.read(phase, np.uint32)
        done = np.zeros(batch.count, np.bool_)
        done[batch.current_mask] = batch.mbarriers.poll(batch, instruction, address_of(batch), parities)
        batch.only(done, lambda lanes: lanes.put(slot, np.ones(1, np.bool_)))
        return done

    return poll


def _make(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    place, count = operands(instruction, 2)
    address_of = space_address(instruction, place, slots, "shared")
    arrivals = slots.reading(count, "u32")

    def step(batch: Batch) -> None:
        counts = batch.read(arrivals, np.uint32)
        batch.mbarriers.make(batch, instruction, address_of(batch), counts)

    return step


def _arrive(instruction: Instruction, index: int, slots: Slots, match: re.Match[str]) -> Step:
    state, place, *expected = operands(instruction, 3 if match[1] else 2)
    if state != _NOWHERE:
        raise unknown(instruction, "the state of a memory barrier is not simulated")
    address_of = space_address(instruction, place, slots, "shared")
    size = slots.reading(expected[0], "u32") if expected else None

    def step(batch: Batch) -> None:
        expecting = None if size is None else batch.read(size, np.uint32)
        batch.mbarriers.arrive(batch, instruction, address_of(batch), expecting)

    return step


FAMILIES = (
    Family(re.compile(r"mbarrier\.init" + _SPACE), _make),
    Family(re.compile(r"mbarrier\.arrive(\.expect_tx)?" + _SPACE), _arrive),
)
