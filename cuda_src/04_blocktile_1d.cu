// Rung 4, blocktile_1d: rung 3 with TM results per thread, one below the other.
// The value of B is read once into a register and used for TM FMAs: 1 + TM shared loads for TM FMAs instead
// of 2 * TM. BK shrinks to 8 so that the tiles stay small while BM and BN grow. Assumes nothing: the ragged
// end of K is a shorter tile, rows and columns past the matrix count as zeros.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 64;      // rows of C per block: a multiple of TM
constexpr int BN = 64;      // columns of C per block
constexpr int BK = 8;       // steps of k per tile
constexpr int TM = 8;       // rows of C per thread
constexpr int TRANS_A = 0;  // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;  // 1: B is column-major
constexpr int BATCHED = 0;  // 1: the grid has several products, see device/batch.cuh
// constants:end

#include "device/batch.cuh"
#include "device/tile_copy.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"

constexpr int THREADS = BM * BN / TM;
// rules:begin (tools/write_rules.py writes them)
static_assert(THREADS == BM * BN / TM, "the host launches as many");
static_assert(BM % TM == 0, "thread tiles cover the block tile");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "whole warps, 64 to 1024 threads");
static_assert(BM * BK % THREADS == 0 && BK * BN % THREADS == 0, "the threads share out each tile evenly");
// rules:end

// Blocks that must fit on an SM together, 0: not said. Left to itself, ptxas from 12.9 to 13.0 goes down to
// 32 registers on sm_90 and spills.
constexpr int MIN_BLOCKS = __CUDA_ARCH__ == 900 ? 2 : 0;

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    fastsgemm_blocktile_1d(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                           const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                           long long ldc, Batch batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    extern __shared__ __align__(16) float shared[];
    float *As = shared;            // [BM][BK]
    float *Bs = shared + BM * BK;  // [BK][BN]
    const Tile tile = tile_of_block<BM, BN, 1>(M, N);
    const int row = threadIdx.x / BN * TM;
    const int col = threadIdx.x % BN;
    TileCopy<BM, BK, !TRANS_A, 1, THREADS, BK, 1> copy_a(A, lda, tile.m, M);
    TileCopy<BN, BK, TRANS_B, 1, THREADS> copy_b(B, ldb, tile.n, N);

    float acc[TM] = {};
    // A whole tile row by row: with k innermost the compiler reads four values of A at once and keeps them.
    auto whole_tile = [&] {
        float b[BK];
#pragma unroll
        for (int k = 0; k < BK; ++k) b[k] = Bs[k * BN + col];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int k = 0; k < BK; ++k) acc[i] = __fmaf_rn(As[(row + i) * BK + k], b[k], acc[i]);
    };
    auto step = [&](int k) {
        const float b = Bs[k * BN + col];
#pragma unroll
        for (int i = 0; i < TM; ++i) acc[i] = __fmaf_rn(As[(row + i) * BK + k], b, acc[i]);
    };
    int k0 = 0;
    for (; k0 <= K - BK; k0 += BK) {
        copy_a.copy<true>(As, BK);
        copy_b.copy<true>(Bs, BK);
        __syncthreads();
        whole_tile();
        __syncthreads();
    }
    if (k0 < K) {  // the ragged end of K
        copy_a.copy<false>(As, K - k0);
        copy_b.copy<false>(Bs, K - k0);
        __syncthreads();
        for (int k = 0; k < K - k0; ++k) step(k);
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int m = tile.m + row + i;
        if (m < M) store_row<1, 1>(C + m * ldc + tile.n + col, acc + i, N - (tile.n + col), alpha, beta);
    }
}
