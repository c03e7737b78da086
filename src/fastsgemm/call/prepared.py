"""The result of preparing a problem, kept after the first call so that later calls only look it up and launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastsgemm.call.dispatch import KernelLaunch


@dataclass(frozen=True)
class Reduction:
    """The second launch of split-K, which adds up the partial sums.

    Attributes
    ----------
    kernel : cuda.core.Kernel
        ``reduce_parts``.
    config : cuda.core.LaunchConfig
    """

    kernel: Any
    config: Any


@dataclass(frozen=True)
class Prepared:
    """A problem that is ready to launch.

    Attributes
    ----------
    ranges : tuple of int
        First and one-past-last byte of A, B and C, relative to their first elements.
    packing : tuple of bool
        Which of A, B and C have no unit stride and are copied first.
    empty : bool
        C has no elements.
    launch : KernelLaunch or None
        None if C has no elements or an operand must be packed.
    kernel : cuda.core.Kernel or None
    config : cuda.core.LaunchConfig or None
        Grid, threads of a block and dynamic shared memory of `kernel`.
    reduction : Reduction or None
        None if K is not split.
    """

    ranges: tuple[int, int, int, int, int, int]
    packing: tuple[bool, bool, bool]
    empty: bool
    launch: KernelLaunch | None = None
    kernel: Any = None
    config: Any = None
    reduction: Reduction | None = None
