"""Every rung on a few ragged shapes, for compute-sanitizer: no array library, memory allocated to the byte.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py

Exits with 1 where a result is wrong.
"""

import sys
from dataclasses import replace
from itertools import product

import numpy as np
from msgspec import structs

from fastsgemm import F16DirectConfig, Fp16x3Config, PipelinedConfig, SkinnyConfig, device, rungs, split
from fastsgemm.call.arrays import DeviceArray
from fastsgemm.call.arrays.library import BFLOAT16
from fastsgemm.call.driver import multiply
from fastsgemm.config import Fp16x3MmaConfig
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.heuristics import fp16x3_rates
from fastsgemm.host import as_float32, write
from fastsgemm.measure.operands import Lent
from fastsgemm.problem import DTYPES, DType, Sym
from fastsgemm.request import resolve
from fastsgemm.rungs import IEEE

SHAPES = [(65, 130, 19), (1, 33, 5), (132, 136, 24)]  # with loads of 4 and 8 bytes, thin, and with 16-byte loads
PIPELINED = [  # beside what the database has for it: copies past the registers or not, K whole or in three parts
    PipelinedConfig(
        32, 32, 8, 4, 4, 16, 32, 1, GROUP_M=2, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=f, CP_ASYNC=a, SPREAD=0, SPLIT_K=parts
    )
    for f, a, parts in ((1, 0, 3), (2, 0, 3), (1, 1, 1), (2, 1, 1), (2, 1, 3))
]
SLICED = [replace(one, BK=16, SPREAD=2, SLICED_K=2) for one in PIPELINED[1:4]]
DEEP = [
    replace(PIPELINED[4], CP_ASYNC=2, STAGES=3),
    replace(PIPELINED[2], CP_ASYNC=2, BK=16, SPREAD=2, STAGES=4, SLICED_K=2),
]
CHAINED = [
    replace(PIPELINED[4], CP_ASYNC=3, STAGES=3),
    replace(PIPELINED[2], CP_ASYNC=3, BK=16, SPREAD=2, SLICED_K=2),
    replace(PIPELINED[3], CP_ASYNC=2, PARTIAL_ACCUMULATORS=2),
    replace(PIPELINED[3], CP_ASYNC=2, BK=16, SLICED_K=2, PARTIAL_ACCUMULATORS=4),
]
NARROW = [(5, 70, 150), (8, 136, 152), (132, 7, 150)]  # for rung 10: ragged, with 16-byte loads, of few columns
SKINNY = [  # with K whole or in three parts
    SkinnyConfig(bm, 32, 32, TN=4, TK=tk, MIN_BLOCKS=1, SPLIT_K=parts)
    for bm, tk, parts in ((4, 4, 1), (4, 4, 3), (8, 8, 3))
]
FP16X3 = [(65, 130, 150), (5, 136, 300), (132, 70, 96)]  # for rung 11: ragged, thin and swapped, with 16-byte loads
WGMMA = [
    Fp16x3Config(),
    Fp16x3Config(BN=16, PROMOTE_STAGES=1, STAGES=12),
    Fp16x3Config(BM=64, BN=64, STAGES=4, SPLIT_K=2),
    Fp16x3Config(BN=128, STAGES=7),
]
MMA = [Fp16x3MmaConfig(), Fp16x3MmaConfig(64, 64, 32, 32, STAGES=4, SPLIT_K=2)]
HALF = [  # for operands as they lie, ragged, thin and of whole tiles; some with parts of K
    F16DirectConfig(BM=64, BN=16, STAGES=20),
    F16DirectConfig(BM=64, BN=64, STAGES=12, SPLIT_K=2),
    F16DirectConfig(BM=128, BN=128, STAGES=6),
]
LYING = [(65, 130, 152), (5, 136, 296), (132, 70, 96)]
NUMPY = {DType.F32: np.float32, DType.BF16: BFLOAT16, DType.F16: np.float16}
UNPACKED = ("bf16xbf16", "f16xf16", "bf16xf32", "f32xbf16")
SQUARES = [(65, 150), (136, 96), (7, 33)]  # for symmetric results: N and K
SYMMETRIC = [
    replace(PIPELINED[3], BM=bm, BN=bn, WM=32, WN=32, TM=8, TN=4, SPLIT_K=parts)
    for bm, bn, parts in ((64, 64, 1), (32, 64, 3), (64, 32, 1))
] + [replace(DEEP[1], SPLIT_K=9)]
ALPHA_BETA = [(1.0, 0.0), (1.5, -0.5)]
LAYOUTS = ("NN", "TT", "NT", "TN")


