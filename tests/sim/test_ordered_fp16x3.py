"""Rung 11 with sums whose order depends on K alone: an element has the bits that it has by itself."""

import itertools

import numpy as np
import pytest

from fastsgemm import Fp16x3Config, sgemm
from fastsgemm.config import F16DirectConfig, Fp16x3MmaConfig
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.heuristics.fp16x3_rates import kinds_of

HOW = {"precision": "fp16x3", "batch_invariant": True}
TYPES = {"f32": np.float32, "f16": np.float16}


@pytest.fixture(autouse=True)
def device(fresh_machine, monkeypatch, request):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", getattr(request, "param", "NVIDIA H200"))


def operands(random, M, N, K, of_a="f32", of_b="f32"):
    """A and B with lines that differ by powers of ten, and elements that pairs leave out: a few of a line, and many."""
    A, B = random(M, K), random(K, N)
    if of_a == "f32":
        A[1] *= 1e15
        A[2, ::9] *= 1e-12
        A[3, 5] *= 1e-12
        A[min(4, M - 1), 2] = np.inf
    if of_b == "f32":
        B[3, 1] *= 1e-13
    return A.astype(TYPES[of_a]), B.astype(TYPES[of_b])


def same(found, expected):
    np.testing.assert_array_equal(found.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA A100-SXM4-40GB"], indirect=True)
@pytest.mark.parametrize("K", [40, 260])
@pytest.mark.parametrize(("of_a", "of_b"), [("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("f32", "f16")])
def test_rows_and_columns_have_their_bits_alone_and_among_others(random, of_a, of_b, K):
    A, B = operands(random, 20, 6, K, of_a, of_b)
    whole = sgemm(A, B, **HOW)
    assert np.isfinite(whole[5:]).all()
    for rows, lay_a, lay_b in (([2, 3], "F", "C"), ([4], "C", "F"), ([*range(1, 19)], "C", "F")):
        same(sgemm(A[rows].copy(lay_a), B.copy(lay_b), **HOW), whole[rows])
    same(sgemm(A, B[:, 1:2].copy(), **HOW), whole[:, 1:2])
    same(sgemm(np.stack([A[:5], A[5:10]]), B, **HOW).reshape(10, 6), whole[:10])
    column_major = np.zeros_like(whole, order="F")
    sgemm(A, B, C=column_major, **HOW)
    same(np.ascontiguousarray(column_major), whole)


@pytest.mark.slow
def test_every_tile_has_the_same_bits(random):
    A, B = operands(random, 9, 70, 260)
    whole = sgemm(A, B, **HOW)
    for BM, BN, stages in ((64, 16, 1), (128, 32, 2), (64, 128, 1)):
        config = Fp16x3Config(BM, BN, PROMOTE_STAGES=stages, STAGES=5, SPLIT_K=3)
        same(sgemm(A, B, config=config, **HOW), whole)


@pytest.mark.parametrize("device", ["NVIDIA A100-SXM4-40GB"], indirect=True)
def test_a_tile_that_is_no_square_is_not_exchanged(random):
    A, B = operands(random, 9, 70, 40)
    same(sgemm(A, B, config=Fp16x3MmaConfig(64, 128, 32, 64), **HOW), sgemm(A, B, **HOW))


def test_operands_as_they_lie_have_the_same_bits_in_every_tile(random):
    A, B = operands(random, 20, 9, 100, "f16", "f16")
    whole = sgemm(A, B.copy("F"), **HOW)
    for BM, BN in ((64, 16), (128, 256)):
        same(sgemm(A, B.copy("F"), config=F16DirectConfig(BM, BN, STAGES=3, SPLIT_K=2), **HOW), whole)


@pytest.mark.slow
def test_parts_of_k_are_those_of_a_row_alone(random, monkeypatch):
    monkeypatch.setattr(geometry, "ORDERED_PART", 128)
    A, B = operands(random, 9, 6, 300)
    assert geometry.in_order(Fp16x3Config(), 300).SPLIT_K == 3
    whole = sgemm(A, B, **HOW)
    for row in (0, 3):
        same(sgemm(A[row : row + 1], B, **HOW), whole[row : row + 1])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_gram_product_is_that_of_two_operands(random, dtype):
    A = operands(random, 14, 2, 100, dtype)[0][5:]
    gram = sgemm(A, A.T, **HOW)
    same(sgemm(A, A.T.copy(), **HOW), gram)
    same(sgemm(A[3:4], A.T.copy(), **HOW), gram[3:4])


def test_alpha_beta_and_c(random):
    A, B = operands(random, 10, 9, 100)
    C = random(10, 9)
    whole, alone = C.copy(), C[7:8].copy()
    sgemm(A, B, 0.5, -0.25, whole, **HOW)
    sgemm(A[7:8], B, 0.5, -0.25, alone, **HOW)
    same(alone, whole[7:8])


def test_it_errs_as_little_as_the_usual_order(random):
    A, B = random(20, 1000), random(1000, 9)
    exact = A.astype(np.float64) @ B
    usual, ordered = (np.linalg.norm(sgemm(A, B, **how) - exact) for how in ({"rung": "fp16x3"}, HOW))
    assert ordered < 1.5 * usual


def test_no_steps_leave_beta_times_c(random):
    C = random(3, 4)
    expected = 0.5 * C
    sgemm(np.empty((3, 0), np.float32), np.empty((0, 4), np.float32), 1.0, 0.5, C, **HOW)
    same(C, expected)


def test_all_kernels_of_rung_11_are_tried_here():
    tried = {Fp16x3Config, Fp16x3MmaConfig, F16DirectConfig}
    assert {*itertools.chain(*map(kinds_of, ("sm_80", "sm_90", "sm_100")))} == tried
