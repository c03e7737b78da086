"""`sgemm` in traced code: a JAX primitive that contracts A and B and adds beta * C.

The primitive names the dimensions of its operands as `numpy.einsum` does, so its gradients and batches are the same
primitive with other subscripts, and no operand is ever transposed for it. It is linear in A, in B and in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fastsgemm.call import checks
from fastsgemm.call.arrays.library import dtype_of, type_name, wrong_dtype
from fastsgemm.errors import OperandError, ScalarError, ShapeError
from fastsgemm.jax import contraction, lowering, partitioning
from fastsgemm.jax.contraction import Labels
from fastsgemm.request import Request, resolve

sgemm_p = Primitive("fastsgemm")


def sgemm(request: Request, A: Any, B: Any, alpha: Any, beta: Any, C: Any, out: Any = None) -> Any:
    """Do `fastsgemm.sgemm` when an operand, alpha or beta is traced.

    Operands are arrays of JAX or NumPy. Only the shape of `out` matters, because JAX arrays are immutable. alpha and
    beta may be arrays of shape ().

    Raises
    ------
    DTypeError, ShapeError, ScalarError, ScalarRangeError
        As of `fastsgemm.sgemm`.
    """
    named, beside_out = {"A": A, "B": B, "C": C, "out": out}, out is not None and C is not None and out is not C
    A, B, C, out = (None if x is None else _array(request, name, x) for name, x in named.items())
    shape = checks.result_shape(A.shape, B.shape, None if C is None or out is not None else C.shape)
    if request.symmetric:
        checks.square(A.shape, B.shape)
    if out is not None:
        checks.exact_shape("out", out.shape, shape)
    alpha, beta = _scalar("alpha", alpha), _scalar("beta", beta)
    if isinstance(beta, float) and beta == 0.0:
        if beside_out:
            checks.unread_source(beta)
        C = None
    elif C is None and isinstance(beta, float):
        checks.no_output(beta)
    elif C is None:
        raise ScalarError("beta is traced, so it may not be 0, and C is not given; pass C to accumulate into it")
    elif C.shape != shape:
        try:
            C = jnp.broadcast_to(C, shape)
        except ValueError:
            checks.result_shape(A.shape, B.shape, shape, C.shape, "out")  # raises
    subscripts, *squeezed = contraction.of_broadcast(A.shape, B.shape)
    A, B = (lax.squeeze(x, axes) if axes else x for x, axes in zip((A, B), squeezed, strict=True))
    return bind(subscripts, request, A, B, alpha, beta, C)


_COMPILED = (0.0, 1.0, -1.0)  # values compiled in as constants; any other would need a compilation each


def eager(request: Request, A: Any, B: Any, alpha: float, beta: float, C: Any, out: Any) -> Any:
    """Do `fastsgemm.sgemm` with JAX arrays outside traced code: XLA compiles the product and runs it.

    So XLA knows how long the operands are in use, and when it may reuse their buffers.
    """
    numbers = [x if x in _COMPILED else jnp.asarray(x, np.float32) for x in (alpha, beta)]
    return sgemm(request, A, B, numbers[0], numbers[1], C, out)


def _array(request: Request, name: str, x: Any) -> Any:
    """Return an operand as a JAX array, after checking its dtype and that its shape is static."""
    if not isinstance(x, jax.Array | np.ndarray):
        raise OperandError(
            f"{name} must be an array of JAX or NumPy where another operand is traced by JAX, got {type_name(x)}"
        )
    if x.dtype != np.float32:
        if dtype_of(x.dtype) is None or name not in ("A", "B"):
            raise wrong_dtype(x.dtype)(name)
        if not request.takes_halves:
            raise checks.needs_precision(name, str(x.dtype))
    if not all(isinstance(extent, int) for extent in x.shape):
        raise ShapeError(
            f"{name} has the symbolic shape {x.shape}, and a kernel is chosen and compiled for sizes that are known: "
            "export the function once for each shape that you need, or pad to one"
        )
    return jnp.asarray(x)


def _scalar(name: str, x: Any) -> Any:
    """Return alpha or beta as a float rounded to float32, or as a float32 array of shape ()."""
    if not isinstance(x, jax.Array):
        return checks.scalar(name, x)
    if x.shape != ():
        raise ScalarError(f"{name} must be a number or have shape (), got shape {x.shape}")
    if not any(jnp.issubdtype(x.dtype, base) for base in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ScalarError(f"{name} must be a real number, got dtype {x.dtype}")
    return x.astype(np.float32)


class Parameters(NamedTuple):
    """The parameters of the primitive."""

    subscripts: str  # see `fastsgemm.jax.contraction`
    request: Request
    alpha: float | None  # None: an operand
    beta: float | None
    out_sharding: NamedSharding | None = None  # as in ``jnp.matmul``, for meshes with explicit axes

    @property
    def labels(self) -> Labels:
        """The labels of A, B and the result."""
        return contraction.labels_of(self.subscripts)

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return the operands of the primitive by name: A, B and, where present, C, ALPHA and BETA."""
        names = ["A", "B"] + ["C"] * (self.beta != 0.0)
        names += ["ALPHA"] * (self.alpha is None) + ["BETA"] * (self.beta is None)
        return dict(zip(names, operands, strict=True))

    def scalars(self, named: dict[str, Any]) -> tuple[Any, Any]:
        """Return alpha and beta, each a number or an operand."""
        return named.get("ALPHA", self.alpha), named.get("BETA", self.beta)


