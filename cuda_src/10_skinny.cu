// Rung 10, skinny: for a C of few rows (M from 1 to 32), where reading B once is all the work there is.
// Rungs 3 to 9 bring B through shared memory because each element serves a tall tile; here it serves at most
// BM results, all of one thread. What changed:
// - B goes from global memory straight to the registers of the thread that uses it. Each thread has TK steps
//   of k of its TN columns on their way: when a group of four steps is used up, the next one is read into the
//   same registers at once, so that memory never waits for arithmetic.
// - The threads of a block share out k as well as the columns: SLICED_K of them have the same columns and
// take
//   groups of four k in turn. A thread of few results has two accumulators for each, used by turns. All these
//   partial sums are added up two by two, through shared memory (device/pairwise_sum.cuh). Their order
//   depends on the constants, TRANS_B and VEC_B among them, and on K alone, so results repeat bit for bit; it
//   is not the one chain of FMAs in ascending k of the rungs before.
// - A passes through two buffers in shared memory, BK steps at a time: one 16-byte load brings a step of k of
//   four rows, enough for four times TN FMAs. Four steps of one row would do as much, but B's come in fours
//   too where it is transposed: then all that an FMA reads would be from one register bank in half of the
//   steps.
// - Blocks past the tiles of C split K as in rung 9, where the tiles do not fill the device.
// Both layouts of B run the same code: neighbouring lanes have neighbouring columns (TRANS_B = 0), or
// neighbouring groups of k and, by twos, columns (TRANS_B = 1).
// Assumes: VEC_x = 4 only where the operand is aligned for it (see device/tile_copy.cuh), and then k_chunk is
// a multiple of 4. Threads past the matrix read its last row or column, and store nothing.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 4;          // rows of C a block: 1, 2, 4, 8, 16, 32
constexpr int BN = 32;         // columns of C a block: TN times a power of two
constexpr int BK = 64;         // steps of k between two barriers: TK times a power of two
constexpr int TN = 4;          // columns of C a thread: a power of two
constexpr int TK = 8;          // of BK, the steps that a thread has on their way: a multiple of K_GROUP
constexpr int MIN_BLOCKS = 1;  // blocks that must fit on an SM together: 1 or more
constexpr int K_GROUP = 4;     // steps of k that a thread takes at a time: 4, the floats of a 16-byte load
constexpr int MAX_ALTERNATED = 16;  // results of a thread up to which each has two accumulators
constexpr int MAX_PASS = 8192;      // floats of partial sums that are added up at a time, at most
constexpr int TRANS_A = 0;          // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;          // 1: B is column-major
constexpr int TRANS_C = 0;  // 1: C(m, n) lies at n * ldc + m, for a product of few columns: C^T = B^T A^T
constexpr int VEC_A = 1;    // floats a read of A: 1, 4
constexpr int VEC_B = 1;    // floats a read of B: 1, 4
constexpr int VEC_C = 1;    // floats a store of C: 1, 4
// constants:end

#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"
#include "device/pairwise_sum.cuh"
#include "device/raster.cuh"
#include "device/shared_memory.cuh"
#include "device/skinny_copy.cuh"

constexpr int SLICED_K = BK / TK;  // threads that share their columns and divide k
constexpr int THREADS = BN / TN * SLICED_K;
constexpr int PARTIAL_ACCUMULATORS = TK > K_GROUP && BM * TN <= MAX_ALTERNATED ? 2 : 1;  // of a result
constexpr int STORE_C = (TRANS_C ? BM : BN) % 4 ? 1 : VEC_C;  // floats: a tile may be too narrow for VEC
static_assert((BM & (BM - 1)) == 0 && BM <= 32, "the sums of BM * TN results stay in registers");
static_assert(BN % TN == 0 && BK % TK == 0, "threads cover the block tile");
static_assert(TK % K_GROUP == 0, "k is taken in groups of four");
static_assert((BN / TN & (BN / TN - 1)) == 0 && (SLICED_K & (SLICED_K - 1)) == 0,
              "partial sums share out evenly");
static_assert((TN & (TN - 1)) == 0, "partial sums share out evenly");
static_assert(THREADS >= 32 && THREADS >= BM && THREADS <= 1024, "32 to 1024 threads a block");

// What device/skinny_copy.cuh is a template on.
struct Traits {
    static constexpr int BM = ::BM, BN = ::BN, BK = ::BK, TN = ::TN, TK = ::TK;
    static constexpr int TRANS_A = ::TRANS_A, TRANS_B = ::TRANS_B;
    static constexpr int LOAD_A = TRANS_A && BM % 4 ? 1 : VEC_A;  // floats: a tile may be too narrow for VEC
    static constexpr int LOAD_B = !TRANS_B && TN % 4 ? 1 : VEC_B;
    static constexpr int K_GROUP = ::K_GROUP, THREADS = ::THREADS, SLICED_K = ::SLICED_K;
};
using TileA = SkinnyTileA<Traits>;
using ColumnsB = SkinnyColumnsB<Traits>;

// Partial sums are added up PASS_ROWS rows of C at a time, by ADDERS threads an element, then the adders'
// sums.
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

// Where the sum of an element lies among an adder's: in C's order, so that C is written by neighbours.
__device__ __forceinline__ int place_of_sum(int m, int n) {
    return TRANS_C ? n * (BM + 1) + m : m * BN + n;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    fastsgemm_skinny(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                     const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                     long long ldc, int k_chunk, long long split_stride) {
    __shared__ __align__(16) float shared[SHARED_FLOATS];
    if (k_chunk < K) let_dependents_begin();  // the sum of the parts
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
    // One barrier a tile suffices: before it this tile is read from one buffer and the next one written to
    // the other, behind it the buffers change roles. The branches do more than to spare whole tiles the
    // comparisons: the compiler does not mix the groups' FMAs across them, so that the registers of a group
    // are free when it is read again.
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
                    for (int i = 0; i < BM; ++i)
#pragma unroll
                        for (int jj = 0; jj < TN; ++jj) {
                            const int j = i % 2 ? TN - 1 - jj : jj;  // see device/outer_product.cuh
                            const float *quad = fragment[i / TileA::QUAD_ROWS];
                            float &sum = acc[g % PARTIAL_ACCUMULATORS][i][j];
                            sum = __fmaf_rn(quad[p * TileA::QUAD_ROWS + i % TileA::QUAD_ROWS],
                                            b.value[g][q + p][j], sum);
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
                                    alpha, beta);
    }
}
