"""Products of which XLA gives each device a share, on two devices of the host."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import fastsgemm.jax
from fastsgemm import sgemm
from fastsgemm.jax import partitioning, product
from fastsgemm.request import resolve

OURS, DIVIDED = "@triton_kernel_call_ffi", "CustomSPMDPartitioning"
ROWS, COLUMNS, WHOLE = PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec()


@pytest.fixture
def mesh():
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices, or XLA_FLAGS=--xla_force_host_platform_device_count=2")
    return jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])


def array(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


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
    f = jax.jit(product.divided("mk,kn->mn", request_, 1.0, 0.0))
    a, b = (jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((A, of_a), (B, of_b)))
    result = f(a, b)
    np.testing.assert_allclose(result, np.asarray(A, np.float64) @ np.asarray(B, np.float64), rtol=1e-4, atol=1e-4)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, of_c), 2)
    compiled = f.lower(a, b).compile().as_text()
    assert [each for each in ("all-gather", "all-reduce") if each in compiled] == [collective] * (
        collective is not None
    )


def test_an_old_c_is_added_once(mesh):
    f = jax.jit(product.divided("mk,kn->mn", IEEE, None, 0.5))
    a, b = (jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((A, COLUMNS), (B, ROWS)))
    wanted = 2 * (np.asarray(A, np.float64) @ np.asarray(B, np.float64)) + 0.5 * np.asarray(C)
    np.testing.assert_allclose(f(a, b, C, jnp.float32(2.0)), wanted, rtol=1e-4, atol=1e-4)


def lowered(function, *operands):
    with fastsgemm.jax.lowering_for("sm_90"):
        return function.trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


def highest(a, b):
    return jnp.matmul(a, b, precision="highest")


def test_a_program_with_shardings_asks_for_shares(mesh):
    sharded = jax.device_put(A, NamedSharding(mesh, ROWS))
    assert DIVIDED in lowered(jax.jit(sgemm), sharded, B)
    with fastsgemm.jax.enabled() as on:
        assert DIVIDED in lowered(jax.jit(highest), sharded, B)
    assert on.report().passed_on == ()


def test_an_exported_program_is_left_to_xla(mesh):
    def exported(f):
        allowed = jax.export.DisabledSafetyCheck.custom_call(OURS.removeprefix("@"))
        with fastsgemm.jax.lowering_for("sm_90"):
            f = jax.jit(f, in_shardings=(NamedSharding(mesh, ROWS), None))
            return jax.export.export(f, platforms=["cuda"], disabled_checks=[allowed])(A, B).mlir_module()

    assert OURS in exported(sgemm)  # of gathered operands
    with fastsgemm.jax.enabled() as on:
        assert OURS not in exported(highest)
    assert [line.reason for line in on.report().passed_on] == ["XLA partitions a program that is exported"]


@pytest.mark.parametrize(
    ("context", "partitioned"),
    [
        ({"num_devices": 1}, False),
        ({"num_devices": 2}, True),
        ({"mesh": SimpleNamespace(axis_names=("x", "y")), "manual_axes": frozenset("xy")}, False),
        ({"mesh": SimpleNamespace(axis_names=("x", "y")), "manual_axes": frozenset("x")}, True),
    ],
)
def test_what_is_partitioned(context, partitioned):
    ctx = SimpleNamespace(module_context=SimpleNamespace(axis_context=SimpleNamespace(**context)))
    assert partitioning.is_partitioned(ctx) == partitioned


def test_within_shard_map_nothing_is_to_be_divided(mesh):
    f = jax.jit(jax.shard_map(sgemm, mesh=mesh, in_specs=(ROWS, WHOLE), out_specs=ROWS))
    text = lowered(f, A, B)
    assert DIVIDED not in text
    assert "(tensor<32x32xf32>, tensor<32x48xf32>) -> tensor<32x48xf32>" in text