def bind(
    subscripts: str,
    request: Request,
    A: Any,
    B: Any,
    alpha: Any,
    beta: Any,
    C: Any = None,
    out_sharding: NamedSharding | None = None,
) -> Any:
    """Return alpha * (the contraction of A and B) + beta * C.

    alpha and beta are numbers or arrays of shape (). C has the result's shape; it is None if beta is 0.
    """
    operands = [A, B, *([] if C is None else [C]), *[x for x in (alpha, beta) if not isinstance(x, float)]]
    alpha, beta = (x if isinstance(x, float) else None for x in (alpha, beta))
    params = Parameters(subscripts, request, alpha, beta, out_sharding)
    return sgemm_p.bind(*_varying_alike(operands), params=params)


def _varying_alike(operands: list[Any]) -> list[Any]:
    """Return the operands as ``shard_map`` requires: all varying over the union of their axes."""
    types = map(jax.typeof, operands)
    axes = [frozenset(getattr(getattr(aval, "mat", None), "varying", ())) for aval in types]
    union = frozenset().union(*axes)
    return [
        x if varying == union else lax.pcast(x, tuple(sorted(union - varying, key=str)), to="varying")
        for x, varying in zip(operands, axes, strict=True)
    ]


def _by_jax(params: Parameters, a: Any, b: Any) -> Any:
    """Return the contraction by JAX itself."""
    labels, out_sharding = params.labels, params.out_sharding
    numbers = tuple(
        tuple(tuple(operand_labels.index(label) for label in dimensions) for operand_labels in (labels.a, labels.b))
        for dimensions in (labels.summed, labels.batch)
    )
    order = labels.batch + "".join(label for label in labels.a if label in labels.rows)
    order += "".join(label for label in labels.b if label in labels.columns)
    if out_sharding is not None:
        spec = dict(zip(labels.c, out_sharding.spec, strict=False))  # trailing dimensions may be missing
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(*[spec.get(label) for label in order]))
    product = lax.dot_general(
        a, b, numbers, precision=lax.Precision.HIGHEST, preferred_element_type=np.float32, out_sharding=out_sharding
    )  # fmt: skip
    return lax.transpose(product, [order.index(label) for label in labels.c])


def _abstract(*avals: Any, params: Parameters) -> Any:
    # All of the type besides shape and dtype, such as the mesh axes over which it varies, is as for JAX's own products.
    typed: Any = jax.make_jaxpr(partial(_by_jax, params))(*avals[:2])
    return typed.out_avals[0]


def _compute(*operands: Any, params: Parameters) -> Any:
    with jax.disable_jit(False):  # else a primitive without jit would call itself for ever
        return _jitted(*operands, params=params)


@partial(jax.jit, static_argnames="params")
def _jitted(*operands: Any, params: Parameters) -> Any:
    return sgemm_p.bind(*operands, params=params)


def _reference(*operands: Any, params: Parameters) -> Any:
    """Return the product by JAX itself, for devices other than CUDA's."""
    named = params.named(operands)
    product = _by_jax(params, named["A"], named["B"])
    alpha, beta = params.scalars(named)
    result = jnp.where(alpha == 0.0, jnp.zeros_like(product), alpha * product)
    if "C" not in named:
        return result
    return jnp.where(beta == 0.0, result, result + beta * named["C"])


def _on_cuda(ctx: Any, *operands: Any, params: Parameters) -> Any:
    # Where XLA cannot divide a product, it gathers the operands. Shares of a symmetric result are not symmetric.
    if partitioning.is_partitioned(ctx) and partitioning.can_divide(ctx) and not params.request.symmetric:
        return mlir.lower_fun(divided(params), multiple_results=False)(ctx, *operands)
    values = params.named([*zip(operands, ctx.avals_in, strict=True)])
    return [lowering.product(ctx, values, params.labels, params.request, params.alpha, params.beta)]


@lru_cache(maxsize=4096)
def divided(params: Parameters) -> Callable[..., Any]:
    """Return the primitive as a function of its operands that XLA can divide among devices.

    The summed dimensions are divided, too, unless the order of summation is fixed or C would be added to each part.
    """
    product = partial(sgemm_p.bind, params=params)
    share = partial(sgemm_p.bind, params=params._replace(out_sharding=None))
    in_parts = params.beta == 0.0 and not params.request.batch_invariant
    return partitioning.divided(product, share, params.subscripts, in_parts)


def _of_derivative(request: Request) -> Request:
    """Return the request for a product of a derivative: rung and config apply to the original product only."""
    return resolve(precision=request.precision, batch_invariant=request.batch_invariant)


