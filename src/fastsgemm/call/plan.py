"""Plans: what a call on a problem that was seen before launches.

A plan has the kernels of a call with their grids and arguments. Most arguments are the same for every call on one
problem. The others are the addresses of A, B, C and of the workspace, alpha, beta and the steps of k, which are 0 where
alpha is. They have places in one buffer, to which the arguments of all kernels point. So a call packs that buffer once,
and then asks the driver once for each kernel.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec import Struct

from fastsgemm import device
from fastsgemm.call import workspace
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import ADDRESS_PLACE, Batch, BatchAndSource
from fastsgemm.known_devices import compute_capability

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

EARLY = 90  # the first architecture on which a kernel can be launched before the one that it waits for has ended
_ALIGNMENT = 256  # bytes: of every array in workspace


_Item = TypeVar("_Item")


class Base(IntEnum):
    """What an address is counted from, in the order in which `Plan.launch` gets these addresses."""

    A = 0
    B = 1
    C = 2
    SPLIT_A = 3
    SPLIT_B = 4
    WORKSPACE = 5
    SOURCE = 6


class Address(Struct, frozen=True):
    """A device address of a later call: some bytes after the first element of an operand, or in the workspace."""

    base: Base
    offset: int = 0

    def __add__(self, count: int) -> Address:
        return Address(self.base, self.offset + count)


class Scalar(Enum):
    """A number of a later call. STEPS is K, or 0 where A and B are not to be read."""

    ALPHA = "alpha"
    BETA = "beta"
    STEPS = "steps"


Argument = Address | Scalar | Batch | BatchAndSource | np.int32 | np.float32 | int


class Step(Struct, frozen=True):
    """One launch of a plan.

    Attributes
    ----------
    kernel : Kernel
    grid : tuple of int
        Blocks, in one to three dimensions.
    threads : int
        Of a block.
    arguments : tuple of Argument
        A `numpy.int32` is passed as ``int``, a `numpy.float32` as ``float``, an int as ``long long``, a `Batch` or a
        `BatchAndSource` as the struct of this name.
    shared_bytes : int
        Dynamic shared memory of a block.
    early : bool
        Whether it may begin before the launch before it has ended, where the device can do that.
    only_for : str
        ``alpha`` or ``beta``: launched only where that is not 0; ``no alpha``: where alpha is 0; empty: always.
    """

    kernel: Kernel
    grid: tuple[int, ...]
    threads: int
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    early: bool = False
    only_for: str = ""

    def is_for(self, alpha: bool, beta: bool) -> bool:
        """Whether it is launched where alpha and beta are not 0, or are."""
        return not self.only_for or {"alpha": alpha, "beta": beta, "no alpha": not alpha}[self.only_for]


class Draft:
    """A plan in the making.

    Parameters
    ----------
    gpu : Gpu
    handle : int
        The raw stream of the first call, which may be capturing: then no kernel can be loaded.
    K : int
    ranges : iterable of int
        See `Plan`. Default: it is known that the operands lie apart.
    """

    def __init__(self, gpu: Gpu, handle: int, K: int, ranges: Iterable[int] = (0,) * 6) -> None:
        self.gpu, self.handle = gpu, handle
        self._K, self._ranges = K, tuple(ranges)
        self.steps: list[Step] = []
        self.size = 0
        self._purposes: list[str] = []

    def reserve(self, size: int, purpose: str) -> Address:
        """Return the address of an array in the workspace, a multiple of 256.

        Parameters
        ----------
        size : int
            In bytes.
        purpose : str
            For the message where the device has no room for it.
        """
        address = Address(Base.WORKSPACE, self.size)
        self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
        if purpose not in self._purposes:
            self._purposes.append(purpose)
        return address

    def add(self, kernel: Kernel, grid: tuple[int, ...], threads: int, *arguments: Argument, **more: Any) -> None:
        """Append a launch; see `Step`."""
        self.steps.append(Step(kernel, grid, threads, arguments, **more))

    def in_turn(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the items. What is reserved for one of them shares its place with what is reserved for the others."""
        begin = end = self.size
        for item in items:
            self.size = begin
            yield item
            end = max(end, self.size)
        self.size = end

    def plan(self) -> Plan:
        """Return the plan."""
        return Plan(self.gpu, self._K, self._ranges, self.steps, self.size, " and ".join(self._purposes))


