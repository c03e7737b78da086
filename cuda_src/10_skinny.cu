// Rung 10, skinny: for a C of few rows (M from 1 to 32), where the time is that of reading B once. Rungs 3 to
// 9 stage B in shared memory because many threads use each element. Here one thread uses it, for at most BM
// results. What changed:
// - B goes from global memory straight to the registers of the thread that uses it. Each thread has loads of
//   TK steps of k of its TN columns in flight: as soon as it has used a group of four steps, it reads the
//   next group into the same registers, so that memory is always busy.
// - The threads of a block share out k as well as the columns: SLICED_K threads have the same columns, and
//   each takes every SLICED_K-th group of four k. A thread with few results keeps two accumulators for each
//   and alternates between them. All these partial sums are added pairwise through shared memory
//   (device/pairwise_sum.cuh). The order depends only on K and on the constants, TRANS_B and VEC_B included.
//   So the same call returns the same bits, but not those of the one chain of FMAs of rungs 1 to 8.
// - A passes through two buffers in shared memory, BK steps at a time. One 16-byte load brings one step of k
//   of four rows, enough for 4 * TN FMAs. Four steps of one row would serve as many, but if B is transposed
//   its registers also hold four steps each, and in half of the steps all operands of an FMA would be in one
//   register bank.
// - Split-K as in rung 9, if the tiles of C do not fill the device.
// - Operands may have 16-bit elements (TYPE_A, TYPE_B), which are converted exactly: half the bytes of B, the
//   same sums to the last bit.
// Both layouts of B run the same code. With TRANS_B = 0, neighbouring lanes have neighbouring columns. With
// TRANS_B = 1, pairs of lanes have neighbouring columns, and neighbouring pairs have neighbouring groups of
// k. Assumes: VEC_x = 4 only where the operand is aligned for it (see device/tile_copy.cuh), and then k_chunk
// is a multiple of 4. Threads past the matrix read its last row or column, and store nothing.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 4;               // rows of C per block: 1, 2, 4, 8, 16, 32
constexpr int BN = 32;              // columns of C per block: TN times a power of two
constexpr int BK = 64;              // steps of k between two barriers: TK times a power of two
constexpr int TN = 4;               // columns of C per thread: a power of two
constexpr int TK = 8;               // steps of BK per thread, all in flight together: a multiple of K_GROUP
constexpr int MIN_BLOCKS = 1;       // blocks that must fit on an SM together: 1 or more
constexpr int K_GROUP = 4;          // steps of k in a group: 4, the floats of a 16-byte load
constexpr int MAX_ALTERNATED = 16;  // most results of a thread that have two accumulators each
constexpr int MAX_PASS = 8192;      // most floats of partial sums that are added up at a time
constexpr int TRANS_A = 0;          // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;          // 1: B is column-major
constexpr int TRANS_C = 0;  // 1: C(m, n) lies at n * ldc + m, for a product of few columns: C^T = B^T A^T
constexpr int VEC_A = 1;    // elements per read of A: 1, 4
constexpr int VEC_B = 1;    // elements per read of B: 1, 4
constexpr int VEC_C = 1;    // floats per store of C: 1, 4
constexpr int BATCHED = 0;  // 1: the grid has several products, see device/batch.cuh
constexpr int SOURCE = 0;   // 0: beta multiplies C; 1, 4: the source, read so many floats at a time
constexpr int TYPE_A = 0;   // of the elements of A: 0: float32, 1: bfloat16, 2: float16
constexpr int TYPE_B = 0;   // of the elements of B
// constants:end

#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"
#include "device/outer_product.cuh"
#include "device/pairwise_sum.cuh"
#include "device/raster.cuh"
#include "device/shared_memory.cuh"
#include "device/skinny_copy.cuh"
#include "device/source.cuh"

constexpr int SLICED_K = BK / TK;  // threads that have the same columns and share out k
constexpr int THREADS = BN / TN * SLICED_K;
constexpr int PARTIAL_ACCUMULATORS = TK > K_GROUP && BM * TN <= MAX_ALTERNATED ? 2 : 1;  // of a result
constexpr int ROWS_PER_FMA = BM == 1 ? 1 : FMA_WIDTH;         // neighbours that share an instruction
constexpr int STORE_C = (TRANS_C ? BM : BN) % 4 ? 1 : VEC_C;  // floats: a tile may be too narrow for VEC
// rules:begin (tools/write_rules.py writes them)
static_assert(THREADS == (BN / TN) * (BK / TK), "the host launches as many");
static_assert(BN % TN == 0 && BK % TK == 0, "threads cover the block tile");
static_assert((BM & (BM - 1)) == 0 && (TN & (TN - 1)) == 0 && (BN / TN & (BN / TN - 1)) == 0 &&
                  (BK / TK & (BK / TK - 1)) == 0 && THREADS >= BM,
              "partial sums share out evenly");
