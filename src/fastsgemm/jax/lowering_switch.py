"""The switch: while it is on, float32 products that JAX lowers for CUDA are fastsgemm's.

Turning the switch clears JAX's caches, so that every program is lowered again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src.lax import lax as jax_lax  # there is no public name of one primitive
from jax.interpreters import mlir

from fastsgemm import log
from fastsgemm.errors import MissingExtraError
from fastsgemm.geometry.layout import is_transpose
from fastsgemm.geometry.variants import problem_of
from fastsgemm.jax import contraction, lowering, partitioning, primitive
from fastsgemm.jax.contraction import Labels
from fastsgemm.jax.lowering_report import Line, Report
from fastsgemm.jax.ragged import RaggedProduct, ragged_product
from fastsgemm.problem import MAX_BATCH, MAX_EXTENT, Dtypes, format_problem
from fastsgemm.request import Request, resolve
from fastsgemm.switches.base_report import Totals
from fastsgemm.switches.periods import Block, Periods

_Preset = lax.DotAlgorithmPreset
_HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
_ANY_HIGHEST = (_HIGHEST, lax.Precision.HIGHEST)
_FLOAT32 = {"F32_F32_F32"}
_SPLIT = {"BF16_BF16_F32_X9", "TF32_TF32_F32_X3"}  # what precision fp16x3 is for
_PRESETS = {name: getattr(_Preset, name) for name in _FLOAT32 | _SPLIT if hasattr(_Preset, name)}


class Switch:
    """One period during which JAX's products are replaced; `enable` and `enabled` return it.

    Attributes
    ----------
    precision : str
    batch_invariant : bool
    """

    def __init__(self, precision: str, batch_invariant: bool) -> None:
        self.request: Request = resolve(precision=precision, batch_invariant=batch_invariant)
        self.precision, self.batch_invariant = self.request.precision, self.request.batch_invariant
        self._counts: Totals[tuple[str, str, str]] = Totals()  # by problem, size and reason

    def report(self) -> Report:
        """Return what was replaced and what was passed on so far.

        Returns
        -------
        Report
        """
        return Report(
            Line(problem, products, flops, reason, size)
            for (problem, size, reason), (products, flops) in self._counts.items()
        )

    def __repr__(self) -> str:
        return f"<Switch {'on' if self is periods.current else 'off'}: {self.request.arithmetic}>"


# JAX's own lowerings for CUDA of `dot_general` and of `ragged_dot_general`; None before the first switch.
_original: Any = None
_original_ragged: Any = None
_ragged_dot_p = getattr(jax_lax, "ragged_dot_general_p", None)


def _turn(new: Switch | None) -> None:
    """Let JAX lower its products with this switch, or as before if it is None."""
    global _original, _original_ragged
    if _original is None:
        original = _lowering_of_jax(lax.dot_general_p)
        if _ragged_dot_p is not None:
            _original_ragged = _lowering_of_jax(_ragged_dot_p)
            mlir.register_lowering(_ragged_dot_p, _lower_ragged, platform="cuda", cacheable=False)
        # Not cached: else the rule would not see the operations that produced its operands.
        mlir.register_lowering(lax.dot_general_p, _lower, platform="cuda", cacheable=False)
        _original = original
    partitioning.needs_devices(lax.dot_general_p, new is not None)
    if _ragged_dot_p is not None:
        partitioning.needs_devices(_ragged_dot_p, new is not None)
    periods.current = new
    jax.clear_caches()  # last: what another thread lowers meanwhile is not kept with the previous switch


periods: Periods[Switch] = Periods(_turn)


def enable(precision: str = "ieee", batch_invariant: bool = False) -> Switch:
    """Make the float32 products that JAX lowers for CUDA run on fastsgemm, in the whole process.

    Replaced are ``lax.dot_general`` of float32 arrays where the program asks for float32, and with it ``jnp.dot``,
    ``matmul``, ``einsum``, ``tensordot``, the layers of neural networks, and the gradients of all these; and so is
    ``lax.ragged_dot``, whose groups become one launch. A program asks for float32 by precision "highest", as an
    argument or as ``jax_default_matmul_precision``, or by the algorithm ``F32_F32_F32``. JAX's default on these devices
    remains TF32. Products of BF16 and FP16 arrays are replaced, too, where the program asks for "highest" and a float32
    result (``preferred_element_type``); of two such arrays with precision "fp16x3" or `batch_invariant`, because XLA's
    tensor cores are faster than FMAs. With both, products of two arrays of a 16-bit type with a result of this type are
    replaced, whatever their precision, as models in BF16 have them: the sum is as accurate as in float32, and rounded
    once.

    Parameters
    ----------
    precision : str
        ``"ieee"`` or ``"fp16x3"``, as in `fastsgemm.sgemm`. With "fp16x3", the algorithms ``BF16_BF16_F32_X9`` and
        ``TF32_TF32_F32_X3`` are replaced, too.
    batch_invariant : bool
        As in `fastsgemm.sgemm`.

    Returns
    -------
    Switch

    Raises
    ------
    PrecisionError
        The precision is unknown or not batch-invariant.
    MissingExtraError
        This version of JAX keeps its lowerings in an unknown place.

    Notes
    -----
    JAX's caches are cleared, so everything is lowered again. Programs that the caller holds in compiled form
    (``jax.jit(f).lower(...).compile()``) stay as they are.
    """
    new = Switch(precision, batch_invariant)
    periods.set(new)
    return new


def disable() -> None:
    """Restore JAX's own lowering, within a block of `enabled` until its end."""
    periods.set(None)


