"""Packed operands: the bits of the product, and the gaps between the elements of strided ones untouched."""

import itertools

import forced_choice
import pytest

from fastsgemm import rungs, sgemm
from fastsgemm.errors import DeviceMemoryError
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.problem import Problem
from fastsgemm.rungs import IEEE

pytestmark = pytest.mark.gpu

GUARD = 12345.0


def strided(values, wanted):
    """Return (view, buffer) with gaps of GUARD between the elements if `wanted`, else as it is."""
    if not wanted:
        return values.clone(), None
    rows, columns = values.shape
    buffer = values.new_full((3 * rows, 2 * columns), GUARD)
    view = buffer[1::3, 1::2]
    view.copy_(values)
    return view, buffer


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_every_mix_of_strided_operands(torch, rung):
    """Whole numbers: every order of additions gives the same bits."""
    a, b, c = (torch.randint(-4, 5, shape, device="cuda").float() for shape in ((67, 35), (35, 130), (67, 130)))
    for alpha, beta in ((1.0, 0.0), (-1.5, 0.5), (0.0, 2.0)):
        expected = sgemm(a, b, alpha, beta, c.clone(), rung=1)
        for which in itertools.product((False, True), repeat=3):
            (A, _), (B, _), (C, buffer) = (strided(x, w) for x, w in zip((a, b, c), which, strict=True))
            if beta == 0:
                C.fill_(float("nan"))
            assert sgemm(A, B, alpha, beta, C, rung=rung.number) is C
            assert torch.equal(C, expected), (alpha, beta, which)
            C.fill_(GUARD)
            assert buffer is None or (buffer == GUARD).all(), (alpha, beta, which)


def test_strided_operands_that_are_not_read(torch):
    nan = torch.full((40, 40), float("nan"), device="cuda")[::2, ::2]
    c = torch.randn(40, 40, device="cuda")
    expected = 2 * c[::2, ::2]
    sgemm(nan, nan, 0.0, 2.0, c[::2, ::2])
    assert torch.equal(c[::2, ::2], expected)


def test_broadcast_scalars(torch):
    two = torch.full((1, 1), 2.0, device="cuda").expand(50, 50)
    assert (sgemm(two, two) == 200).all()


def test_strided_and_empty(torch):
    x = torch.ones(8, 8, device="cuda")[::2, ::2]
    c = torch.ones(8, 8, device="cuda")[::2, ::2]
    sgemm(x[:, :0], x[:0], 1.0, 3.0, c)
    assert (c == 3).all()
    assert sgemm(x[:0], x).shape == (0, 4)


def test_more_than_the_device_can_hold_is_an_error_that_leaves_c_and_the_device_alone(torch):
    one = torch.ones(1, 1, device="cuda")
    A, B = one.expand(400_000, 400_000), torch.ones(400_000, 1, device="cuda")
    C = torch.full((400_000, 1), 7.5, device="cuda")
    with pytest.raises(DeviceMemoryError, match=r"has no room for packed copies of .* 640000000000 bytes are needed"):
        sgemm(A, B, C=C)
    assert (C == 7.5).all()
    assert (sgemm(one.expand(50, 50), one.expand(50, 50)) == 50).all()


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("M", "N", "K"), [(1023, 2049, 515), (4099, 130, 1031), (64, 64, 4097)])
def test_packing_changes_no_bit(torch, gpu, monkeypatch, layout, M, N, K):
    """Every way of packing, with the config of the unpacked product."""
    a, b = (
        torch.randn(shape[::-1], device="cuda").t() if letter == "T" else torch.randn(shape, device="cuda")
        for shape, letter in zip(((M, K), (K, N)), layout, strict=True)
    )
    rung = rungs.find("pipelined")
    config = choose_config(gpu, rung, Problem(M, N, K, layout)).config
    expected = sgemm(a, b, config=config)
    for which in itertools.product((False, True), repeat=2):
        forced_choice.force(monkeypatch, rung, config, which)
        gpu.forget_problems()
        c = torch.full((M, N), float("nan"), device="cuda")
        assert torch.equal(sgemm(a, b, C=c), expected), which
    gpu.forget_problems()
