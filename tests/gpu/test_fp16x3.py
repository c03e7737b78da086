"""Rung 11 on a device, against float64: the promise of precision="fp16x3" on every input and in every layout."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsgemm import sgemm, split
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.variants import dense_operands
from fastsgemm.heuristics.choice import choose
from fastsgemm.problem import Problem
from fastsgemm.request import resolve

pytestmark = pytest.mark.gpu
HOW = {"rung": "fp16x3"}
UNIT = 2.0**-24  # float32's unit roundoff
SHAPES = [(300, 444, 130), (129, 65, 257), (17, 334, 2001), (500, 9, 1031), (1, 1, 1), (3, 5, 40), (16, 300, 33)]


def laid_out(torch, values, how):
    """The same values in another layout."""
    rows, columns = values.shape
    made = {
        "N": lambda: torch.full((rows, columns), 9.0, device="cuda"),
        "T": lambda: torch.full((columns, rows), 9.0, device="cuda").t(),
        "padded": lambda: torch.full((rows, columns + 5), 9.0, device="cuda")[:, 3:-2],
        "strided": lambda: torch.full((2 * rows, 3 * columns), 9.0, device="cuda")[::2, ::3],
    }[how]()
    return made.copy_(values)


def error(torch, found, a, b, alpha=1.0, beta=0.0, c=None):
    """The largest error in units of u (|alpha| |A| |B| + |beta| |C|)."""
    exact = alpha * (a.double() @ b.double())
    bound = abs(alpha) * (a.double().abs() @ b.double().abs())
    if beta:
        exact, bound = exact + beta * c.double(), bound + abs(beta) * c.double().abs()
    wrong = (found.double() - exact).abs()
    finite = torch.isfinite(exact)
    if not finite.any():
        return 0.0
    assert not torch.isnan(found[finite]).any()
    return float((wrong / bound.clamp_min(2.0**-126))[finite].max()) / UNIT


def relative(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.fixture
def normal(torch):
    torch.manual_seed(7)
    return lambda *shape: torch.randn(*shape, device="cuda")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_with_alpha_and_beta(torch, normal, shape):
    M, N, K = shape
    a, b, c = normal(M, K), normal(K, N), normal(M, N)
    for how_a, how_b, how_c in itertools.product(("N", "T", "padded"), ("N", "T", "strided"), ("N", "T", "padded")):
        A, B, C = laid_out(torch, a, how_a), laid_out(torch, b, how_b), laid_out(torch, c, how_c)
        sgemm(A, B, -1.5, 0.5, C, **HOW)
        assert error(torch, C, a, b, -1.5, 0.5, c) < 8, (how_a, how_b, how_c)
        if how_c == "padded":
            assert (C._base[:, :3] == 9).all() and (C._base[:, -2:] == 9).all()


def test_no_element_is_left_out_and_c_is_not_read(torch, gpu, normal):
    for (M, N, K), split_sides in itertools.product(SHAPES, ("", "A", "B", "AB")):
        # Named, because an operand that was split beforehand may get another config, and so other bits.
        how = HOW | {"config": choose(gpu, resolve("fp16x3"), *dense_operands(Problem(M, N, K))).config}
        a, b = normal(M, K), normal(K, N)
        C = torch.full((M, N), float("nan"), device="cuda")
        A = split(a, "A") if "A" in split_sides else a
        B = split(b, "B") if "B" in split_sides else b
        sgemm(A, B, C=C, **how)
        assert error(torch, C, a, b) < 8
        assert torch.equal(C, sgemm(a, b, **how))


@pytest.mark.parametrize("shape", [*SHAPES, (64, 1030, 1500)], ids=str)
def test_a_source_is_read_in_place_of_c(torch, normal, shape):
    """Also by the guard, in a C whose old elements are NaN."""
    M, N, K = shape
    a, b, c = normal(M, K), normal(K, N), normal(M, N)
    a[0, 0], a[M // 2, ::3], b[K // 2, 0], b[::5, N - 1] = 1e-20, 1e-15, 1e-18, 1e-15
    for source in (c, c[0], c[:, :1], *(laid_out(torch, c, how) for how in ("T", "padded", "strided"))):
        for how, (alpha, beta) in itertools.product(("N", "T", "padded"), ((1.5, -0.5), (1.0, 1.0))):
            D = laid_out(torch, torch.full_like(c, float("nan")), how)
            sgemm(a, b, alpha, beta, source, out=D, **HOW)
            assert error(torch, D, a, b, alpha, beta, source) < 8
            sgemm(a, b, 0.0, beta, source, out=D, **HOW)
            assert torch.equal(D, (beta * source).expand(M, N))


def test_small_and_no_k(torch, normal):
    for K in (0, 1, 2, 3, 4, 31, 32, 33, 64):
        a, b, c = normal(140, K), normal(K, 150), normal(140, 150)
        C = c.clone()
        sgemm(a, b, 1.0, 0.5, C, precision="fp16x3")
        assert error(torch, C, a, b, 1.0, 0.5, c) < 6
        assert error(torch, sgemm(a, b, rung="fp16x3"), a, b) < 8
    C = c.clone()
    sgemm(torch.full((140, 9), float("nan"), device="cuda"), normal(9, 150), 0.0, 0.5, C, **HOW)
    assert torch.equal(C, 0.5 * c)


INPUTS = {
    "normal": lambda t, a, b: None,
    "uniform": lambda t, a, b: (a.uniform_(-1, 1), b.uniform_(-1, 1)),
    "positive": lambda t, a, b: (a.abs_(), b.abs_()),
    "lognormal": lambda t, a, b: (a.mul_(5).exp_(), b.mul_(5).exp_()),
    "scaled rows and columns": lambda t, a, b: (
        a.mul_(t.exp2(t.linspace(-100, 20, a.shape[0], device="cuda"))[:, None]),
        b.mul_(t.exp2(t.linspace(-20, 100, b.shape[1], device="cuda"))[None]),
    ),
    "graded": lambda t, a, b: (
        a.mul_(t.exp2(t.linspace(-40, 40, a.shape[1], device="cuda"))[None]),
        b.mul_(t.exp2(-t.linspace(-40, 40, b.shape[0], device="cuda"))[:, None]),
    ),
    "one huge element a row": lambda t, a, b: a[:, 3].mul_(1e9),
    "a few small ones": lambda t, a, b: (a[::37, 9].fill_(1e-12), b[9, ::50].fill_(3e-13), b[33, ::50].fill_(3e-10)),
    "zero lines": lambda t, a, b: (a[5:9].zero_(), b[:, 7].zero_()),
    "subnormal": lambda t, a, b: (a.mul_(1e-41), b.mul_(1e4)),
}


@pytest.mark.parametrize("K", [128, 256, 1000, 4096])
@pytest.mark.parametrize("kind", INPUTS)
def test_the_error_is_at_most_that_of_ieee(torch, normal, kind, K):
    a, b = normal(515, K), normal(K, 770)
    INPUTS[kind](torch, a, b)
    exact = a.double() @ b.double()
    found, plain = sgemm(a, b, **HOW), sgemm(a, b, rung="vectorized")  # one chain of FMAs
    assert error(torch, found, a, b) <= 100 + K / 64
    assert relative(found, exact) <= 1.02 * relative(plain, exact)


@pytest.mark.parametrize("sides", ["", "A", "B", "AB"])
def test_infinities_and_nans_go_where_ieee_arithmetic_puts_them(torch, normal, sides):
    a, b = normal(400, 300), normal(300, 500)
    a[70, 5], a[300, 7], b[11, 200], b[12, 201], a[399, 299] = (float(x) for x in ("nan", "inf", "-inf", "nan", "inf"))
    A, B = split(a, "A") if "A" in sides else a, split(b) if "B" in sides else b
    found, exact = sgemm(A, B, **HOW), a.double() @ b.double()
    assert torch.equal(torch.isnan(found), torch.isnan(exact))
    assert torch.equal(found[torch.isinf(exact)].double(), exact[torch.isinf(exact)])
    assert error(torch, found, a, b) < 8


def test_finite_results_do_not_overflow_on_the_way(torch, normal):
    a, b = normal(200, 150).clamp(-3, 3) * 1e37, normal(150, 200) * 1e-3
    assert error(torch, sgemm(a, b, **HOW), a, b) < 8
    assert error(torch, sgemm(a, 100 * b, 1e-6, **HOW), a, 100 * b, float(np.float32(1e-6))) < 8


def test_a_hundred_calls_give_the_same_bits(torch, normal):
    for M, N, K in ((1000, 968, 1112), (16, 512, 4096)):
        a, b = normal(M, K), normal(K, N)
        first = sgemm(a, b, **HOW)
        other = torch.cuda.Stream()
        for number in range(100):
            with torch.cuda.stream(other):
                torch.mm(b, b.t())
            again = sgemm(a, split(b) if number % 10 == 0 else b, **HOW)
            assert torch.equal(first, again)


def test_streams_and_a_split_on_another(torch, normal, make_busy):
    a, b = normal(512, 1024), normal(1024, 700)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    one.wait_stream(torch.cuda.current_stream())
    two.wait_stream(torch.cuda.current_stream())
    make_busy(one.cuda_stream)
    S = split(b, stream=one)
    with torch.cuda.stream(two):
        found = sgemm(a, S, **HOW)
    del S
    junk = [torch.full((2**20,), float("nan"), device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    assert error(torch, found, a, b) < 8 and len(junk) == 8


def test_capture_and_replay(torch, normal):
    a, b = normal(300, 1000), normal(1000, 500)
    C = torch.zeros(300, 500, device="cuda")
    S = split(b)
    for B in (b, S):
        sgemm(a, B, C=C, **HOW)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sgemm(a, B, C=C, **HOW)
        for _ in range(3):
            a.normal_()
            a[3, 4] = 1e-20
            C.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert error(torch, C, a, b) < 8


def test_panels(torch, normal, monkeypatch, gpu):
    a, b, c = normal(1700, 700), normal(700, 1600), normal(1700, 1600)
    a[900, 3], b[5, 800] = float("inf"), 1e-20
    whole = c.clone()
    sgemm(a, b, 2.0, 0.5, whole, **HOW)
    monkeypatch.setattr(geometry.panels, "__defaults__", (geometry.LINE_BYTES * 22 * 1600,))
    gpu.forget_problems()
    parts = c.clone()
    sgemm(a, b, 2.0, 0.5, parts, **HOW)
    gpu.forget_problems()
    keep = torch.arange(1700, device="cuda") != 900
    assert error(torch, parts[keep], a[keep], b, 2.0, 0.5, c[keep]) < 8
    assert torch.equal(torch.isfinite(whole), torch.isfinite(parts))


def test_spans_beyond_2_31(torch, normal, room):
    M, N, K = 70016, 40000, 96
    a, b = normal(M, K), normal(K, N)
    a[69999, 3] = 1e-12
    C = sgemm(a, b, **HOW)
    rows = torch.tensor([0, 53687, 53688, 60001, 69999, 70015], device="cuda")
    assert error(torch, C[rows], a[rows], b) < 8
    del C
    wide = torch.zeros(40, 2**26 + 8, device="cuda")  # 2.7e9 floats
    wide[:, :K].copy_(a[:40])
    assert error(torch, sgemm(wide[:, :K], b[:, :300], **HOW), a[:40], b[:, :300]) < 8


def test_host_arrays_and_other_libraries(torch, random):
    a, b = random(200, 300), random(300, 100)
    found = sgemm(a, b, **HOW)
    exact = a.astype(np.float64) @ b
    assert np.abs(found - exact).max() <= 8 * UNIT * (np.abs(a) @ np.abs(b)).max()
    cupy = pytest.importorskip("cupy")
    S = split(cupy.asarray(b))
    np.testing.assert_array_equal(cupy.asnumpy(sgemm(cupy.asarray(a), S, **HOW)), found)
    np.testing.assert_array_equal(sgemm(torch.from_numpy(a).cuda(), S, **HOW).cpu().numpy(), found)


@settings(max_examples=60)
@given(
    st.integers(1, 200), st.integers(1, 200), st.integers(1, 700), st.integers(0, 2**31),
    st.sampled_from(["normal", "wide", "graded", "sparse", "subnormal"]),
)  # fmt: skip
def test_the_bound(M, N, K, seed, kind):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no device")
    torch.manual_seed(seed)
    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    if kind == "wide":
        a, b = a * torch.exp2(16 * torch.randn_like(a)), b * torch.exp2(16 * torch.randn_like(b))
    elif kind == "graded":
        steps = torch.exp2(torch.linspace(-30, 30, K, device="cuda"))
        a, b = a * steps, b / steps[:, None]
    elif kind == "sparse":
        a, b = a * (torch.rand_like(a) < 0.1), b * torch.exp2(-40 * (torch.rand_like(b) < 0.01))
    elif kind == "subnormal":  # most products are
        a, b = a * torch.exp2(-75 + 12 * torch.randn_like(a)), b * 2.0**-75
    # K / 2 + 1 times the smallest subnormal number, in the units in which `error` counts where all is tiny.
    underflow = K + 2 if kind == "subnormal" else 0
    assert error(torch, sgemm(a, b, **HOW), a, b) <= 100 + K / 64 + underflow
    if K < 128:
        assert error(torch, sgemm(a, b, precision="fp16x3"), a, b) <= 6 + underflow


def test_rung_11_is_taken_for_large_products(torch, normal, gpu):
    gpu.forget_problems()
    sgemm(normal(2048, 2048), normal(2048, 2048), precision="fp16x3")
    [loaded] = gpu.prepared.values()
    taken = any("fp16x3" in launch.kernel.file for launch in loaded.plan.launches)
    assert taken == (gpu.arch in ("sm_80", "sm_90", "sm_100"))
