"""`sgemm` in traced code: a primitive of JAX, which contracts A and B and adds beta * C.

The primitive names the dimensions of its operands as `numpy.einsum` does, so its gradients and batches are itself with
other names, and no operand is ever transposed for it. It is linear in A, in B and in C.
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

primitive = Primitive("fastsgemm")


def sgemm(request: Request, A: Any, B: Any, alpha: Any, beta: Any, C: Any, out: Any = None) -> Any:
    """Do what `fastsgemm.sgemm` does, where an operand, alpha or beta is traced.

    Operands are arrays of JAX or NumPy. Of `out` only the shape matters, because arrays of JAX are immutable. An alpha
    or a beta may be an array of shape ().

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
            checks.result_shape(A.shape, B.shape, shape, C.shape, "out")  # it says so
    subscripts, *squeezed = contraction.of_broadcast(A.shape, B.shape)
    A, B = (lax.squeeze(x, axes) if axes else x for x, axes in zip((A, B), squeezed, strict=True))
    return bind(subscripts, request, A, B, alpha, beta, C)


_COMPILED = (0.0, 1.0, -1.0)  # numbers that are compiled into a product, so that others don't take a compilation each


def eager(request: Request, A: Any, B: Any, alpha: float, beta: float, C: Any, out: Any) -> Any:
    """Do what `fastsgemm.sgemm` does with arrays of JAX outside of traced code: XLA compiles the product and runs it.

    So XLA knows that the operands are in use, and can be given a buffer again as soon as they are not.
    """
    numbers = [x if x in _COMPILED else jnp.asarray(x, np.float32) for x in (alpha, beta)]
    return sgemm(request, A, B, numbers[0], numbers[1], C, out)


def _array(request: Request, name: str, x: Any) -> Any:
    """Return an operand as an array of JAX, after checking its dtype and that its shape is known."""
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
    """Return alpha or beta: a float that is float32, or an array of shape () of float32."""
    if not isinstance(x, jax.Array):
        return checks.scalar(name, x)
    if x.shape != ():
        raise ScalarError(f"{name} must be a number or have shape (), got shape {x.shape}")
    if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ScalarError(f"{name} must be a real number, got dtype {x.dtype}")
    return x.astype(np.float32)


class Parameters(NamedTuple):
    """What the primitive computes, besides its operands."""

    subscripts: str  # see `fastsgemm.jax.contraction`
    request: Request
    alpha: float | None  # None: an operand has it
    beta: float | None
    out_sharding: NamedSharding | None = None  # as of ``jnp.matmul``, for meshes with explicit axes

    @property
    def labels(self) -> Labels:
        """The labels of A, B and the result."""
        return contraction.labels_of(self.subscripts)

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return the operands of the primitive by name: A, B and, where there are such, C, ALPHA and BETA."""
        names = ["A", "B"] + ["C"] * (self.beta != 0.0)
        names += ["ALPHA"] * (self.alpha is None) + ["BETA"] * (self.beta is None)
        return dict(zip(names, operands, strict=True))

    def scalars(self, given: dict[str, Any]) -> tuple[Any, Any]:
        """Return alpha and beta, each a number or the operand that has it."""
        return given.get("ALPHA", self.alpha), given.get("BETA", self.beta)


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
    how = Parameters(subscripts, request, alpha, beta, out_sharding)
    return primitive.bind(*_varying_alike(operands), how=how)


def _varying_alike(operands: list[Any]) -> list[Any]:
    """Return the operands as ``shard_map`` wants them: all vary over the axes over which one does."""
    types = map(jax.typeof, operands)
    axes = [frozenset(getattr(getattr(each, "mat", None), "varying", ())) for each in types]
    every = frozenset().union(*axes)
    return [
        x if own == every else lax.pcast(x, tuple(sorted(every - own, key=str)), to="varying")
        for x, own in zip(operands, axes, strict=True)
    ]


def _by_jax(how: Parameters, a: Any, b: Any) -> Any:
    """Return the contraction by JAX itself."""
    labels, out_sharding = how.labels, how.out_sharding
    numbers = tuple(
        tuple(tuple(of.index(label) for label in which) for of in (labels.a, labels.b))
        for which in (labels.summed, labels.batch)
    )
    order = labels.batch + "".join(label for label in labels.a if label in labels.rows)
    order += "".join(label for label in labels.b if label in labels.columns)
    if out_sharding is not None:
        spec = dict(zip(labels.c, out_sharding.spec, strict=False))  # the last ones may be left out
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(*[spec.get(label) for label in order]))
    product = lax.dot_general(
        a, b, numbers, precision=lax.Precision.HIGHEST, preferred_element_type=np.float32, out_sharding=out_sharding
    )  # fmt: skip
    return lax.transpose(product, [order.index(label) for label in labels.c])


def _abstract(*avals: Any, how: Parameters) -> Any:
    # What of a type is not shape and dtype, such as over which axes of a mesh it varies, is as of JAX's own products.
    typed: Any = jax.make_jaxpr(partial(_by_jax, how))(*avals[:2])
    return typed.out_avals[0]


def _compute(*operands: Any, how: Parameters) -> Any:
    with jax.disable_jit(False):  # else a primitive without jit is computed by itself, for ever
        return _jitted(*operands, how=how)


@partial(jax.jit, static_argnames="how")
def _jitted(*operands: Any, how: Parameters) -> Any:
    return primitive.bind(*operands, how=how)


def _reference(*operands: Any, how: Parameters) -> Any:
    """Return the product by JAX itself, for devices that are not CUDA's."""
    given = how.named(operands)
    product = _by_jax(how, given["A"], given["B"])
    alpha, beta = how.scalars(given)
    result = jnp.where(alpha == 0.0, jnp.zeros_like(product), alpha * product)
    if "C" not in given:
        return result
    return jnp.where(beta == 0.0, result, result + beta * given["C"])


