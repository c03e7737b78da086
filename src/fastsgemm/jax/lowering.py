"""Products in XLA's programs: the launches of a plan as a sequence of custom calls.

XLA owns all memory. What a launch writes is a result of its call; if it has a value before, as C may, it is also an
operand, in the same memory. The workspace of a plan is such a result, which the next call takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from fastsgemm import known_devices
from fastsgemm.call.grouped import make_grouped_plan
from fastsgemm.call.product import plan_of
from fastsgemm.device import DeviceInfo, info_of
from fastsgemm.errors import DeviceError
from fastsgemm.geometry.layout import Meta, is_transpose
from fastsgemm.geometry.matrix import Base
from fastsgemm.jax import contraction, custom_call, partitioning
from fastsgemm.jax.contraction import Labels
from fastsgemm.jax.custom_call import ArrayLayout, Description
from fastsgemm.jax.entry import Case, Entry, entries
from fastsgemm.jax.ragged import RaggedProduct
from fastsgemm.jit import compiler
from fastsgemm.jit.source import target
from fastsgemm.problem import DType, Dtypes, Ragged
from fastsgemm.request import Request, of_call, of_gram, resolve
from fastsgemm.tuning import first_use

DTYPES = {np.dtype(getattr(jnp, dtype.numpy_name)): dtype for dtype in DType}  # of operands

_chosen: DeviceInfo | None = None  # the device that `lowering_for` names


@contextmanager
def lowering_for(device: str) -> Iterator[None]:
    """Lower products for a device that need not be in this machine, as for ``jax.export``.

    It affects all threads meanwhile, because they share JAX's caches.

    Parameters
    ----------
    device : str
        Its name, such as ``NVIDIA H200``, or an architecture, such as ``sm_90``.

    Raises
    ------
    DeviceError
        The device is unknown; the message lists the known ones.
    """
    global _chosen
    before, _chosen = _chosen, info_of(known_devices.find(device))
    jax.clear_caches()  # what was lowered for another device
    try:
        yield
    finally:
        _chosen = before
        jax.clear_caches()


def _device(ctx: Any) -> DeviceInfo:
    """Return the properties of the target device."""
    if _chosen is not None:
        return _chosen
    try:
        local = jax.local_devices(backend="cuda")
    except RuntimeError as error:
        raise DeviceError(
            "a product is lowered for CUDA and JAX has no CUDA device here, so nothing says which kernel is best. Name "
            "the device: with fastsgemm.jax.lowering_for('NVIDIA H200'): ..."
        ) from error
    devices = [device for device in partitioning.devices_of(ctx) if device in local] or local
    models = list(dict.fromkeys(device.device_kind for device in devices))
    if len(models) > 1:
        raise DeviceError(
            f"a program is lowered for devices of one kind, got {' and '.join(models)}. Leave one kind in "
            f"CUDA_VISIBLE_DEVICES, or name it: with fastsgemm.jax.lowering_for({models[0]!r}): ..."
        )
    return info_of(first_use.open_device(devices[0].local_hardware_id))


Call = tuple[Entry, Description]


@lru_cache(maxsize=4096)
def calls_of(
    info: DeviceInfo, request: Request, metas: tuple[Meta, ...], alpha: float | None, beta: float | None
) -> tuple[tuple[Call, ...], int]:
    """Return the calls of a product on such a device, with compiled kernels, and the bytes of their workspace.

    `metas` are those of A, B and C. An alpha or beta of None is known only when the program runs. If beta is 0, no old
    C is read.
    """
    plan = plan_of(info, request, metas)
    launched_entries = entries(plan, Case(alpha, beta, plan.K))
    return tuple((entry, _described(entry, info.arch)) for entry in launched_entries), plan.workspace


def _described(entry: Entry, arch: str) -> Description:
    """Compile a kernel and return the description of its launch."""
    launch = entry.launch
    ptx = compiler.ptx(launch.kernel.text, launch.kernel.name, target(launch.kernel.file, arch))
    return Description(entry.name, entry.wrap(ptx), launch.grid, launch.threads, launch.shared_bytes)


def product(
    ctx: Any, values: dict[str, Any], labels: Labels, request: Request, alpha: Any, beta: Any, order: str = ""
) -> Any:
    """Emit the calls of a product for CUDA, and return the value of its one result.

    `values` maps the names A, B and, where given, C, ALPHA and BETA to a value and its `jax.core.ShapedArray`. For
    alpha and beta see `calls_of`. `order` has the labels of the result, largest stride first, if it is not row-major.
    """
    (out,) = ctx.avals_out
    a, b = values["A"][1].shape, values["B"][1].shape
    if 0 in out.shape:
        return _traced(ctx, lambda: jnp.zeros(out.shape, out.dtype), out)
    order = order or labels.c
    dimension_order = tuple(labels.c.index(label) for label in order)
    dtypes = Dtypes(*(DTYPES[values[name][1].dtype] for name in "AB"))
    fold = not request.symmetric
    written = DTYPES[out.dtype]
    metas = contraction.metas(labels._replace(c=order), a, b, dtypes, fold, written)
    if metas is None:
        labels = _with_one_order(ctx, values, labels)
        a, b = values["A"][1].shape, values["B"][1].shape
        metas = contraction.metas(labels._replace(c=order), a, b, dtypes, fold, written)
        assert metas is not None
    if written:
        request = of_call(request, output="out")
    if values["A"][0] == values["B"][0] and is_transpose(*metas[:2]):
        request = of_gram(request)
    return _emit(ctx, values, calls_of(_device(ctx), request, metas, alpha, beta), dimension_order)


def groups(ctx: Any, A: Any, B: Any, sizes: Any, of: RaggedProduct, batch_invariant: bool) -> Any:
    """Emit the calls of a product of groups of these sizes, and return the value of its result.

    What belongs to no group is zero, as in ``lax.ragged_dot``. The operands are values of the arrays of `ctx.avals_in`.
    """
    a, b, counts = ctx.avals_in
    (out,) = ctx.avals_out
    ends = counts.update(dtype=np.dtype(np.int32), weak_type=False)
    offsets = _traced(ctx, lambda counts: jnp.cumsum(counts, dtype=np.int32), ends, (sizes, counts))
    values = {"A": (A, a), "B": (B, b), Base.OFFSETS.name: (offsets, ends)}
    if of.ragged is not Ragged.K:
        values["C"] = _traced(ctx, lambda: jnp.zeros(out.shape, out.dtype), out), out
    return _emit(
        ctx, values, calls_of_groups(_device(ctx), of.metas, *counts.shape, batch_invariant), tuple(range(out.ndim))
    )


@lru_cache(maxsize=4096)
def calls_of_groups(
    info: DeviceInfo, metas: tuple[Meta, ...], count: int, batch_invariant: bool
) -> tuple[tuple[Call, ...], int]:
    """Return the calls of a product of groups on such a device, and the bytes of their workspace; see `calls_of`."""
    plan = make_grouped_plan(
        info, resolve(batch_invariant=batch_invariant), metas, Meta((count,), (1,), DType.F32, 0), (0, 0, 0)
    )
    given = {Base.OFFSETS.name, "C"} if len(metas[2].shape) == 2 else {Base.OFFSETS.name}
    launched_entries = entries(plan, Case(1.0, 0.0, plan.K), given)
    return tuple((entry, _described(entry, info.arch)) for entry in launched_entries), plan.workspace


def _emit(
    ctx: Any, values: dict[str, Any], planned: tuple[tuple[Call, ...], int], dimension_order: tuple[int, ...]
) -> Any:
    """Emit calls, and return the value of C, whose dimensions lie in this order."""
    (out,), (calls, workspace) = ctx.avals_out, planned
    layouts = {name: ArrayLayout.row_major(aval) for name, (_, aval) in values.items()}
    layouts["C"] = ArrayLayout(out.update(weak_type=False), dimension_order)
    layouts["WORKSPACE"] = ArrayLayout.row_major(jax.core.ShapedArray((workspace,), np.dtype(np.uint8)))
    memory = {name: value for name, (value, _) in values.items()}
    for entry, description in calls:
        operands = [(memory[name], layouts[name]) for name in entry.operands]
        results = [layouts[name] for name in entry.results]
        emitted = custom_call.emit(ctx, operands, results, entry.aliases, description)
        memory.update(zip(entry.results, emitted, strict=True))
    return memory["C"]


def _with_one_order(ctx: Any, values: dict[str, Any], labels: Labels) -> Labels:
    """Transpose the operands so that their summed labels come last in both, in the same order."""
    new = []
    for name, operand_labels in (("A", labels.a), ("B", labels.b)):
        value, aval = values[name]
        reordered = "".join(label for label in operand_labels if label not in labels.summed) + labels.summed
        axes = tuple(operand_labels.index(label) for label in reordered)
        moved = aval.update(shape=tuple(aval.shape[axis] for axis in axes))
        values[name] = (_traced(ctx, lambda x, axes=axes: jnp.transpose(x, axes), moved, (value, aval)), moved)
        new.append(reordered)
    return labels._replace(a=new[0], b=new[1])


def _traced(ctx: Any, function: Any, out: Any, *operands: Any) -> Any:
    """Lower a JAX function with one result."""
    ctx = ctx.replace(primitive=None, avals_in=[aval for _, aval in operands], avals_out=[out])
    (value,) = mlir.lower_fun(function, multiple_results=False)(ctx, *[value for value, _ in operands])
    return value
