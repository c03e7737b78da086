"""`sgemm` and the switch in programs that XLA runs on a device: the bits of the same call outside, and gradients."""

import numpy as np
import pytest
import subprocesses
from in_threads import run_all

pytest.importorskip("jax")

import jax as jax_
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jax_programs import mesh_of_two

import fastsgemm.jax
from fastsgemm import DeviceMismatchError, blas, sgemm
from fastsgemm.call.driver import multiply
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.jax import contraction, primitive
from fastsgemm.request import resolve

pytestmark = pytest.mark.gpu

SUBSCRIPTS = (
    *("ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ki,jk->ij", "ik,kj->ji", "k,kj->j", "ik,k->i"),
    *("bik,bkj->bij", "kbi,jbk->bij", "bik,kj->bij", "ik,bkj->bij", "bqhd,bkhd->bhqk", "bmk,bmn->kn"),
)
REQUESTS = {
    "ieee": resolve(),
    "fp16x3": resolve(precision="fp16x3"),
    "forced fp16x3": resolve("fp16x3"),
    "batch-invariant": resolve(batch_invariant=True),
}
PROBLEMS = 300


@pytest.fixture(autouse=True)
def _on_a_device(jax):
    """Skip where JAX sees no device."""


def normal(generator, *shape):
    return jnp.asarray(generator.standard_normal(shape, dtype=np.float32))


def outside(gpu, labels, request, a, b, alpha, beta, c):
    """Return what the driver computes for operands that lie so, without XLA."""
    result = jnp.array(c, copy=True)
    operands = [x.block_until_ready() for x in (a, b, result)]
    metas = contraction.metas(labels, a.shape, b.shape)
    views = [(x.unsafe_buffer_pointer(), meta) for x, meta in zip(operands, metas, strict=True)]
    multiply(gpu, LEGACY_STREAM, request, views, alpha, beta)
    gpu.device.sync()
    return np.asarray(result)


class LegacyStream:
    """A stream of the caller's, on which a product is computed without XLA."""

    def __cuda_stream__(self):
        return 0, LEGACY_STREAM


def bits(x):
    return np.asarray(x).view(np.uint32)


@pytest.mark.parametrize("number", range(PROBLEMS))
def test_a_random_problem_has_the_bits_of_the_call_outside(gpu, number):
    generator = np.random.default_rng(number)
    name = list(REQUESTS)[number % len(REQUESTS)]
    possible = [s for s in SUBSCRIPTS if name != "forced fp16x3" or "b" not in s]  # rung 11 computes one product
    subscripts = possible[generator.integers(len(possible))]
    labels = contraction.labels_of(subscripts)
    largest = {label: 8 if label in "bh" else 3000 if label in labels.summed else 700 for label in "bhqkdijmn"}
    sizes = {x: int(np.exp(generator.uniform(0, np.log(largest[x])))) for x in {*labels.a, *labels.b}}
    a, b, c = (normal(generator, *[sizes[x] for x in of]) for of in labels)
    alpha, beta = float(np.float32(generator.choice([1.0, 0.3, 0.0]))), float(generator.choice([0.0, 0.7, 1.0]))
    traced = bool(generator.integers(2))
    wanted = outside(gpu, labels, REQUESTS[name], a, b, alpha, beta, c)

    def f(a, b, c, scalars):
        numbers = scalars if traced else (alpha, beta)
        old = c if traced or beta else None
        return primitive.bind(subscripts, REQUESTS[name], a, b, *numbers, old)

    donated = jnp.array(c, copy=True)
    result = jax_.jit(f, donate_argnums=2)(a, b, donated, (jnp.float32(alpha), jnp.float32(beta)))
    np.testing.assert_array_equal(bits(result), wanted.view(np.uint32), err_msg=f"{name} {subscripts} {sizes}")


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("size", [64, 300, 2048])
def test_jit_has_the_bits_of_the_call_outside(size, precision):
    generator = np.random.default_rng(size)
    a, b, c = (normal(generator, size, size) for _ in range(3))
    f = jax_.jit(lambda *operands: sgemm(*operands, precision=precision))
    for given in ((a, b), (a, b, 0.3, 0.7, c)):
        wanted = bits(sgemm(*given, precision=precision, stream=LegacyStream()))
        np.testing.assert_array_equal(bits(f(*given)), wanted)
        np.testing.assert_array_equal(bits(sgemm(*given, precision=precision)), wanted)


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("shape", [(100, 50), (1024, 1024), (700, 9000)])
def test_an_array_by_itself_transposed(gpu, shape, precision):
    x = normal(np.random.default_rng(1), *shape)
    old = jnp.zeros((shape[0], shape[0]))
    labels = contraction.labels_of("ik,jk->ij")
    wanted = outside(gpu, labels, resolve(precision=precision), x, x, 1.0, 0.0, old)
    with fastsgemm.jax.enabled(precision):
        result = jax_.jit(lambda x: jnp.matmul(x, x.T, precision="highest"))(x)
    np.testing.assert_array_equal(bits(result), wanted.view(np.uint32))
    np.testing.assert_array_equal(bits(result), bits(result).T)