def _on_cuda(ctx: Any, *operands: Any, how: Parameters) -> Any:
    # Where XLA cannot divide a product, it gathers the operands. Shares of a symmetric result are not symmetric.
    if partitioning.is_partitioned(ctx) and partitioning.can_divide(ctx) and not how.request.symmetric:
        return mlir.lower_fun(divided(*how), multiple_results=False)(ctx, *operands)
    values = how.named([*zip(operands, ctx.avals_in, strict=True)])
    return [lowering.product(ctx, values, how.labels, how.request, how.alpha, how.beta)]


@lru_cache(maxsize=4096)
def divided(
    subscripts: str,
    request: Request,
    alpha: float | None,
    beta: float | None,
    out_sharding: NamedSharding | None = None,
) -> Callable[..., Any]:
    """Return the primitive as a function of its operands that XLA can divide among devices; see `Parameters`.

    The sum is divided, too, unless its order is promised or an old C would be added to each part.
    """
    how = Parameters(subscripts, request, alpha, beta, out_sharding)
    product, share = (partial(primitive.bind, how=each) for each in (how, how._replace(out_sharding=None)))
    in_parts = beta == 0.0 and not request.batch_invariant
    return partitioning.divided(product, share, subscripts, in_parts)


def _of_derivative(request: Request) -> Request:
    """Return the request for a product that a derivative needs: a rung and a config are of the given product alone."""
    return resolve(precision=request.precision, batch_invariant=request.batch_invariant)


def _explicit_sharding(aval: Any) -> NamedSharding | None:
    """Return how an array is divided where that is a part of its type, as on a mesh with explicit axes."""
    sharding, mesh = aval.sharding, aval.sharding.mesh
    if mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * aval.ndim))
    return sharding if not mesh.empty and AxisType.Explicit in mesh.axis_types else None


