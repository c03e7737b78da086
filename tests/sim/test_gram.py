"""A A^T from end to end on the simulated device: the bits of whole products, half the FMAs, exact symmetry."""

import numpy as np
import pytest
import rung_11
from msgspec.structs import replace

import fastsgemm
from fastsgemm import rungs
from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig, PipelinedConfig
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.problem import Sym
from fastsgemm.request import Request, resolve
from fastsgemm.sim.gemm import multiply

SMALL = PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1, GROUP_M=2)
QUICK_STEPS = PipelinedConfig(16, 16, 32, 1, 4, 8, 16, 1)
HOW = {
    "pipelined": (resolve(config=SMALL), "sm_90"),
    "split-K": (resolve(config=SMALL.replace(SPLIT_K=2)), "sm_90"),
    "batch_invariant": (resolve(config=QUICK_STEPS.replace(SPLIT_K=2), batch_invariant=True), "sm_90"),
    "wgmma": (resolve(config=Fp16x3Config(BM=64, BN=16, STAGES=4)), "sm_90"),
    "wgmma, split-K": (resolve(config=Fp16x3Config(BM=128, BN=32, STAGES=5, SPLIT_K=2)), "sm_90"),
    "mma": (resolve(config=Fp16x3MmaConfig(64, 64, 32, 32, 4, 8)), "sm_80"),
}


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def as_stored(x, order):
    """Return matrices with rows (C) or columns (F) of their own, or with neither (S)."""
    if order == "F":
        return x.swapaxes(-1, -2).copy("C").swapaxes(-1, -2)
    return np.repeat(x, 2, axis=-1)[..., ::2] if order == "S" else x.copy("C")


def run(how, A, B, C, alpha=0.7, beta=0.0, source=None):
    """Compute a product; return the bytes that kernels stored in C, and the FMAs of all kernels."""
    request, arch = HOW[how]
    reports = multiply(request, A, B, C, alpha, beta, source, rung_11.machine(arch))
    total = [report.total for _, report in reports]
    stored = sum(each.stores["C"].bytes for each in total if "C" in each.stores)
    return stored, sum(each.thread_fmas for each in total)


def same_bits(found, expected):
    np.testing.assert_array_equal(
        np.ascontiguousarray(found).view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    )


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("order_a", "order_c"), [("C", "C"), ("F", "C"), ("S", "F"), ("C", "F"), ("F", "S")])
@pytest.mark.parametrize(("batch", "beta"), [((), 0.0), ((), -1.5), ((2,), 0.5)])
def test_one_triangle_has_the_bits_of_the_whole_product(how, order_a, order_c, batch, beta):
    A = as_stored(drawn(*batch, 97, 140), order_a)
    C = as_stored(drawn(*batch, 97, 97, seed=2), order_c)
    if not beta:
        C[...] = np.nan
    whole, K = as_stored(C, order_c), A.shape[-1]
    stored, fmas = run(how, A, A.swapaxes(-1, -2), C, beta=beta)
    _, all_fmas = run(how, A, as_stored(A, order_a).swapaxes(-1, -2), whole, beta=beta)
    if "mma" not in how:
        same_bits(C, whole)  # which sums across the diagonal in the same order
        assert fmas < 0.75 * all_fmas
    exact = 0.7 * (A.astype(np.float64) @ A.swapaxes(-1, -2))
    if not beta:
        same_bits(C, C.swapaxes(-1, -2))
        assert np.abs(C - exact).max() < 1e-6 * K
    if order_c != "S":
        assert stored == C.nbytes  # each element once


