"""Plans: what a product launches, as data. No device is needed to make one; executors carry it out.

A plan follows from the shapes, strides and alignments of the operands, the request and the traits of a device. It does
not depend on addresses, alpha and beta: where a kernel takes one of them, its argument says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import Batch, BatchAndSource, GroupedBatch, GroupedRows
from fastsgemm.geometry.layout import byte_range
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.geometry.tensor_map import TensorMap
from fastsgemm.jit.source import KernelSpec
from fastsgemm.known_devices import EARLY, compute_capability

_ALIGNMENT = 256  # bytes: of every array in workspace

_Item = TypeVar("_Item")


class Scalar(Enum):
    """A number of a later call. STEPS is K, or 0 where A and B are not to be read."""

    ALPHA = "alpha"
    BETA = "beta"
    STEPS = "steps"


class When(Enum):
    """When a kernel is launched, or reads what it writes."""

    ALWAYS = "always"
    READS = "A and B are read"
    READS_NOTHING = "A and B are not read"
    BETA = "beta is not 0"

    def holds(self, reads: bool, beta: bool) -> bool:
        """Return whether that is so in a call that reads A and B, or not, with a beta that is not 0, or is."""
        if self is When.ALWAYS:
            return True
        return beta if self is When.BETA else reads is (self is When.READS)


Argument = (
    Matrix | Scalar | Batch | BatchAndSource | GroupedBatch | GroupedRows | TensorMap | np.int32 | np.float32 | int
)


class Write(Struct, frozen=True, gc=False):
    """What a launch writes."""

    matrix: Matrix  # one of its arguments
    complete: bool = True  # whether it writes every element
    reads: When | None = None  # when it reads there, too


class Launch(Struct, frozen=True, gc=False):
    """One launch of a plan."""

    kernel: KernelSpec
    grid: tuple[int, ...]  # blocks, in one to three dimensions
    threads: int  # of a block
    # Of a `Matrix` the address is passed, a `numpy.int32` as ``int``, a `numpy.float32` as ``float``, an int as
    # ``long long``, a `Batch`, a `BatchAndSource`, a `GroupedBatch`, a `GroupedRows` or a `TensorMap` as
    # the struct of this name.
    arguments: tuple[Argument, ...]
    writes: tuple[Write, ...]
    shared_bytes: int = 0  # dynamic shared memory of a block
    early: bool = False  # whether it may begin before the launch before it has ended (programmatic dependent launch)
    when: When = When.ALWAYS

    @property
    def matrices(self) -> Iterator[Matrix]:
        """What it reads or writes, in the order of its arguments."""
        for argument in self.arguments:
            if isinstance(argument, Matrix):
                yield argument
            elif isinstance(argument, BatchAndSource):
                yield argument.source
            elif isinstance(argument, GroupedBatch | GroupedRows):
                yield from (matrix for _, matrix in argument.addresses)


class Plan(Struct, frozen=True, gc=False):
    """What a product launches."""

    K: int
    launches: tuple[Launch, ...]  # none for a C without elements
    workspace: int = 0  # bytes of device memory that its launches share
    purpose: str = ""  # what the workspace is for
    # Two for A, for B and for the source: what is written may share memory with one only if that begins so many bytes
    # after it, between the two. Zeros where that cannot be.
    bounds: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    # The same two of the offsets of groups.
    of_offsets: tuple[int, int] = (0, 0)

    def apart(self, a: int, b: int, c: int, source: int) -> bool:
        """Return whether the bytes that are written lie apart from those of the other operands, at these addresses.

        Where they do not, elements may still be apart.
        """
        from_a, to_a, from_b, to_b, from_source, to_source = self.bounds
        return not (from_a < a - c < to_a or from_b < b - c < to_b or from_source < source - c < to_source)

    def scalars(self, alpha: float, beta: float) -> tuple[float, int]:
        """Return alpha and the steps of k as kernels get them: no steps where A and B are not to be read."""
        steps, alpha = grid.steps(self.K, alpha, beta)
        return float(alpha), int(steps)

    def selected(self, reads: bool, beta: bool) -> tuple[Launch, ...]:
        """Return the launches of a call that reads A and B, or not, with a beta that is not 0, or is."""
        return tuple(launch for launch in self.launches if launch.when.holds(reads, beta))


def beta_read(source: Matrix | None) -> When | None:
    """Return when a kernel that stores C reads what was there: where beta is not 0, if it does not read a source."""
    return When.BETA if source is None else None


class Draft:
    """The launches of a plan in the making for a device, and the workspace that they need."""

    def __init__(self, traits: DeviceTraits) -> None:
        self.traits = traits
        self.launches: list[Launch] = []
        self.size = 0
        self._purposes: list[str] = []

    def reserve(self, size: int, purpose: str) -> Address:
        """Return the address of an array of `size` bytes in the workspace, a multiple of 256.

        The purpose is for the message where the device has no room for it.
        """
        address = Address(Base.WORKSPACE, self.size)
        self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
        if purpose not in self._purposes:
            self._purposes.append(purpose)
        return address

    def add(
        self,
        kernel: KernelSpec,
        grid: tuple[int, ...],
        threads: int,
        arguments: Iterable[Argument],
        early: bool = False,
        **more: Any,
    ) -> None:
        """Append a launch; see `Launch`. One that may begin early does so where the device can do that."""
        early = early and compute_capability(self.traits.arch) >= EARLY
        self.launches.append(Launch(kernel, grid, threads, tuple(arguments), early=early, **more))

    def in_turn(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the items. What is reserved for one of them shares its place with what is reserved for the others."""
        begin = end = self.size
        for item in items:
            self.size = begin
            yield item
            end = max(end, self.size)
        self.size = end

    def plan(self, K: int, operands: Sequence[Matrix] = ()) -> Plan:
        """Return the plan of A, B, what is written and the source; without them, they are known to lie apart."""
        bounds = [0, 0, 0, 0, 0, 0]
        ranges = [byte_range(each.shape, each.strides, each.dtype.item) for each in operands]
        if ranges:
            first, end = ranges.pop(2)
            bounds[: 2 * len(ranges)] = [bound for low, high in ranges for bound in (first - high, end - low)]
        return Plan(K, tuple(self.launches), self.size, " and ".join(self._purposes), tuple(bounds))  # type: ignore[arg-type]  # six