def _explicit_sharding(aval: Any) -> NamedSharding | None:
    """Return the sharding of an array if it is part of its type, as on a mesh with explicit axes."""
    sharding, mesh = aval.sharding, aval.sharding.mesh
    if mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * aval.ndim))
    return sharding if not mesh.empty and AxisType.Explicit in mesh.axis_types else None


def _tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...], *, params: Parameters) -> Any:
    result = sgemm_p.bind(*primals, params=params)
    named = params.named(primals)
    dots = {name: x for name, x in params.named(tangents).items() if type(x) is not ad.Zero}
    alpha, beta = params.scalars(named)
    product = partial(bind, params.subscripts, _of_derivative(params.request), out_sharding=params.out_sharding)
    parts = []
    if "A" in dots:
        parts.append(product(dots["A"], named["B"], alpha, 0.0))
    if "B" in dots:
        parts.append(product(named["A"], dots["B"], alpha, 0.0))
    if "ALPHA" in dots:
        parts.append(dots["ALPHA"] * product(named["A"], named["B"], 1.0, 0.0))
    if "C" in dots:
        parts.append(beta * dots["C"])
    if "BETA" in dots:
        parts.append(dots["BETA"] * named["C"])
    if not parts:
        return result, ad.Zero.from_primal_value(result)
    return result, sum(parts[1:], parts[0])


def _transposed(cotangent: Any, *operands: Any, params: Parameters) -> Any:
    """Return the cotangents of the unknown operands: A or B, and C if present."""
    if type(cotangent) is ad.Zero:
        return [None for _ in operands]
    named, cotangents = params.named(operands), dict[str, Any]()
    labels, (alpha, beta) = params.labels, params.scalars(named)
    for name, transposed_labels, a, b in (
        ("A", Labels(labels.c, labels.b, labels.a), cotangent, named["B"]),
        ("B", Labels(labels.a, labels.c, labels.b), named["A"], cotangent),
    ):
        if ad.is_undefined_primal(named[name]):
            aval, subscripts = named[name].aval, contraction.subscripts_of(transposed_labels)
            sharding = _explicit_sharding(aval)
            product = bind(subscripts, _of_derivative(params.request), a, b, alpha, 0.0, out_sharding=sharding)
            cotangents[name] = product.astype(aval.dtype)  # rounded once
    if "C" in named and ad.is_undefined_primal(named["C"]):
        cotangents["C"] = beta * cotangent
    return [cotangents.get(name) for name in named]


def _batched(operands: tuple[Any, ...], dims: tuple[Any, ...], *, params: Parameters) -> Any:
    """The rule of ``jax.vmap``: add a label of the batch, or of rows or columns if only one operand has it."""
    named, axes = params.named(operands), params.named(dims)
    if axes["A"] is axes["B"] is None or any(axes.get(x) is not None for x in ("ALPHA", "BETA")):
        return _batched_by_loop(operands, dims, params)
    labels, new = params.labels, contraction.fresh(params.subscripts)
    labels_a, labels_b = (
        old_labels if axes[name] is None else old_labels[: axes[name]] + new + old_labels[axes[name] :]
        for name, old_labels in (("A", labels.a), ("B", labels.b))
    )
    batched_labels = Labels(labels_a, labels_b, new + labels.c)
    if "C" in named:
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
        dim = axes["C"]
        old = named["C"]
        named["C"] = jnp.broadcast_to(old, (size, *old.shape)) if dim is None else jnp.moveaxis(old, dim, 0)
    sharding = params.out_sharding
    if sharding is not None:
        name = "A" if axes["B"] is None else "B"
        along = jax.typeof(named[name]).sharding.spec[axes[name]]
        sharding = NamedSharding(sharding.mesh, PartitionSpec(along, *sharding.spec))
    alpha, beta = params.scalars(named)
    subscripts = contraction.subscripts_of(batched_labels)
    return bind(subscripts, params.request, named["A"], named["B"], alpha, beta, named.get("C"), sharding), 0


def _batched_by_loop(operands: tuple[Any, ...], dims: tuple[Any, ...], params: Parameters) -> Any:
    """Loop over a batch of alphas or betas, because a launch has one alpha and one beta."""
    batched = {i: jnp.moveaxis(x, d, 0) for i, (x, d) in enumerate(zip(operands, dims, strict=True)) if d is not None}

    def product_of_slices(slices: dict[int, Any]) -> Any:
        return sgemm_p.bind(*[slices.get(i, x) for i, x in enumerate(operands)], params=params)

    return lax.map(product_of_slices, batched), 0


sgemm_p.def_impl(_compute)
sgemm_p.def_abstract_eval(_abstract)
ad.primitive_jvps[sgemm_p] = _tangent
ad.primitive_transposes[sgemm_p] = _transposed
batching.primitive_batchers[sgemm_p] = _batched
mlir.register_lowering(sgemm_p, mlir.lower_fun(_reference, multiple_results=False))
mlir.register_lowering(sgemm_p, _on_cuda, platform="cuda")
partitioning.needs_devices(sgemm_p)
