"""`Machine` compiles a kernel for an architecture and runs it on host arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fastsgemm import known_devices
from fastsgemm.jit.compiler import Compiled
from fastsgemm.jit.compiler import Report as Resources
from fastsgemm.known_devices import EARLY, compute_capability
from fastsgemm.progress import track
from fastsgemm.sim import nvrtc, program, ptx, schedule
from fastsgemm.sim.batch import Batch
from fastsgemm.sim.clock import WARP
from fastsgemm.sim.counters import Counters
from fastsgemm.sim.errors import LaunchError
from fastsgemm.sim.global_memory import GlobalMemory, Region
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.program import Program
from fastsgemm.sim.ptx import Kernel
from fastsgemm.sim.report import Report, activities
from fastsgemm.sim.slots import DTYPES, Slots

MAX_THREADS = 1024  # of a block
_MOST_STATIC = 48 << 10  # bytes of shared memory that a kernel may declare; more must be dynamic
_MOST_THREADS = 1 << 31  # of a launch; thread numbers are 32-bit
_MOST_LANES = 1 << 15  # of a batch: with so many, the cost of an instruction in Python no longer matters
_MOST_BYTES = 1 << 28  # of a batch's registers
_LEAST_LIMIT = 100_000  # instructions that a warp may execute in any launch
_LIMIT_PER_STEP = 500  # and for each step along the longest extent of an operand, because loops run along extents
_PATIENCE = 3.0  # seconds before a progress bar is shown


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
        The device is not in ``known_devices.json``.
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = known_devices.find(device) if device else known_devices.simulated()

    def launch(
        self,
        source: str | Compiled,
        kernel: str,
        grid: int | tuple[int, ...],
        block: int,
        shared_bytes: int,
        args: Sequence[Any],
        operands: Mapping[str, Region],
        limit: int | None = None,
        arch: str | None = None,
        early: bool = False,
    ) -> Report:
        """Compile a kernel, run it, and return the counts of the launch.

        Parameters
        ----------
        source : str or Compiled
            CUDA C++ without includes, or what NVRTC has made of it.
        kernel : str
            The ``extern "C"`` name.
        grid : int or tuple of int
            Blocks, along x, or along x, y and z.
        block : int
            Threads of a block, along x.
        shared_bytes : int
            Dynamic shared memory of a block.
        args : sequence
            A number for each scalar parameter, the name of an operand for each pointer, bytes for each struct. For a
            struct with addresses in it: the bytes, and a pair for each address of where in them it lies, and the
            operand.
        operands : mapping
            The global memory, by name. Those that may be written are updated when the launch has succeeded.
        limit : int, optional
            Instructions that a warp may execute before the launch is stopped as endless. Default: 100,000, and
            500 for each step along the longest extent of an operand.
        arch : str, optional
            What to compile for instead of the device's architecture: ``sm_90a`` has instructions that ``sm_90`` lacks.
        early : bool
            The launch is one that may begin before the launch before it has ended, where the device can do that
            (programmatic dependent launch, sm_90). It runs afterwards all the same, but it must wait before it
            accesses global memory.

        Raises
        ------
        CompileError, NoNvrtcError
            NVRTC refused the source, or is not installed.
        UnknownInstructionError
            The kernel uses an instruction that is not simulated.
        LaunchError
            The launch does not fit the kernel or the architecture.
        KernelFault
            The kernel made an illegal access or broke another rule; nothing has been written to the operands.
        """
        arch = arch or self.device.arch
        decoded = _decoded(nvrtc.compile_source(source, arch).ptx if isinstance(source, str) else source.ptx, kernel)
        dynamic_start = -(-decoded.kernel.static_shared // 16) * 16
        shared = dynamic_start + shared_bytes
        x, y, z = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        extent = (x, y, z)
        self._check(extent, block, shared, decoded.kernel)
        blocks_of_grid = x * y * z
        memory = GlobalMemory(operands, decoded.global_grain)
        limit = _limit(operands) if limit is None else limit
        counters = Counters(len(decoded.kernel.instructions))
        parameters = _arguments(decoded.slots, args, memory)
        step = _blocks_of_batch(decoded, block)
        cluster = decoded.kernel.cluster[0]
        with np.errstate(all="ignore"):  # Inf and NaN are ordinary values, as on a device
            for first in track(range(0, blocks_of_grid, step), "blocks", _PATIENCE):
                blocks = min(step, blocks_of_grid - first)
                registers = list(decoded.slots.initial)
                batch = Batch(
                    first, blocks, block, registers, cluster, parameters, memory, counters, shared, decoded.shared_grain
                )  # fmt: skip
                if early and compute_capability(self.device.arch) >= EARLY:
                    batch.begin_early()
                for slot, value in _special(decoded.slots, batch, extent).items():
                    registers[slot] = value
                schedule.run(batch, decoded, limit)
        memory.finish()
        total, lines = activities(decoded.kernel.instructions, memory.names, counters, -(-block // WARP))

        def resources() -> Resources:
            made = nvrtc.compile_source(source, arch, cubin=True) if isinstance(source, str) else source
            return nvrtc.report_on(kernel, made.log)

        device, limits = self.device.arch, self.device.limits
        return Report(device, kernel, blocks_of_grid, block, shared, total, lines, limits, resources)

    def _check(self, extent: tuple[int, int, int], block: int, shared: int, kernel: Kernel) -> None:
        grid = extent[0] * extent[1] * extent[2]
        if not 1 <= block <= MAX_THREADS:
            raise LaunchError(f"a block has 1 to {MAX_THREADS} threads, got {block}")
        if kernel.max_threads is not None and block > kernel.max_threads:
            raise LaunchError(f"{kernel.name} is compiled for blocks of {kernel.max_threads} threads, got {block}")
        if grid < 1:
            raise LaunchError(f"a grid has at least 1 block, got {grid}")
        if kernel.cluster[1:] != (1, 1):
            raise LaunchError(f"only clusters along x are simulated, got {kernel.cluster}")
        if extent[0] % kernel.cluster[0]:
            raise LaunchError(f"the grid must have a multiple of {kernel.cluster[0]} blocks along x, got {extent[0]}")
        if grid * (block + WARP) > _MOST_THREADS:
            raise LaunchError(f"at most {_MOST_THREADS} threads are simulated, got {grid} blocks of {block}")
        if kernel.static_shared > _MOST_STATIC:
            what = f"{kernel.name} declares {kernel.static_shared} bytes of shared memory of a fixed size"
            raise LaunchError(f"{what}; ptxas takes {_MOST_STATIC}")
        limit = self.device.shared_limit
        if shared > limit:
            raise LaunchError(f"{self.device.name} allows a block {limit} bytes of shared memory, got {shared}")


def _limit(operands: Mapping[str, Region]) -> int:
    """Return how many instructions a warp may execute before the launch is stopped as endless."""
    longest = max((extent for region in operands.values() for extent in region.array.shape), default=0)
    return _LEAST_LIMIT + _LIMIT_PER_STEP * longest


@lru_cache(maxsize=64)
def _decoded(text: str, name: str) -> Program:
    kernels = ptx.parse(text)
    if name not in kernels:
        raise LaunchError(f"the source has no kernel {name!r}; it has {sorted(kernels)}")
    return program.decode(kernels[name])


def _arguments(slots: Slots, args: Sequence[Any], memory: GlobalMemory) -> Array:
    """Return the parameter space, and the constants behind it."""
    parameters = slots.kernel.parameters
    if len(args) != len(parameters):
        raise LaunchError(f"kernel {slots.kernel.name} has {len(parameters)} parameters, got {len(args)} arguments")
    space = bytearray(slots.constants_end)
    for name, value in slots.kernel.constants.items():
        place = slots.constant_places[name]
        space[place : place + len(value)] = value
    for number, (parameter, arg) in enumerate(zip(parameters, args, strict=True)):
        data = _struct(arg, memory) if parameter.extent else _scalar(arg, DTYPES[parameter.type], memory)
        if data is None or len(data) != parameter.size:
            raise LaunchError(f"parameter {number} of kernel {slots.kernel.name} does not take {arg!r}")
        place = slots.parameter_places[parameter.name]
        space[place : place + len(data)] = data
    return np.frombuffer(space, np.uint8)


def _struct(arg: Any, memory: GlobalMemory) -> bytes | None:
    if not isinstance(arg, tuple):
        return arg if isinstance(arg, bytes) else None
    data, *addresses = arg
    filled = bytearray(data)
    for place, name in addresses:
        filled[place : place + 8] = memory.address(name).to_bytes(8, "little")
    return bytes(filled)


def _scalar(arg: Any, dtype: Any, memory: GlobalMemory) -> bytes | None:
    if isinstance(arg, bytes | tuple):
        return None
    number = memory.address(arg) if isinstance(arg, str) else arg
    if np.issubdtype(dtype, np.floating):
        return bytes(np.array([number], dtype))
    size: int = np.dtype(dtype).itemsize
    return (int(number) & (1 << 8 * size) - 1).to_bytes(size, "little")


def _blocks_of_batch(decoded: Program, block: int) -> int:
    width = -(-block // WARP) * WARP
    bytes_of_lane = sum(initial.itemsize for initial in decoded.slots.initial)
    lanes = min(_MOST_LANES, _MOST_BYTES // max(bytes_of_lane, 1))
    cluster = decoded.kernel.cluster[0]
    return max(1, lanes // (width * cluster)) * cluster


def _special(slots: Slots, batch: Batch, extent: tuple[int, int, int]) -> dict[int, Array]:
    """Return the values of the special registers, by slot."""
    number = batch.row + batch.first_block
    high = number // extent[0]  # along y and z
    special = {
        "%tid.x": batch.thread.astype(np.uint32),
        "%ctaid.x": (number % extent[0]).astype(np.uint32),
        "%ctaid.y": (high % extent[1]).astype(np.uint32),
        "%ctaid.z": (high // extent[1]).astype(np.uint32),
        "%laneid": (batch.thread % WARP).astype(np.uint32),
        "%ntid.x": np.array([batch.threads], np.uint32),
        "%nctaid.x": np.array([extent[0]], np.uint32),
        "%nctaid.y": np.array([extent[1]], np.uint32),
        "%nctaid.z": np.array([extent[2]], np.uint32),
    }
    by_slot = {slots.special(name): value for name, value in special.items()}
    return {slot: value for slot, value in by_slot.items() if slot is not None}
