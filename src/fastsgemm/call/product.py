"""`make_plan`: check the operands, choose, and list the launches of a product. No device is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from math import prod

import numpy as np

from fastsgemm.call import arrays, checks, fp16x3, ieee, packing
from fastsgemm.call.arrays import HOST, Meta
from fastsgemm.call.plan import Draft, Plan, When
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import layout, variants
from fastsgemm.geometry.batch import DIMENSIONS, merged
from fastsgemm.geometry.layout import Lying
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.heuristics.choice import Choice, choose
from fastsgemm.heuristics.fp16x3 import check_config, require_batch, require_tensor_cores
from fastsgemm.problem import FLOAT32, DType, Sym
from fastsgemm.request import Request

_BASES = tuple(
    (Address(base), name) for base, name in ((Base.A, "A"), (Base.B, "B"), (Base.C, "C"), (Base.SOURCE, "S"))
)


def make_plan(traits: DeviceTraits, request: Request, metas: Sequence[Meta], misaligned: Sequence[int]) -> Plan:
    """Return what a product launches on a device with these traits.

    Parameters
    ----------
    traits : DeviceTraits
    request : Request
        With what the addresses say of it; see `fastsgemm.request.of_operands`.
    metas : sequence of Meta
        Of A, B, what is written and, if that is another array, C.
    misaligned : sequence of int
        Their addresses modulo 16, in bytes.

    Raises
    ------
    DTypeError, OperandError, ShapeError, OverlapError, DeviceMismatchError
        The operands cannot be used as given.
    ConfigError, DeviceError
        The config is not legal on the device, or the device is too old for the rung.
    """
    _check(traits, request, metas, misaligned)
    draft = Draft(traits)
    ranges: list[int] = []
    operands: list[Matrix] = []
    for (address, name), meta, misalignment in zip(_BASES, metas, misaligned, strict=False):
        shape, strides = tuple(meta[0]), tuple(meta[1])
        ranges += layout.byte_range(shape, strides, meta[5].item)
        operands.append(Matrix(address, shape, strides, misalignment, name, meta[5]))
    if 0 not in operands[2].shape:
        operands = merged(*operands)
        extents = operands[2].extents
        if len(extents) <= DIMENSIONS:
            _add_batch(draft, request, operands, extents)
        else:  # one launch for each index of the dimensions beyond those of a launch
            for index in draft.in_turn(np.ndindex(extents[:-DIMENSIONS])):
                _add_batch(draft, request, [each.at(index) for each in operands], extents)
    return draft.plan(metas[0][0][-1], tuple(ranges))


def plan_of(
    traits: DeviceTraits, request: Request, operands: Iterable[Lying], dtypes: Sequence[DType] = FLOAT32
) -> Plan:
    """Return the plan of operands with these shapes and strides at aligned addresses; see `make_plan`.

    `dtypes` are the types of the first operands; the others are float32.
    """
    types = chain(dtypes, repeat(DType.F32))
    metas: list[Meta] = [
        (shape, strides, 0, None, False, dtype) for (shape, strides), dtype in zip(operands, types, strict=False)
    ]
    return make_plan(traits, request, metas, (0,) * len(metas))


def _check(traits: DeviceTraits, request: Request, metas: Sequence[Meta], misaligned: Sequence[int]) -> None:
    """Refuse what cannot be computed as asked for, on this device or with these operands."""
    if request.tensor_cores:
        if request.rung is not None:
            require_tensor_cores(traits)
        if request.config is not None:
            check_config(traits, request.config)  # type: ignore[arg-type]  # which it refuses
    names = ("A", "B", request.output, "C")
    places = set()
    for meta in metas:
        places.add(meta[2])
        if meta[3] is not None or len(places) > 1:
            _refuse(names, metas)
    a, b, c, *source = metas
    checks.result_shape(a[0], b[0], c[0], source[0][0] if source else None, request.output)
    if request.symmetric:
        checks.square(c[0])
    checks.output(c[0], c[1], readonly=c[4], name=request.output)
    if not request.tensor_cores and request.rung is not None and request.config is not None:
        request.rung.check(request.config, traits.shared_limit)
    for name, offset, meta in zip(names, misaligned, metas, strict=False):
        item = meta[5].item
        fault = arrays.misaligned(offset, meta[0], meta[1], item) if offset % item else None
        if fault is not None:
            raise fault(name)
    dtypes = [meta[5] for meta in metas]
    if any(dtypes):
        checks.types(request, dtypes)


def _refuse(names: Sequence[str], metas: Sequence[Meta]) -> None:
    """Raise the error of operands of which one cannot be used, or which are on different devices."""
    named = list(zip(names, metas, strict=False))
    in_order = [*named[:2], *named[3:], named[2]]
    for name, meta in in_order:
        fault = meta[3]
        if fault is not None:
            raise fault(name)
    checks.one_device({name: "the host" if meta[2] == HOST else f"cuda:{meta[2]}" for name, meta in in_order})


def _add_batch(draft: Draft, request: Request, operands: list[Matrix], extents: tuple[int, ...]) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C for A, B, C and, where that is not what is written, a source.

    The operands have the last of the extents, as many as a launch has room for.
    """
    a, b, written, *source = operands
    if request.tensor_cores and a.shape[-1] == 0:
        choice = Choice((), triangle=True)  # nothing is multiplied
    else:
        if request.tensor_cores and request.rung is not None:
            require_batch(prod(extents))
        elif any(request.split):
            require_batch(prod(extents), "split operands are for")
        in_float32 = written.copy_at(written.address, DType.F32) if written.dtype else written
        read_a, read_b, stored = map(variants.as_read, (a, b, in_float32))
        if request.gram:
            read_b = read_a.transposed  # of one copy, where A is copied
        choice = choose(draft.traits, request, read_a, read_b, stored, extents)
    by_rung_11 = not choice.shares
    if a.stored is None and not (by_rung_11 and request.split[0]):
        a = packing.add_packed(draft, a, When.READS)
    if request.gram:
        b = a.transposed.named("B")
    elif b.stored is None and not (by_rung_11 and request.split[1]):
        b = packing.add_packed(draft, b, When.READS)
    c = packing.reserve(draft, written, DType.F32) if written.stored is None or written.dtype else written
    sym = request.sym if choice.triangle else Sym.WHOLE
    keeps_other = sym in (Sym.LOWER, Sym.UPPER)  # the triangle that is not written
    if c is not written and (keeps_other or not source):
        packing.add_copy(draft, written, c, When.ALWAYS if keeps_other else When.BETA)
    source = [packing.add_cast(draft, each, When.BETA) if each.dtype else each for each in source]
    if by_rung_11:
        fp16x3.add_product(draft, request.split, choice, sym, a, b, c, *source)
    else:
        ieee.add_product(draft, choice.shares, sym, a, b, c, *source)
    if c is not written:
        packing.add_copy(draft, c, written)