static_assert(BM <= 32, "the sums of BM * TN results stay in registers");
static_assert(TK % 4 == 0, "k is taken in groups of four");
static_assert(THREADS % 32 == 0 && THREADS >= 32 && THREADS <= 1024, "whole warps, 32 to 1024 threads");
// rules:end

// What device/skinny_copy.cuh is a template on.
struct Traits {
    static constexpr int BM = ::BM, BN = ::BN, BK = ::BK, TN = ::TN, TK = ::TK;
    static constexpr int TRANS_A = ::TRANS_A, TRANS_B = ::TRANS_B;
    static constexpr int LOAD_A = TRANS_A && BM % 4 ? 1 : VEC_A;  // floats: a tile may be too narrow for VEC
    static constexpr int LOAD_B = !TRANS_B && TN % 4 ? 1 : VEC_B;
    static constexpr int K_GROUP = ::K_GROUP, THREADS = ::THREADS, SLICED_K = ::SLICED_K;
    static constexpr int TYPE_A = ::TYPE_A, TYPE_B = ::TYPE_B;
};
using TileA = SkinnyTileA<Traits>;
using ColumnsB = SkinnyColumnsB<Traits>;

// Partial sums are added up PASS_ROWS rows of C at a time. ADDERS threads share an element, and then their
// sums are added up.
__device__ constexpr int rows_per_pass() {
    int rows = BM;
    while (rows > 1 && (rows * TN > SLICED_K || rows * SLICED_K * BN > MAX_PASS)) rows /= 2;
    return rows;
}
constexpr int PASS_ROWS = rows_per_pass();
constexpr int PASS = PASS_ROWS * BN;  // elements of C
constexpr int ADDERS = THREADS > PASS ? THREADS / PASS : 1;
// Padded so that lanes that differ in both element and adder (TRANS_B) or in n (TRANS_C) use different banks.
constexpr int LD_SLICES = SLICED_K + ADDERS;
constexpr int LD_ADDERS = BN * (BM + TRANS_C) + (TRANS_B ? 4 : 0);
constexpr int PASS_FLOATS = PASS * (TRANS_B ? LD_SLICES : SLICED_K);
constexpr int SUM_FLOATS = PASS_FLOATS + ADDERS * LD_ADDERS;
constexpr int SHARED_FLOATS = 2 * TileA::FLOATS > SUM_FLOATS ? 2 * TileA::FLOATS : SUM_FLOATS;
static_assert(SLICED_K % ADDERS == 0 && PASS * ADDERS % THREADS == 0, "partial sums share out evenly");
static_assert(SHARED_FLOATS <= 12 * 1024, "a block has 48 KB of static shared memory");

// Where the sum of an element lies among those of an adder: in C's order, so that neighbouring threads write
// neighbours.
__device__ __forceinline__ int place_of_sum(int m, int n) {
    return TRANS_C ? n * (BM + 1) + m : m * BN + n;
}

