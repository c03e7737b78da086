"""Products of which XLA gives each device a share, on two devices of the host."""

import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax_programs import TARGET, array, lowered, mesh_of_two

import fastsgemm.jax
from fastsgemm import sgemm
from fastsgemm.errors import DeviceMismatchError
from fastsgemm.jax import partitioning, primitive
from fastsgemm.request import resolve

DIVIDED = "CustomSPMDPartitioning"
NAMED = SimpleNamespace(axis_names=("x", "y"), size=2)  # as much of a mesh as is looked at
ROWS, COLUMNS, WHOLE = PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec()


@pytest.fixture
def mesh():
    return mesh_of_two()


A, B, C = array(64, 32), array(32, 48), array(64, 48)
IEEE, INVARIANT = resolve(), resolve(batch_invariant=True)


@pytest.mark.parametrize(
    ("of_a", "of_b", "request_", "of_c", "collective"),
    [
        (ROWS, WHOLE, IEEE, ROWS, None),
        (WHOLE, COLUMNS, IEEE, COLUMNS, None),
        (COLUMNS, ROWS, IEEE, WHOLE, "all-reduce"),
        (COLUMNS, ROWS, INVARIANT, WHOLE, "all-gather"),
        (ROWS, COLUMNS, IEEE, ROWS, "all-gather"),
    ],
)
def test_a_product_is_divided(mesh, of_a, of_b, request_, of_c, collective):
    f = jax.jit(primitive.divided(primitive.Parameters("mk,kn->mn", request_, 1.0, 0.0)))
    a, b = (jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((A, of_a), (B, of_b)))
    result = f(a, b)
    np.testing.assert_allclose(result, np.asarray(A, np.float64) @ np.asarray(B, np.float64), rtol=1e-4, atol=1e-4)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, of_c), 2)
    compiled = f.lower(a, b).compile().as_text()
    assert [each for each in ("all-gather", "all-reduce") if each in compiled] == [collective] * (
        collective is not None
    )


def test_16_bit_operands_are_divided(mesh):
    f = jax.jit(primitive.divided(primitive.Parameters("mk,kn->mn", resolve(precision="fp16x3"), 1.0, 0.0)))
    halves = A.astype(jnp.bfloat16), B.astype(jnp.float16)
    a, b = (jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(halves, (COLUMNS, ROWS), strict=True))
    result, wanted = f(a, b), np.asarray(halves[0], np.float64) @ np.asarray(halves[1], np.float64)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def test_an_old_c_is_added_once(mesh):
    f = jax.jit(primitive.divided(primitive.Parameters("mk,kn->mn", IEEE, None, 0.5)))
    a, b = (jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((A, COLUMNS), (B, ROWS)))
    wanted = 2 * (np.asarray(A, np.float64) @ np.asarray(B, np.float64)) + 0.5 * np.asarray(C)
    np.testing.assert_allclose(f(a, b, C, jnp.float32(2.0)), wanted, rtol=1e-4, atol=1e-4)


def highest(a, b):
    return jnp.matmul(a, b, precision="highest")


def test_a_program_with_shardings_asks_for_shares(mesh):
    sharded = jax.device_put(A, NamedSharding(mesh, ROWS))
    assert DIVIDED in lowered(sgemm, sharded, B)
    with fastsgemm.jax.enabled() as on:
        assert DIVIDED in lowered(highest, sharded, B)
    assert on.report().passed_on == ()


def test_a_symmetric_result_is_not_divided(mesh):
    a = array(64, 64)
    sharded = jax.device_put(a, NamedSharding(mesh, ROWS))
    assert DIVIDED not in lowered(lambda a, b: sgemm(a, b, symmetric=True), sharded, a)


