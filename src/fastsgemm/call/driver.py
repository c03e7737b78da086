"""The executor on a device: loads a plan's kernels once, and launches them by the driver's own functions.

Most arguments are the same for every call on one plan. The others are addresses, alpha, beta and the steps of k. They
have slots in one buffer, to which the arguments of all kernels point. So a call packs that buffer once, and then asks
the driver once for each kernel.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm import device
from fastsgemm.call import checks, workspace
from fastsgemm.call.arrays import Meta, View
from fastsgemm.call.gram import request_of
from fastsgemm.call.plan import Argument, Launch, Plan, Scalar
from fastsgemm.call.product import make_plan
from fastsgemm.geometry import layout
from fastsgemm.geometry.batch import ADDRESS_PLACE, Batch, BatchAndSource
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.jit import kernel
from fastsgemm.known_devices import EARLY, compute_capability
from fastsgemm.request import Request

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

_MOST_LOADED = 16384  # plans per device; then the table is emptied and starts again

_CALL = struct.Struct("7Q2fi")  # the addresses in the order of `Base`; alpha, beta, steps
_WORD = 8  # bytes of an address
_SLOTS: dict[Address | Scalar, int] = {  # in it, in bytes
    **{Address(base): _WORD * base for base in Base},
    Scalar.ALPHA: 56,
    Scalar.BETA: 60,
    Scalar.STEPS: 64,
}
_ALL_BITS = (1 << 64) - 1

_CASES = [(reads, beta) for reads in (False, True) for beta in (False, True)]

# Addresses of A, B, what is written, A and B where they were split before, and the source: in the order of `Base`.
Addresses = tuple[int, int, int, int, int, int]


def multiply(
    gpu: Gpu,
    handle: int,
    request: Request,
    operands: Sequence[View],
    alpha: float,
    beta: float,
    split: tuple[int, int] = (0, 0),
) -> None:
    """Compute C <- alpha * A @ B + beta * C on views of device memory; see `fastsgemm.sgemm` for the errors.

    Parameters
    ----------
    gpu : Gpu
        The device, current in this thread.
    handle : int
        The raw stream.
    request : Request
    operands : sequence of View
        Address and meta of A, B, what is written and, if that is another array, C: it broadcasts to the shape of what
        is written, and shares no memory with it.
    alpha, beta : float
        Rounded to float32.
    split : (int, int)
        The addresses of A and B as pairs of FP16 numbers, where they were split before.
    """
    key: tuple[Any, ...]
    if len(operands) == 3:
        (pa, a), (pb, b), (pc, c) = operands
        if pa == pb:
            request = request_of(request, (a, b), (pa, pb))
        ps, key = 0, (request, a, b, c, pa & 15, pb & 15, pc & 15)
    else:
        (pa, a), (pb, b), (pc, c), (ps, source) = operands
        if pa == pb:
            request = request_of(request, (a, b), (pa, pb))
        key = (request, a, b, c, pa & 15, pb & 15, pc & 15, source, ps & 15)
    loaded: LoadedPlan | None = gpu.prepared.get(key)
    if loaded is None:
        metas = [meta for _, meta in operands]
        plan = make_plan(gpu, request, metas, [address & 15 for address, _ in operands])
        loaded = LoadedPlan(gpu, plan, handle)
        if len(gpu.prepared) >= _MOST_LOADED:
            gpu.forget_problems()
        gpu.prepared[key] = loaded
    if not loaded.apart(pa, pb, pc, ps):
        check_overlap([meta for _, meta in operands], (pa, pb, pc, ps), request.output)
    split_a, split_b = split
    loaded.launch(handle, (pa, pb, pc, split_a, split_b, ps), alpha, beta)


def check_overlap(metas: Sequence[Meta], addresses: Sequence[int], output: str = "C") -> None:
    """Raise `OverlapError` if what is written shares an element with another operand.

    Parameters
    ----------
    metas, addresses : sequence
        Of A, B, what is written and, if it is another array, C.
    output : str
        What the caller calls the array that is written.
    """
    written, address = metas[2], addresses[2]
    for name, at in (("A", 0), ("B", 1), ("C", 3)):
        if at < len(metas):
            other = metas[at]
            shapes = (tuple(each) for each in (written[0], written[1], other[0], other[1]))
            checks.apart(name, layout.overlap(addresses[at] - address, *shapes), output)


class Arguments:
    """The arguments of some launches in host memory, with slots for what is different for each call.

    Parameters
    ----------
    launches : sequence of Launch

    Attributes
    ----------
    buffer : ctypes array
        Words of 8 bytes: what `_CALL` packs, then addresses with an offset and what is the same for every call.
    pointers : list of int
        For each launch, the address of an array of pointers to its arguments.
    has_offsets : bool
        Whether there is more to change for a call than `_CALL` packs; see `patch_addresses`.
    """

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._words = [0] * (_CALL.size // _WORD + 1)
        self._slots = _SLOTS.copy()
        # Words that hold an address of the call plus an offset, with both of these.
        self._offsets: list[tuple[int, Base, int]] = []
        slots = [[self._slot(argument) for argument in launch.arguments] for launch in launches]
        self.buffer = (ctypes.c_uint64 * len(self._words))(*self._words)
        first = ctypes.addressof(self.buffer)
        self._arrays = [(ctypes.c_void_p * len(each))(*[first + slot for slot in each]) for each in slots]
        self.pointers = list(map(ctypes.addressof, self._arrays))
        self.has_offsets = bool(self._offsets)

    def _slot(self, argument: Argument) -> int:
        """Return where an argument lies, in bytes from the beginning of the buffer."""
        kind, words = type(argument), self._words
        if kind is np.int32 or kind is int:
            words.append(int(argument) & _ALL_BITS)  # type: ignore[arg-type]
            return _WORD * len(words) - _WORD
        if kind is Matrix or kind is Scalar:
            key: Any = argument.address if kind is Matrix else argument  # type: ignore[union-attr]
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = self._add(0)
                self._offsets.append((slot // _WORD, key.base, key.offset))
            return slot
        if isinstance(argument, BatchAndSource):
            slot = self._add(*_words_of(argument.packed(0)))
            source = argument.source.address
            self._offsets.append(((slot + ADDRESS_PLACE) // _WORD, source.base, source.offset))
            return slot
        if isinstance(argument, Batch):
            return self._add(*_words_of(argument.packed))
        assert isinstance(argument, np.float32)
        return self._add(int(argument.view(np.uint32)))

    def _add(self, *words: int) -> int:
        slot = _WORD * len(self._words)
        self._words.extend(words)
        return slot

    def patch_addresses(self, bases: tuple[int, ...]) -> None:
        """Write the addresses of a call, in the order of `Base`, to the words that hold one plus an offset."""
        buffer = self.buffer
        for word, base, offset in self._offsets:
            buffer[word] = bases[base] + offset


def _words_of(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(packed) // _WORD}Q", packed)


class StreamLaunches:
    """The launches of a plan as the driver gets them, with arguments of their own: of one call at a time.

    Attributes
    ----------
    arguments : Arguments
    handle : int
        The raw stream that all launches have, or -1.
    cases : list of tuple
        In the order of `_CASES`, which is 2 * (A and B are read) + (beta != 0); of each kernel the driver's description
        of the launch, the function, pointers to the arguments, and what is launched.
    """

    def __init__(self, gpu: Gpu, plan: Plan, kernels: Sequence[Kernel]) -> None:
        self.handle = -1
        self.arguments = Arguments(plan.launches)
        has_early = compute_capability(gpu.arch) >= EARLY
        self._all = [
            (
                gpu.launch_config(launch.grid, launch.threads, launch.shared_bytes, launch.early and has_early),
                kernel.function, pointers, launch,
            )
            for launch, kernel, pointers in zip(plan.launches, kernels, self.arguments.pointers, strict=True)
        ]  # fmt: skip
        self.cases = [tuple([each for each in self._all if each[3].when.holds(*case)]) for case in _CASES]

    def change_stream(self, handle: int) -> None:
        """Launch on the stream with this raw handle from now on."""
        for config, *_ in self._all:
            config.hStream = handle
        self.handle = handle


class LoadedPlan:
    """A plan whose kernels are loaded on a device, to be launched by many threads.

    Parameters
    ----------
    gpu : Gpu
    plan : Plan
    handle : int
        The raw stream of the first call, which may be capturing: then no kernel can be loaded.

    Raises
    ------
    CaptureError
        A kernel is not loaded yet and the stream is being captured.
    """

    def __init__(self, gpu: Gpu, plan: Plan, handle: int) -> None:
        self._gpu, self.plan, self._K = gpu, plan, plan.K
        self._kernels = [kernel.get(gpu, each.kernel, each.shared_bytes, handle) for each in plan.launches]
        a, b, c, *source = zip(plan.ranges[::2], plan.ranges[1::2], strict=True)
        # C shares bytes with A, B or the source if that begins so many bytes after C, between two bounds.
        bounds = [bound for low, high in (a, b, *source) for bound in (c[0] - high, c[1] - low)]
        self._bounds = tuple(bounds if source else [*bounds, 0, 0])
        # Of workspace, in the order of `_CASES`.
        working = [launch for launch in plan.launches if _uses_workspace(launch)] if plan.workspace else []
        self._sizes = [plan.workspace if any(launch.when.holds(*case) for launch in working) else 0 for case in _CASES]
        # A call takes one out, or makes one where there is none, and puts it back. `list.pop` is atomic, so no other
        # thread has it meanwhile. The driver has copied the arguments when a launch returns.
        self._spare = [StreamLaunches(gpu, plan, self._kernels)]

    def apart(self, a: int, b: int, c: int, source: int) -> bool:
        """Return whether the bytes that are written lie apart from those of the other operands, at these addresses.

        Where they do not, elements may still be apart.
        """
        from_a, to_a, from_b, to_b, from_source, to_source = self._bounds
        return not (from_a < a - c < to_a or from_b < b - c < to_b or from_source < source - c < to_source)

    def launch(self, handle: int, addresses: Addresses, alpha: float, beta: float) -> None:
        """Launch the kernels.

        Parameters
        ----------
        handle : int
            The raw stream; its device is current in this thread.
        addresses : tuple of int
            Of A, B, what is written, A and B where they were split before, and what is read in place of C: 0 where
            there is none.
        alpha, beta : float
            Rounded to float32.

        Raises
        ------
        DeviceMemoryError
            The device has no room for the workspace.
        DeviceError
            The driver refuses a launch.
        """
        gpu, steps = self._gpu, self._K
        if not (alpha and steps):
            alpha, steps = self.plan.scalars(alpha, beta)
        case = (2 if steps else 0) + (1 if beta else 0)
        size = self._sizes[case]
        work = workspace.allocate(gpu, handle, size, self.plan.purpose) if size else 0
        try:
            try:
                launches = self._spare.pop()
            except IndexError:
                launches = StreamLaunches(gpu, self.plan, self._kernels)
            arguments = launches.arguments
            a, b, c, split_a, split_b, source = addresses  # a call with a star takes longer
            _CALL.pack_into(arguments.buffer, 0, a, b, c, split_a, split_b, source, work, alpha, beta, steps)
            if arguments.has_offsets:
                arguments.patch_addresses((a, b, c, split_a, split_b, source, work))
            if handle != launches.handle:
                launches.change_stream(handle)
            launch = gpu.launch
            for config, function, pointers, what in launches.cases[case]:
                answer = launch(config, function, pointers, 0)
                if answer[0]:
                    of_what = f"launching {what.kernel.name} with {what.grid} blocks of {what.threads} threads"
                    device.succeed(of_what, answer)
            self._spare.append(launches)  # not after an error or Ctrl-C: they may be half changed
        finally:
            if size:
                workspace.free(gpu, handle, work)


def _uses_workspace(launch: Launch) -> bool:
    return any(write.matrix.address.base is Base.WORKSPACE for write in launch.writes) or any(
        matrix.address.base is Base.WORKSPACE for matrix in launch.matrices
    )