// The conversion of a float16 A needs a few registers more than three blocks leave.
constexpr int LEAST_BLOCKS = MIN_BLOCKS - (TYPE_A == 2 && MIN_BLOCKS > 2);

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    fastsgemm_skinny(int M, int N, int K, float alpha, const ElementType<TYPE_A> *__restrict__ A,
                     long long lda, const ElementType<TYPE_B> *__restrict__ B, long long ldb, float beta,
                     float *__restrict__ C, long long ldc, int k_chunk, long long split_stride,
                     BatchAndSource<SOURCE> batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    __shared__ __align__(16) float shared[SHARED_FLOATS];
    launch_dependents();  // reduce_parts, which adds up the parts
    const unsigned tiles = count_tiles<BM, BN>(M, N);
    const int part = blockIdx.x / tiles;
    const Tile tile = tile_of_block<BM, BN, 8>(M, N, blockIdx.x % tiles);
    const int k_first = part * k_chunk;
    int k_left = min(k_chunk, K - k_first);
    TileA a(A, lda, tile.m, M, k_first);
    ColumnsB b(B, ldb, tile.n, N, k_first);

    float acc[PARTIAL_ACCUMULATORS][BM][TN] = {};
    if (k_left > 0) {
        a.read<false>(k_left);
#pragma unroll
        for (int g = 0; g < TK / K_GROUP; ++g) b.read<false>(g, k_left);
        a.write(shared);
        a.read<false>(k_left - BK);
        __syncthreads();
    }
    // One barrier per tile suffices: before it this tile is read from one buffer and the next one is written
    // to the other; after it the buffers exchange roles. The branches save whole tiles the comparisons. They
    // also keep the compiler from mixing the FMAs of different groups, so that the registers of a group are
    // free when its next elements are read.
#pragma unroll 1
    for (int buffer = 0; k_left > 0; k_left -= BK, buffer = TileA::FLOATS - buffer) {
        const float *As = shared + buffer;
        a.write(shared + TileA::FLOATS - buffer);
        if (k_left >= 3 * BK)
            a.read<true>(BK);
        else
            a.read<false>(k_left - 2 * BK);
#pragma unroll
        for (int g = 0; g < TK / K_GROUP; ++g) {
#pragma unroll
            for (int q = 0; q < K_GROUP; q += TileA::QUAD_STEPS) {
                float fragment[BM / TileA::QUAD_ROWS][K_GROUP];
#pragma unroll
                for (int i = 0; i < BM; i += TileA::QUAD_ROWS)
                    load_fragment<K_GROUP>(fragment[i / TileA::QUAD_ROWS],
                                           As + TileA::place(i, g, q, b.slice()));
#pragma unroll
                for (int p = 0; p < TileA::QUAD_STEPS; ++p)
#pragma unroll
                    for (int i = 0; i < BM; i += ROWS_PER_FMA)
#pragma unroll
                        for (int jj = 0; jj < TN; ++jj) {
                            const bool turns = i / ROWS_PER_FMA % 2;  // see device/outer_product.cuh
                            const int j = turns ? TN - 1 - jj : jj, row = i % TileA::QUAD_ROWS;
                            const float *quad = fragment[i / TileA::QUAD_ROWS];
                            float *sum = &acc[g % PARTIAL_ACCUMULATORS][i][j];
                            multiply_add<ROWS_PER_FMA, TN>(sum, b.value(g, q + p, j),
                                                           &quad[p * TileA::QUAD_ROWS + row]);
                        }
            }
            if (k_left >= 2 * BK)
                b.read<true>(g, BK);
            else
                b.read<false>(g, k_left - BK);
        }
        __syncthreads();
    }

    float *adders = shared + PASS_FLOATS;  // [ADDERS][LD_ADDERS]
#pragma unroll
    for (int row = 0; row < BM; row += PASS_ROWS) {
        if (row) __syncthreads();
#pragma unroll
        for (int i = 0; i < PASS_ROWS; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int out = i * BN + b.column(j);
                shared[TRANS_B ? out * LD_SLICES + b.slice() : b.slice() * PASS + out] =
                    pairwise_sum<PARTIAL_ACCUMULATORS>([&](int which) { return acc[which][row + i][j]; });
            }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PASS * ADDERS; i += THREADS) {
            const int t = threadIdx.x + i;
            const int adder = TRANS_B ? t % ADDERS : t / PASS;
            const int out = TRANS_B ? t / ADDERS : t % PASS;
            adders[adder * LD_ADDERS + place_of_sum(row + out / BN, out % BN)] =
                pairwise_sum<SLICED_K / ADDERS>([&](int s) {
                    const int slice = adder + s * ADDERS;
                    return shared[TRANS_B ? out * LD_SLICES + slice : slice * PASS + out];
                });
        }
    }
    __syncthreads();
    C += part * split_stride;
    const OldValues<SOURCE, TRANS_C> old(batch);
#pragma unroll
    for (int i = 0; i < BM * BN; i += THREADS * STORE_C) {
        const int t = threadIdx.x * STORE_C + i;
        const int m = TRANS_C ? t % BM : t / BN;
        const int n = TRANS_C ? t / BM : t % BN;
        if (t >= BM * BN || tile.m + m >= M || tile.n + n >= N) continue;
        float sum[STORE_C];
#pragma unroll
        for (int j = 0; j < STORE_C; ++j)
            sum[j] = pairwise_sum<ADDERS>(
                [&](int adder) { return adders[adder * LD_ADDERS + place_of_sum(m, n) + j]; });
        const long long down = tile.m + m, right = tile.n + n;
        store_row<STORE_C, STORE_C>(C + (TRANS_C ? right * ldc + down : down * ldc + right), sum, STORE_C,
                                    alpha, beta, old, down, right);
    }
    griddepcontrol_wait();  // returns at once; without it ptxas schedules the main loop otherwise, and slower
}
