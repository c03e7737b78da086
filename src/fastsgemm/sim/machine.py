"""`Machine`: compile a kernel for an architecture and run it on host arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fastsgemm.sim import nvrtc, program, ptx, report, schedule
from fastsgemm.sim.async_copy import Copies
from fastsgemm.sim.batch import WARP, Array, Batch
from fastsgemm.sim.counters import Counters
from fastsgemm.sim.errors import LaunchError
from fastsgemm.sim.global_memory import GlobalMemory, Region
from fastsgemm.sim.occupancy import limits, occupancy
from fastsgemm.sim.program import Program
from fastsgemm.sim.report import Report
from fastsgemm.sim.shared_memory import SharedMemory
from fastsgemm.sim.slots import DTYPES, Slots

MAX_THREADS = 1024  # of a block
MAX_GRID_Y = 65_535
_MOST_LANES = 1 << 15  # of a batch: enough to hide what an instruction costs in Python
_MOST_BYTES = 1 << 28  # of a batch's registers


class Machine:
    """A simulated card.

    Parameters
    ----------
    arch : str
        The architecture to compile for, for example ``sm_90``; its limits hold for launches.
    card : str, optional
        The card that occupancy is computed for. Default: any of the architecture.

    Raises
    ------
    DeviceError
        The limits of the architecture or card are not known.
    """

    def __init__(self, arch: str = "sm_90", card: str | None = None) -> None:
        self.arch = arch
        self.card = card or arch
        self.limits = limits(arch)
        limits(self.card)

    def launch(
        self,
        source: str,
        kernel: str,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        args: Sequence[Any],
        operands: Mapping[str, Region],
    ) -> Report:
        """Compile a kernel, run it, and say what it did.

        Parameters
        ----------
        source : str
            CUDA C++ without includes.
        kernel : str
            The ``extern "C"`` name.
        grid : int or (int, int)
            Blocks along x, or along x and y.
        block : int
            Threads of a block, along x.
        shared_bytes : int
            Dynamic shared memory of a block.
        args : sequence
            A number for each scalar parameter, the name of an operand for each pointer.
        operands : mapping
            The global memory, by name. Those that may be written are updated when the launch has succeeded.

        Raises
        ------
        CompileError, NoNvrtcError
            NVRTC refused the source, or is not installed.
        UnknownInstructionError
            The kernel uses an instruction that is not simulated.
        LaunchError
            The launch does not fit the kernel or the architecture.
        KernelFault
            The kernel did what it must not do; nothing has been written to the operands.
        """
        binary = nvrtc.compile_source(source, self.arch)
        decoded = _decoded(binary.ptx, kernel)
        resources = binary.resources(kernel)
        dynamic_start = -(-decoded.kernel.static_shared // 16) * 16
        shared = dynamic_start + shared_bytes
        extents = (grid, 1) if isinstance(grid, int) else grid
        self._check(extents, block, shared)
        count = extents[0] * extents[1]
        memory = GlobalMemory(operands)
        counters = Counters(len(decoded.kernel.instructions))
        values = _arguments(decoded.slots, args, memory)
        step = _blocks_of_batch(decoded, block)
        with np.errstate(all="ignore"):  # Inf and NaN are values here, as on a card
            for first in range(0, count, step):
                blocks = min(step, count - first)
                batch = _batch(decoded, first, blocks, block, extents, values)
                batch.memory, batch.counters = memory, counters
                batch.shared = SharedMemory(blocks, shared, decoded.shared_grain)
                batch.copies = Copies(batch.lanes)
                schedule.run(batch, decoded)
        memory.finish()
        held = occupancy(self.card, block, resources.registers, shared)
        return report.make(
            self.arch, kernel, count, block, shared, resources, held,
            decoded.kernel.instructions, memory.names, counters,
        )  # fmt: skip

    def _check(self, grid: tuple[int, int], block: int, shared: int) -> None:
        if not 1 <= block <= MAX_THREADS:
            raise LaunchError(f"a block has 1 to {MAX_THREADS} threads, got {block}")
        if min(grid) < 1:
            raise LaunchError(f"a grid has at least 1 block, got {' x '.join(map(str, grid))}")
        if grid[1] > MAX_GRID_Y:
            raise LaunchError(f"a grid has at most {MAX_GRID_Y} blocks along y, got {grid[1]}")
        if shared > self.limits.shared_limit:
            raise LaunchError(
                f"{self.arch} allows a block {self.limits.shared_limit} bytes of shared memory, got {shared}"
            )


@lru_cache(maxsize=64)
def _decoded(text: str, name: str) -> Program:
    kernels = ptx.parse(text)
    if name not in kernels:
        raise LaunchError(f"the source has no kernel {name!r}; it has {sorted(kernels)}")
    return program.decode(kernels[name])


def _arguments(slots: Slots, args: Sequence[Any], memory: GlobalMemory) -> dict[int, Array]:
    """Return what the slots of the parameters hold."""
    parameters = slots.kernel.parameters
    if len(args) != len(parameters):
        raise LaunchError(f"kernel {slots.kernel.name} has {len(parameters)} parameters, got {len(args)} arguments")
    values = {}
    for number, (parameter, arg) in enumerate(zip(parameters, args, strict=True)):
        if isinstance(arg, str):
            arg = memory.address(arg)
        dtype = DTYPES[parameter.type]
        if np.issubdtype(dtype, np.floating):
            value = np.array([arg], dtype)
        else:
            value = np.array([int(arg) & (1 << 8 * np.dtype(dtype).itemsize) - 1], dtype)
        values[slots.parameter(number)] = value
    return values


def _blocks_of_batch(decoded: Program, block: int) -> int:
    width = -(-block // WARP) * WARP
    bytes_of_lane = sum(initial.itemsize for initial in decoded.slots.initial)
    lanes = min(_MOST_LANES, _MOST_BYTES // max(bytes_of_lane, 1))
    return max(1, lanes // width)


def _batch(
    decoded: Program, first: int, blocks: int, block: int, grid: tuple[int, int], values: dict[int, Array]
) -> Batch:
    registers = list(decoded.slots.initial)
    batch = Batch(first, blocks, block, registers)
    for slot, value in values.items():
        registers[slot] = value
    special = {
        "%tid.x": batch.thread.astype(np.uint32),
        "%ctaid.x": ((batch.row + first) % grid[0]).astype(np.uint32),
        "%ctaid.y": ((batch.row + first) // grid[0]).astype(np.uint32),
        "%laneid": (batch.thread % WARP).astype(np.uint32),
        "%ntid.x": np.array([block], np.uint32),
        "%nctaid.x": np.array([grid[0]], np.uint32),
        "%nctaid.y": np.array([grid[1]], np.uint32),
    }
    for name, value in special.items():
        read_from = decoded.slots.special(name)
        if read_from is not None:
            registers[read_from] = value
    return batch
