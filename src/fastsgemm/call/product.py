"""One product on device memory.

A first call takes five steps: check the operands, choose the config, compute the grid, get the kernel, launch. None of
them calls another. The result of the first four depends only on shapes, strides, alignment, rung, config and precision,
so it is kept as a plan, and a later call with the same ones is a look-up and a launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastsgemm.call import checks, fp16x3, ieee, packing
from fastsgemm.call.arrays import HOST, Meta, View
from fastsgemm.call.matrix import Matrix
from fastsgemm.call.plan import Address, Base, Draft, Plan
from fastsgemm.call.split_operand import SplitOperand
from fastsgemm.geometry import layout
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
    """
    pa, a_meta = a
    pb, b_meta = b
    pc, c_meta = c
    key = (
        a_meta, b_meta, c_meta, pa & 15, pb & 15, pc & 15, None if rung is None else rung.name, config, precision,
        split_a is None, split_b is None,
    )  # fmt: skip
    plan: Plan | None = gpu.prepared.get(key)
    if plan is None:
        split = (split_a is not None, split_b is not None)
        plan = prepare(gpu, handle, key[:3], key[3:6], rung, config, precision, split)
        if len(gpu.prepared) >= _MOST_PREPARED:
            gpu.prepared.clear()
        gpu.prepared[key] = plan
    a_low, a_high, b_low, b_high, c_low, c_high = plan.ranges
    if pc + c_low < pa + a_high and pa + a_low < pc + c_high:
        check_overlap("A", pa - pc, c_meta, a_meta)
    if pc + c_low < pb + b_high and pb + b_low < pc + c_high:
        check_overlap("B", pb - pc, c_meta, b_meta)
    if split_a is None and split_b is None:
        plan.launch(gpu, handle, pa, pb, pc, alpha, beta)
    else:
        addresses = (0 if each is None else each.address for each in (split_a, split_b))
        plan.launch(gpu, handle, pa, pb, pc, alpha, beta, *addresses)


def prepare(
    gpu: Gpu,
    handle: int,
    metas: Metas,
    misaligned: Misaligned,
    rung: Rung | None,
    config: Any,
    precision: str,
    split: fp16x3.Split,
) -> Plan:
    """Do all steps of a first call except the launch.

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
    """
    tensor_cores, forced = precision == "fp16x3", rung is not None
    if tensor_cores:
        fp16x3.check(gpu, config, forced)
    _check_operands(metas)
    if not tensor_cores:
        rung = checks.config(rung, config, gpu.shared_limit)
    operands = [
        Matrix(Address(base), tuple(shape), tuple(strides), misalignment)
        for base, (shape, strides, *_), misalignment in zip(Base, metas, misaligned, strict=False)
    ]
    ranges = [end for each in operands for end in layout.byte_range(each.shape, each.strides)]
    a, b, c = operands
    draft = Draft(gpu, handle)
    if 0 not in c.shape:
        given_c = c
        if a.how is None and not split[0]:
            a = packing.add_packed(draft, a, "alpha")
        if b.how is None and not split[1]:
            b = packing.add_packed(draft, b, "alpha")
        if c.how is None:
            c = packing.add_packed(draft, c, "beta")
        if not (tensor_cores and fp16x3.add_product(draft, a, b, c, config, split, forced)):
            ieee.add_product(draft, a, b, c, *((None, None) if tensor_cores else (rung, config)))
        if c is not given_c:
            packing.add_copy(draft, c, given_c)
    return draft.plan(a.shape[1], ranges)


def _check_operands(metas: Metas) -> None:
    """Refuse operands that cannot be used, do not fit together or are on different devices."""
    places = {}
    for name, (_, _, ordinal, fault, _) in zip("ABC", metas, strict=True):
        if fault is not None:
            raise fault(name)
        places[name] = "the host" if ordinal == HOST else f"cuda:{ordinal}"
    checks.one_device(places)
    a, b, c = metas
    checks.shapes(a[0], b[0], c[0])
    checks.output(c[0], c[1], readonly=c[4])


def check_overlap(name: str, distance: int, c: Meta, other: Meta) -> None:
    """Refuse C sharing an element with operand `name`, whose first element lies `distance` bytes from that of C."""
    checks.apart(name, layout.overlap(distance, c[0], c[1], other[0], other[1]))
