// Rung 6, vectorized: rung 5 with A transposed on its way into shared memory, and 128-bit loads and stores.
// With both tiles k-major a thread's fragments are contiguous, so TM + TN shared loads become (TM + TN) / 4,
// and each thread moves 16 bytes a global load: fewer instructions between the FMAs. Rung 7, autotuned, is
// this file with BM BN BK TM TN searched. Assumes: VEC_x = 4 only where the operand is aligned for it (see
// device/tile_copy.cuh), else VEC_x = 1.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 128;     // rows of C per block: a multiple of TM
constexpr int BN = 128;     // columns of C per block: a multiple of TN
constexpr int BK = 8;       // steps of k per tile: a multiple of 4
constexpr int TM = 8;       // rows of C per thread: a multiple of 4
constexpr int TN = 8;       // columns of C per thread: a multiple of 4
constexpr int TRANS_A = 0;  // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;  // 1: B is column-major
constexpr int VEC_A = 1;    // floats per read of A: 1, 4
constexpr int VEC_B = 1;    // floats per read of B: 1, 4
constexpr int VEC_C = 1;    // floats per store of C: 1, 4
constexpr int BATCHED = 0;  // 1: the grid has several products, see device/batch.cuh
// constants:end

#include "device/batch.cuh"
#include "device/tile_copy.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"
#include "device/shared_memory.cuh"

constexpr int THREADS = BM * BN / (TM * TN);
// rules:begin (tools/write_rules.py writes them)
static_assert(THREADS == BM * BN / (TM * TN), "the host launches as many");
static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles cover the block tile");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "whole warps, 64 to 1024 threads");
static_assert(BM * BK % (4 * THREADS) == 0 && BK * BN % (4 * THREADS) == 0,
              "the threads share out each tile evenly");
static_assert(BK % 4 == 0 && BM % 4 == 0 && BN % 4 == 0 && TM % 4 == 0 && TN % 4 == 0,
              "floats are read and written 16 bytes at a time");
// rules:end

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_vectorized(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                         const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                         long long ldc, Batch batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    extern __shared__ __align__(16) float shared[];
    float *As = shared;            // [BK][BM]
    float *Bs = shared + BK * BM;  // [BK][BN]
    const Tile tile = tile_of_block<BM, BN, 1>(M, N);
    const int row = threadIdx.x / (BN / TN) * TM;
    const int col = threadIdx.x % (BN / TN) * TN;
    TileCopy<BM, BK, !TRANS_A, VEC_A, THREADS> copy_a(A, lda, tile.m, M);
    TileCopy<BN, BK, TRANS_B, VEC_B, THREADS> copy_b(B, ldb, tile.n, N);

    float acc[TM][TN] = {};
    auto step = [&](int k) {
        float a[TM], b[TN];
        load_fragment<TM>(a, As + k * BM + row);
        load_fragment<TN>(b, Bs + k * BN + col);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) acc[i][j] = __fmaf_rn(a[i], b[j], acc[i][j]);
    };
    int k0 = 0;
    for (; k0 <= K - BK; k0 += BK) {
        copy_a.copy<true>(As, BK);
        copy_b.copy<true>(Bs, BK);
        __syncthreads();
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
    for (int i = 0; i < TM; ++i) {
        const int m = tile.m + row + i;
        if (m < M) store_row<TN, VEC_C>(C + m * ldc + tile.n + col, acc[i], N - (tile.n + col), alpha, beta);
    }
}
