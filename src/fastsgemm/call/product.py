"""`make_plan`: check the operands, choose, and list the launches of a product. No device is needed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from fastsgemm import log
from fastsgemm.call import arrays, checks, fp16x3, ieee, packing
from fastsgemm.call.arrays import HOST
from fastsgemm.call.plan import Draft, Plan, When
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import variants
from fastsgemm.geometry.batch import DIMENSIONS, merged
from fastsgemm.geometry.layout import Meta, is_transpose
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.heuristics.choice import choose
from fastsgemm.heuristics.fp16x3 import check_config, require_batch, require_tensor_cores
from fastsgemm.problem import DType, Sym
from fastsgemm.request import Request, checked

_BASES = tuple(
    (Address(base), name) for base, name in ((Base.A, "A"), (Base.B, "B"), (Base.C, "C"), (Base.SOURCE, "S"))
)
_APART = (0, 16, 32, 48)  # addresses that are aligned and differ


def make_plan(traits: DeviceTraits, request: Request, metas: Sequence[Meta], addresses: Sequence[int]) -> Plan:
    """Return what a product launches on a device with these traits.

    `metas` and `addresses` are those of A, B, what is written and, if that is another array, C. The plan is for all
    addresses that are the same modulo 16 bytes, of which A and B are one where they are here: if B is A transposed, in
    the same memory, the result is symmetric.

    Raises
    ------
    DTypeError, OperandError, ShapeError, OverlapError, DeviceMismatchError
        The operands cannot be used as given.
    ConfigError, DeviceError
        The config is not legal on the device, or the device is too old for the rung.
    """
    _check(traits, request, metas, addresses)
    operands = [
        Matrix(base, tuple(meta.shape), tuple(meta.strides), address & 15, name, meta.dtype)
        for (base, name), meta, address in zip(_BASES, metas, addresses, strict=False)
    ]
    a, b, c, *_ = operands
    # The bits of a matrix may be seen as another type, too.
    gram = addresses[0] == addresses[1] and a.dtype is b.dtype and is_transpose(a, b)
    request = checked(request, gram)
    draft = Draft(traits)
    if 0 not in c.shape:
        batch = merged(*operands, fold=not request.sym)
        extents = batch[2].extents
        if len(extents) <= DIMENSIONS:
            _add_batch(draft, request, batch, extents)
        else:  # one launch for each index of the dimensions beyond those of a launch
            for index in draft.in_turn(np.ndindex(extents[:-DIMENSIONS])):
                _add_batch(draft, request, [each.at(index) for each in batch], extents)
    return draft.plan(a.shape[-1], operands)


def plan_of(traits: DeviceTraits, request: Request, metas: Sequence[Meta]) -> Plan:
    """Return the plan of operands at aligned addresses, each in memory of its own; see `make_plan`."""
    return make_plan(traits, request, metas, _APART[: len(metas)])


def _check(traits: DeviceTraits, request: Request, metas: Sequence[Meta], addresses: Sequence[int]) -> None:
    """Refuse what cannot be computed as asked for, on this device or with these operands."""
    if request.tensor_cores:
        if request.rung is not None:
            require_tensor_cores(traits)
        if request.config is not None:
            check_config(traits, request.config)  # type: ignore[arg-type]  # which it refuses
    names = ("A", "B", request.output, "C")
    places = set()
    for meta in metas:
        places.add(meta.device)
        if meta.fault is not None or len(places) > 1:
            _refuse(names, metas)
    a, b, c, *source = metas
    checks.result_shape(a.shape, b.shape, c.shape, source[0].shape if source else None, request.output)
    if request.symmetric:
        checks.square(a.shape, b.shape)
    checks.output(c.shape, c.strides, readonly=c.readonly, name=request.output)
    if not request.tensor_cores and request.rung is not None and request.config is not None:
        request.rung.check(request.config, traits.shared_limit)
    for name, address, meta in zip(names, addresses, metas, strict=False):
        item = meta.dtype.item
        fault = arrays.misaligned(address, meta.shape, meta.strides, item) if address % item else None
        if fault is not None:
            raise fault(name)
    dtypes = [meta.dtype for meta in metas]
    if any(dtypes):
        checks.types(request, dtypes)


def _refuse(names: Sequence[str], metas: Sequence[Meta]) -> None:
    """Raise the error of operands of which one cannot be used, or which are on different devices."""
    named = list(zip(names, metas, strict=False))
    in_order = [*named[:2], *named[3:], named[2]]
    for name, meta in in_order:
        if meta.fault is not None:
            raise meta.fault(name)
    checks.one_device({name: "the host" if meta.device == HOST else f"cuda:{meta.device}" for name, meta in in_order})


def _add_batch(draft: Draft, request: Request, operands: list[Matrix], extents: tuple[int, ...]) -> None:
    """Add the launches of C <- alpha * A @ B + beta * C for A, B, C and, where that is not what is written, a source.

    The operands have the last of the extents, as many as a launch has room for.
    """
    a, b, written, *source = operands
    if request.tensor_cores and request.rung is not None:
        require_batch(prod(extents))
    elif any(request.split):
        require_batch(prod(extents), "split operands are for")
    if request.tensor_cores and a.shape[-1] == 0:
        request = request.ieee  # nothing is multiplied, so an IEEE kernel writes beta * C
    ld, copied = written.shape[-1], written.stored is None or written.dtype > 0
    if request.tensor_cores and request.batch_invariant:  # the order of additions is that of a row-major C
        ld, copied = max(ld, 2), copied or written.stored.trans  # type: ignore[union-attr]  # it has a unit stride
    in_float32 = written.copy_at(written.address, DType.F32, ld) if copied else written
    read_a, read_b, stored = (each.operand for each in (a, b, in_float32))
    if request.gram:
        read_b = read_a.transposed  # of one copy, where A is copied
    choice = choose(draft.traits, request, read_a, read_b, stored, extents)
    log.info(lambda: choice.of(variants.call_for(read_a, read_b, stored, extents=extents).problem))
    splits = choice.tensor_cores and not choice.direct
    split = request.split if splits else (False, False)  # else the arrays themselves are read
    if choice.direct and request.batch_invariant:
        a = _with_direct_rows(draft, a)
        b = a.transposed.named("B") if request.gram else _with_direct_rows(draft, b.transposed).transposed
    if a.stored is None and not split[0]:
        a = packing.add_packed(draft, a)
    if request.gram:
        b = a.transposed.named("B")
    elif b.stored is None and not split[1]:
        b = packing.add_packed(draft, b)
    if choice.direct and written.stored is not None and not written.stored.trans:
        copied = False  # its kernels store every type
    c = packing.reserve(draft, written, DType.F32, ld) if copied else written
    sym = request.sym if choice.triangle else Sym.WHOLE
    if c is not written and (sym.leaves_one or not source):
        packing.add_copy(draft, written, c, When.ALWAYS if sym.leaves_one else When.BETA)
    if not choice.direct:
        source = [packing.add_cast(draft, each, When.BETA) if each.dtype else each for each in source]
    if choice.tensor_cores:
        fp16x3.add_product(draft, split, choice, sym, a, b, c, *source)
    else:
        ieee.add_product(draft, choice, sym, a, b, c, *source)
    if c is not written:
        packing.add_copy(draft, c, written)


def _with_direct_rows(draft: Draft, operand: Matrix) -> Matrix:
    """Return a 16-bit operand whose rows tensor copies can read: itself, or a copy."""
    if operand.stored is not None and geometry.has_direct_rows(operand.operand):
        return operand
    return packing.add_direct(draft, operand)