@pytest.mark.parametrize("batched", [(0, None), (None, 0), (0, 0), (1, None), (None, 1), (2, 0)])
def test_a_batch_of_symmetric_results(batched):
    given = [array(16, 16) if axis is None else array(3, 16, 16) for axis in batched]
    operands = [x if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in zip(given, batched, strict=True)]
    f = jax.vmap(lambda a, b: sgemm(a, b, symmetric=True), batched)
    text = lowered(f, *operands)
    assert TARGET in text and "stablehlo.while" not in text  # a batch, not one after the other
    np.testing.assert_allclose(jax.jit(f)(*operands), np.matmul(*given), rtol=1e-4, atol=1e-4)


def test_symmetric_results_of_one_element():
    a, b = array(5, 1, 7), array(7, 1)
    f = jax.jit(lambda a, b: sgemm(a, b, symmetric=True))
    for one in (f, jax.vmap(f, (0, None))):
        assert lowered(one, a, b).count(TARGET) == 1
    np.testing.assert_allclose(f(a, b), np.matmul(a, b), rtol=1e-4, atol=1e-4)


def test_an_exported_program_is_left_to_xla(mesh):
    def exported(f):
        allowed = jax.export.DisabledSafetyCheck.custom_call(TARGET.removeprefix("@"))
        with fastsgemm.jax.lowering_for("sm_90"):
            f = jax.jit(f, in_shardings=(NamedSharding(mesh, ROWS), None))
            return jax.export.export(f, platforms=["cuda"], disabled_checks=[allowed])(A, B).mlir_module()

    assert TARGET in exported(sgemm)  # of gathered operands
    with fastsgemm.jax.enabled() as on:
        assert TARGET not in exported(highest)
    assert [line.reason for line in on.report().passed_on] == ["XLA partitions the program and cannot be told how"]


@pytest.mark.parametrize(
    ("context", "partitioned", "known"),
    [
        ({"num_devices": 1, "device_assignment": (0,), "abstract_mesh": NAMED}, False, True),
        ({"num_devices": 2, "device_assignment": (0, 1), "abstract_mesh": NAMED}, True, True),
        ({"num_devices": 2, "device_assignment": (0, 1), "abstract_mesh": None}, True, False),
        ({"num_devices": 2, "device_assignment": None, "abstract_mesh": NAMED}, True, False),
        ({"mesh": NAMED, "manual_axes": frozenset("xy")}, False, False),
        ({"mesh": NAMED, "manual_axes": frozenset("x")}, True, False),
        ({"mesh": SimpleNamespace(axis_names=("x", "y"), size=1), "manual_axes": frozenset("x")}, False, False),
    ],
)
def test_what_is_partitioned(context, partitioned, known):
    module = SimpleNamespace(
        axis_context=SimpleNamespace(**context), lowering_parameters=SimpleNamespace(for_export=False)
    )
    ctx = SimpleNamespace(module_context=module)
    assert (partitioning.is_partitioned(ctx), partitioning.can_divide(ctx)) == (partitioned, known)


def test_within_shard_map_nothing_is_to_be_divided(mesh):
    f = jax.shard_map(sgemm, mesh=mesh, in_specs=(ROWS, WHOLE), out_specs=ROWS)
    text = lowered(f, A, B)
    assert DIVIDED not in text
    assert "(tensor<32x32xf32>, tensor<32x48xf32>) -> tensor<32x48xf32>" in text


@pytest.mark.parametrize("count", [1, 2])
def test_where_some_axes_are_manual_xla_is_not_asked(count):
    if len(jax.devices()) < count:
        pytest.skip("needs two devices, or XLA_FLAGS=--xla_force_host_platform_device_count=2")
    shape, kinds = (1, count), (AxisType.Auto, AxisType.Auto)
    mesh = jax.make_mesh(shape, ("x", "y"), axis_types=kinds, devices=jax.devices()[:count])

    def within(function):
        return jax.shard_map(function, mesh=mesh, in_specs=(ROWS, WHOLE), out_specs=ROWS, axis_names={"x"})

    text = lowered(within(sgemm), A, B)
    assert TARGET in text and DIVIDED not in text
    with fastsgemm.jax.enabled() as on:
        text = lowered(within(lambda a, b: jnp.matmul(a, b, precision="highest")), A, B)
    assert DIVIDED not in text and (TARGET in text) == (count == 1)
    assert len(on.report().passed_on) == (count == 2)


