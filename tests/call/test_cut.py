"""C is cut into two shares, on a device made of Python: what is launched, on which memory, and what may begin early."""

from itertools import product

import forced_choice
import numpy as np
import pytest

from fastsgemm import PipelinedConfig, SkinnyConfig, rungs, sgemm
from fastsgemm.errors import CaptureError

LARGE = PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1, CP_ASYNC=0)
SMALL = SkinnyConfig(BM=4, BN=32, BK=16, TN=4, TK=4)
M, N, K = 70, 75, 37
WAYS = [*product((0, 1), ((1, 1), (2, 1), (1, 2), (2, 2)))]  # the axis, and the parts of K of each share


@pytest.fixture
def cut(device, monkeypatch):
    """Return a function that lets every C be cut there, with parts of K for each share."""

    def at(axis, place, parts=(1, 1), which=(False, False)):
        first = rungs.find("pipelined"), LARGE.replace(SPLIT_K=parts[0])
        second = rungs.find("skinny"), SMALL.replace(SPLIT_K=parts[1])
        forced_choice.force(monkeypatch, forced_choice.cut(axis, place, first, second, which))
        device.forget_problems()

    return at


def stored(x, letter, padding):
    """The same matrix, column-major for T, whose lines are apart and begin at an odd address."""
    rows, columns = x.shape[::-1] if letter == "T" else x.shape
    lines = np.full((rows, columns + padding), np.nan, np.float32)[:, padding // 2 :][:, :columns]
    view = lines.T if letter == "T" else lines
    view[...] = x
    return view


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("of_c", ["N", "T"])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("axis", "parts"), WAYS)
def test_the_product_is_that_of_the_operands(device, on_device, random, cut, layout, of_c, padding, axis, parts):
    for which in ((False, False), (True, False), (False, True), (True, True)):
        cut(axis, 64, parts, which)
        A, B, C = random(M, K), random(K, N), stored(random(M, N), of_c, padding)
        wanted = 1.5 * (A.astype(np.float64) @ B) - 0.5 * C
        given = [on_device(stored(x, letter, padding)) for x, letter in zip((A, B), layout, strict=True)]
        device.launched.clear()
        device.early.clear()
        sgemm(*given, 1.5, -0.5, on_device(C))
        np.testing.assert_allclose(C, wanted, rtol=1e-5, atol=1e-4)
        # Only the second share and what adds up parts of K may begin before the launch before has ended.
        assert device.early == [False] * sum(which) + [False, True][: parts[0]] + [True] * parts[1]
    assert not device.leaks


@pytest.mark.parametrize("axis", [0, 1])
def test_the_partial_sums_of_both_shares_lie_apart(device, on_device, random, cut, axis):
    """The second share may write its own while those of the first are read."""
    cut(axis, 64, (2, 2))
    sgemm(on_device(random(M, K)), on_device(random(K, N)))
    (workspace,) = device.made
    first, second = ((int(given[9]), 4 * 2 * int(given[0]) * int(given[1])) for _, given in device.launched[::2])
    assert first[0] == workspace.address and first[0] + first[1] <= second[0]
    assert second[0] + second[1] <= workspace.address + workspace.size


SOURCES = {
    "matrix": lambda random: random(M, N),
    "column-major": lambda random: random(N, M).T,
    "backwards": lambda random: random(M, N)[::-1, ::-1],
    "row": lambda random: random(N),
    "column": lambda random: random(M, 1),
    "scalar": lambda random: random(1, 1),
    "every second": lambda random: random(2 * M, 2 * N)[::2, 1::2],
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("of_out", ["N", "T"])
@pytest.mark.parametrize(("axis", "parts"), WAYS)
def test_each_share_reads_its_own_part_of_a_source(device, on_device, random, cut, kind, of_out, axis, parts):
    cut(axis, 64, parts)
    A, B, source = random(M, K), random(K, N), SOURCES[kind](random)
    out = stored(np.full((M, N), np.nan, np.float32), of_out, 3)
    sgemm(on_device(A), on_device(B), 1.5, -0.5, on_device(source), out=on_device(out))
    np.testing.assert_allclose(out, 1.5 * (A.astype(np.float64) @ B) - 0.5 * source, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["repeated rows", "repeated columns", "backwards", "no unit stride", "strided C"])
def test_operands_of_any_strides(device, on_device, random, cut, axis, kind):
    cut(axis, 64, which=(True, True))
    A, B, C = random(M, K), random(K, N), random(M, N)
    if kind == "repeated rows":
        A, B = np.broadcast_to(A[:1], (M, K)), np.broadcast_to(B[:1], (K, N))
    elif kind == "repeated columns":
        A, B = np.broadcast_to(A[:, :1], (M, K)), np.broadcast_to(B[:, :1], (K, N))
    elif kind == "backwards":
        A, B, C = A[::-1], B[::-1], C[::-1]
    elif kind == "no unit stride":
        A, B = random(M, 2 * K)[:, ::2], random(K, 2 * N)[:, ::-2]
    else:
        C = random(2 * M, 2 * N)[::2, ::2]
    wanted = A.astype(np.float64) @ B + 2.0 * C
    sgemm(on_device(A), on_device(B), 1.0, 2.0, on_device(C))
    np.testing.assert_allclose(C, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_not_needed_is_not_read(device, on_device, random, cut, axis):
    cut(axis, 64, (2, 1), (True, True))
    A, B, C = (np.full(shape, np.nan, np.float32) for shape in ((M, K), (K, N), (M, N)))
    sgemm(on_device(random(M, K)), on_device(random(K, N)), 1.0, 0.0, on_device(C))
    assert np.isfinite(C).all()
    C[...] = 3.0
    sgemm(on_device(A), on_device(B), 0.0, 2.0, on_device(C))
    assert (C == 6.0).all()


@pytest.mark.parametrize("missing", ["pipelined", "skinny", "reduce_parts", "pack"])
def test_a_capture_without_all_kernels_fails_before_anything_is_launched(device, on_device, random, cut, missing):
    cut(0, 64, (1, 2), (True, False))
    given = on_device(random(M, K)), on_device(random(K, N))
    sgemm(*given)
    device.forget_problems()
    device.launched.clear()
    device.made.clear()
    (key,) = (key for key, found in device.kernels.items() if found.name == f"fastsgemm_{missing}")
    del device.kernels[key]
    device.capturing.add(5)
    with pytest.raises(CaptureError, match="not loaded yet"):
        sgemm(*given)
    assert device.launched == [] and device.made == []
