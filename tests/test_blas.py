"""`fastsgemm.blas.sgemm` beside the definition of SGEMM, and beside SciPy's where SciPy is installed."""

import numpy as np
import pytest

from fastsgemm import blas
from fastsgemm.errors import ArgumentError, DTypeError, OperandError, ShapeError

pytestmark = pytest.mark.usefixtures("on_host")

TRANSPOSED = [(0, 0), (1, 0), (0, 1), (2, 2)]


@pytest.fixture
def operands(random):
    """Return a function that makes a and b of the shapes that op(a) = (3, 4) and op(b) = (4, 5) have, and c."""
    return lambda ta, tb: (random(*((4, 3) if ta else (3, 4))), random(*((5, 4) if tb else (4, 5))), random(3, 5))


def product(alpha, a, b, beta, c, ta, tb):
    a, b = a.T if ta else a, b.T if tb else b
    return alpha * (a.astype(np.float64) @ b) + beta * c


@pytest.mark.parametrize(("ta", "tb"), TRANSPOSED)
def test_the_definition(operands, ta, tb):
    a, b, c = operands(ta, tb)
    old = c.copy()
    found = blas.sgemm(2.0, a, b, 0.5, c, ta, tb)
    np.testing.assert_allclose(found, product(2.0, a, b, 0.5, c, ta, tb), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(c, old)
    np.testing.assert_allclose(
        blas.sgemm(2.0, a, b, trans_a=ta, trans_b=tb), product(2.0, a, b, 0, c, ta, tb), rtol=1e-5
    )


@pytest.mark.parametrize(("ta", "tb"), TRANSPOSED)
def test_scipy(operands, ta, tb):
    scipy = pytest.importorskip("scipy.linalg.blas")
    a, b, c = operands(ta, tb)
    for more in ({}, {"beta": 0.5, "c": c}):
        given = {"trans_a": ta, "trans_b": tb, **more}
        np.testing.assert_allclose(
            blas.sgemm(2.0, a, b, **given), scipy.sgemm(2.0, a, b, **given), rtol=1e-5, atol=1e-6
        )


def test_overwrite_c(operands):
    a, b, c = operands(0, 0)
    wanted = product(1.0, a, b, 1.0, c, 0, 0)
    assert blas.sgemm(1.0, a, b, 1.0, c, overwrite_c=1) is c
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-6)


def test_torch(operands, torch):
    a, b, c = map(torch.from_numpy, operands(1, 0))
    old = c.clone()
    found = blas.sgemm(1.0, a, b, 1.0, c, trans_a=1)
    torch.testing.assert_close(found, a.T @ b + old)
    assert torch.equal(c, old)


def test_on_a_device(device, on_device, random):
    a, b = random(3, 4), random(4, 5)
    found = blas.sgemm(1.0, on_device(a), on_device(b))
    np.testing.assert_allclose(found.values, a @ b, rtol=1e-5)


def triangle_of(n, lower):
    kept = np.tri(n, dtype=bool)
    return kept if lower else kept.T


@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_ssyrk_is_that_of_scipy(random, trans, lower, beta):
    scipy = pytest.importorskip("scipy.linalg.blas")
    a, c = random(*((9, 6) if trans else (6, 9))), random(6, 6)
    old = c.copy()
    for more in ({}, {"beta": beta, "c": c}):
        given = {"trans": trans, "lower": lower, **more}
        wanted = scipy.ssyrk(2.0, a, **{**given, "trans": int(trans > 0)})
        found = blas.ssyrk(2.0, a, **given)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        untouched = ~triangle_of(6, lower)
        np.testing.assert_array_equal(found[untouched], wanted[untouched])
    np.testing.assert_array_equal(c, old)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("lower", [0, 1])
