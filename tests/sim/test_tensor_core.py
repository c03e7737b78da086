"""The model of a tensor core's sum, against rational numbers; exchanges between lanes and atomics, on small kernels."""

from fractions import Fraction

import numpy as np
import pytest

from fastsgemm.sim import Machine, Region, tensor_core
from fastsgemm.sim.errors import BarrierError, RaceError


def towards_zero(x):
    """Return the largest float32 that is at most a positive rational number."""
    nearest = np.float32(float(x))
    return nearest if Fraction(float(nearest)) <= x else np.nextafter(nearest, np.float32(0))


def test_sums_are_truncated_once():
    """Of magnitudes that float64 adds exactly, so that the reference is the exact sum."""
    draw = np.random.default_rng(1)
    a, b = (draw.uniform(0.5, 2, (2, 8, 16)).astype(np.float16) for _ in range(2))
    c = draw.uniform(0.5, 2, (2, 8, 8)).astype(np.float32)
    found = tensor_core.multiply_add(a, b, c)
    for t, m, n in np.ndindex(c.shape):
        exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[t, m], b[t, n], strict=True))
        assert found[t, m, n] == towards_zero(exact + Fraction(float(c[t, m, n])))
    np.testing.assert_array_equal(tensor_core.multiply_add(-a, b, -c), -found)


def test_what_is_no_number():
    a, b = np.zeros((1, 2, 16), np.float16), np.zeros((1, 1, 16), np.float16)
    a[0, 0, 3], a[0, 1, 4], b[0, 0, 4] = np.inf, np.inf, 1
    found = tensor_core.multiply_add(a, b, np.zeros((1, 2, 1), np.float32))
    assert found.view(np.uint32)[0, 0, 0] == 0x7FFFFFFF  # infinity times zero
    assert found[0, 1, 0] == np.inf


@pytest.fixture
def run():
    """Launch a kernel of unsigned x and y with an entry a thread; return y."""

    def go(body, x, block=64):
        x, y = np.asarray(x, np.uint32), np.zeros(block, np.uint32)
        head = 'extern "C" __global__ void kernel(const unsigned* x, unsigned* y) {\nconst int t = threadIdx.x;\n'
        text = head + body + "\n}"
        operands = {"x": Region(x), "y": Region(y, write=True)}
        Machine("sm_90").launch(text, "kernel", 1, block, 0, ["x", "y"], operands)
        return y

    return go


def test_shuffles_and_votes(run):
    x = np.random.default_rng(0).integers(0, 1 << 32, 64, dtype=np.uint32)
    warps = x.reshape(2, 32)
    np.testing.assert_array_equal(
        run("y[t] = __shfl_xor_sync(~0u, x[t], 5);", x), warps[:, np.arange(32) ^ 5].reshape(-1)
    )
    np.testing.assert_array_equal(run("y[t] = __shfl_sync(~0u, x[t], 7);", x), np.repeat(warps[:, 7], 32))
    bits = [sum(int(v & 1) << i for i, v in enumerate(warp)) for warp in warps]
    np.testing.assert_array_equal(run("y[t] = __ballot_sync(~0u, x[t] & 1);", x), np.repeat(bits, 32))
    np.testing.assert_array_equal(run("y[t] = __any_sync(~0u, t == 40);", x), np.repeat([0, 1], 32))
    np.testing.assert_array_equal(run("y[t] = __syncthreads_or(t == 40);", x), np.ones(64))
    np.testing.assert_array_equal(run("y[t] = __clz(x[t]) + 100 * __ffs(x[t]);", x), [
        32 - int(v).bit_length() + 100 * (int(v) & -int(v)).bit_length() for v in x
    ])  # fmt: skip
    np.testing.assert_array_equal(run("y[t] = __popc(x[t]);", x), [int(v).bit_count() for v in x])
    with pytest.raises(BarrierError, match="does not take part"):
        run("if (t % 2) y[t] = __shfl_xor_sync(~0u, x[t], 1);", x)


def test_atomics_of_a_block(run):
    text = "__shared__ unsigned s[2];\nif (t < 2) s[t] = 0;\n__syncthreads();\n"
    text += "atomicAdd(&s[0], x[t]); atomicMax(&s[1], x[t]);\n__syncthreads();\ny[t] = s[t % 2];"
    x = np.arange(64)[::-1]
    np.testing.assert_array_equal(run(text, x), np.tile([x.sum(), 63], 32))
    for after in ("= 0;\n__syncthreads();", "x[t]);\n__syncthreads();"):
        with pytest.raises(RaceError, match="since the last barrier"):
            run(text.replace(after, after.removesuffix("__syncthreads();")), x)


def test_atomics_of_global_memory(run):
    np.testing.assert_array_equal(run("atomicAdd(&y[t % 4], x[t]);", np.arange(64))[:4], [480, 496, 512, 528])
    with pytest.raises(RaceError, match="updated"):
        run("atomicAdd(&y[0], 1u); if (t == 40) y[0] = 7;", np.zeros(64))
    with pytest.raises(RaceError, match="wrote"):
        run("if (t == 40) y[0] = 7; atomicAdd(&y[0], 1u);", np.zeros(64))
    text = "if (t == 0) atomicAdd(y, 1u);\n__syncthreads();\nif (t == 40) { atomicAdd(y, 1u); y[1] = y[0]; }"
    assert run(text, np.zeros(64))[1] == 2  # what a barrier has ordered is no race for the thread that updates next
    with pytest.raises(RaceError, match="and others updated"):
        run(text.replace("__syncthreads();", ""), np.zeros(64))
