"""The launches of a plan as the driver gets them, and their arguments in host memory, where the driver reads them.

Most arguments are the same for every call on one plan. The others are addresses, alpha, beta and the steps of k. They
have slots in one buffer, to which the arguments of all kernels point. So a call packs that buffer once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastsgemm import device
from fastsgemm.call.plan import Argument, Launch, Plan, Scalar
from fastsgemm.geometry.batch import ADDRESS_PLACE, Batch, BatchAndSource, GroupedBatch, GroupedRows
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.geometry.tensor_map import TensorMap

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

# Of calls: whether they read A and B, and whether beta is not 0. The place of one is 2 * (reads) + (beta != 0).
CASES = [(reads, beta) for reads in (False, True) for beta in (False, True)]

# What is different for each call: the addresses in the order of `Base`, alpha, beta and the steps of k.
Values = tuple[int, int, int, int, int, int, int, float, float, int]

_CALL = struct.Struct("7Q2fi")  # the addresses in the order of `Base`; alpha, beta, steps
_WORD = 8  # bytes of an address
_SLOTS: dict[Address | Scalar, int] = {  # in it, in bytes
    **{Address(base): _WORD * base for base in Base},
    Scalar.ALPHA: 56,
    Scalar.BETA: 60,
    Scalar.STEPS: 64,
}
_ALL_BITS = (1 << 64) - 1


class Arguments:
    """The arguments of some launches in host memory, with slots for what is different for each call."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.words = [0] * (_CALL.size // _WORD + 1)
        self._slots = _SLOTS.copy()
        # Words that hold an address of the call plus an offset, with both of these.
        self.offsets: list[tuple[int, Base, int]] = []
        # Of each launch, where its arguments lie, in bytes from the beginning of the buffer.
        self.slots = [[self._slot(argument) for argument in launch.arguments] for launch in launches]
        # Words of 8 bytes: what `_CALL` packs, then addresses with an offset and what is the same for every call.
        self._buffer = (ctypes.c_uint64 * len(self.words))(*self.words)
        first = ctypes.addressof(self._buffer)
        self._arrays = [(ctypes.c_void_p * len(each))(*[first + slot for slot in each]) for each in self.slots]
        # For each launch, the address of an array of pointers to its arguments.
        self.pointers = list(map(ctypes.addressof, self._arrays))

    def _slot(self, argument: Argument) -> int:
        """Return where an argument lies, in bytes from the beginning of the buffer."""
        kind, words = type(argument), self.words
        if kind is np.int32 or kind is int:
            words.append(int(argument) & _ALL_BITS)  # type: ignore[arg-type]
            return _WORD * len(words) - _WORD
        if kind is Matrix or kind is Scalar:
            key: Any = argument.address if kind is Matrix else argument  # type: ignore[union-attr]
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = self._add(0)
                self.offsets.append((slot // _WORD, key.base, key.offset))
            return slot
        if isinstance(argument, BatchAndSource):
            slot = self._add(*_words_of(argument.packed(0)))
            source = argument.source.address
            self.offsets.append(((slot + ADDRESS_PLACE) // _WORD, source.base, source.offset))
            return slot
        if isinstance(argument, GroupedBatch | GroupedRows):
            slot = self._add(*_words_of(argument.packed))
            for place, matrix in argument.addresses:
                self.offsets.append(((slot + place) // _WORD, matrix.address.base, matrix.address.offset))
            return slot
        if isinstance(argument, Batch | TensorMap):
            return self._add(*_words_of(argument.packed))
        assert isinstance(argument, np.float32)
        return self._add(int(argument.view(np.uint32)))

    def _add(self, *words: int) -> int:
        slot = _WORD * len(self.words)
        self.words.extend(words)
        return slot

    def set(self, values: Values) -> None:
        """Write what is different for each call."""
        buffer = self._buffer
        _CALL.pack_into(buffer, 0, *values)
        for word, base, offset in self.offsets:
            buffer[word] = values[base] + offset  # type: ignore[assignment]  # an address, as `Base` counts these


class Launches:
    """The launches of a plan as the driver gets them, with arguments of their own: of one call at a time."""

    def __init__(self, gpu: Gpu, plan: Plan, kernels: Sequence[Kernel]) -> None:
        from cuda.bindings.driver import CUfunction

        self._gpu = gpu
        self._handle = -1  # the raw stream that all have
        self._arguments = Arguments(plan.launches)
        # Of each the driver's description, the kernel, pointers to its arguments, and the launch itself. The driver
        # takes a CUkernel in place of a CUfunction.
        self._all = [
            (
                gpu.launch_config(launch.grid, launch.threads, launch.shared_bytes, launch.early),
                CUfunction(int(kernel.handle)), pointers, launch,
            )
            for launch, kernel, pointers in zip(plan.launches, kernels, self._arguments.pointers, strict=True)
        ]  # fmt: skip
        self._cases = [tuple([each for each in self._all if each[3].when.holds(*case)]) for case in CASES]

    def launch(self, handle: int, case: int, values: Values) -> None:
        """Launch the kernels of a case, of `CASES`, one by one on the stream with this raw handle."""
        self._arguments.set(values)
        if handle != self._handle:
            for config, *_ in self._all:
                config.hStream = handle
            self._handle = handle
        launch = self._gpu.launch
        for config, function, pointers, what in self._cases[case]:
            answer = launch(config, function, pointers, 0)
            if answer[0]:
                of_what = f"launching {what.kernel.name} with {what.grid} blocks of {what.threads} threads"
                device.check_driver(of_what, answer)


def _words_of(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(packed) // _WORD}Q", packed)