def test_ssyrk_overwrites_one_triangle(random, lower, order):
    a, c = random(6, 9), np.asarray(random(6, 6), order=order)
    wanted = np.where(triangle_of(6, lower), 1.5 * (a @ a.T) - c, c)
    assert blas.ssyrk(1.5, a, -1.0, c, 0, lower, overwrite_c=1) is c
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lower", [False, True])
def test_ssyrk_of_tensors(random, torch, lower):
    a, c = torch.from_numpy(random(6, 9)), torch.from_numpy(random(6, 6))
    kept = torch.from_numpy(triangle_of(6, lower).copy())
    found = blas.ssyrk(2.0, a, 1.0, c, lower=lower)
    torch.testing.assert_close(found, torch.where(kept, 2 * a @ a.T + c, c))
    torch.testing.assert_close(blas.ssyrk(2.0, a, lower=lower), torch.where(kept, 2 * a @ a.T, torch.zeros(6, 6)))


def test_ssyrk_on_the_simulated_device(random, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    a, c = random(70, 20), random(70, 70)
    for lower in (0, 1):
        found = blas.ssyrk(1.5, a, 0.5, c, lower=lower)
        wanted = np.where(triangle_of(70, lower), 1.5 * (a @ a.T) + 0.5 * c, c)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_ssyrk_refuses(random, on_device):
    a = random(6, 9)
    with pytest.raises(ArgumentError, match="trans must be 0, 1 or 2, got 'T'"):
        blas.ssyrk(1.0, a, trans="T")
    with pytest.raises(ShapeError, match=r"a must have 2 dimensions to be transposed, got \(9,\); fastsgemm.sgemm"):
        blas.ssyrk(1.0, a[0])
    with pytest.raises(ShapeError, match=r"C must have shape \(6, 6\)"):
        blas.ssyrk(1.0, a, 1.0, random(9, 9))
    with pytest.raises(OperandError, match=r"a \(OnDevice\) has no .T, which is needed; fastsgemm.sgemm"):
        blas.ssyrk(1.0, on_device(a), trans=1)


def test_refusals(operands, on_device):
    a, b, c = operands(0, 0)
    with pytest.raises(ArgumentError, match="trans_b must be 0, 1 or 2, got 'T'"):
        blas.sgemm(1.0, a, b, trans_b="T")
    with pytest.raises(OperandError, match=r"a \(OnDevice\) has no .T.*pass it transposed and trans_a=0"):
        blas.sgemm(1.0, on_device(a), b, trans_a=1)
    with pytest.raises(OperandError, match=r"c \(OnDevice\) has no .copy\(\)"):
        blas.sgemm(1.0, a, b, 1.0, on_device(c))
    with pytest.raises(DTypeError, match="A must be float32"):
        blas.sgemm(1.0, a.astype(np.float64), b)
    with pytest.raises(ShapeError):
        blas.sgemm(1.0, a, b, 1.0, c.T)
    with pytest.raises(
        ShapeError, match=r"a must have 2 dimensions to be transposed, got \(2, 4, 4\)"
    ):  # .T has (4, 4, 2)
        blas.sgemm(1.0, np.ones((2, 4, 4), np.float32), np.ones((4, 4, 4), np.float32), trans_a=1)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("overwrite", [0, 1])
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("trans", [0, 1])
def test_ssyrk_of_immutable_arrays(random, trans, lower, overwrite, traced):
    """The result is new, and its other triangle is that of c."""
    jax = pytest.importorskip("jax")
    a, c = random(4, 6), random(6, 6) if trans else random(4, 4)
    c[0, 1] = c[1, 0] = np.nan  # of which one is not read
    options = {"trans": trans, "lower": lower}
    for given, beta in (({}, 0.0), ({"c": c}, 0.0), ({"c": c}, 0.5)):
        wanted = blas.ssyrk(1.5, a, beta, **given, **options)

        def call(a, c=None, beta=beta):
            return blas.ssyrk(1.5, a, beta, c, **options, overwrite_c=overwrite)

        operands = [jax.numpy.asarray(x) for x in (a, *given.values())]
        found = (jax.jit(call) if traced else call)(*operands)
        assert isinstance(found, jax.Array)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        if traced and given:
            np.testing.assert_allclose(
                jax.jit(lambda a, call=call: call(a, c))(operands[0]), wanted, rtol=1e-5, atol=1e-6
            )
