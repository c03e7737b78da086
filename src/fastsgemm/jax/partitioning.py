"""Products in programs that XLA partitions over several devices: how each device's share follows from the shardings.

XLA cannot divide a call that it does not know. This tells its partitioner which dimensions of operands and result go
together, and what a device computes then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from jax import lax
from jax._src import dispatch  # nothing public says it
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from fastsgemm.jax import contraction
from fastsgemm.jax.contraction import Labels

Function = Callable[..., Any]

# Where a version of JAX has no such set, XLA gathers the operands.
_needing_devices: set[Primitive] = getattr(dispatch, "prim_requires_devices_during_lowering", set())


def is_partitioned(ctx: Any) -> bool:
    """Return whether XLA divides what is lowered here: there are several devices, and axes that are not manual."""
    context = ctx.module_context.axis_context
    manual = getattr(context, "manual_axes", None)
    if manual is None:
        return bool(getattr(context, "num_devices", 1) > 1)
    return bool(context.mesh.size > 1 and manual != frozenset(context.mesh.axis_names))


def can_divide(ctx: Any) -> bool:
    """Return whether XLA can ask how to divide a product, and names the axes of the devices when it does.

    It cannot ask where a program is exported. Where some axes are manual and others not, axes have no names.
    """
    module = ctx.module_context
    context = module.axis_context
    known = devices_of(ctx) and not module.lowering_parameters.for_export
    return bool(known) and getattr(context, "abstract_mesh", None) is not None


def devices_of(ctx: Any) -> tuple[Any, ...]:
    """Return the devices on which a program is to run, or none where JAX does not say."""
    return getattr(ctx.module_context.axis_context, "device_assignment", None) or ()


def needs_devices(primitive: Primitive, needed: bool = True) -> None:
    """Tell JAX whether the lowering of a primitive needs to know the devices. By default it leaves them out."""
    change = _needing_devices.add if needed else _needing_devices.discard
    change(primitive)


@lru_cache(maxsize=4096)
def divided(product: Function, share: Function, subscripts: str, in_parts: bool) -> Function:
    """Return a product as a function that XLA can divide; `share` is the product of a device's shares.

    Both take A, B, perhaps C, and perhaps alpha and beta of shape (). With `in_parts`, devices may sum over
    parts of the summed dimensions, so that the parts are added up between them. Else these dimensions are gathered.
    """
    labels = contraction.labels_of(subscripts)

    def partition(mesh: Any, operands: Sequence[Any], result: Any) -> Any:
        del mesh  # that of the result has names for its axes
        devices = result.sharding.mesh.shape
        sizes = contraction.extents(labels, operands[0].shape, operands[1].shape)

        def evenly(label: str, axes: Any) -> Any:
            """Return over which axes a dimension is divided, or None where shares would differ."""
            return None if sizes[label] % prod(devices[name] for name in _names([axes])) else axes

        of = {label: evenly(label, axes) for label, axes in _axes(labels.c, result).items()}
        taken = _names(of.values())
        parts: tuple[str, ...] = ()
        for label in labels.summed if in_parts else "":
            axes = evenly(label, _axes(labels.a, operands[0])[label] or _axes(labels.b, operands[1])[label])
            names = _names([axes])
            if names and not taken & {*names}:
                of[label], taken, parts = axes, taken | names, (*parts, *sorted(names))
        shardings = [
            NamedSharding(result.sharding.mesh, PartitionSpec(*[of.get(label) for label in each]))
            for each in (*_dimensions(labels, operands), labels.c)
        ]

        def own(*shares: Any) -> Any:
            return lax.psum(share(*shares), parts) if parts else share(*shares)

        return result.sharding.mesh, own, shardings[-1], tuple(shardings[:-1])

    function: Any = custom_partitioning(product)
    function.def_partition(partition=partition, sharding_rule=lambda mesh, operands, result: _rule(labels, operands))
    return function  # type: ignore[no-any-return]


def _rule(labels: Labels, operands: Sequence[Any]) -> str:
    """Return the rule of Shardy: the same names for dimensions that are divided alike."""
    return ", ".join(map(" ".join, _dimensions(labels, operands))) + " -> " + " ".join(labels.c)


def _dimensions(labels: Labels, operands: Sequence[Any]) -> list[str]:
    """Return the labels of A, B and, if they are operands, of C, alpha and beta, of which the last two have none."""
    return [labels.a, labels.b, *[labels.c if len(x.shape) else "" for x in operands[2:]]]


def _axes(labels: str, x: Any) -> dict[str, Any]:
    """Return over which axes of the mesh each dimension of an array is divided."""
    spec = tuple(getattr(x.sharding, "spec", ()))
    return dict(zip(labels, (*spec, *(None,) * len(labels)), strict=False))


def _names(axes: Any) -> set[str]:
    return {name for each in axes if each for name in ((each,) if isinstance(each, str) else each)}