@pytest.mark.parametrize("where", [(0, 0), (0, None), (None, 0)])
def test_vmap_has_the_bits_of_a_batch(where):
    generator = np.random.default_rng(1)
    a = normal(generator, *([4] if where[0] == 0 else []), 100, 200)
    b = normal(generator, *([4] if where[1] == 0 else []), 200, 60)
    np.testing.assert_array_equal(bits(jax_.jit(jax_.vmap(sgemm, where))(a, b)), bits(sgemm(a, b)))


def test_a_jitted_step_of_groups_agrees_with_float64():
    """What belongs to no group is zero."""
    generator = np.random.default_rng(3)
    tokens, experts, weights = normal(generator, 1000, 96), normal(generator, 5, 96, 130), normal(generator, 1000, 130)
    sizes = jnp.array([300, 0, 17, 500, 83])

    def loss(tokens, experts):
        product = jax_.lax.ragged_dot(tokens, experts, sizes, precision="highest")
        return (weights * product).sum(), product

    with fastsgemm.jax.enabled() as switch:
        (of_tokens, of_experts), product = jax_.jit(jax_.grad(loss, (0, 1), has_aux=True))(tokens, experts)
    assert sum(line.products for line in switch.report().replaced) == 3
    t64, e64, w64 = (np.asarray(x, np.float64) for x in (tokens, experts, weights))
    wanted = np.zeros((1000, 130)), np.zeros((1000, 96)), np.zeros((5, 96, 130))
    ends = np.cumsum(sizes)
    for g, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        wanted[0][begin:end] = t64[begin:end] @ e64[g]
        wanted[1][begin:end] = w64[begin:end] @ e64[g].T
        wanted[2][g] = t64[begin:end].T @ w64[begin:end]
    for found, right in zip((product, of_tokens, of_experts), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=2e-6 * np.abs(right).max())


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_gradients_agree_with_float64(precision):
    generator = np.random.default_rng(2)
    a, b, c = normal(generator, 500, 700), normal(generator, 700, 300), normal(generator, 500, 300)
    w = normal(generator, 500, 300)

    def loss(a, b, c, alpha, beta):
        return (w * sgemm(a, b, alpha, beta, c, precision=precision)).sum()

    of_a, of_b, of_c, of_alpha, of_beta = jax_.jit(jax_.grad(loss, range(5)))(a, b, c, 0.5, 2.0)
    a64, b64, c64, w64 = (np.asarray(x, np.float64) for x in (a, b, c, w))
    for result, wanted in ((of_a, 0.5 * w64 @ b64.T), (of_b, 0.5 * a64.T @ w64), (of_c, 2 * w64)):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    for result, terms in ((of_alpha, w64 * (a64 @ b64)), (of_beta, w64 * c64)):
        np.testing.assert_allclose(result, terms.sum(), rtol=0, atol=2e-6 * np.abs(terms).sum())


def test_a_scan_of_100_products():
    generator = np.random.default_rng(3)
    a = normal(generator, 256, 256) / 16
    c = normal(generator, 256, 256)
    scanned = jax_.jit(lambda c: jax_.lax.scan(lambda c, _: (sgemm(a, c, 0.5, 0.5, c), None), c, None, 100)[0])(c)
    for _ in range(100):
        c = sgemm(a, c, 0.5, 0.5, c)
    np.testing.assert_array_equal(bits(scanned), bits(c))


