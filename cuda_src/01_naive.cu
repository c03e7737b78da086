// Rung 1, naive: one thread computes one element of C and reads everything from global memory.
// Where the ladder starts. threadIdx.x walks down the rows of C, so the 32 threads of a warp read 32
// different rows of A in one load: 32 sectors for 128 useful bytes. Rung 2 changes only that. Assumes
// nothing: any M, N, K, any leading dimension.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 32;      // rows of C per block: BM * BN is at most 1024
constexpr int BN = 32;      // columns of C per block
constexpr int TRANS_A = 0;  // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;  // 1: B is column-major
constexpr int BATCHED = 0;  // 1: the grid has several products, see device/batch.cuh
// constants:end

#include "device/batch.cuh"
#include "device/operand.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"

constexpr int THREADS = BM * BN;
// rules:begin (tools/write_rules.py writes them)
static_assert(THREADS == BM * BN, "the host launches as many");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "whole warps, 64 to 1024 threads");
// rules:end

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_naive(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                    const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                    long long ldc, Batch batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    const Tile tile = tile_of_block<BM, BN, 1>(M, N);
    const int m = tile.m + threadIdx.x % BM;
    const int n = tile.n + threadIdx.x / BM;
    if (m >= M || n >= N) return;
    A += element_offset<TRANS_A>(m, 0, lda);
    B += element_offset<TRANS_B>(0, n, ldb);
    float acc = 0.0f;
    for (int k = 0; k < K;
         ++k, A += element_offset<TRANS_A>(0, 1, lda), B += element_offset<TRANS_B>(1, 0, ldb))
        acc = __fmaf_rn(*A, *B, acc);
    float *c = C + m * ldc + n;
    *c = epilogue(alpha, acc, beta, c);
}
