"""A and B of a product are packed before it, on a device made of Python: what is launched, and when it is not."""

import numpy as np
import pytest
from forced_choice import force

from fastsgemm import PipelinedConfig, rungs, sgemm

CONFIG = PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1, CP_ASYNC=0)
M, N, K = 45, 38, 21


@pytest.fixture
def choose(monkeypatch):
    """Return a function that makes the heuristics pack A, B or both, and split K into so many parts."""

    def choose(which, parts=1):
        force(monkeypatch, rungs.find("pipelined"), CONFIG.replace(SPLIT_K=parts), which)

    return choose


def stored(x, letter):
    """The same matrix, column-major for T, with an odd leading dimension."""
    padded = np.full((max(x.shape), max(x.shape) + 1), np.nan, np.float32)
    view = padded.T[: x.shape[0], : x.shape[1]] if letter == "T" else padded[: x.shape[0], : x.shape[1]]
    view[...] = x
    return view


@pytest.mark.parametrize("which", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("column_major", [False, True])
def test_the_product_is_that_of_the_operands(device, on_device, random, choose, which, layout, parts, column_major):
    choose(which, parts)
    A, B = random(M, K), random(K, N)
    C = random(N, M).T if column_major else random(M, N)
    wanted = 1.5 * (A.astype(np.float64) @ B) - 0.5 * C
    sgemm(*(on_device(stored(x, letter)) for x, letter in zip((A, B), layout, strict=True)), 1.5, -0.5, on_device(C))
    np.testing.assert_allclose(C, wanted, rtol=1e-5, atol=1e-5)
    assert len(device.launched) == sum(which) + parts  # with two parts, another kernel adds them up
    assert not device.leaks


def test_an_operand_that_is_not_read_is_not_packed(device, on_device, random, choose):
    choose((True, True))
    A, B, C = (np.full(shape, np.nan, np.float32) for shape in ((M, K), (K, N), (M, N)))
    C[...] = 3.0
    sgemm(on_device(A), on_device(B), 0.0, 2.0, on_device(C))
    assert (C == 6.0).all() and len(device.launched) == 1


def test_a_rung_that_is_named_gets_the_operands_as_they_lie(device, on_device, random, choose):
    choose((True, True))
    sgemm(on_device(random(M, K)), on_device(random(K, N)), rung="pipelined")
    sgemm(on_device(random(M, K)), on_device(random(K, N)), config=CONFIG)
    assert len(device.launched) == 2


def test_a_later_call_packs_what_the_operands_hold_then(device, on_device, random, choose):
    choose((True, True))
    A, B = random(M, K), random(K, N)
    for _ in range(2):
        A += 1.0
        np.testing.assert_allclose(sgemm(on_device(A), on_device(B)).values, A @ B, rtol=1e-4, atol=1e-4)
    assert device.compiled.count("pack") == 1