def test_arrays_on_several_devices_need_jit(mesh):
    sharded = jax.device_put(A, NamedSharding(mesh, ROWS))
    for operands in ((sharded, B), (A.T @ A, sharded.T)):
        with pytest.raises(DeviceMismatchError, match=r"got 2; call jax\.jit\(fastsgemm\.sgemm\)"):
            sgemm(*operands)
    np.testing.assert_allclose(jax.jit(sgemm)(sharded, B), np.matmul(A, B), rtol=1e-4, atol=1e-4)


@pytest.fixture
def explicit():
    """A mesh as ``jax.make_mesh`` makes it by default."""
    mesh = mesh_of_two(AxisType.Explicit)
    with jax.set_mesh(mesh):
        yield mesh


def types(tree):
    return jax.tree.map(lambda x: str(jax.typeof(x)), tree)


PLACEMENTS = [*itertools.product((WHOLE, ROWS, COLUMNS), repeat=2)]
REFUSED = [(ROWS, COLUMNS), (COLUMNS, ROWS)]  # by jnp.matmul, too


@pytest.mark.parametrize(("of_a", "of_b"), PLACEMENTS)
def test_explicit_axes(explicit, of_a, of_b):
    """Results and derivatives are placed as those of ``jnp.matmul``."""
    a, b = (jax.device_put(x, NamedSharding(explicit, spec)) for x, spec in ((A, of_a), (B, of_b)))

    def derivatives(multiply):
        def loss(a, b):
            return jnp.sin(multiply(a, b) / 10).sum()

        gradient = jax.grad(loss, (0, 1))
        second = jax.grad(lambda a, b: sum(jnp.cos(g).sum() for g in gradient(a, b)), (0, 1))
        many = jnp.stack([a, -a])
        of_batch = jax.grad(lambda many, b: jax.vmap(loss, (0, None))(many, b).sum(), (0, 1))
        return [multiply(a, b), gradient(a, b), second(a, b), of_batch(many, b), jax.jvp(multiply, (a, b), (a, b))[1]]

    if (of_a, of_b) in REFUSED:
        for multiply in (sgemm, highest):
            with pytest.raises(Exception, match=r"ambiguous|illegally sharded"):
                jax.jit(multiply)(a, b)
        return
    found, wanted = (derivatives(jax.jit(multiply)) for multiply in (sgemm, highest))
    assert types(found) == types(wanted)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), found, wanted)


def test_explicit_axes_for_cuda(explicit):
    a = jax.device_put(A, NamedSharding(explicit, ROWS))
    b = jax.device_put(B, NamedSharding(explicit, WHOLE))
    for multiply in (sgemm, highest):
        with fastsgemm.jax.enabled() as on:
            text = lowered(jax.grad(lambda a, b, f=multiply: (f(a, b) ** 2).sum(), (0, 1)), a, b)
        assert text.count(f"@{DIVIDED}") == 3 and on.report().passed_on == ()


@pytest.mark.parametrize(("of_a", "of_b"), [each for each in PLACEMENTS if each not in REFUSED])
def test_shares_where_axes_are_explicit(explicit, of_a, of_b):
    """What is lowered for CUDA, run on the host: the derivative of a share sums over parts of what is summed."""
    a, b = (jax.device_put(x, NamedSharding(explicit, spec)) for x, spec in ((A, of_a), (B, of_b)))
    out = NamedSharding(explicit.abstract_mesh, of_b)
    function = primitive.divided(primitive.Parameters("mk,mn->kn", IEEE, 1.0, 0.0, out))
    g = jax.device_put(C, jax.typeof(jax.jit(highest)(a, b)).sharding.spec)
    found = jax.jit(function)(a, g)
    assert types(found) == types(b)
    np.testing.assert_allclose(found, np.matmul(A.T, C), rtol=1e-4, atol=1e-3)
