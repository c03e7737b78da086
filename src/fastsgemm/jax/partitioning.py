"""Partitioning of products over several devices by XLA: how each device's share follows from the shardings.

XLA cannot partition a custom call by itself. This tells its partitioner which dimensions of operands and result
correspond, and what each device computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from jax import lax
from jax._src import dispatch  # there is no public interface
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from fastsgemm.jax import contraction
from fastsgemm.jax.contraction import Labels

Function = Callable[..., Any]

# Where a version of JAX has no such set, XLA gathers the operands.
_needing_devices: set[Primitive] = getattr(dispatch, "prim_requires_devices_during_lowering", set())


def is_partitioned(ctx: Any) -> bool:
    """Return whether XLA partitions this program: it has several devices, and axes that are not manual."""
    context = ctx.module_context.axis_context
    manual = getattr(context, "manual_axes", None)
    if manual is None:
        return bool(getattr(context, "num_devices", 1) > 1)
    return bool(context.mesh.size > 1 and manual != frozenset(context.mesh.axis_names))


def can_divide(ctx: Any) -> bool:
    """Return whether XLA's partitioner can call back for a product, with named mesh axes.

    It cannot for an exported program. If only some axes are manual, the axes have no names.
    """
    module = ctx.module_context
    context = module.axis_context
    has_devices = devices_of(ctx) and not module.lowering_parameters.for_export
    return bool(has_devices) and getattr(context, "abstract_mesh", None) is not None


def devices_of(ctx: Any) -> tuple[Any, ...]:
    """Return the devices on which a program will run, or none if JAX does not say."""
    return getattr(ctx.module_context.axis_context, "device_assignment", None) or ()


def needs_devices(primitive: Primitive, needed: bool = True) -> None:
    """Tell JAX whether the lowering of a primitive needs the devices, which it omits by default."""
    change = _needing_devices.add if needed else _needing_devices.discard
    change(primitive)


@lru_cache(maxsize=4096)
def divided(product: Function, share: Function, subscripts: str, in_parts: bool) -> Function:
    """Return a product as a function that XLA can divide; `share` is the product of a device's shares.

    Both take A, B, and optionally C, and alpha and beta of shape (). With `in_parts`, summed dimensions may stay
    divided, and the partial sums are added up between devices. Otherwise these dimensions are gathered.
    """
    labels = contraction.labels_of(subscripts)

    def partition(mesh: Any, operands: Sequence[Any], result: Any) -> Any:
        del mesh  # the result's mesh has named axes
        devices = result.sharding.mesh.shape
        sizes = contraction.extents(labels, operands[0].shape, operands[1].shape)

        def divisible(label: str, axes: Any) -> Any:
            """Return the axes that divide a dimension, or None if the shares would differ in size."""
            return None if sizes[label] % prod(devices[name] for name in _names([axes])) else axes

        label_axes = {label: divisible(label, axes) for label, axes in _axes(labels.c, result).items()}
        taken = _names(label_axes.values())
        parts: tuple[str, ...] = ()
        for label in labels.summed if in_parts else "":
            axes = divisible(label, _axes(labels.a, operands[0])[label] or _axes(labels.b, operands[1])[label])
            names = _names([axes])
            if names and not taken & {*names}:
                label_axes[label], taken, parts = axes, taken | names, (*parts, *sorted(names))
        shardings = [
            NamedSharding(result.sharding.mesh, PartitionSpec(*[label_axes.get(label) for label in labels_of_array]))
            for labels_of_array in (*_dimensions(labels, operands), labels.c)
        ]

        def device_product(*shares: Any) -> Any:
            return lax.psum(share(*shares), parts) if parts else share(*shares)

        return result.sharding.mesh, device_product, shardings[-1], tuple(shardings[:-1])

    function: Any = custom_partitioning(product)
    function.def_partition(partition=partition, sharding_rule=lambda mesh, operands, result: _rule(labels, operands))
    return function  # type: ignore[no-any-return]


def _rule(labels: Labels, operands: Sequence[Any]) -> str:
    """Return the Shardy rule: the same names for dimensions that are divided alike."""
    return ", ".join(map(" ".join, _dimensions(labels, operands))) + " -> " + " ".join(labels.c)


def _dimensions(labels: Labels, operands: Sequence[Any]) -> list[str]:
    """Return the labels of A, B and, if they are operands, of C, and of alpha and beta, which have none."""
    return [labels.a, labels.b, *[labels.c if len(x.shape) else "" for x in operands[2:]]]


def _axes(labels: str, x: Any) -> dict[str, Any]:
    """Return the axes of the mesh that divide each dimension of an array."""
    spec = tuple(getattr(x.sharding, "spec", ()))
    return dict(zip(labels, (*spec, *(None,) * len(labels)), strict=False))


def _names(axes: Any) -> set[str]:
    return {name for axis in axes if axis for name in ((axis,) if isinstance(axis, str) else axis)}
