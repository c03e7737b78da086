"""Memory barriers in shared memory (mbarrier), and what they put in order: bulk copies and reads of them.

Every warp and every memory barrier of a block is an agent with a clock. Each warp stores, for each agent, the time up
to which that agent's accesses are ordered before the warp's next access: its knowledge, as in a vector clock. A warp
that waits for a memory barrier takes over the knowledge of the warps that arrived there, and the copies that the
barrier counted. At a barrier of the block, every warp takes over the knowledge of all.

A bulk copy is an access by its memory barrier at the end of the barrier's current phase. So a warp must wait for that
phase before it uses the data, and a warp must know of all accesses to the old data before it starts a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from fastsgemm.sim.clock import WARP
from fastsgemm.sim.errors import BarrierError, RaceError, SharedAccessError, UnwrittenSharedError
from fastsgemm.sim.lanes import Array, Lanes
from fastsgemm.sim.ptx import Instruction

BYTES = 8  # of a memory barrier
UNIT = 16  # bytes of shared memory that share one entry
_MOST = 64  # memory barriers of a block
_NOBODY = -1


@dataclass
class _Barrier:
    """A memory barrier."""

    agent: int  # the number of this agent in its block
    expected: int  # arrivals of a phase
    left: int  # arrivals that the current phase still needs
    bytes: int  # bytes that the current phase still expects
    phase: int  # phases that have ended
    gathered: Array  # the knowledge of the warps that arrived in the current phase
    released: Array  # the same of the phases that have ended
    made_by: int  # a warp
    made_at: int


@dataclass
class _Block:
    """The memory barriers of a block, by address, and what its warps know of each agent."""

    barriers: dict[int, _Barrier]
    known: Array  # (warps, agents)
    writer: Array  # the agent that wrote each unit
    written_at: Array
    accessed_at: Array  # (units, warps): by warps, and by products on their behalf
    copied: bool = False  # whether any bulk copy has written here
    readers: Array = field(init=False)  # products in flight that read each unit

    def __post_init__(self) -> None:
        self.readers = np.zeros(len(self.writer), np.int32)


class MemoryBarriers:
    """The memory barriers of a batch, and the accesses that they order."""

    def __init__(self, lanes: Lanes, shared_bytes: int) -> None:
        self._size = shared_bytes
        self._warps = lanes.width // WARP
        self._blocks: dict[int, _Block] = {}  # those with memory barriers: of most kernels none

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def make(self, lanes: Lanes, at: Instruction, addresses: Array, counts: Array) -> None:
        """Make a memory barrier for each lane that executes."""
        for nth, (lane, address, count) in enumerate(zip(lanes.executing, addresses, counts, strict=True)):
            if address % BYTES or address + BYTES > self._size:
                lanes.fail(SharedAccessError, at, nth, f"makes a memory barrier at {address}, where none can be")
            block = self._blocks.setdefault(int(lanes.row[lane]), self._new_block())
            if len(block.barriers) >= _MOST and int(address) not in block.barriers:
                lanes.fail(BarrierError, at, nth, f"makes more than {_MOST} memory barriers")
            warp, agent = self._warp(lanes, lane), self._warps + len(block.barriers)
            nothing = np.zeros(self._warps + _MOST, np.int64)
            block.barriers[int(address)] = _Barrier(
                agent, int(count), int(count), 0, 0, nothing, nothing.copy(), warp, int(block.known[warp, warp])
            )

    def arrive(self, lanes: Lanes, at: Instruction, addresses: Array, expecting: Array | None) -> None:
        """Let each executing lane arrive, and add its number of bytes to those that the phase expects."""
        for nth, (lane, address) in enumerate(zip(lanes.executing, addresses, strict=True)):
            block, barrier, warp = self._find(lanes, at, nth, lane, address)
            np.maximum(barrier.gathered, block.known[warp], out=barrier.gathered)
            block.known[warp, warp] += 1
            barrier.left -= 1
            if barrier.left < 0:
                lanes.fail(BarrierError, at, nth, f"arrives at the memory barrier at {address} once too often")
            barrier.bytes += 0 if expecting is None else int(expecting[nth])
            _end_phase(barrier)

    def poll(self, lanes: Lanes, at: Instruction, addresses: Array, parities: Array) -> Array:
        """Return, for the executing lanes, whether the phase has ended; if it has, they take over its knowledge."""
        executing = lanes.executing
        asked = zip((executing // WARP).tolist(), addresses.tolist(), parities.tolist(), strict=True)
        answers: dict[tuple[int, int, int], bool] = {}  # the lanes of a warp usually ask the same
        done = np.zeros(len(addresses), np.bool_)
        for nth, question in enumerate(asked):
            if question not in answers:
                block, barrier, warp = self._find(lanes, at, nth, executing[nth], addresses[nth])
                answers[question] = barrier.phase % 2 != question[2] & 1
                if answers[question]:
                    np.maximum(block.known[warp], barrier.released, out=block.known[warp])
            done[nth] = answers[question]
        return done

    def block_barrier(self, blocks: Array | None) -> None:
        """Let all warps of these blocks (None: of all) take over each other's knowledge."""
        for row, block in self._blocks.items():
            if blocks is None or blocks[row]:
                block.known[:] = block.known.max(axis=0)
                block.known[np.arange(self._warps), np.arange(self._warps)] += 1

    def copy(self, lanes: Lanes, at: Instruction, nth: int, start: int, size: int, address: int) -> None:
        """Note a copy of `size` bytes to `start` by the nth lane that executes, counted by a memory barrier.

        Raises
        ------
        SharedAccessError
            A memory barrier lies where the copy goes.
        RaceError
            The lane has not waited for an access to the old data, or for the copy that wrote it.
        """
        lane = int(lanes.executing[nth])
        block, barrier, warp = self._find(lanes, at, nth, lane, address)
        for place in block.barriers:
            if start - BYTES < place < start + size:
                lanes.fail(
                    SharedAccessError, at, nth, f"copies {size} bytes to {start}, over a memory barrier at {place}"
                )
        units = slice(start // UNIT, -(-(start + size) // UNIT))
        known = block.known[warp]
        if block.readers[units].any():
            self._race(lanes, at, nth, start, "which a product in flight reads")
        unordered = (block.accessed_at[units] > known[: self._warps]).any(axis=0)
        if unordered.any():
            self._race(lanes, at, nth, start, f"which warp {int(np.argmax(unordered))} uses, and has not waited for it")
        writer = block.writer[units]
        if ((writer != _NOBODY) & (known[writer] < block.written_at[units])).any():
            self._race(lanes, at, nth, start, "to which another copy is in flight")
        block.writer[units], block.written_at[units] = barrier.agent, barrier.phase + 1
        block.copied = True
        barrier.bytes -= size
        _end_phase(barrier)

    def check_read(self, lanes: Lanes, at: Instruction, lane: int, warps: Array, units: Array) -> Array:
        """Return which units bulk copies wrote, having checked that these warps have waited for them.

        The first warp begins with this lane.

        Raises
        ------
        UnwrittenSharedError
            No bulk copy has written anything in the block.
        RaceError
            A warp has not waited for a copy.
        """
        block = self._blocks.get(int(lanes.row[lane]))
        if block is None or not block.copied:
            nth = int(np.searchsorted(lanes.executing, lane))
            lanes.fail(UnwrittenSharedError, at, nth, "reads shared memory before any bulk copy wrote there")
        writer = block.writer[units]
        written = np.asarray(writer != _NOBODY)
        flying = written & (block.known[warps[:, None], writer] < block.written_at[units])
        if flying.any():
            which, unit = divmod(int(np.argmax(flying)), len(units))
            nth = int(np.searchsorted(lanes.executing, lane + which * WARP))
            what = f"reads shared memory at {int(units[unit]) * UNIT} to which a bulk copy is in flight"
            lanes.fail(RaceError, at, nth, what)
        return written

    def access(self, lanes: Lanes, addresses: Array) -> Array:
        """Note that the lanes that execute read or write at these addresses, themselves.

        Return which of them are where a bulk copy goes that their warp has not waited for.
        """
        flying = np.zeros(len(addresses), np.bool_)
        for block, here, warps, units in self._of_blocks(lanes, addresses):
            writer = block.writer[units]
            flying[here] = (writer != _NOBODY) & (block.known[warps, writer] < block.written_at[units])
            block.accessed_at[units, warps] = block.known[warps, warps]
        return flying

    def _of_blocks(self, lanes: Lanes, addresses: Array) -> Iterator[tuple[_Block, Array, Array, Array]]:
        """Yield every block, with the executing lanes in it, their warps, and the units of their addresses."""
        rows, warps = lanes.gather(lanes.row), lanes.gather(lanes.thread) // WARP
        for row, block in self._blocks.items():
            here = np.flatnonzero(rows == row)
            yield block, here, warps[here], addresses[here].astype(np.int64) // UNIT

    def start_reading(self, row: int, units: Array) -> None:
        """Note that a product in flight reads these units of a block, each once."""
        self._blocks[row].readers[units] += 1

    def finish_reading(self, row: int, warps: Array, units: Array) -> None:
        """Note that a product has read these units on behalf of these warps of its block."""
        block = self._blocks[row]
        block.readers[units] -= 1
        block.accessed_at[units[:, None], warps] = block.known[warps, warps]

    def finish(self, lanes: Lanes) -> None:
        """Check that every bulk copy has landed when the blocks end.

        Raises
        ------
        BarrierError
            A memory barrier still counts bytes.
        """
        for row, block in self._blocks.items():
            for address, barrier in block.barriers.items():
                if barrier.bytes:
                    raise BarrierError(
                        f"block {lanes.first_block + row} ends while its memory barrier at {address} waits for "
                        f"{barrier.bytes} bytes"
                    )

    def _new_block(self) -> _Block:
        units = -(-self._size // UNIT)
        known = np.zeros((self._warps, self._warps + _MOST), np.int64)
        known[np.arange(self._warps), np.arange(self._warps)] = 1
        accessed_at = np.zeros((units, self._warps), np.int64)
        return _Block({}, known, np.full(units, _NOBODY, np.int64), np.zeros(units, np.int64), accessed_at)

    def _warp(self, lanes: Lanes, lane: int) -> int:
        return int(lanes.thread[lane]) // WARP

    def _find(self, lanes: Lanes, at: Instruction, nth: int, lane: int, address: int) -> tuple[_Block, _Barrier, int]:
        """Return a lane's block, the memory barrier at an address in it, and its warp."""
        block = self._blocks.get(int(lanes.row[lane]))
        barrier = block.barriers.get(int(address)) if block else None
        if block is None or barrier is None:
            lanes.fail(BarrierError, at, nth, f"uses a memory barrier at {address}, where none was made")
        warp = self._warp(lanes, lane)
        if block.known[warp, barrier.made_by] < barrier.made_at:
            lanes.fail(RaceError, at, nth, f"uses the memory barrier at {address} with no barrier since it was made")
        return block, barrier, warp

    def _race(self, lanes: Lanes, at: Instruction, nth: int, start: int, what: str) -> NoReturn:
        lanes.fail(RaceError, at, nth, f"copies to shared memory at {start}, {what}")


def _end_phase(barrier: _Barrier) -> None:
    """End the current phase if all arrivals and bytes are there."""
    if barrier.left or barrier.bytes:
        return
    barrier.phase += 1
    barrier.left = barrier.expected
    np.maximum(barrier.released, barrier.gathered, out=barrier.released)
    barrier.released[barrier.agent] = barrier.phase
