"""Symmetric results of rung 11 on the simulated device: what the lower triangle of a whole product holds, twice."""

import numpy as np
import pytest

from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import grid
from fastsgemm.geometry.fp16x3 import LINE_BYTES, NO_SOURCE
from fastsgemm.geometry.layout import line_vector
from fastsgemm.jit import source as jit_source
from fastsgemm.rungs import kernel_name
from fastsgemm.sim import Machine, Region, fp16x3
from fastsgemm.sim.tensor_map import TensorMap

BOTH, LOWER, UPPER = 1, 2, 3
HALVES = LINE_BYTES // 2  # FP16 numbers of a line in a block of k
NAMES = ("info_a", "info_b")
KERNELS = {
    "mma": ("sm_80", Fp16x3MmaConfig(BM=64, BN=32, WM=32, WN=16, STAGES=3, GROUP_M=2)),
    "wgmma": ("sm_90", Fp16x3Config(BM=64, BN=16, PROMOTE_STAGES=2, STAGES=4, GROUP_M=2)),
    "wide": ("sm_90", Fp16x3Config(BM=128, BN=32, PROMOTE_STAGES=1, STAGES=5, GROUP_M=1)),
}


class Product:
    """C <- alpha A B + beta C, or what SYM says of it, by the kernels of rung 11.

    Attributes
    ----------
    stores : list of int
        Bytes that each kernel stores in C: the product or what adds up its parts, and the guard.
    """

    def __init__(self, kernel, A, B, C, sym, alpha=1.0, beta=0.0, parts=1, source=None):
        self.arch, config = KERNELS[kernel]
        self.config, self.sym, self.C, self.source = config.replace(SPLIT_K=parts), sym, C, source
        self.A, self.B, self.factors = A, B, (np.float32(alpha), np.float32(beta))
        self.t = geometry.tiling(self.config, *C.shape, A.shape[1], False, 4)
        (a, b), _ = fp16x3.split([A, B.T], Machine(self.arch))
        self.operands = {
            f"{name}_{side}": Region(getattr(x, name))
            for side, x in (("a", a), ("b", b))
            for name in ("pairs", "info", "where")
        }
        self.read = () if source is None else ("S", *(stride // 4 for stride in source.strides))
        self.exceptions = np.full(self.t.tiles, 7, np.int32)  # what no kernel writes must not be read
        self.stores = []
        if parts > 1:
            W = np.full((self.t.parts, len(C), self.t.ldw), np.nan, np.float32)
            self._product(W[0], W, LOWER if sym else 0, (np.float32(1), np.float32(0)), last=False)
            self._reduce(W)
        else:
            self._product(C, C, sym, self.factors, last=True)
        self._guard()

    @property
    def vec(self):
        return line_vector(self.C.strides[0] // 4, self.C.ctypes.data % 16 if self.C.base is None else 0)

    @property
    def place(self):
        return self.read or NO_SOURCE

    def _launch(self, file, constants, blocks, threads, args, operands, shared_bytes=0, arch=None):
        text = jit_source.with_constants(file, jit_source.defaults(file) | constants)
        return Machine(self.arch).launch(
            text, kernel_name(file), blocks, threads, shared_bytes, args, operands, arch=arch, early=True
        )

    def _targets(self, write=True):
        reads = bool(self.factors[1])
        into = {"C": Region(self.C, read=reads and self.source is None, write=write)}
        return into if self.source is None else into | {"S": Region(self.source, read=reads)}

    def _product(self, to, into, sym, factors, last):
        t, config = self.t, self.config
        file, n = geometry.file_of(config), len(self.C)
        tiles = (grid.triangle_tiles(config.BM, config.BN, n) if sym else t.tiles) * t.parts
        pairs, arch = ("pairs_a", "pairs_b"), None
        if isinstance(config, Fp16x3Config):
            dims, lines = (HALVES, n, t.k_blocks), (LINE_BYTES, LINE_BYTES * n)
            pairs = [TensorMap(x, dims, lines, (HALVES, t.tile[i], 1)) for i, x in enumerate(pairs)]
            tiles, arch = min(tiles, 4), "sm_90a"
        vec = self.vec if last else 4
        args = t.product_arguments(
            pairs, NAMES, *factors, ("W" if not last else "C", to.strides[0] // 4), "exceptions",
            self.place if last else NO_SOURCE,
        )  # fmt: skip
        written = self._targets() if last else {"W": Region(into, read=False, write=True)}
        noted = {"exceptions": Region(self.exceptions, read=False, write=True, complete=not sym)}
        constants = config.compiled | {"VEC_C": vec, "SOURCE": int(last and bool(self.read)), "SYM": sym}
        report = self._launch(
            file, constants, tiles, config.threads, args, self.operands | written | noted, config.shared_bytes, arch
        )
        if last:
            self.stores.append(report.total.stores["C"].bytes)

    def _reduce(self, W):
        n = len(self.C)
        blocks = grid.triangle_tiles(32, 32, n) if self.sym else self.t.reduction_blocks
        args = self.t.reduction_arguments("W", NAMES, *self.factors, ("C", self.C.strides[0] // 4), self.place)
        constants = {"VEC_C": self.vec, "SOURCE": int(bool(self.read)), "SYM": self.sym}
        operands = self.operands | self._targets() | {"W": Region(W)}
        report = self._launch("reduce_fp16x3.cu", constants, blocks, geometry.REDUCE_THREADS, args, operands)
        self.stores.append(report.total.stores["C"].bytes)

    def _guard(self):
        strides = [stride // 4 for stride in (*self.A.strides, *self.B.strides)]
        args = self.t.guard_arguments(
            self.A.shape[1], ("A", *strides[:2]), ("B", *strides[2:]),
            (("info_a", "where_a"), ("info_b", "where_b")), *self.factors, ("C", self.C.strides[0] // 4),
            "exceptions", self.place,
        )  # fmt: skip
        operands = self.operands | {
            "A": Region(self.A), "B": Region(self.B), "exceptions": Region(self.exceptions), **self._targets(),
            "C": Region(self.C, write=True),
        }  # fmt: skip
        constants = {"SOURCE": int(bool(self.read)), "SYM": self.sym}
        report = self._launch("guard_fp16x3.cu", constants, 4, geometry.GUARD_THREADS, args, operands)
        self.stores.append(report.total.stores["C"].bytes if "C" in report.total.stores else 0)


def same_bits(found, expected):
    np.testing.assert_array_equal(np.ascontiguousarray(found).view("I"), np.ascontiguousarray(expected).view("I"))


def compare(kernel, A, B, C, sym, alpha=0.7, beta=0.0, parts=1, source=None):
    """Compare with the lower triangle of the whole product, and of the whole product that begins with C transposed."""
    before, results = C.copy(), []
    for transposed in (False, True):
        whole, read = (x.T.copy() if transposed and x is not None else x for x in (C.copy(), source))
        Product(kernel, A, B, whole, 0, alpha, beta, parts, read)
        results.append(whole)
    product = Product(kernel, A, B, C, sym, alpha, beta, parts, source)
    lower, upper = np.tril(np.ones(C.shape, bool)), np.triu(np.ones(C.shape, bool), k=1 if sym == BOTH else 0)
    expected = before.copy()
    if sym != UPPER:
        expected[lower] = results[0][lower]
    if sym != LOWER:
        expected[upper] = results[1].T[upper]
    same_bits(C, expected)
    return product


def padded(x, padding):
    """The same rows, so many floats apart."""
    memory = np.zeros((len(x), x.shape[1] + padding), np.float32)
    memory[:, : x.shape[1]] = x
    return memory[:, : x.shape[1]]


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_exceptions(n, k):
    A = drawn(n, k)
    A[3, 5], A[n - 6, :9], A[n - 4, 7], A[8, 9], A[n // 2, 2] = 1e-20, 1e-15, np.inf, 1e-18, 1e-19
    return A


@pytest.mark.sampled(every=23)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sym", [BOTH, LOWER, UPPER])
@pytest.mark.parametrize(("n", "padding"), [(68, 1), (68, 0), (129, 3), (35, 0), (7, 1)])
@pytest.mark.parametrize(("parts", "beta"), [(1, 0.0), (1, -1.5), (2, 0.5)])
def test_a_triangle_has_the_bits_of_the_whole_product(kernel, sym, n, padding, parts, beta):
    A, C = drawn(n, 140), drawn(n, n, seed=2) if beta else np.full((n, n), np.nan, np.float32)
    product = compare(kernel, A, A.T, padded(C, padding), sym, 0.7, beta, parts)
    kept = n * n if sym == BOTH else n * (n + 1) // 2
    assert product.stores == [4 * kept, 0]  # each element once


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sym", [BOTH, LOWER, UPPER])
@pytest.mark.parametrize(("parts", "beta"), [(1, 0.0), (2, -1.5), (1, 0.5)])
def test_the_guard_repairs_what_is_stored(kernel, sym, parts, beta):
    """What the product leaves to it, and what it adds; an element that is not stored must not be touched."""
    A, C = with_exceptions(70, 140), drawn(70, 70, seed=2) if beta else np.full((70, 70), np.nan, np.float32)
    compare(kernel, A, A.T, C, sym, 0.7, beta, parts)


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("kernel", ["mma", "wgmma"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("lying", ["row", "matrix", "transposed"])
def test_a_source_is_read_for_both_triangles(kernel, parts, lying):
    A, S = with_exceptions(70, 140), drawn(70, 70, seed=3)
    S = {"row": np.broadcast_to(S[0], S.shape), "matrix": S, "transposed": S.T}[lying]
    compare(kernel, A, A.T, np.full((70, 70), np.nan, np.float32), BOTH, 0.7, -1.5, parts, S)


@pytest.mark.parametrize("kernel", KERNELS)
def test_of_operands_that_differ_the_lower_triangle_is_stored_twice(kernel):
    A, B, C = drawn(70, 40), drawn(40, 70, seed=2), np.full((70, 70), np.nan, np.float32)
    compare(kernel, A, B, C, BOTH)
    same_bits(C, C.T)
