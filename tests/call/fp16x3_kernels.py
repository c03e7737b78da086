"""The kernels of rung 11 in NumPy, by the contract of their launches: what they read, what they write, and where."""

import ctypes
from functools import partial

import numpy as np

from fastsgemm.call.arrays.library import BFLOAT16
from fastsgemm.host import as_float32

SPARSE, DENSE = 4, 1 << 20
LINE = np.dtype([("exponent", np.int32), ("left_out", np.int32)])


def array(address, shape, dtype, strides=None):
    """A view of host memory at an address; strides in elements."""
    dtype, shape = np.dtype(dtype), tuple(map(int, shape))
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
    strides = tuple(map(int, strides))
    ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low, high = (sum(f(0, end) for end in ends) for f in (min, max))
    raw = (ctypes.c_char * ((high - low + 1) * dtype.itemsize)).from_address(address + low * dtype.itemsize)
    flat = np.frombuffer(raw, dtype)
    steps = tuple(stride * dtype.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(flat[-low:], shape, steps)


TYPES = np.float32, BFLOAT16, np.float16


def operand(address, shape, strides, dtype):
    """An operand of this type as float32; strides in elements."""
    return as_float32(array(address, shape, TYPES[dtype], strides))


def smallest_split(K):
    """The least scaled magnitude that is split: 2^-14, or 2^-(14 + t) from K = 512 on: 4^t up to K / 8, t up to 8."""
    return 2.0 ** -(14 + (min(8, int(np.log2(K / 8)) // 2) if K >= 512 else 0))


def _split(X, pairs, info, where, single):
    """Split (lines, K) values into the three arrays; of a 16-bit operand there is no lo."""
    lines, K = X.shape
    blocks = -(-K // 64) * 2
    parts = 1 if single else 2
    halves = array(pairs, (blocks, lines, parts, 32), np.float16)  # not swizzled: the product below knows no better
    records, places = array(info, (lines,), LINE), array(where, (lines, SPARSE), np.int32)
    x = X.astype(np.float64)
    finite = np.isfinite(x).all(1)
    largest = np.where(finite, np.abs(x).max(1), 0.0)
    exponents = np.where(largest > 0, np.floor(np.log2(largest, where=largest > 0, out=np.zeros(lines))) - 14, 0)
    scaled = np.where(np.isfinite(x), x, 0.0) * 2.0 ** -exponents[:, None]
    small = (x != 0) & (np.abs(scaled) < smallest_split(K))
    if single:
        small = (scaled.astype(np.float16) != scaled) | ((x != 0) & (scaled == 0))
    for line in np.flatnonzero(small.any(1)):
        slots = np.flatnonzero(small[line])[:SPARSE]
        places[line, : len(slots)] = slots
    records["exponent"], records["left_out"] = exponents, small.sum(1) + np.where(finite, 0, DENSE)
    padded = np.zeros((lines, blocks * 32))
    padded[:, :K] = np.where(small, 0.0, scaled)
    hi = padded.astype(np.float16)
    lo = ((padded - hi) * 4096).astype(np.float16)
    for part, values in enumerate((hi, lo)[:parts]):
        halves[:, :, part] = values.reshape(lines, blocks, 32).transpose(1, 0, 2)


def column_maxima(dtype, lines, K, X, ldx, maxima, info):
    array(maxima, (lines,), np.float32)[...] = np.abs(operand(X, (lines, K), (1, ldx), dtype)).max(1)


def split(STRIDED_1, VEC_1, STRIDED_2, VEC_2, TYPE_1, TYPE_2, CLUSTER, **rest):
    def kernel(K, blocks_1, *sides):
        assert blocks_1 % CLUSTER == 0
        first, second = (sides[:8], STRIDED_1, VEC_1, TYPE_1), (sides[8:], STRIDED_2, VEC_2, TYPE_2)
        for side, strided, vec, dtype in (first, second):
            lines, X, ldx, maxima, maxima_parts, pairs, info, where = side
            if lines == 0:
                assert not any(side) and (STRIDED_1, VEC_1, TYPE_1) == (STRIDED_2, VEC_2, TYPE_2)
                continue
            assert X % (np.dtype(TYPES[dtype]).itemsize * vec) == 0 and ldx % vec == 0
            values = operand(X, (lines, K), (1, ldx) if strided else (ldx, 1), dtype)
            if maxima_parts:
                assert strided and CLUSTER == 1
                np.testing.assert_array_equal(array(maxima, (lines,), np.float32), np.abs(values).max(1))
            else:
                assert maxima == 0
            _split(values, pairs, info, where, dtype > 0)

    return kernel


def _values(pairs, lines, first, last, blocks, single):
    halves = array(pairs, (blocks, lines, 1 if single else 2, 32), np.float16).astype(np.float64)
    values = halves[first:last, :, 0]
    if not single:
        values = values + halves[first:last, :, 1] / 4096
    return values.transpose(1, 0, 2).reshape(lines, -1)


def product(BM, BN, TRANS_C, VEC_C, SOURCE, SYM, ONE_A, ONE_B, **rest):
    def kernel(
        pairs_a, pairs_b, M, N, k_blocks, part_blocks, alpha, rows, columns, beta, C, ldc, part_stride, exceptions,
        *source,
    ):  # fmt: skip
        assert not (SYM and TRANS_C) and part_blocks % 4 == 0 and C % (4 * VEC_C) == 0 and ldc % VEC_C == 0
        down, right = array(rows, (M,), LINE), array(columns, (N,), LINE)
        strides = (1, ldc) if TRANS_C else (ldc, 1)
        tiles = (-(-M // BM), -(-N // BN))
        words = array(exceptions, tiles, np.int32, (1, tiles[0]) if TRANS_C else (tiles[1], 1))
        for i in range(tiles[0]):
            for j in range(tiles[1]):
                tile = down["left_out"][i * BM : (i + 1) * BM].any() or right["left_out"][j * BN : (j + 1) * BN].any()
                words[i, j] = int(tile)
        for part, first in enumerate(range(0, k_blocks, part_blocks)):
            last = min(first + part_blocks, k_blocks)
            left = _values(pairs_a, M, first, last, k_blocks, ONE_A)
            sums = left @ _values(pairs_b, N, first, last, k_blocks, ONE_B).T
            target = array(C + 4 * part * part_stride, (M, N), np.float32, strides)
            if part_blocks < k_blocks:
                assert not SOURCE and SYM in (0, 2) and (alpha, beta) == (1, 0)
            store(target, sums, alpha, beta, down, right, old_values(SOURCE, VEC_C, source, target), SYM)

    return kernel


def old_values(SOURCE, VEC_C, source, C):
    """Return what beta multiplies: C, or the source."""
    address, down, right = source
    if not SOURCE:
        assert address == down == right == 0
        return C
    assert SOURCE <= VEC_C and (SOURCE == 1 or (address % 16 == down % 4 == 0 and right == 1))
    return array(address, C.shape, np.float32, (down, right))


def most_left_out(alpha):
    return SPARSE if abs(alpha) <= 1 else 0


def across(values, sym):
    """With `sym`, return what is stored of a square array: above the diagonal what is below it."""
    return np.where(np.tri(len(values), dtype=bool), values, values.T) if sym else values


def kept_of(shape, sym):
    """Which elements are stored."""
    lower = np.tri(*shape, dtype=bool)
    return {0: np.ones(shape, bool), 1: np.ones(shape, bool), 2: lower, 3: lower.T}[sym]


def store(C, sums, alpha, beta, down, right, old, sym):
    stored = np.maximum(down["left_out"][:, None], right["left_out"][None]) <= most_left_out(alpha)
    scaled = alpha * (sums * 2.0 ** (down["exponent"][:, None] + right["exponent"][None]).astype(np.float64))
    stored, scaled = across(stored, sym) & kept_of(C.shape, sym), across(scaled, sym)
    C[stored] = (scaled + beta * old if beta else scaled)[stored]


def guard(
    SOURCE,
    SYM,
    TYPE_A,
    TYPE_B,
    M,
    N,
    K,
    alpha,
    A,
    a_m,
    a_k,
    B,
    b_k,
    b_n,
    beta,
    C,
    ldc,
    parts,
    part_stride,
    rows,
    row_where,
    columns,
    column_where,
    words,
    TILE_M,
    TILE_N,
    *source,
):
    a, b = operand(A, (M, K), (a_m, a_k), TYPE_A), operand(B, (K, N), (b_k, b_n), TYPE_B)
    assert parts == 1 or (alpha, beta) == (1, 0)
    c, *others = (array(C + 4 * part * part_stride, (M, N), np.float32, (ldc, 1)) for part in range(parts))
    old = old_values(SOURCE, 1, source, c)
    down, right = array(rows, (M,), LINE), array(columns, (N,), LINE)
    left_a, left_b = (array(where, (extent, SPARSE), np.int32) for where, extent in ((row_where, M), (column_where, N)))
    tiles = array(words, (-(-M // TILE_M), -(-N // TILE_N)), np.int32)
    for m, n in np.argwhere(down["left_out"][:, None] + right["left_out"][None]):
        of_row, of_column = int(down["left_out"][m]), int(right["left_out"][n])
        if (SYM and n > m) or not tiles[m // TILE_M, n // TILE_N]:
            continue
        places = [(m, n)] if not SYM or m == n else {1: [(m, n), (n, m)], 2: [(m, n)], 3: [(n, m)]}[SYM]
        if max(of_row, of_column) > most_left_out(alpha):
            with np.errstate(all="ignore"):
                total = alpha * (a[m] @ b[:, n])
                for at in places:
                    c[at] = total + beta * old[at] if beta else total
                    for part in others:
                        part[at] = 0
        else:
            ks = sorted({*left_a[m, :of_row].tolist(), *left_b[n, :of_column].tolist()})
            for at in places:
                c[at] += alpha * sum(a[m, k] * b[k, n] for k in ks)


def half(BM, BN, TRANS_C, VEC_C, SOURCE, SYM, TYPE, **rest):
    def kernel(A, lda, B, ldb, M, N, K, part_steps, alpha, beta, C, ldc, part_stride, *source):
        assert not (SYM and TRANS_C) and part_steps % 128 == 0 and C % (4 * VEC_C) == 0 and ldc % VEC_C == 0
        assert A % 16 == B % 16 == lda % 8 == ldb % 8 == 0
        a, b = operand(A, (M, K), (lda, 1), TYPE), operand(B, (N, K), (ldb, 1), TYPE)
        for part, first in enumerate(range(0, K, part_steps)):
            sums = a[:, first : first + part_steps].astype(np.float64) @ b[:, first : first + part_steps].T
            target = array(C + 4 * part * part_stride, (M, N), np.float32, (1, ldc) if TRANS_C else (ldc, 1))
            old = old_values(SOURCE, VEC_C, source, target)
            sums = across(alpha * sums, SYM)
            np.copyto(target, sums + beta * old if beta else sums, where=kept_of(target.shape, SYM))

    return kernel


def make(file, constants):
    """Return the kernel of a file with these constants."""
    if file == "11_half.cu":
        return half(**constants)
    if file in ("11_fp16x3.cu", "11_fp16x3_mma.cu"):
        return product(**constants)
    return {
        "split.cu": lambda: split(**constants),
        "column_maxima.cu": lambda: partial(column_maxima, constants["TYPE"]),
        "guard_fp16x3.cu": lambda: partial(guard, *(constants[name] for name in ("SOURCE", "SYM", "TYPE_A", "TYPE_B"))),
    }[file]()