def test_a_loop_with_parts_of_k_and_a_condition():
    generator = np.random.default_rng(4)
    a, b = normal(generator, 64, 4000), normal(generator, 4000, 64)
    wanted = sgemm(a, b, 2.0)

    @jax_.jit
    def f(a, b, n):
        step = lambda s: (s[0] + 1, jax_.lax.cond(s[0] > 0, lambda: sgemm(a, b, 2.0), lambda: s[1]))  # noqa: E731
        return jax_.lax.while_loop(lambda s: s[0] < n, step, (0, jnp.zeros((64, 64))))[1]

    np.testing.assert_array_equal(bits(f(a, b, 3)), bits(wanted))


def test_a_donated_c_is_updated_in_place():
    generator = np.random.default_rng(5)
    a, b, c = (normal(generator, 512, 512) for _ in range(3))
    place = c.unsafe_buffer_pointer()
    result = jax_.jit(lambda a, b, c: sgemm(a, b, 1.0, 1.0, c), donate_argnums=2)(a, b, c)
    assert c.is_deleted()
    assert result.unsafe_buffer_pointer() == place


def test_nothing_is_transferred():
    generator = np.random.default_rng(6)
    a, b = normal(generator, 300, 300), normal(generator, 300, 300)
    f = jax_.jit(sgemm)
    f(a, b)
    with jax_.transfer_guard("disallow"):
        f(a, b).block_until_ready()


def test_the_switch():
    generator = np.random.default_rng(7)
    a, b = normal(generator, 400, 500), normal(generator, 500, 300)
    f = jax_.jit(lambda a, b: jnp.matmul(a, b, precision="highest"))
    before = f(a, b)
    with fastsgemm.jax.enabled(batch_invariant=True) as on:
        np.testing.assert_array_equal(bits(f(a, b)), bits(sgemm(a, b, batch_invariant=True)))
        assert len(on.report().replaced) == 1
    np.testing.assert_array_equal(bits(f(a, b)), bits(before))


def test_the_default_precision_is_left_to_xla():
    a = normal(np.random.default_rng(8), 256, 256)
    with fastsgemm.jax.enabled() as on:
        jax_.jit(jnp.matmul)(a, a).block_until_ready()
    assert on.report().replaced == ()


def test_10_000_calls_need_no_more_memory():
    generator = np.random.default_rng(9)
    a, b = normal(generator, 64, 3000), normal(generator, 3000, 64)
    f = jax_.jit(sgemm)
    f(a, b).block_until_ready()
    used = jax_.local_devices()[0].memory_stats()["bytes_in_use"]
    for _ in range(10_000):
        result = f(a, b)
    result.block_until_ready()
    assert jax_.local_devices()[0].memory_stats()["bytes_in_use"] <= used + result.nbytes


def test_two_threads():
    generator = np.random.default_rng(10)
    operands = [(normal(generator, n, 300), normal(generator, 300, n)) for n in (200, 333)]
    wanted = [sgemm(*each) for each in operands]
    f, results = jax_.jit(sgemm), [None, None]

    def work(which):
        for _ in range(200):
            results[which] = f(*operands[which])

    run_all(work, 2)
    for result, right in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(bits(result), bits(right))


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from fastsgemm import sgemm
a = jax.random.normal(jax.random.key(0), (64, 3000))
b = jax.random.normal(jax.random.key(1), (3000, 64))
f = jax.jit(lambda a, b: sgemm(sgemm(a, b), sgemm(a, b)) + sgemm(a, b))
for _ in range(5):
    result = f(a, b)
