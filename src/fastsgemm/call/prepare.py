"""The first call on a problem: check the operands, choose the config, get the kernel, compute the grid.

What comes out depends on nothing that changes from call to call, so `fastsgemm.gemm` keeps it and only looks it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastsgemm import rungs
from fastsgemm.call import checks, split_k
from fastsgemm.call.arrays import HOST, Meta
from fastsgemm.call.split_k import Reduction
from fastsgemm.config import Config
from fastsgemm.device import Gpu
from fastsgemm.geometry import grid, layout, variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.variants import Call, Operand
from fastsgemm.heuristics.choose import choose
from fastsgemm.jit import kernel
from fastsgemm.rungs import Rung
from fastsgemm.tuning import first_use

Ranges = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and those of its arguments that are known before the addresses.

    Attributes
    ----------
    swapped : bool
        The kernel's A is the caller's B.
    kernel : cuda.core.Kernel
    config : cuda.core.LaunchConfig
    M, N, K : numpy.int32
        Of the kernel's problem.
    lda, ldb, ldc : int
    split : tuple
        The further arguments of a rung that can split K: the steps of a part, and floats from part to part.
    parts : Reduction or None
        How the parts are added up, where there are several.
    """

    swap_ab: bool
    kernel: Any
    config: Any
    M: np.int32
    N: np.int32
    K: np.int32
    lda: int
    ldb: int
    ldc: int
    split: tuple[np.int32, int] | tuple[()] = ()
    parts: Reduction | None = None


@dataclass(frozen=True)
class Prepared:
    """A problem that has been seen.

    Attributes
    ----------
    ranges : tuple of int
        First and one-past-last byte of A, B and C, relative to their first elements.
    packing : tuple of bool
        Which of A, B and C have no unit stride and must be copied first.
    launch : Launch or None
        None where C has no elements or something must be packed.
    empty : bool
        C has no elements.
    """

    ranges: Ranges
    packing: tuple[bool, bool, bool]
    launch: Launch | None
    empty: bool


def prepare(
    gpu: Gpu,
    handle: int,
    metas: tuple[Meta, Meta, Meta],
    misaligned: tuple[int, int, int],
    rung: Rung | None,
    config: Config | None,
) -> Prepared:
    """Check the operands and make ready to launch on them; see `fastsgemm.sgemm` for the errors.

    Parameters
    ----------
    gpu : Gpu
    handle : int
        The raw stream, which may be capturing.
    metas : tuple of Meta
        Of A, B and C.
    misaligned : tuple of int
        The addresses of A, B and C modulo 16, in bytes.
    rung : Rung or None
    config : Config or None
    """
    check(gpu, metas)
    if config is not None:
        rung = rung or rungs.of_config(config)
        rung.check(config, gpu.shared_limit)
    a, b, c = (meta[:2] for meta in metas)
    ranges = (*layout.byte_range(*a), *layout.byte_range(*b), *layout.byte_range(*c))
    how = [layout.stored(*matrix) for matrix in (a, b, c)]
    packing = (how[0] is None, how[1] is None, how[2] is None)
    empty = 0 in c[0]
    launch = None
    if not empty and not any(packing):
        operands = [
            Operand(tuple(meta[0]), stored or Stored(False, 0), offset)
            for meta, stored, offset in zip(metas, how, misaligned, strict=True)
        ]
        launch = _launch(gpu, handle, variants.call_for(*operands), rung, config)
    return Prepared(ranges, packing, launch, empty)


def check(gpu: Gpu, metas: tuple[Meta, Meta, Meta]) -> None:
    """Refuse operands that cannot be used, are on several devices or do not fit together."""
    places = {}
    for name, (_, _, ordinal, fault, _) in zip("ABC", metas, strict=True):
        if fault is not None:
            raise fault(name)
        places[name] = "the host" if ordinal == HOST else f"cuda:{ordinal}"
    checks.one_device(places)
    a, b, c = metas
    checks.shapes(a[0], b[0], c[0])
    checks.output(c[0], c[1], readonly=c[4])


def _launch(gpu: Gpu, handle: int, call: Call, rung: Rung | None, config: Config | None) -> Launch:
    from cuda.core import LaunchConfig

    stream = gpu.stream(handle)
    if rung is None or config is None:
        first_use.meet(gpu, stream, rung)
        choice = choose(gpu, rung, call.problem)
        rung, config = choice.rung, choice.config
    call = variants.call_with_swap_ab(rung, call)
    problem = call.problem
    blocks = grid.blocks(config, problem)
    count, chunk = grid.split(config, problem.K)
    parts = None
    if count > 1:
        adding = kernel.helper(gpu, "reduce_parts", stream)
        parts = split_k.reduction(adding, problem.M, problem.N, count, call.strides_c, gpu.arch)
    return Launch(
        call.swap_ab,
        kernel.get(gpu, rung, config, variants.variant_for(rung, call, config), stream),
        LaunchConfig(grid=blocks, block=config.threads, shmem_size=config.shared_bytes),
        np.int32(problem.M),
        np.int32(problem.N),
        np.int32(problem.K),
        call.lda,
        call.ldb,
        call.ldc,
        (np.int32(chunk), problem.M * problem.N) if rung.splits else (),
        parts,
    )
