"""`Machine`: compile a kernel for an architecture and run it on host arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fastsgemm import known_devices
from fastsgemm.progress import track
from fastsgemm.sim import nvrtc, program, ptx, report, schedule
from fastsgemm.sim.async_copy import Copies
from fastsgemm.sim.batch import WARP, Array, Batch
from fastsgemm.sim.clock import Clock
from fastsgemm.sim.counters import Counters
from fastsgemm.sim.errors import LaunchError
from fastsgemm.sim.global_memory import GlobalMemory, Region
from fastsgemm.sim.occupancy import occupancy
from fastsgemm.sim.program import Program
from fastsgemm.sim.report import Report
from fastsgemm.sim.shared_memory import SharedMemory
from fastsgemm.sim.slots import DTYPES, Slots

MAX_THREADS = 1024  # of a block
_MOST_THREADS = 1 << 31  # of a launch: each has a number of 32 bits
_MOST_LANES = 1 << 15  # of a batch: enough to hide what an instruction costs in Python
_MOST_BYTES = 1 << 28  # of a batch's registers
_LEAST_LIMIT = 100_000  # instructions of a warp that every launch is allowed,
_LIMIT_PER_STEP = 500  # and for each step along the longest extent of an operand: loops run along those
_PATIENCE = 3.0  # seconds before a bar shows how far a launch is


class Machine:
    """A simulated device.

    Parameters
    ----------
    device : str, optional
        Its name, for example ``NVIDIA A100-SXM4-40GB``, or an architecture such as ``sm_80``. Kernels are compiled for
        its architecture, its limits hold for launches, and occupancy is that of its SMs. Default:
        ``FASTSGEMM_SIM_DEVICE``, or an H200.

    Raises
    ------
    DeviceError
        The device is not in ``devices.json``.
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = known_devices.find(device or known_devices.wanted())

    def launch(
        self,
        source: str,
        kernel: str,
        grid: int,
        block: int,
        shared_bytes: int,
        args: Sequence[Any],
        operands: Mapping[str, Region],
        limit: int | None = None,
    ) -> Report:
        """Compile a kernel, run it, and say what it did.

        Parameters
        ----------
        source : str
            CUDA C++ without includes.
        kernel : str
            The ``extern "C"`` name.
        grid, block : int
            Blocks, and threads of a block; both one-dimensional.
        shared_bytes : int
            Dynamic shared memory of a block.
        args : sequence
            A number for each scalar parameter, the name of an operand for each pointer.
        operands : mapping
            The global memory, by name. Those that may be written are updated when the launch has succeeded.
        limit : int, optional
            Instructions that a warp may execute before its loop is taken for endless. Default: 100,000, and
            500 for each step along the longest extent of an operand.

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
        binary = nvrtc.compile_source(source, self.device.arch)
        decoded = _decoded(binary.ptx, kernel)
        resources = binary.resources(kernel)
        dynamic_start = -(-decoded.kernel.static_shared // 16) * 16
        shared = dynamic_start + shared_bytes
        self._check(grid, block, shared)
        memory = GlobalMemory(operands, decoded.global_grain)
        limit = _limit(operands) if limit is None else limit
        counters = Counters(len(decoded.kernel.instructions))
        values = _arguments(decoded.slots, args, memory)
        step = _blocks_of_batch(decoded, block)
        with np.errstate(all="ignore"):  # Inf and NaN are values here, as on a device
            for first in track(range(0, grid, step), "blocks", _PATIENCE):
                blocks = min(step, grid - first)
                batch = _batch(decoded, first, blocks, block, grid, values)
                batch.memory, batch.counters = memory, counters
                batch.shared = SharedMemory(blocks, shared, decoded.shared_grain)
                batch.copies = Copies(batch.lanes)
                batch.clock = Clock(first, blocks, batch.width)
                schedule.run(batch, decoded, limit)
        memory.finish()
        held = occupancy(self.device.limits, block, resources.registers, shared)
        return report.make(
            self.device.arch, kernel, grid, block, shared, resources, held,
            decoded.kernel.instructions, memory.names, counters,
        )  # fmt: skip

    def _check(self, grid: int, block: int, shared: int) -> None:
        if not 1 <= block <= MAX_THREADS:
            raise LaunchError(f"a block has 1 to {MAX_THREADS} threads, got {block}")
        if grid < 1:
            raise LaunchError(f"a grid has at least 1 block, got {grid}")
        if grid * (block + WARP) > _MOST_THREADS:
            raise LaunchError(f"at most {_MOST_THREADS} threads are simulated, got {grid} blocks of {block}")
        limit = self.device.shared_limit
        if shared > limit:
            raise LaunchError(f"{self.device.name} allows a block {limit} bytes of shared memory, got {shared}")


def _limit(operands: Mapping[str, Region]) -> int:
    """Return the instructions that a warp may execute before its loop is taken for endless."""
    longest = max((extent for region in operands.values() for extent in region.array.shape), default=0)
    return _LEAST_LIMIT + _LIMIT_PER_STEP * longest


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


def _batch(decoded: Program, first: int, blocks: int, block: int, grid: int, values: dict[int, Array]) -> Batch:
    registers = list(decoded.slots.initial)
    batch = Batch(first, blocks, block, registers)
    for slot, value in values.items():
        registers[slot] = value
    special = {
        "%tid.x": batch.thread.astype(np.uint32),
        "%ctaid.x": (batch.row + first).astype(np.uint32),
        "%laneid": (batch.thread % WARP).astype(np.uint32),
        "%ntid.x": np.array([block], np.uint32),
        "%nctaid.x": np.array([grid], np.uint32),
    }
    for name, value in special.items():
        read_from = decoded.slots.special(name)
        if read_from is not None:
            registers[read_from] = value
    return batch