p = sgemm(a, b)
assert (np.asarray(result) == np.asarray(sgemm(p, p) + p)).all()
"""


@pytest.mark.parametrize("flags", ["", "--xla_gpu_enable_command_buffer="])
def test_with_and_without_command_buffers(flags):
    subprocesses.run(PROGRAM, timeout=900, XLA_FLAGS=flags, XLA_PYTHON_CLIENT_PREALLOCATE="false")


@pytest.mark.parametrize("how", [{}, {"precision": "fp16x3"}, {"batch_invariant": True}], ids=str)
@pytest.mark.parametrize("n", [1, 130])
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, None), (None, 2)])
def test_declared_batches_that_share_an_operand(dims, n, how):
    one = normal(np.random.default_rng(13), n, n) / (4 * n**0.5)
    one = one + one.T
    square = jnp.matmul(one, one, precision="highest")
    many = jnp.stack([k * square + jnp.eye(n) for k in range(1, 4)])
    given = [one if dim is None else jnp.moveaxis(many, 0, dim) for dim in dims]
    wanted = np.matmul(*[np.asarray(one if dim is None else many, np.float64) for dim in dims])
    f = jax_.vmap(lambda a, b: sgemm(a, b, symmetric=True, **how), dims)
    for found in (f(*given), jax_.jit(f)(*given)):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(bits(found), bits(found).swapaxes(1, 2))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("lower", [0, 1])
def test_ssyrk(lower, traced):
    generator = np.random.default_rng(14)
    a, c = normal(generator, 130, 70), normal(generator, 130, 130)

    def ssyrk(a, c):
        return blas.ssyrk(1.5, a, 0.5, c, lower=lower)

    found = (jax_.jit(ssyrk) if traced else ssyrk)(a, c)
    kept = np.tri(130, dtype=bool) if lower else np.tri(130, dtype=bool).T
    exact = np.asarray(a, np.float64)
    wanted = np.where(kept, 1.5 * (exact @ exact.T) + 0.5 * np.asarray(c), c)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def test_gradients_on_a_mesh_with_explicit_axes():
    mesh = mesh_of_two(AxisType.Explicit)
    generator = np.random.default_rng(15)
    a, b = normal(generator, 256, 192), normal(generator, 192, 128)
    whole, rows, columns = PartitionSpec(), PartitionSpec("x"), PartitionSpec(None, "x")

    def results(multiply, *operands):
        gradient = jax_.grad(lambda a, b: jnp.sin(multiply(a, b) / 16).sum(), (0, 1))
        return jax_.jit(lambda a, b: (multiply(a, b), gradient(a, b)))(*operands)

    def highest(a, b):
        return jnp.matmul(a, b, precision="highest")

    with jax_.set_mesh(mesh):
        for of_a, of_b in ((rows, whole), (whole, columns), (columns, whole), (whole, rows), (rows, rows)):
            x, y = (
                jax_.device_put(each, jax_.sharding.NamedSharding(mesh, spec)) for each, spec in ((a, of_a), (b, of_b))
            )
            found, wanted = results(sgemm, x, y), results(highest, x, y)
            for one, other in zip(jax_.tree.leaves(found), jax_.tree.leaves(wanted), strict=True):
                assert str(jax_.typeof(one)) == str(jax_.typeof(other))
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_arrays_on_several_devices_need_jit():
    mesh = mesh_of_two()
    a = normal(np.random.default_rng(16), 256, 256)
    rows = jax_.device_put(a, jax_.sharding.NamedSharding(mesh, PartitionSpec("x")))
    for operands in ((rows, a), (a, rows)):
        with pytest.raises(DeviceMismatchError, match=r"jax\.jit\(fastsgemm\.sgemm\)"):
            sgemm(*operands)


def test_shard_map_on_two_devices():
    mesh = mesh_of_two()
    generator = np.random.default_rng(11)
    a, b = normal(generator, 600, 500), normal(generator, 500, 400)
    rows, whole = PartitionSpec("x"), PartitionSpec()
    f = jax_.jit(jax_.shard_map(sgemm, mesh=mesh, in_specs=(rows, whole), out_specs=rows))
    wanted = np.concatenate([np.asarray(sgemm(a[:300], b)), np.asarray(sgemm(a[300:], b))])
    np.testing.assert_array_equal(bits(f(a, b)), wanted.view(np.uint32))
    of_b = jax_.jit(jax_.grad(lambda b: f(a, b).sum()))(b)
    np.testing.assert_allclose(of_b, np.asarray(a, np.float64).T @ np.ones((600, 400)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("multiply", [sgemm, lambda a, b: jnp.matmul(a, b, precision="highest")])
def test_xla_divides_a_product_with_shardings(multiply):
    mesh = mesh_of_two()
    a = normal(np.random.default_rng(12), 256, 256)
    rows, columns = (
        jax_.device_put(a, jax_.sharding.NamedSharding(mesh, spec))
        for spec in (PartitionSpec("x"), PartitionSpec(None, "x"))
    )
    wanted = np.concatenate([np.asarray(sgemm(half, a)) for half in (a[:128], a[128:])])
    with fastsgemm.jax.enabled() as on:
        f = jax_.jit(multiply)
        np.testing.assert_array_equal(bits(f(rows, a)), wanted.view(np.uint32))
        in_parts = f(columns, rows)  # each device sums over half of K
    np.testing.assert_allclose(in_parts, wanted, rtol=1e-4, atol=1e-4)
    assert on.report().passed_on == ()