def enabled(precision: str = "ieee", batch_invariant: bool = False) -> AbstractContextManager[Switch]:
    """Do `enable` for a block of code; afterwards the previous settings hold again.

    It affects all threads meanwhile. Blocks may overlap, as in generators, tasks and threads: the settings of the block
    that began last hold; when it ends, those of the latest block that has not ended.

    Parameters
    ----------
    precision, batch_invariant
        See `enable`.

    Returns
    -------
    context manager
        Entering it, even repeatedly, returns the `Switch`. It can also decorate a function.

    Raises
    ------
    PrecisionError, MissingExtraError
        See `enable`.
    """
    make = partial(Switch, precision, batch_invariant)
    make()  # raises if the settings are wrong
    return Block(periods, make)


def report() -> Report:
    """Return what the switch replaced and passed on since it was last turned on, even if it is off now.

    Returns
    -------
    Report
        Without lines if the switch has never been on.
    """
    return Report(()) if periods.last is None else periods.last.report()


def _lowering_of_jax(lowered: Any) -> Any:
    """Return the rule by which JAX lowers a primitive for CUDA."""
    tables = [getattr(mlir, "_platform_specific_lowerings", {}).get("cuda", {}), getattr(mlir, "_lowerings", {})]
    entry = next((table[lowered] for table in tables if lowered in table), None)
    if entry is None:
        raise MissingExtraError(
            f"fastsgemm.jax.enable does not know where JAX {jax.__version__} has its lowerings, so nothing could be "
            "passed on. Call fastsgemm.sgemm instead, or install another version of JAX"
        )
    return getattr(entry, "rule", entry)


