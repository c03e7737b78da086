// Rung 8, warptiled: rung 6 with one more level of tiling between block and thread.
// A warp owns a WM x WN tile and walks it as WMITER x WNITER sub-tiles. All fragments of one k are read
// first, then WMITER * TM * WNITER * TN FMAs follow with no load between them; each fragment of A serves
// WNITER sub-tiles. The lanes of a warp read neighbouring 16-byte pieces, so TN = 4 has no bank conflicts.
// Four refinements are constants of this rung, 0 or 1 in the literature's version: PREFETCH, SERPENTINE,
// GROUP_M and MIN_BLOCKS.
// Assumes: VEC_x = 4 only where the operand is aligned for it (see device/tile_copy.cuh), else VEC_x = 1.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 128;        // rows of C per block: a multiple of WM
constexpr int BN = 128;        // columns of C per block: a multiple of WN
constexpr int BK = 8;          // steps of k per tile: a multiple of 4
constexpr int TM = 8;          // rows of C per thread in one sub-tile: a multiple of 4
constexpr int TN = 4;          // columns of C per thread in one sub-tile: a multiple of 4
constexpr int WM = 64;         // rows of C per warp
constexpr int WN = 64;         // columns of C per warp
constexpr int WNITER = 2;      // sub-tiles of a warp tile along n
constexpr int PREFETCH = 0;    // 1: the next tile is read into registers before the arithmetic of this one
constexpr int SERPENTINE = 0;  // 1: odd rows of the outer product run backwards, for the reuse cache
constexpr int GROUP_M = 1;     // tile rows of C that are walked together, for L2: 1 or more
constexpr int MIN_BLOCKS = 1;  // blocks that must fit on an SM together: 1 or more
constexpr int TRANS_A = 0;     // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;     // 1: B is column-major
constexpr int VEC_A = 1;       // floats per read of A: 1, 4
constexpr int VEC_B = 1;       // floats per read of B: 1, 4
constexpr int VEC_C = 1;       // floats per store of C: 1, 4
constexpr int BATCHED = 0;     // 1: the grid has several products, see device/batch.cuh
// constants:end

#include "device/batch.cuh"
#include "device/tile_copy.cuh"
#include "device/epilogue.cuh"
#include "device/outer_product.cuh"
#include "device/raster.cuh"
#include "device/shared_memory.cuh"

constexpr int THREADS = BM / WM * (BN / WN) * 32;
constexpr int WMITER = WM * WN / (32 * TM * TN * WNITER);
constexpr int WSUBM = WM / WMITER;  // rows of a sub-tile
constexpr int WSUBN = WN / WNITER;  // columns of a sub-tile
// rules:begin (tools/write_rules.py writes them)
static_assert(THREADS == 32 * (BM / WM) * (BN / WN), "the host launches as many");
static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles cover the block tile");
static_assert(WM * WN % (32 * TM * TN * WNITER) == 0 && 32 * TM * TN * WNITER % WN == 0,
              "sub-tiles cover the warp tile");
static_assert(WN % WNITER == 0 && 32 * TM * TN * WNITER / WN % TM == 0 && WN / WNITER % TN == 0,
              "thread tiles cover a sub-tile");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "whole warps, 64 to 1024 threads");
static_assert(BM * BK % (4 * THREADS) == 0 && BK * BN % (4 * THREADS) == 0,
              "the threads share out each tile evenly");
static_assert(BK % 4 == 0 && BM % 4 == 0 && BN % 4 == 0 && TM % 4 == 0 && TN % 4 == 0,
              "floats are read and written 16 bytes at a time");
// rules:end

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    fastsgemm_warptiled(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                        const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                        long long ldc, Batch batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    extern __shared__ __align__(16) float shared[];
    float *As = shared;            // [BK][BM]
    float *Bs = shared + BK * BM;  // [BK][BN]
    const Tile tile = tile_of_block<BM, BN, GROUP_M>(M, N);
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row = warp / (BN / WN) * WM + lane / (WSUBN / TN) * TM;  // in the block tile, first sub-tile
    const int col = warp % (BN / WN) * WN + lane % (WSUBN / TN) * TN;
    TileCopy<BM, BK, !TRANS_A, VEC_A, THREADS> copy_a(A, lda, tile.m, M);
    TileCopy<BN, BK, TRANS_B, VEC_B, THREADS> copy_b(B, ldb, tile.n, N);

    float acc[WMITER * TM][WNITER * TN] = {};
    auto step = [&](int k) {
        float a[WMITER * TM], b[WNITER * TN];
#pragma unroll
        for (int w = 0; w < WMITER; ++w) load_fragment<TM>(a + w * TM, As + k * BM + row + w * WSUBM);
#pragma unroll
        for (int w = 0; w < WNITER; ++w) load_fragment<TN>(b + w * TN, Bs + k * BN + col + w * WSUBN);
#pragma unroll
        for (int i = 0; i < WMITER * TM; ++i)
#pragma unroll
            for (int jj = 0; jj < WNITER * TN; jj += FMA_WIDTH) {
                const int j = SERPENTINE && i % 2 ? WNITER * TN - FMA_WIDTH - jj : jj;
                multiply_add<FMA_WIDTH>(&acc[i][j], a[i], &b[j]);
            }
    };
    int k0 = 0;
    if (PREFETCH && K >= BK) {
        copy_a.fetch<true>(BK);
        copy_b.fetch<true>(BK);
    }
    for (; k0 <= K - BK; k0 += BK) {
        if (!PREFETCH) {
            copy_a.fetch<true>(BK);
            copy_b.fetch<true>(BK);
        }
        copy_a.store(As);
        copy_b.store(Bs);
        __syncthreads();
        if (PREFETCH) {
            const int next = k0 + BK <= K - BK ? BK : 0;
            copy_a.fetch<true>(next);
            copy_b.fetch<true>(next);
        }
#pragma unroll
        for (int k = 0; k < BK; ++k) step(k);
        __syncthreads();
    }
    if (k0 < K) {  // the ragged end of K
        copy_a.copy<false>(As, K - k0);
        copy_b.copy<false>(Bs, K - k0);
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < K - k0; ++k) step(k);
    }

#pragma unroll
    for (int i = 0; i < WMITER * TM; ++i) {
        const int m = tile.m + row + i / TM * WSUBM + i % TM;
        if (m >= M) continue;
#pragma unroll
        for (int w = 0; w < WNITER; ++w) {
            const int n = tile.n + col + w * WSUBN;
            store_row<TN, VEC_C>(C + m * ldc + n, acc[i] + w * TN, N - n, alpha, beta);
        }
    }
}
