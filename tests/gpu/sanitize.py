"""Every rung on a few ragged shapes, for compute-sanitizer: no array library, memory allocated to the byte.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py

Exits with 1 where a result is wrong.
"""

import sys
from dataclasses import replace

import numpy as np

from fastsgemm import Fp16x3Config, PipelinedConfig, SkinnyConfig, device, rungs, split
from fastsgemm.call.arrays import DeviceArray
from fastsgemm.call.product import multiply
from fastsgemm.config import Fp16x3MmaConfig
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.rungs import IEEE
from fastsgemm.tuning.evaluator import Lent

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
    Fp16x3Config(BN=192, SETS=2, STAGES=5),
]
MMA = [Fp16x3MmaConfig(), Fp16x3MmaConfig(64, 64, 32, 32, STAGES=4, SPLIT_K=2)]
ALPHA_BETA = [(1.0, 0.0), (1.5, -0.5)]


def on_device(gpu, values, column_major):
    """Return the array on the device and the view of it as a matrix."""
    lines = np.ascontiguousarray(values.T if column_major else values)
    array = DeviceArray(lines.shape, gpu, LEGACY_STREAM)
    array.upload(lines)
    pointer, (shape, strides, *rest) = array.view
    return array, ((pointer, (shape[::-1], strides[::-1], *rest)) if column_major else array.view)


def strided(view):
    """The even columns of a row-major matrix."""
    pointer, (shape, strides, *rest) = view
    return pointer, ((shape[0], shape[1] // 2), (strides[0], 2), *rest)


def wrong(gpu, rung, config, shape, layout, alpha, beta, generator):
    """Whether the product differs from float64 by more than float32 explains."""
    M, N, K = shape
    a, b, c = (generator.standard_normal(extents).astype(np.float32) for extents in ((M, K), (K, N), (M, N)))
    A, view_a = on_device(gpu, a, layout[0] == "T")
    B, view_b = on_device(gpu, b, layout[1] == "T")
    C = DeviceArray((M, N), gpu, LEGACY_STREAM)
    if beta:
        C.upload(c)  # else it stays uninitialised: initcheck sees whether it is read
    multiply(gpu, LEGACY_STREAM, view_a, view_b, C.view, np.float32(alpha), np.float32(beta), rung, config)
    out = np.empty((M, N), np.float32)
    C.download(out)
    for array in (A, B, C):
        array.close()
    expected = alpha * (a.astype(float) @ b.astype(float)) + beta * c
    return not np.allclose(out, expected, rtol=1e-4, atol=1e-4)


def fp16x3_configs(gpu):
    """The configs of rung 11 that are tried on this device; None is what the heuristics choose."""
    kinds = heuristics.kinds_of(gpu.arch) if heuristics.supported(gpu.arch) else ()
    configs = [one for one in WGMMA + MMA if type(one) in kinds and one.shared_bytes <= gpu.shared_limit]
    return [None, *configs] if kinds else []


def wrong_fp16x3(gpu, config, shape, layout, alpha, beta, presplit, generator):
    """The same for rung 11, with elements that the guard repairs."""
    M, N, K = shape
    a, b, c = (generator.standard_normal(extents).astype(np.float32) for extents in ((M, K), (K, N), (M, N)))
    a[0, K // 2], a[M - 1, :9], b[3, N - 1] = 1e-15, 1e-14, 1e-16
    A, view_a = on_device(gpu, a, layout[0] == "T")
    B, view_b = on_device(gpu, b, layout[1] == "T")
    C = DeviceArray((M, N), gpu, LEGACY_STREAM)
    if beta:
        C.upload(c)
    splits = {"split_a": split(Lent(A, view_a[1]), "A"), "split_b": split(Lent(B, view_b[1]), "B")} if presplit else {}
    rung = rungs.find("fp16x3")
    multiply(gpu, LEGACY_STREAM, view_a, view_b, C.view, alpha, beta, rung, config, **splits)
    out = np.empty((M, N), np.float32)
    C.download(out)
    for array in (A, B, C):
        array.close()
    expected = alpha * (a.astype(float) @ b.astype(float)) + beta * c
    return not np.allclose(out, expected, rtol=1e-4, atol=1e-4)


def wrong_packed(gpu, generator):
    """The same for an operand that is packed first."""
    a, b = (generator.standard_normal(extents).astype(np.float32) for extents in ((7, 18), (9, 11)))
    (A, view_a), (B, view_b) = on_device(gpu, a, False), on_device(gpu, b, False)
    C = DeviceArray((7, 11), gpu, LEGACY_STREAM)
    multiply(gpu, LEGACY_STREAM, strided(view_a), view_b, C.view, np.float32(1), np.float32(0), IEEE[0])
    out = np.empty((7, 11), np.float32)
    C.download(out)
    for array in (A, B, C):
        array.close()
    return not np.allclose(out, a[:, ::2] @ b, rtol=1e-4, atol=1e-4)


def main():
    gpu = device.open_gpu(0)
    gpu.enter()
    generator = np.random.default_rng(3)
    faults = [
        f"{rung} {config or ''} {shape} {layout} alpha {alpha} beta {beta}"
        for rung, config, shapes in [
            *((rung, None, SHAPES) for rung in IEEE),
            *((rungs.find("pipelined"), one, SHAPES) for one in PIPELINED + SLICED + CHAINED + DEEP),
            *((rungs.find("skinny"), one, NARROW) for one in SKINNY),
        ]
        for shape in shapes
        for layout in ("NN", "TT", "NT", "TN")
        for alpha, beta in ALPHA_BETA
        if wrong(gpu, rung, config, shape, layout, alpha, beta, generator)
    ]
    faults += [
        f"fp16x3 {config!r} {shape} {layout} alpha {alpha} beta {beta} {'split before' if presplit else ''}"
        for config in fp16x3_configs(gpu)
        for shape in FP16X3
        for layout, (alpha, beta), presplit in zip(
            ("NN", "TT", "NT", "TN"), 2 * ALPHA_BETA, (False, False, True, True), strict=True
        )
        if wrong_fp16x3(gpu, config, shape, layout, alpha, beta, presplit, generator)
    ]
    if wrong_packed(gpu, generator):
        faults.append("packed")
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