def on_device(gpu, values, how):
    """Return the values in device memory and the view of them as a matrix: N row-major, T column-major, S strided.

    In the memory of a strided matrix, every second number is NaN.
    """
    rows, columns = values.shape
    lines, shown = {
        "N": (values, ((rows, columns), (columns, 1))),
        "T": (values.T, ((rows, columns), (1, rows))),
        "S": (np.stack([values, np.full_like(values, np.nan)], axis=2), ((rows, columns), (2 * columns, 2))),
    }[how]
    array = DeviceArray((len(lines), lines.size // len(lines)), gpu, LEGACY_STREAM)
    array.upload(np.ascontiguousarray(lines.reshape(array.shape)))
    pointer, meta = array.view
    shape, strides = shown
    return array, (pointer, structs.replace(meta, shape=shape, strides=strides))


def operands(shape, generator):
    """Return random A, B and C."""
    M, N, K = shape
    return [generator.standard_normal(extents).astype(np.float32) for extents in ((M, K), (K, N), (M, N))]


def with_exceptions(shape, generator):
    """The same with elements that rung 11 cannot express in FP16, so that the guard has something to repair."""
    a, b, c = operands(shape, generator)
    a[0, a.shape[1] // 2], a[-1, :9], b[3, -1] = 1e-15, 1e-14, 1e-16
    return a, b, c


def wrong(gpu, values, stored, alpha, beta, rung, config=None, presplit=""):
    """Whether the product differs from float64 by more than float32 explains.

    `stored` says how A and B lie in memory, a letter each; see `on_device`.
    """
    a, b, c = values
    A, view_a = on_device(gpu, a, stored[0])
    B, view_b = on_device(gpu, b, stored[1])
    C = DeviceArray(c.shape, gpu, LEGACY_STREAM)
    if beta:
        C.upload(c)  # else it stays uninitialised: initcheck sees whether it is read
    lent = {"A": Lent(A, view_a[1]), "B": Lent(B, view_b[1])}
    splits = {side: split(lent[side], side) for side in presplit}
    request = structs.replace(resolve(rung, config), split=("A" in splits, "B" in splits))
    addresses = tuple(splits[side].address if side in splits else 0 for side in "AB")
    multiply(gpu, LEGACY_STREAM, request, (view_a, view_b, C.view), alpha, beta, addresses)
    out = np.empty(c.shape, np.float32)
    C.download(out)
    for array in (A, B, C):
        array.close()
    expected = alpha * (a.astype(float) @ b.astype(float)) + beta * c
    return not np.allclose(out, expected, rtol=1e-4, atol=1e-4)


def of_type(dtype, values):
    """The values, rounded to a type, in host memory."""
    made = np.empty(values.shape, NUMPY[dtype])
    write(made, np.ascontiguousarray(values))
    return made


def wrong_of_halves(gpu, values, layout, dtypes, config, precision):
    """Whether a product of operands of these types differs from float64. The layout says how each lies in memory."""
    arrays, views, exact = [], [], []
    for x, how, dtype in zip(values, layout, dtypes, strict=True):
        elements = of_type(dtype, x.T if how == "T" else x)
        array = DeviceArray(elements.shape, gpu, LEGACY_STREAM, dtype)
        array.upload(elements.view(np.uint16) if dtype else elements)
        address, meta = array.view
        if how == "T":
            meta = structs.replace(meta, shape=meta.shape[::-1], strides=meta.strides[::-1])
        arrays.append(array)
        views.append((address, meta))
        exact.append(as_float32(elements.T if how == "T" else elements).astype(float))
    C = DeviceArray((len(exact[0]), exact[1].shape[1]), gpu, LEGACY_STREAM)
    multiply(gpu, LEGACY_STREAM, resolve(config=config, precision=precision), (*views, C.view), 1.0, 0.0)
    out = np.empty(C.shape, np.float32)
    C.download(out)
    for array in (C, *arrays):
        array.close()
    return not np.allclose(out, exact[0] @ exact[1], rtol=1e-4, atol=1e-4)


def ways_of_halves(gpu):
    """Config, layout, types and precision of products of 16-bit operands: as they lie, split, converted to float32."""
    kinds = fp16x3_rates.kinds_of(gpu.arch) if heuristics.supported(gpu.arch) else ()
    alternatives = [(config, "NT", pair, "fp16x3") for config in HALF for pair in UNPACKED if F16DirectConfig in kinds]
    alternatives += [(None, layout, pair, "fp16x3") for layout in LAYOUTS for pair in DTYPES if kinds]
    return [*alternatives, *((None, layout, pair, "ieee") for layout in LAYOUTS for pair in DTYPES)]


def fp16x3_configs(gpu):
    """The configs of rung 11 that are tried on this device; None is what the heuristics choose."""
    kinds = fp16x3_rates.kinds_of(gpu.arch) if heuristics.supported(gpu.arch) else ()
    configs = [one for one in WGMMA + MMA if type(one) in kinds and one.shared_bytes <= gpu.shared_limit]
    return [None, *configs] if kinds else []


def faults_of_ieee(gpu, generator):
    """Yield what is wrong with a product of rungs 1 to 10."""
    for rung, configs, shapes in [
        *((rung, [None], SHAPES) for rung in IEEE),
        (rungs.find("pipelined"), PIPELINED + SLICED + CHAINED + DEEP, SHAPES),
        (rungs.find("skinny"), SKINNY, NARROW),
    ]:
        for config, shape, layout, (alpha, beta) in product(configs, shapes, LAYOUTS, ALPHA_BETA):
            if wrong(gpu, operands(shape, generator), layout, alpha, beta, rung, config):
                yield f"{rung} {config or ''} {shape} {layout} alpha {alpha} beta {beta}"
    if wrong(gpu, operands((7, 11, 9), generator), "SN", 1.0, 0.0, IEEE[0]):
        yield "packed"


def faults_of_triangles(gpu, generator):
    """Yield what is wrong with A A^T and its triangles, in each of which the other triangle must stay as it is."""
    configs = [*SYMMETRIC, *fp16x3_configs(gpu)[1:]]
    for config, (n, k), stored, (alpha, beta), sym in product(configs, SQUARES, "NT", ALPHA_BETA, Sym):
        a, _, c = with_exceptions((n, n, k), generator)
        A, (address, meta) = on_device(gpu, a, stored)
        transposed = structs.replace(meta, shape=meta.shape[::-1], strides=meta.strides[::-1])
        C = DeviceArray(c.shape, gpu, LEGACY_STREAM)
        if beta or sym in (Sym.LOWER, Sym.UPPER):
            C.upload(c)
        request = structs.replace(resolve(config=config), symmetric=sym)
        multiply(gpu, LEGACY_STREAM, request, ((address, meta), (address, transposed), C.view), alpha, beta)
        out = np.empty_like(c)
        C.download(out)
        for array in (A, C):
            array.close()
        lower, everything = np.tri(n, dtype=bool), np.ones((n, n), bool)
        kept = {Sym.LOWER: lower, Sym.UPPER: lower.T}.get(sym, everything)
        expected = np.where(kept, alpha * (a.astype(float) @ a.T.astype(float)) + beta * c, c)
        right = np.allclose(out, expected, rtol=1e-4, atol=1e-4) and np.array_equal(out[~kept], c[~kept])
        if kept is everything and not beta:
            right = right and np.array_equal(out, out.T)
        if not right:
            yield f"{sym.name} {config!r} {n} x {k} {stored} alpha {alpha} beta {beta}"


def faults_of_fp16x3(gpu, generator):
    """Yield what is wrong with a product of rung 11, with and without operands that were split before."""
    alternatives = list(zip(LAYOUTS, 2 * ALPHA_BETA, ("", "A", "B", "AB"), strict=True))
    for config, shape, (layout, (alpha, beta), presplit) in product(fp16x3_configs(gpu), FP16X3, alternatives):
        values = with_exceptions(shape, generator)
        if wrong(gpu, values, layout, alpha, beta, rungs.find("fp16x3"), config, presplit):
            yield f"fp16x3 {config!r} {shape} {layout} alpha {alpha} beta {beta} {presplit} split before"


def faults_of_halves(gpu, generator):
    """Yield what is wrong with a product of 16-bit operands."""
    for (config, layout, pair, precision), shape in product(ways_of_halves(gpu), LYING):
        values = operands(shape, generator)[:2]
        if wrong_of_halves(gpu, values, layout, DTYPES[pair], config, precision):
            yield f"{precision} {pair} {config!r} {shape} {layout}"


def main():
    gpu = device.open_gpu(0)
    gpu.enter()
    generator = np.random.default_rng(3)
    faults = [*faults_of_ieee(gpu, generator), *faults_of_fp16x3(gpu, generator)]
    faults += [*faults_of_triangles(gpu, generator), *faults_of_halves(gpu, generator)]
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