@pytest.mark.parametrize("how", ["pipelined", "wgmma"])
def test_a_source_that_is_not_symmetric(how):
    A, S, C = drawn(70, 40), drawn(70, seed=3), np.full((70, 70), np.nan, np.float32)
    run(how, A, A.T, C, 1.0, 2.0, S)
    alone = np.full((70, 70), np.nan, np.float32)
    run(how, A, A.T, alone, 1.0)
    np.testing.assert_allclose(C, alone + 2 * S, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("sym", [Sym.BOTH, Sym.LOWER, Sym.UPPER])
def test_panels_of_rung_11(sym, monkeypatch):
    """An operand that is too large is split in parts, and the result has the bits of one that is not."""
    A, before, machine = drawn(70, 96), drawn(70, 70, seed=2), rung_11.machine("sm_90")
    A[3, 5], A[68, :9], A[66, 7] = 1e-20, 1e-15, 1e-18
    asked = resolve(config=Fp16x3Config(BM=64, BN=16, STAGES=4))
    C, whole = before.copy(), np.empty_like(before)
    multiply(asked, A, A.T, whole, 1.0, 0.0, None, machine)
    same_bits(whole, whole.T)
    assert np.abs(whole - A.astype(np.float64) @ A.T).max() < 1e-4
    panels = geometry.panels
    monkeypatch.setattr(geometry, "_PANEL", 32)
    monkeypatch.setattr(geometry, "panels", lambda lines, K, others: panels(lines, K, others, 30_000))
    own = Request(asked.rung, asked.config, asked.precision, symmetric=sym)
    reports = multiply(own, A, A.T, C, 1.0, 0.0, None, machine)
    count = len(geometry.panels(70, 96, 70))
    products = sum(each.kernel.file == "11_fp16x3.cu" for each, _ in reports)
    assert count > 2 and products == (count**2 if sym is Sym.BOTH else count * (count + 1) // 2)
    kept = {Sym.BOTH: np.ones(C.shape, bool), Sym.LOWER: np.tri(70, dtype=bool), Sym.UPPER: np.tri(70, dtype=bool).T}
    same_bits(C, np.where(kept[sym], whole, before))


@pytest.mark.parametrize("rung", [rung.name for rung in rungs.RUNGS if rung.name != "fp16x3"])
def test_every_rung_gives_a_symmetric_result(on_sim, rung):
    """Those that compute it whole sum what lies across the diagonal in the same order."""
    A = drawn(40, 70)
    found = fastsgemm.sgemm(A, A.T, 1.5, rung=rung)
    np.testing.assert_allclose(found, 1.5 * (A @ A.T), rtol=1e-4, atol=1e-4)
    same_bits(found, found.T)


@pytest.mark.parametrize("N", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_small_results_are_symmetric(on_sim, N, precision):
    A = drawn(N, 300)
    found = fastsgemm.sgemm(A, A.T, precision=precision)
    np.testing.assert_allclose(found, A @ A.T, rtol=1e-4, atol=1e-4)
    same_bits(found, found.T)


def test_a_polynomial_of_a_symmetric_matrix(on_sim):
    S = drawn(60, 60)
    S = S + S.T
    P, Q = S @ S + S, S @ S @ S - 2 * S
    found = fastsgemm.sgemm(P, Q, symmetric=True)
    np.testing.assert_allclose(found, P @ Q, rtol=1e-3, atol=1e-2)
    same_bits(found, found.T)


def polynomials(N, count):
    """Return a symmetric matrix, and polynomials of it: the product of two of them is symmetric."""
    S = drawn(N, N) / np.float32(N)
    S = S + S.T
    return S, np.stack([(n + 1) * S @ S + n * np.eye(N, dtype=np.float32) for n in range(count)])


SHARED = {
    "B, a matrix": lambda one, many: (many, one),
    "B, broadcast": lambda one, many: (many, one[None]),
    "B, stride 0": lambda one, many: (many, np.broadcast_to(one, many.shape)),
    "A, a matrix": lambda one, many: (one, many),
    "A, broadcast": lambda one, many: (one[None], many),
    "A, stride 0": lambda one, many: (np.broadcast_to(one, many.shape), many),
    "both, stride 0": lambda one, many: (np.broadcast_to(one, many.shape), np.broadcast_to(many[1], many.shape)),
}
# A batch that is shared could be folded into rows (C), or into columns (side by side), of one product.
RESULTS = {
    "C": lambda N, count: np.full((count, N, N), np.nan, np.float32),
    "F": lambda N, count: np.full((count, N, N), np.nan, np.float32).swapaxes(1, 2),
    "side by side": lambda N, count: np.full((N, count, N), np.nan, np.float32).swapaxes(0, 1),
    "side by side, F": lambda N, count: np.full((N, count, N), np.nan, np.float32).transpose(1, 2, 0),
}


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("N", [40, 1])
@pytest.mark.parametrize("shared", SHARED)
def test_a_declared_batch_that_shares_an_operand(how, result, N, shared):
    """Each result is symmetric and whole; one product of more rows or columns would not be."""
    one, many = polynomials(N, 3)
    many = many if result == "C" else many.transpose(1, 0, 2).copy().transpose(1, 0, 2)
    A, B = SHARED[shared](one, many)
    C = RESULTS[result](N, 3)
    request, arch = HOW[how]
    multiply(replace(request, symmetric=Sym.BOTH), A, B, C, 0.7, 0.0, None, rung_11.machine(arch))
    np.testing.assert_allclose(C, 0.7 * np.matmul(A.astype(np.float64), B), rtol=1e-5, atol=1e-5)
    same_bits(C, C.swapaxes(1, 2))


@pytest.mark.parametrize("how", ["pipelined", "wgmma"])
@pytest.mark.parametrize(
    ("of_a", "of_b"), [((2, 1), (3,)), ((3,), (2, 1)), ((1, 3), (2, 1)), ((2, 2, 2, 2), (2, 1, 1))]
)
def test_declared_batches_that_broadcast(how, of_a, of_b):
    one, many = polynomials(20, 16)
    A = many[: np.prod(of_a)].reshape(*of_a, 20, 20)
    B = many[: np.prod(of_b)].reshape(*of_b, 20, 20) + one
    exact = np.matmul(A.astype(np.float64), B)
    C = np.full(exact.shape, np.nan, np.float32)
    request, arch = HOW[how]
    multiply(replace(request, symmetric=Sym.BOTH), A, B, C, 1.0, 0.0, None, rung_11.machine(arch))
    np.testing.assert_allclose(C, exact, rtol=1e-5, atol=1e-5)
    same_bits(C, C.swapaxes(-1, -2))