def _tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...], *, how: Parameters) -> Any:
    result = primitive.bind(*primals, how=how)
    given = how.named(primals)
    moved = {name: x for name, x in how.named(tangents).items() if type(x) is not ad.Zero}
    alpha, beta = how.scalars(given)
    product = partial(bind, how.subscripts, _of_derivative(how.request), out_sharding=how.out_sharding)
    parts = []
    if "A" in moved:
        parts.append(product(moved["A"], given["B"], alpha, 0.0))
    if "B" in moved:
        parts.append(product(given["A"], moved["B"], alpha, 0.0))
    if "ALPHA" in moved:
        parts.append(moved["ALPHA"] * product(given["A"], given["B"], 1.0, 0.0))
    if "C" in moved:
        parts.append(beta * moved["C"])
    if "BETA" in moved:
        parts.append(moved["BETA"] * given["C"])
    if not parts:
        return result, ad.Zero.from_primal_value(result)
    return result, sum(parts[1:], parts[0])


def _transposed(cotangent: Any, *operands: Any, how: Parameters) -> Any:
    """Return the cotangents of the operands, of which A or B is unknown, and C if there is one."""
    if type(cotangent) is ad.Zero:
        return [None for _ in operands]
    given, found = how.named(operands), dict[str, Any]()
    labels, (alpha, beta) = how.labels, how.scalars(given)
    for name, back, a, b in (
        ("A", Labels(labels.c, labels.b, labels.a), cotangent, given["B"]),
        ("B", Labels(labels.a, labels.c, labels.b), given["A"], cotangent),
    ):
        if ad.is_undefined_primal(given[name]):
            aval, subscripts = given[name].aval, contraction.spelled(back)
            sharding = _explicit_sharding(aval)
            product = bind(subscripts, _of_derivative(how.request), a, b, alpha, 0.0, out_sharding=sharding)
            found[name] = product.astype(aval.dtype)  # rounded once
    if "C" in given and ad.is_undefined_primal(given["C"]):
        found["C"] = beta * cotangent
    return [found.get(name) for name in given]


def _batched(operands: tuple[Any, ...], dims: tuple[Any, ...], *, how: Parameters) -> Any:
    """The rule of ``jax.vmap``: one more label, of the batch, or of the rows or columns if one operand has it."""
    given, at = how.named(operands), how.named(dims)
    if at["A"] is at["B"] is None or any(at.get(name) is not None for name in ("ALPHA", "BETA")):
        return _one_after_the_other(operands, dims, how)
    labels, new = how.labels, contraction.fresh(how.subscripts)
    of_a, of_b = (
        of if at[name] is None else of[: at[name]] + new + of[at[name] :]
        for name, of in (("A", labels.a), ("B", labels.b))
    )
    whole = Labels(of_a, of_b, new + labels.c)
    if "C" in given:
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
        dim = at["C"]
        old = given["C"]
        given["C"] = jnp.broadcast_to(old, (size, *old.shape)) if dim is None else jnp.moveaxis(old, dim, 0)
    sharding = how.out_sharding
    if sharding is not None:
        name = "A" if at["B"] is None else "B"
        along = jax.typeof(given[name]).sharding.spec[at[name]]
        sharding = NamedSharding(sharding.mesh, PartitionSpec(along, *sharding.spec))
    alpha, beta = how.scalars(given)
    subscripts = contraction.spelled(whole)
    return bind(subscripts, how.request, given["A"], given["B"], alpha, beta, given.get("C"), sharding), 0


def _one_after_the_other(operands: tuple[Any, ...], dims: tuple[Any, ...], how: Parameters) -> Any:
    """Multiply for each index of a batch, where alpha or beta has one; a launch has one alpha and one beta."""
    batched = {i: jnp.moveaxis(x, d, 0) for i, (x, d) in enumerate(zip(operands, dims, strict=True)) if d is not None}

    def one(each: dict[int, Any]) -> Any:
        return primitive.bind(*[each.get(i, x) for i, x in enumerate(operands)], how=how)

    return lax.map(one, batched), 0


primitive.def_impl(_compute)
primitive.def_abstract_eval(_abstract)
ad.primitive_jvps[primitive] = _tangent
ad.primitive_transposes[primitive] = _transposed
batching.primitive_batchers[primitive] = _batched
mlir.register_lowering(primitive, mlir.lower_fun(_reference, multiple_results=False))
mlir.register_lowering(primitive, _on_cuda, platform="cuda")
partitioning.needs_devices(primitive)