_CALL = struct.Struct("7Q2fi")  # the addresses in the order of `Base`; alpha, beta, steps
_WORD = 8  # bytes of an address
_PLACES: dict[Address | Scalar, int] = {  # in it, in bytes
    **{Address(base): _WORD * base for base in Base},
    Scalar.ALPHA: 56,
    Scalar.BETA: 60,
    Scalar.STEPS: 64,
}
_DERIVED = 72  # where addresses with an offset begin
_CONSTANTS: dict[type, Any] = {np.int32: ctypes.c_int, np.float32: ctypes.c_float, int: ctypes.c_longlong}

_CASES = [(alpha, beta) for alpha in (False, True) for beta in (False, True)]  # whether they are not 0

# Of each kernel: the driver's description, the function, pointers to the arguments.
_Launches = tuple[tuple[Any, Any, int, Step], ...]


class Arguments:
    """The arguments of a plan's kernels in host memory, where the driver reads them: of one call at a time.

    Parameters
    ----------
    gpu : Gpu
    steps : tuple of Step

    Attributes
    ----------
    buffer : ctypes array
        What `_CALL` packs, then addresses with an offset.
    handle : int
        The raw stream that all launches have, or -1.
    launches : list of tuple
        In the order of `_CASES`, which is 2 * (alpha != 0) + (beta != 0).
    moves : bool
        Whether there is more to change for a call than `_CALL` packs; see `move`.
    """

    def __init__(self, gpu: Gpu, steps: tuple[Step, ...]) -> None:
        self.handle = -1
        offsets = {each for step in steps for each in step.arguments if type(each) is Address and each.offset}
        self.buffer = (ctypes.c_uint64 * (_DERIVED // _WORD + len(offsets)))()
        # Words that hold an address of the call plus an offset: the array, the index in it, base and offset.
        self._derived: list[tuple[Any, int, int, int]] = []
        places = _PLACES.copy()
        for i, each in enumerate(offsets, start=_DERIVED // _WORD):
            self._derived.append((self.buffer, i, each.base, each.offset))
            places[each] = _WORD * i
        self._kept: list[Any] = []  # the memory that the driver reads
        self._all = tuple(self._prepared(gpu, step, places) for step in steps)
        self.launches: list[_Launches] = [
            tuple(launch for launch in self._all if launch[3].is_for(*case)) for case in _CASES
        ]
        self.moves = bool(self._derived)

    def _prepared(self, gpu: Gpu, step: Step, places: dict[Address | Scalar, int]) -> tuple[Any, Any, int, Step]:
        """Return what a step is launched with, given the places in the buffer of what is different for each call."""
        first = ctypes.addressof(self.buffer)
        found = [
            first + places[each] if isinstance(each, (Address, Scalar)) else self._place(each)
            for each in step.arguments
        ]
        pointers = (ctypes.c_void_p * len(found))(*found)
        self._kept.append(pointers)
        early = step.early and compute_capability(gpu.arch) >= EARLY
        config = gpu.launch_config(step.grid, step.threads, step.shared_bytes, early)
        return config, step.kernel.function, ctypes.addressof(pointers), step

    def _place(self, argument: Argument) -> int:
        """Return where an argument lies on the host that is not in the buffer."""
        constant = _CONSTANTS.get(type(argument))
        if constant is not None:
            return self._kept_at(constant(argument))
        if isinstance(argument, BatchAndSource):
            packed = argument.packed(0)
            words = (ctypes.c_uint64 * (len(packed) // _WORD)).from_buffer_copy(packed)
            self._derived.append((words, ADDRESS_PLACE // _WORD, argument.address.base, argument.address.offset))
            return ctypes.addressof(words)
        assert isinstance(argument, Batch)
        return self._kept_at(ctypes.create_string_buffer(argument.packed))

    def _kept_at(self, memory: Any) -> int:
        self._kept.append(memory)
        return ctypes.addressof(memory)

    def move(self, bases: tuple[int, ...]) -> None:
        """Let every address with an offset follow those of a call, which come in the order of `Base`."""
        for words, i, base, offset in self._derived:
            words[i] = bases[base] + offset

    def change_stream(self, handle: int) -> None:
        """Let all launches go to the stream with this raw handle."""
        for config, *_ in self._all:
            config.hStream = handle
        self.handle = handle


class Plan:
    """A problem that is ready to be launched, by many threads.

    Parameters
    ----------
    gpu : Gpu
    K : int
    ranges : tuple of int
        First and one-past-last byte of A, B, C and, where there is one, the source, relative to their first elements.
    steps : sequence of Step
        None for a C without elements.
    size : int
        Bytes of workspace.
    purpose : str
        What it is for.
    """

    def __init__(
        self, gpu: Gpu, K: int, ranges: tuple[int, ...], steps: Iterable[Step], size: int, purpose: str
    ) -> None:
        self.steps, self._K, self._purpose = tuple(steps), K, purpose
        a, b, c, *source = zip(ranges[::2], ranges[1::2], strict=True)
        # C shares bytes with A, B or the source if that begins so many bytes after C, between two bounds.
        bounds = [bound for low, high in (a, b, *source) for bound in (c[0] - high, c[1] - low)]
        self._bounds = tuple(bounds if source else [*bounds, 0, 0])
        working = [step for step in self.steps if _uses_workspace(step)] if size else []
        # Of workspace, in the order of `_CASES`.
        self._sizes = [size if any(step.is_for(*case) for step in working) else 0 for case in _CASES]
        # A call takes one out, or makes one where there is none, and puts it back. `list.pop` is atomic, so no other
        # thread has it meanwhile. The driver has copied the arguments when a launch returns.
        self._spare = [Arguments(gpu, self.steps)]

    def apart(self, a: int, b: int, c: int, source: int) -> bool:
        """Return whether the bytes that are written lie apart from those of the other operands, at these addresses.

        Where they do not, elements may still be apart.
        """
        from_a, to_a, from_b, to_b, from_source, to_source = self._bounds
        return not (from_a < a - c < to_a or from_b < b - c < to_b or from_source < source - c < to_source)

    def launch(
        self,
        gpu: Gpu,
        handle: int,
        a: int,
        b: int,
        c: int,
        alpha: float,
        beta: float,
        split_a: int = 0,
        split_b: int = 0,
        source: int = 0,
    ) -> None:
        """Launch the kernels.

        Parameters
        ----------
        gpu : Gpu
            The device, current in this thread.
        handle : int
            The raw stream.
        a, b, c : int
            The addresses of A, B and C.
        alpha, beta : float
            Rounded to float32.
        split_a, split_b : int
            The addresses of A and B where they were split before.
        source : int
            The address of what is read in place of C, if anything is.

        Raises
        ------
        DeviceMemoryError
            The device has no room for the workspace.
        DeviceError
            The driver refuses a launch.
        """
        steps: Any = self._K
        if not (alpha and steps):
            steps, alpha = grid.steps(steps, alpha, beta)
        case = (2 if steps else 0) + (1 if beta else 0)
        size = self._sizes[case]
        work = workspace.allocate(gpu, handle, size, self._purpose) if size else 0
        try:
            try:
                arguments = self._spare.pop()
            except IndexError:
                arguments = Arguments(gpu, self.steps)
            _CALL.pack_into(arguments.buffer, 0, a, b, c, split_a, split_b, work, source, alpha, beta, steps)
            if arguments.moves:
                arguments.move((a, b, c, split_a, split_b, work, source))
            if handle != arguments.handle:
                arguments.change_stream(handle)
            launch = gpu.launch
            for config, function, pointers, step in arguments.launches[case]:
                answer = launch(config, function, pointers, 0)
                if answer[0]:
                    what = f"launching {step.kernel.name} with {step.grid} blocks of {step.threads} threads"
                    device.succeed(what, answer)
            self._spare.append(arguments)  # not after an error or Ctrl-C: they may be half changed
        finally:
            if size:
                workspace.free(gpu, handle, work)


def _uses_workspace(step: Step) -> bool:
    return any(isinstance(each, Address) and each.base is Base.WORKSPACE for each in step.arguments)
