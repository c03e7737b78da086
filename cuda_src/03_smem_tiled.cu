// Rung 3, smem_tiled: rung 2 with tiles of A and B staged in shared memory.
// A block reads each element of its tiles from global memory once and uses it BN (or BM) times, so global
// traffic falls 32-fold. The price: every FMA still needs two loads, now from shared memory, and two barriers
// per tile. Assumes nothing: the ragged end of K is a shorter tile, and rows and columns past the matrix are
// read as zeros.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 32;      // rows of C per block: BM * BN is at most 1024
constexpr int BN = 32;      // columns of C per block
constexpr int BK = 32;      // steps of k per tile: a multiple of BM and of BN shares out evenly
constexpr int TRANS_A = 0;  // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;  // 1: B is column-major
constexpr int BATCHED = 0;  // 1: the grid has several products, see device/batch.cuh
// constants:end

#include "device/batch.cuh"
#include "device/tile_copy.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"

constexpr int THREADS = BM * BN;
constexpr int GROUP_M = 8;  // tile rows walked together, as in rung 2: fewer now that L2 is read less
// rules:begin (tools/write_rules.py writes them)
static_assert(THREADS == BM * BN, "the host launches as many");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "whole warps, 64 to 1024 threads");
static_assert(BM * BK % THREADS == 0 && BK * BN % THREADS == 0, "the threads share out each tile evenly");
// rules:end

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_smem_tiled(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                         const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                         long long ldc, Batch batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    extern __shared__ __align__(16) float shared[];
    float *As = shared;            // [BM][BK]
    float *Bs = shared + BM * BK;  // [BK][BN]
    const Tile tile = tile_of_block<BM, BN, GROUP_M>(M, N);
    const int row = threadIdx.x / BN;
    const int col = threadIdx.x % BN;
    TileCopy<BM, BK, !TRANS_A, 1, THREADS, BK, 1> copy_a(A, lda, tile.m, M);
    TileCopy<BN, BK, TRANS_B, 1, THREADS> copy_b(B, ldb, tile.n, N);

    float acc = 0.0f;
    auto step = [&](int k) { acc = __fmaf_rn(As[row * BK + k], Bs[k * BN + col], acc); };
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
        for (int k = 0; k < K - k0; ++k) step(k);
    }

    const int m = tile.m + row;
    if (m < M) store_row<1, 1>(C + m * ldc + tile.n + col, &acc, N - (tile.n + col), alpha, beta);
}