def _lower(ctx: Any, a: Any, b: Any, **parameters: Any) -> Any:
    """Lower a ``dot_general`` for CUDA."""
    switch = periods.current
    if switch is None:
        return _original(ctx, a, b, **parameters)
    avals, (out,) = ctx.avals_in, ctx.avals_out
    rounds = _rounds(switch.request, ctx)
    if any(aval.dtype not in lowering.DTYPES for aval in avals) or not (rounds or out.dtype == np.float32):
        switch._counts.add((" and ".join(str(aval.dtype) for aval in avals), "", "not float32"), 1, 0)
        return _original(ctx, a, b, **parameters)
    shapes = [aval.shape for aval in avals]
    if not all(isinstance(extent, int) for shape in shapes for extent in shape):
        switch._counts.add(("symbolic shapes", "", "symbolic shapes"), 1, 0)
        return _original(ctx, a, b, **parameters)
    subscripts = contraction.of_dot_general(len(shapes[0]), len(shapes[1]), parameters["dimension_numbers"])
    labels = contraction.labels_of(subscripts)
    impossible = _of_shapes(labels, shapes)
    reason = _reason(switch.request, ctx, parameters["precision"]) or impossible
    flops = contraction.flops(labels, *shapes)
    size = "" if impossible else _size(labels, avals, a is b)
    problem = f"{subscripts} of {shapes[0]} and {shapes[1]}"
    switch._counts.add((problem, size, reason), 1, flops)
    log.info(lambda: f"leaves {problem} to XLA: {reason}" if reason else f"replaces {problem}")
    if reason:
        return _original(ctx, a, b, **parameters)
    if partitioning.is_partitioned(ctx):
        function = primitive.divided(
            primitive.Parameters(subscripts, switch.request, 1.0, 0.0, parameters.get("out_sharding"))
        )
        return mlir.lower_fun(lambda a, b: function(a, b).astype(out.dtype), multiple_results=False)(ctx, a, b)
    values = {"A": (a, avals[0]), "B": (b, avals[1])}
    order = _order(labels)
    return [lowering.product(ctx, *_untransposed(values, labels), switch.request, 1.0, 0.0, order)]


def _lower_ragged(ctx: Any, a: Any, b: Any, sizes: Any, **parameters: Any) -> Any:
    """Lower a ``ragged_dot_general`` for CUDA."""
    switch, numbers = periods.current, parameters["ragged_dot_dimension_numbers"]
    if switch is None:
        return _original_ragged(ctx, a, b, sizes, **parameters)
    factors = ctx.avals_in[:2]
    if {*numbers.lhs_ragged_dimensions} <= {*numbers.dot_dimension_numbers[1][0]}:  # groups of a batch are that batch
        names = ("precision", "preferred_element_type", "out_sharding")
        given = {name: parameters[name] for name in names if name in parameters}
        return _lower(ctx.replace(avals_in=factors), a, b, dimension_numbers=numbers.dot_dimension_numbers, **given)
    shapes = [aval.shape for aval in ctx.avals_in]
    product = ragged_product(shapes[0], shapes[1], shapes[2], numbers)
    reason = _reason_of_ragged(switch.request, ctx, product, parameters)
    problem = f"ragged_dot of {shapes[0]} and {shapes[1]} in {shapes[2][-1]} groups"
    switch._counts.add((problem, "", reason), 1, 0 if product is None else product.flops)
    log.info(lambda: f"leaves {problem} to XLA: {reason}" if reason else f"replaces {problem}")
    if product is None or reason:
        return _original_ragged(ctx, a, b, sizes, **parameters)
    return [lowering.groups(ctx, a, b, sizes, product, switch.batch_invariant)]


def _reason_of_ragged(request: Request, ctx: Any, product: RaggedProduct | None, parameters: dict[str, Any]) -> str:
    """Return why a product of groups is passed on; empty if it is not."""
    *factors, sizes = ctx.avals_in
    if {aval.dtype for aval in (*factors, *ctx.avals_out)} != {np.dtype(np.float32)}:
        return "not float32"
    reason = _reason(request, ctx.replace(avals_in=factors), parameters["precision"])
    if reason:
        return reason
    extents = [extent for aval in (*factors, sizes) for extent in aval.shape]
    if not all(isinstance(extent, int) for extent in extents):
        return "symbolic shapes"
    if product is None or parameters.get("group_offset") is not None:
        return "groups of other than the rows or k of two matrices"
    if 0 in extents:
        return "an empty operand"
    if max(extents) > MAX_EXTENT:
        return f"an extent above {MAX_EXTENT}"
    if partitioning.is_partitioned(ctx):
        return "XLA partitions the program, and groups are not divided"
    in_order = request.batch_invariant and request.tensor_cores
    return "the order on tensor cores, which groups do not have" if in_order else ""


def _rounds(request: Request, ctx: Any) -> bool:
    """Return whether it is a product of two arrays of a 16-bit type with a result of this type that is replaced."""
    dtypes = {aval.dtype for aval in (*ctx.avals_in, *ctx.avals_out)}
    return request.rounds and len(dtypes) == 1 and bool(lowering.DTYPES.get(*dtypes))


