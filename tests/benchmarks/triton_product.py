"""A plain matrix product in Triton, for the peers' table. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def product(
    a, b, c, M, N, K, a_m, a_k, b_k, b_n, c_m, c_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = number // (GROUP_M * tiles_n)
    first = group * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    tile_m = first + number % (GROUP_M * tiles_n) % rows
    tile_n = number % (GROUP_M * tiles_n) // rows
    m = (tile_m * BM + tl.arange(0, BM)).to(tl.int64)
    n = (tile_n * BN + tl.arange(0, BN)).to(tl.int64)
    k = tl.arange(0, BK).to(tl.int64)
    sums = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        inside = k + k0 < K
        left = tl.load(a + m[:, None] * a_m + (k + k0)[None] * a_k, mask=(m < M)[:, None] & inside[None], other=0.0)
        right = tl.load(b + (k + k0)[:, None] * b_k + n[None] * b_n, mask=inside[:, None] & (n < N)[None], other=0.0)
        sums = tl.dot(left, right, sums, input_precision=PRECISION)
    tl.store(c + m[:, None] * c_m + n[None] * c_n, sums, mask=(m < M)[:, None] & (n < N)[None])
