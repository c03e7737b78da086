"""One product on device memory.

A first call takes five steps: check the operands, choose the config, compute the grid, get the kernel, launch. None of
them calls another. The result of the first four depends only on shapes, strides, alignment, rung, config and precision,
so it is kept as a plan, and a later call with the same ones is a look-up and a launch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastsgemm.call import arrays, checks, fp16x3, ieee, packing
from fastsgemm.call.arrays import HOST, Meta, View
from fastsgemm.call.matrix import Matrix
from fastsgemm.call.plan import Address, Base, Draft, Plan
from fastsgemm.call.split_operand import SplitOperand
from fastsgemm.geometry import layout
from fastsgemm.geometry.batch import DIMENSIONS, stacks
from fastsgemm.geometry.layout import ITEM
from fastsgemm.rungs import Rung

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_MOST_PREPARED = 16384  # problems per device; then the table is emptied and starts again

Metas = tuple[Meta, Meta, Meta]
Misaligned = tuple[int, int, int]


def multiply(
    gpu: Gpu,
    handle: int,
    a: View,
    b: View,
    c: View,
    alpha: float,
    beta: float,
    rung: Rung | None = None,
    config: Any = None,
    precision: str = "ieee",
    split_a: SplitOperand | None = None,
    split_b: SplitOperand | None = None,
    source: View | None = None,
    output: str = "C",
) -> None:
    """Compute C <- alpha * A @ B + beta * C on views of device memory; see `fastsgemm.sgemm` for the errors.

    Parameters
    ----------
    gpu : Gpu
        The device, current in this thread.
    handle : int
        The raw stream.
    a, b, c : View
        Address and meta of A, B and C.
    alpha, beta : float
        Rounded to float32.
    rung : Rung, optional
    config : Config, optional
    precision : str
        ``ieee`` or ``fp16x3``. With a rung, that of the rung.
    split_a, split_b : SplitOperand, optional
        A and B where they were split before.
    source : View, optional
        What is read in place of C. It broadcasts to the shape of C, and shares no memory with it unless it is the same.
    output : str
        What the caller calls the array that is written: ``C`` or ``out``.
    """
    pa, a_meta = a
    pb, b_meta = b
    pc, c_meta = c
    key: tuple[Any, ...] = (
        a_meta, b_meta, c_meta, pa & 15, pb & 15, pc & 15, None if rung is None else rung.name, config, precision,
        split_a is None, split_b is None,
    )  # fmt: skip
    source_address = 0
    if source is not None:
        source_address, source_meta = source
        key = (*key, source_meta, source_address & 15)
    plan: Plan | None = gpu.prepared.get(key)
    if plan is None:
        split = (split_a is not None, split_b is not None)
        plan = draft(gpu, handle, key[:3], key[3:6], rung, config, precision, split, key[11:], output).plan()
        if len(gpu.prepared) >= _MOST_PREPARED:
            gpu.forget_problems()
        gpu.prepared[key] = plan
    if not plan.apart(pa, pb, pc, source_address):
        metas = (a_meta, b_meta, c_meta) if source is None else (a_meta, b_meta, c_meta, source_meta)
        check_overlap(metas, (pa, pb, pc, source_address), output)
    address_a = 0 if split_a is None else split_a.address
    address_b = 0 if split_b is None else split_b.address
    plan.launch(gpu, handle, pa, pb, pc, alpha, beta, address_a, address_b, source_address)


def draft(
    gpu: Gpu,
    handle: int,
    metas: Metas,
    misaligned: Misaligned,
    rung: Rung | None,
    config: Any,
    precision: str,
    split: fp16x3.Split,
    source: tuple[Any, ...] = (),
    output: str = "C",
) -> Draft:
    """Do all steps of a first call except the launch: check the operands, choose, compute grids, get kernels.

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
    precision : str
    split : tuple of bool
        Whether A and B were split before.
    source : tuple
        Meta and misalignment of what is read in place of C; empty for C itself.
    output : str
    """
    forced = rung is not None
    tensor_cores = (precision if rung is None else rung.precision) == "fp16x3"
    if tensor_cores:
        fp16x3.check(gpu, config, forced)
    _check_operands(metas, source[0] if source else None, output)
    if not tensor_cores:
        rung = checks.config(rung, config, gpu.shared_limit)
    given = zip(("A", "B", output, "C"), (*misaligned, *source[1:]), (*metas, *source[:1]), strict=False)
    for name, offset, meta in given:
        fault = arrays.misaligned(offset, meta[0], meta[1]) if offset % ITEM else None
        if fault is not None:
            raise fault(name)
    ranges = [end for meta in (*metas, *source[:1]) for end in layout.byte_range(tuple(meta[0]), tuple(meta[1]))]
    drafted = Draft(gpu, handle, metas[0][0][-1], ranges)
    if 0 not in metas[2][0]:
        lying = [(meta[0], meta[1]) for meta in (*metas, *source[:1])]
        extents, found = stacks(*lying)
        bases = (Base.A, Base.B, Base.C, Base.SOURCE)
        operands = [
            Matrix(Address(base), each.shape, each.strides, misalignment, each.steps)
            for base, each, misalignment in zip(bases, found, (*misaligned, *source[1:]), strict=False)
        ]
        how = (rung, config, tensor_cores, split, forced)
        outer = max(0, len(extents) - DIMENSIONS)  # dimensions beyond those of a launch: one for each of their indices
        for index in drafted.in_turn(itertools.product(*map(range, extents[:outer]))):
            inside = [each.at(index) for each in operands]
            _add_batch(drafted, inside, extents[outer:], math.prod(extents[:outer]), *how)
    return drafted


def _add_batch(
    draft: Draft,
    operands: list[Matrix],
    extents: tuple[int, ...],
    times: int,
    rung: Rung | None,
    config: Any,
    tensor_cores: bool,
    split: fp16x3.Split,
    forced: bool,
) -> None:
    """Add the steps of C <- alpha * A @ B + beta * C for A, B, C and, where C is not what beta multiplies, a source.

    It is done for `times` batches of these extents, which differ in their addresses only.
    """
    a, b, given_c, *rest = operands
    source = rest[0] if rest else None
    if a.how is None and not split[0]:
        a = packing.add_packed(draft, a, extents, "alpha")
    if b.how is None and not split[1]:
        b = packing.add_packed(draft, b, extents, "alpha")
    c = packing.reserve(draft, given_c, extents) if given_c.how is None else given_c
    if source is None and c is not given_c:
        packing.add_copy(draft, given_c, c, extents, "beta")
    if not (tensor_cores and fp16x3.add_product(draft, a, b, c, config, split, forced, extents, times, source)):
        if tensor_cores:
            rung = config = None
        if a.how is None:  # it was split before, but the kernel reads what it was split from
            a = packing.add_packed(draft, a, extents, "alpha")
        if b.how is None:
            b = packing.add_packed(draft, b, extents, "alpha")
        ieee.add_product(draft, a, b, c, rung, config, extents, source)
    if c is not given_c:
        packing.add_copy(draft, c, given_c, extents)


def _check_operands(metas: Metas, source: Meta | None, output: str) -> None:
    """Refuse operands that cannot be used, do not fit together or are on different devices."""
    places = {}
    named = [("A", metas[0]), ("B", metas[1]), (output, metas[2])]
    if source is not None:
        named.insert(2, ("C", source))
    for name, (_, _, ordinal, fault, _) in named:
        if fault is not None:
            raise fault(name)
        places[name] = "the host" if ordinal == HOST else f"cuda:{ordinal}"
    checks.one_device(places)
    a, b, c = metas
    checks.result_shape(a[0], b[0], c[0], None if source is None else source[0], output)
    checks.output(c[0], c[1], readonly=c[4], name=output)


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