def _reason(request: Request, ctx: Any, precision: Any) -> str:
    """Return why a product of this precision and these dtypes is passed on; empty if it is not."""
    algorithm = next((name for name, preset in _PRESETS.items() if precision == preset), None)
    # XLA has one arithmetic for a result of 16 bits, unless an algorithm is asked for.
    any_precision = _rounds(request, ctx) and not isinstance(precision, _Preset)
    if not any_precision and precision not in _ANY_HIGHEST and algorithm not in _FLOAT32:
        if algorithm is None:
            return "its precision is not 'highest'"
        if request.precision != "fp16x3":
            return f"{algorithm} was asked for, which precision fp16x3 replaces"
    if partitioning.is_partitioned(ctx) and not partitioning.can_divide(ctx):
        return "XLA partitions the program and cannot be told how"
    halves = [aval for aval in ctx.avals_in if aval.dtype != np.float32]
    if halves and not any_precision and precision not in _ANY_HIGHEST:
        return "an algorithm was asked for, and an operand is not float32"
    if len(halves) == 2 and not request.replaces_halves:
        return "both operands have 16 bits, which precision fp16x3 replaces"
    return ""


def _of_shapes(labels: Labels, shapes: list[tuple[int, ...]]) -> str:
    """Return why a product of these shapes is passed on; empty if it is not."""
    if 0 in (*shapes[0], *shapes[1]):
        return "an empty operand"
    if not (labels.a and labels.b):
        return "an operand that is a number"
    sizes = contraction.extents(labels, *shapes)
    extent = max(prod(sizes[label] for label in group) for group in (labels.rows, labels.columns, labels.summed))
    if extent > MAX_EXTENT:
        return f"{extent} rows, columns or steps of k, above {MAX_EXTENT}"
    batch = prod(sizes[label] for label in labels.batch)
    if batch > MAX_BATCH:
        return f"a batch of {batch}, above {MAX_BATCH}"
    # XLA fuses such a product, which multiplies element by element, into its consumer without memory traffic.
    return "" if prod(sizes[label] for label in labels.summed) > 1 else "nothing is summed"


def _size(labels: Labels, avals: Any, same: bool) -> str:
    """Return the problem of a product as commands take it; empty where an operand would have to be transposed first."""
    dtypes = Dtypes(*(lowering.DTYPES[aval.dtype] for aval in avals))
    a, b = avals
    metas = contraction.metas(labels, a.shape, b.shape, dtypes)
    return "" if metas is None else format_problem(problem_of(metas, same and is_transpose(*metas[:2])))


def _order(labels: Labels) -> str:
    """Return the labels of the result in the order of its memory layout.

    JAX's gradient of a second factor, such as the weights of a layer, sums over the first dimensions of both operands,
    and then transposes the result. Stored transposed from the start, it costs XLA nothing.
    """
    summed = len(labels.summed)
    if summed and not labels.batch and labels.a[:summed] == labels.b[:summed] == labels.summed:
        return labels.columns + labels.rows
    return labels.c


def _untransposed(values: dict[str, Any], labels: Labels) -> tuple[dict[str, Any], Labels]:
    """Return the operands before transpositions that JAX has just lowered, and their labels.

    XLA folds transpositions into its own products, but for ours it would copy the operands.
    """
    subscripts = {"A": labels.a, "B": labels.b}
    values = dict(values)
    for name, (value, aval) in values.items():
        owner = getattr(value, "owner", None)
        if getattr(owner, "name", "") == "stablehlo.transpose":
            axes = [int(axis) for axis in owner.attributes["permutation"]]  # type: ignore[union-attr]
            inverse = [axes.index(d) for d in range(len(axes))]
            subscripts[name] = "".join(subscripts[name][d] for d in inverse)
            untransposed = aval.update(shape=tuple(aval.shape[d] for d in inverse))
            values[name] = (owner.operands[0], untransposed)  # type: ignore[union-attr]
    return values, labels._replace(a=subscripts["A"], b=subscripts["B"])
