"""`sgemm` in traced code: its transforms against float64 on the host, and what is lowered for CUDA."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jax_programs import TARGET, array, calls, lowered

import fastsgemm
import fastsgemm.jax
from fastsgemm import sgemm
from fastsgemm.errors import (
    DeviceError,
    DTypeError,
    OperandError,
    PrecisionError,
    ScalarError,
    ScalarRangeError,
    ShapeError,
    StreamError,
)
from fastsgemm.jax import lowering, primitive

A, B, C = array(6, 7), array(7, 5), array(6, 5)
float64 = partial(np.asarray, dtype=np.float64)


# Values, on the host


def close(result, wanted):
    np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-5, atol=1e-5)


def test_jit():
    close(jax.jit(sgemm)(A, B), float64(A) @ float64(B))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.5), (0.0, 0.5), (2.0, 0.0)])
def test_alpha_and_beta(traced, alpha, beta):
    wanted = alpha * (float64(A) @ float64(B)) + beta * float64(C)
    if traced:
        close(jax.jit(sgemm)(A, B, alpha, beta, C), wanted)
    else:
        close(jax.jit(lambda a, b, c: sgemm(a, b, alpha, beta, c))(A, B, C), wanted)


def test_alpha_may_be_true_as_outside_of_jit():
    close(jax.jit(sgemm)(A, B, True), float64(A) @ float64(B))
    close(jax.jit(sgemm)(A, B, True, np.True_, C), float64(A) @ float64(B) + float64(C))
    close(jax.jit(sgemm)(A, B, False), np.zeros((6, 5)))


@pytest.mark.usefixtures("on_host")
def test_without_jit():
    with jax.disable_jit():
        close(jax.jit(sgemm)(A, B), float64(A) @ float64(B))
        close(jax.grad(lambda a: jax.jit(sgemm)(a, B).sum())(A), np.ones((6, 5)) @ float64(B).T)
        close(jax.vmap(sgemm, (0, None))(jnp.stack([A, -A]), B)[1], -float64(A) @ float64(B))


def test_only_alpha_is_traced():
    close(jax.jit(lambda alpha: sgemm(A, B, alpha))(3), 3 * (float64(A) @ float64(B)))


def test_what_alpha_and_beta_of_0_do_not_read():
    nothing = jnp.full_like(C, jnp.nan)
    close(jax.jit(sgemm)(A, B, 1.0, 0.0, nothing), float64(A) @ float64(B))
    close(jax.jit(sgemm)(jnp.full_like(A, jnp.nan), B, 0.0, 1.0, C), float64(C))


def test_operands_of_numpy():
    close(jax.jit(lambda b: sgemm(np.asarray(A), b))(B), float64(A) @ float64(B))


def test_out_gives_the_shape_to_which_c_broadcasts():
    out = jnp.zeros((6, 5))
    close(jax.jit(lambda a: sgemm(a, B, 1.0, 1.0, C[0], out=out))(A), float64(A) @ float64(B) + float64(C[0]))


@pytest.mark.parametrize(
    ("a", "b"),
    [((7,), (7, 5)), ((6, 7), (7,)), ((7,), (7,)), ((3, 6, 7), (7, 5)), ((6, 7), (3, 7, 5)), ((3, 1, 6, 7), (4, 7, 5)),
     ((2, 1, 6, 7), (1, 3, 7, 5)), ((1, 6, 7), (1, 7, 5)), ((3, 6, 7), (1, 7, 5)), ((0, 7), (7, 5)), ((6, 0), (0, 5))],
)  # fmt: skip
def test_shapes_of_matmul(a, b):
    a, b = array(*a), array(*b)
    result = jax.jit(sgemm)(a, b)
    wanted = np.matmul(float64(a), float64(b))
    assert result.shape == wanted.shape
    close(result, wanted)


@pytest.mark.parametrize("where", [(0, None), (None, 0), (0, 0), (1, 2), (2, None), (None, 1)])
def test_vmap(where):
    a = A if where[0] is None else jnp.stack([A, 2 * A, -A], where[0])
    b = B if where[1] is None else jnp.stack([B, B + 1, B - 2], where[1])
    result = jax.vmap(sgemm, where)(a, b)
    matrices = (
        [x] * 3 if dim is None else np.moveaxis(float64(x), dim, 0) for x, dim in ((a, where[0]), (b, where[1]))
    )
    close(result, np.stack([x @ y for x, y in zip(*matrices, strict=True)]))


def test_vmap_of_everything():
    many = [jnp.stack([x, 2 * x]) for x in (A, B, jnp.float32(3.0), jnp.float32(0.5), C)]
    wanted = [a @ b * alpha + beta * c for a, b, alpha, beta, c in zip(*map(float64, many), strict=True)]
    close(jax.vmap(sgemm)(*many), np.stack(wanted))


def test_vmap_of_c_alone():
    close(jax.vmap(lambda c: sgemm(A, B, 1.0, 2.0, c))(jnp.stack([C, -C]))[1], float64(A) @ float64(B) - 2 * float64(C))


def loss(multiply, a, b, alpha, beta, c):
    return (jnp.sin(multiply(a, b, alpha, beta, c)) * jnp.arange(30).reshape(6, 5)).sum()


def with_jax(a, b, alpha, beta, c):
    return alpha * jnp.matmul(a, b, precision="highest") + beta * c


@pytest.mark.parametrize("transform", [jax.grad, jax.jacrev, jax.jacfwd])
def test_gradients_of_everything(transform):
    point = (A, B, 2.0, 0.5, C)
    ours, jaxs = (transform(partial(loss, each), range(5))(*point) for each in (sgemm, with_jax))
    for mine, other in zip(ours, jaxs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=2e-4)


def test_gradients_of_every_order_and_of_batches():
    a = jnp.stack([A, 2 * A])

    def third(multiply):
        f = jax.vmap(lambda a: jax.grad(lambda a, b: (multiply(a, b) ** 3).sum())(a, B))
        return jax.jvp(f, (a,), (a,))[1]

    np.testing.assert_allclose(
        third(sgemm), third(partial(jnp.matmul, precision="highest")), rtol=1e-4, atol=1e-3
    )  # fmt: skip


def test_a_gradient_of_a_batch_that_one_operand_has():
    a = array(3, 6, 7)
    ours, jaxs = (
        jax.grad(lambda a, b, f=f: (f(a, b) ** 2).sum(), (0, 1))(a, B)
        for f in (sgemm, partial(jnp.matmul, precision="highest"))
    )
    for mine, other in zip(ours, jaxs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("types", [(jnp.bfloat16, jnp.float32), (jnp.float32, jnp.float16), (jnp.bfloat16,) * 2])
def test_16_bit_operands_and_their_gradients(types):
    shapes = (5, 8), (8, 6)
    a, b = (jax.random.normal(jax.random.key(8), *one) for one in zip(shapes, types, strict=True))

    def of(multiply):
        return jax.jit(lambda a, b: (multiply(a, b), jax.grad(lambda *x: (multiply(*x) ** 2).sum(), (0, 1))(a, b)))

    found, gradients = of(partial(sgemm, precision="ieee"))(a, b)
    highest = partial(jnp.matmul, precision="highest")
    wanted, exact = of(lambda a, b: highest(a.astype(jnp.float32), b.astype(jnp.float32)))(a, b)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    for gradient, one, operand in zip(gradients, exact, (a, b), strict=True):
        assert gradient.dtype == operand.dtype
        np.testing.assert_allclose(gradient.astype(np.float32), one.astype(np.float32), rtol=2**-7, atol=1e-2)


def test_16_bit_operands_that_are_refused():
    halves = jnp.ones((4, 4), jnp.bfloat16)
    with pytest.raises(DTypeError, match="A must be float32, got bfloat16; 16-bit operands need a precision by name"):
        jax.jit(sgemm)(halves, halves)
    whole = halves.astype(jnp.float32)
    for transform in (jax.jit, lambda f: f):
        with pytest.raises(DTypeError, match="out must be float32"):
            transform(lambda a, b, out: sgemm(a, b, out=out, precision="ieee"))(whole, whole, halves)


def test_linearize_vjp_and_checkpoint():
    value, tangent = jax.linearize(lambda a: sgemm(a, B), A)
    close(tangent(A), value)
    (back,) = jax.vjp(lambda a: sgemm(a, B), A)[1](C)
    close(back, float64(C) @ float64(B).T)
    close(jax.grad(jax.checkpoint(lambda a: sgemm(a, B).sum()))(A), jax.grad(lambda a: sgemm(a, B).sum())(A))


def test_control_flow():
    def body(c, _):
        return sgemm(A, B, 1.0, 1.0, c), None

    close(jax.lax.scan(body, C, None, length=3)[0], 3 * (float64(A) @ float64(B)) + float64(C))
    branches = jax.jit(lambda p, a: jax.lax.cond(p, lambda: sgemm(a, B), lambda: sgemm(a, B, -1.0)))
    close(branches(False, A), -branches(True, A))
    loop = jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, sgemm(A, B, 1.0, 1.0, s[1])), (0, C))
    close(loop[1], 2 * (float64(A) @ float64(B)) + float64(C))


def test_shard_map_on_one_device():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    rows, whole = PartitionSpec("x"), PartitionSpec()
    f = jax.shard_map(sgemm, mesh=mesh, in_specs=(rows, whole), out_specs=rows)
    close(jax.jit(f)(A, B), float64(A) @ float64(B))
    close(jax.grad(lambda b: f(A, b).sum())(B), float64(A).T @ np.ones((6, 5)))


# What is refused


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: sgemm(a, B.astype(jnp.int32)), DTypeError, "B must be float32, got int32"),
        (lambda a: sgemm(a, B[:5]), ShapeError, "A's columns must equal B's rows, got 7 and 5"),
        (lambda a: sgemm(a, B, 1.0, 1.0), ScalarRangeError, "beta must be 0 when C is not given"),
        (lambda a: sgemm(a, B, 1.0, a[0, 0]), ScalarError, "beta is traced, so it may not be 0"),
        (lambda a: sgemm(a, B, a[0]), ScalarError, r"alpha must be a number or have shape \(\), got shape \(7,\)"),
        (lambda a: sgemm(a, B, a[0, 0] * 1j), ScalarError, "alpha must be a real number, got dtype complex64"),
        (lambda a: sgemm(a, B, "x"), ScalarError, "alpha must be a real number, got str"),
        (lambda a: sgemm(a, [[1.0]]), OperandError, "B must be an array of JAX or NumPy"),
        (lambda a: sgemm(a, B, stream=1), StreamError, "XLA chooses the stream"),
        (lambda a: sgemm(a, B, 1.0, 1.0, C[:2]), ShapeError, r"C must have shape \(6, 5\)"),
        (lambda a: sgemm(a, B, 1.0, 1.0, C[:2], out=C), ShapeError, r"C must broadcast to \(6, 5\)"),
        (lambda a: sgemm(a, B, C=C[0], out=C), ScalarRangeError, "C beside out= is multiplied by beta, which is 0"),
        (lambda a: sgemm(a, B, out=C[:2]), ShapeError, r"out must have shape \(6, 5\), got \(2, 5\)"),
        (lambda a: sgemm(a, B, precision="fp8"), PrecisionError, "fp8"),
        (lambda a: sgemm(a, B, symmetric=True), ShapeError, "as many rows of A as columns of B"),
        (lambda a: sgemm(jnp.stack([a] * 6), a[0], symmetric=True), ShapeError, "as many rows of A as columns of B"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        jax.jit(call)(A)


def test_symbolic_shapes_are_refused():
    (n,) = jax.export.symbolic_shape("n")
    with pytest.raises(ShapeError, match=r"A has the symbolic shape \(n, 7\).*export the function once for each"):
        jax.export.export(jax.jit(sgemm), platforms=["cuda"])(jax.ShapeDtypeStruct((n, 7), jnp.float32), B)


def test_lowering_for_cuda_needs_a_device():
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("there is one")
    with pytest.raises(DeviceError, match=r"Name the device: with fastsgemm\.jax\.lowering_for"):
        jax.jit(sgemm).trace(A, B).lower(lowering_platforms=("cuda",))


def test_a_product_is_lowered_for_the_devices_of_its_program(monkeypatch):
    kinds = ("NVIDIA H200", "NVIDIA T4", "NVIDIA T4")
    local = [SimpleNamespace(device_kind=kind, local_hardware_id=i) for i, kind in enumerate(kinds)]
    monkeypatch.setattr(jax, "local_devices", lambda backend: local)
    monkeypatch.setattr(lowering.first_use, "open_device", lambda number: number)
    monkeypatch.setattr(lowering, "info_of", lambda number: number)

    def device(*assignment):
        context = SimpleNamespace(device_assignment=assignment or None)
        return lowering._device(SimpleNamespace(module_context=SimpleNamespace(axis_context=context)))

    assert device(local[0]) == 0
    assert device(*local[1:]) == 1
    for mixed in ((), local[:2]):
        with pytest.raises(DeviceError, match="devices of one kind, got NVIDIA H200 and NVIDIA T4"):
            device(*mixed)


def test_an_unknown_device_is_refused():
    with pytest.raises(DeviceError, match="known are"), fastsgemm.jax.lowering_for("H99"):
        pass


# What is lowered for CUDA


def test_a_product_is_one_call():
    assert len(calls(lowered(sgemm, A, B))) == 1


def test_parts_of_k_are_added_up_by_a_second_call():
    product_, sum_ = calls(lowered(sgemm, array(64, 2000), array(2000, 64)))
    assert "tensor<64x2000xf32>, tensor<2000x64xf32>) -> tensor<" in product_
    assert "xui8>" in product_.rpartition("->")[2]
    assert "xui8>) -> tensor<64x64xf32>" in sum_


def test_c_is_updated_in_place():
    text = lowered(lambda a, b, c: sgemm(a, b, 1.0, 1.0, c), A, B, C, donate_argnums=2)
    assert "tf.aliasing_output = 0" in text
    (call,) = calls(text)
    assert "output_operand_alias<output_tuple_indices = [], operand_index = 2" in call


def test_a_traced_alpha_is_an_operand():
    (call,) = calls(lowered(sgemm, A, B, 2.0))
    assert "tensor<7x5xf32>, tensor<f32>, tensor<f32>)" in call or "tensor<7x5xf32>, tensor<f32>)" in call


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (jax.vmap(sgemm), (array(3, 6, 7), array(3, 7, 5))),
        (jax.vmap(sgemm, (0, None)), (array(3, 6, 7), B)),
        (jax.vmap(sgemm, (None, 0)), (A, array(3, 7, 5))),
        (jax.vmap(sgemm, (1, 1)), (array(6, 3, 7), array(7, 3, 5))),
        (jax.grad(lambda a, b: sgemm(a, b).sum()), (A, B)),
        (lambda a, b: jax.lax.scan(lambda c, _: (sgemm(a, b, 1.0, 1.0, c), None), C, None, length=9)[0], (A, B)),
    ],
)
def test_one_launch(function, operands):
    text = lowered(function, *operands)
    assert len(calls(text)) == 1
    assert "stablehlo.transpose" not in text


def test_gradients_read_the_operands_where_they_lie():
    text = lowered(jax.grad(lambda a, b: sgemm(a, b).sum(), (0, 1)), A, B)
    assert len(calls(text)) == 2
    assert "stablehlo.transpose" not in text


def test_labels_summed_in_two_orders_are_transposed_first():
    def f(a, b):
        return primitive.bind("abi,baj->ij", fastsgemm.jax.primitive.resolve(), a, b, 1.0, 0.0)

    a, b = array(2, 3, 6), array(3, 2, 5)
    assert lowered(f, a, b).count("stablehlo.transpose") == 2
    close(jax.jit(f)(a, b), np.einsum("abi,baj->ij", float64(a), float64(b)))


def test_an_empty_result_is_no_call():
    assert not calls(lowered(sgemm, A[:0], B))


def test_what_is_asked_for_goes_with_the_call():
    naive, plain = (calls(lowered(partial(sgemm, **how), A, B)) for how in ({"rung": "naive"}, {}))
    assert "fastsgemm_naive" in naive[0]
    assert "fastsgemm_naive" not in plain[0]


def test_the_derivative_has_no_rung():
    text = lowered(jax.grad(lambda a: sgemm(a, B, rung="naive").sum()), A)
    assert "fastsgemm_naive" not in text


def test_export():
    check = jax.export.DisabledSafetyCheck.custom_call(TARGET.removeprefix("@"))
    with fastsgemm.jax.lowering_for("NVIDIA H200"):
        exported = jax.export.export(jax.jit(sgemm), platforms=["cuda"], disabled_checks=[check])(A, B)
        assert TARGET in exported.mlir_module()
        with pytest.raises(ValueError, match="compatibility guarantees"):
            jax.export.export(jax.jit(sgemm), platforms=["cuda"])(A, B)


def test_fp16x3():
    text = lowered(partial(sgemm, precision="fp16x3"), array(4096, 4096), array(4096, 4096), device="sm_80")
    assert {line.split('name = "')[1].split("_")[1] for line in calls(text)} >= {"split", "fp16x3", "guard"}
