"""Symmetric results of rung 11 on the simulated device: what the lower triangle of a whole product holds, twice."""

import numpy as np
import pytest
import rung_11
from rung_11 import KERNELS

from fastsgemm.problem import Sym

BOTH, LOWER, UPPER = Sym.BOTH, Sym.LOWER, Sym.UPPER


def multiply(kernel, A, B, C, sym, alpha, beta, parts, source=None):
    """Compute C <- alpha A B + beta C, or what `sym` says of it; return the bytes that each kernel stores in C."""
    arch, config = KERNELS[kernel]
    reports = rung_11.multiply(
        A, B, alpha, beta, C, config.replace(SPLIT_K=parts), rung_11.machine(arch), False, source, sym
    )
    stores = [report.total.stores.get("C") for _, report in reports if "C" in report.total.stores]
    return [each.bytes for each in stores if each.bytes]


def same_bits(found, expected):
    np.testing.assert_array_equal(np.ascontiguousarray(found).view("I"), np.ascontiguousarray(expected).view("I"))


def compare(kernel, A, B, C, sym, alpha=0.7, beta=0.0, parts=1, source=None):
    """Compare with the lower triangle of the whole product, and of the whole product that begins with C transposed."""
    before, results = C.copy(), []
    for transposed in (False, True):
        whole, read = (x.T.copy() if transposed and x is not None else x for x in (C.copy(), source))
        multiply(kernel, A, B, whole, Sym.WHOLE, alpha, beta, parts, read)
        results.append(whole)
    stored = multiply(kernel, A, B, C, sym, alpha, beta, parts, source)
    lower, upper = np.tril(np.ones(C.shape, bool)), np.triu(np.ones(C.shape, bool), k=1 if sym == BOTH else 0)
    expected = before.copy()
    if sym != UPPER:
        expected[lower] = results[0][lower]
    if sym != LOWER:
        expected[upper] = results[1].T[upper]
    same_bits(C, expected)
    return stored


def padded(x, padding):
    """The same rows, so many floats apart."""
    memory = np.zeros((len(x), x.shape[1] + padding), np.float32)
    memory[:, : x.shape[1]] = x
    return memory[:, : x.shape[1]]


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_exceptions(n, parts):
    A = drawn(n, 76 if parts == 1 else 140)  # a part has up to 128 steps
    A[3, 5], A[n - 6, :9], A[n - 4, 7], A[8, 9], A[n // 2, 2] = 1e-20, 1e-15, np.inf, 1e-18, 1e-19
    return A


@pytest.mark.sampled(every=53)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sym", [BOTH, LOWER, UPPER])
@pytest.mark.parametrize(("n", "padding"), [(68, 1), (68, 0), (129, 3), (35, 0), (7, 1)])
@pytest.mark.parametrize(("parts", "beta"), [(1, 0.0), (1, -1.5), (2, 0.5)])
def test_a_triangle_has_the_bits_of_the_whole_product(kernel, sym, n, padding, parts, beta):
    A, C = drawn(n, 140), drawn(n, n, seed=2) if beta else np.full((n, n), np.nan, np.float32)
    stored = compare(kernel, A, A.T, padded(C, padding), sym, 0.7, beta, parts)
    kept = n * n if sym == BOTH else n * (n + 1) // 2
    assert stored == [4 * kept]  # each element once


@pytest.mark.sampled(every=13)  # of 27: each value once
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sym", [BOTH, LOWER, UPPER])
@pytest.mark.parametrize(("parts", "beta"), [(1, 0.0), (2, -1.5), (1, 0.5)])
def test_the_guard_repairs_what_is_stored(kernel, sym, parts, beta):
    """What the product leaves to it, and what it adds; an element that is not stored must not be touched."""
    A, C = with_exceptions(70, parts), drawn(70, 70, seed=2) if beta else np.full((70, 70), np.nan, np.float32)
    compare(kernel, A, A.T, C, sym, 0.7, beta, parts)


@pytest.mark.sampled(every=11)
@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("lying", ["row", "matrix", "transposed"])
def test_a_source_is_read_for_both_triangles(kernel, parts, lying):
    A, S = with_exceptions(70, parts), drawn(70, 70, seed=3)
    S = {"row": np.broadcast_to(S[0], S.shape), "matrix": S, "transposed": S.T}[lying]
    compare(kernel, A, A.T, np.full((70, 70), np.nan, np.float32), BOTH, 0.7, -1.5, parts, S)


@pytest.mark.parametrize("kernel", KERNELS)
def test_of_operands_that_differ_the_lower_triangle_is_stored_twice(kernel):
    A, B, C = drawn(70, 40), drawn(40, 70, seed=2), np.full((70, 70), np.nan, np.float32)
    compare(kernel, A, B, C, BOTH)
    same_bits(C, C.T)
