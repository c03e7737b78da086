// Rung 10, skinny: for a C of few rows (M from 1 to 32), where reading B once is all the work there is.
// Rungs 3 to 9 bring B through shared memory because each element serves a tall tile; here it serves at most
// BM results, all of one thread. What changed:
// - B goes from global memory straight to the registers of the thread that uses it. Each thread has TK steps
//   of k of its TN columns on their way: four steps are used up, and the same registers are sent for again at
//   once, so that memory never waits for arithmetic.
// - The threads of a block share out k as well as the columns: SLICES of them have the same columns and take
//   groups of four k in turn. A thread of few results has CHAINS sums for each, used by turns. All these are
//   added up two by two, through shared memory, because the error of a sum grows with the additions that a
//   term goes through. Their order depends on the constants, TRANS_B and VEC_B among them, and on K alone, so
//   results repeat bit for bit; it is not the one chain of FMAs in ascending k of the rungs before.
// - A passes through two buffers in shared memory, BK steps at a time: one 16-byte load brings a step of k of
//   four rows, enough for four times TN FMAs. Four steps of one row would do as much, but B's come in fours
//   too where it is transposed: then all that an FMA reads would be from one register bank in half of the
//   steps.
// - Blocks past the tiles of C split K as in rung 9, where the tiles do not fill the device.
// Both layouts of B run the same code: neighbouring lanes have neighbouring columns (TRANS_B = 0), or
// neighbouring groups of k and, by twos, columns (TRANS_B = 1).
//   BM, BN      rows and columns of C a block
//   TN          columns a thread
//   BK          steps of k between two barriers
//   TK          of these a thread: its loads in flight
//   MIN_BLOCKS  blocks that must fit on an SM together: bounds the registers
// TRANS_C = 1: C(m, n) lies at n * ldc + m. A product of few columns is C^T = B^T A^T, with C where it was.
// Assumes: VEC_x = 4 only where the operand is aligned for it (see device/tile_copy.cuh), and then k_chunk is
// a multiple of 4. Threads past the matrix read its last row or column, and store nothing.
#include "device/tile_copy.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"
#include "device/dependent_launch.cuh"

constexpr int QUAD = 4;           // steps of k that a thread reads of A at a time
constexpr int COLUMNS = BN / TN;  // threads side by side
constexpr int SLICES = BK / TK;   // threads that share their columns and divide k
constexpr int THREADS = COLUMNS * SLICES;
constexpr int CHAINS = TK > QUAD && BM * TN <= 16 ? 2 : 1;
constexpr int SPAN = QUAD * SLICES;  // steps of k between two groups of a thread
// 16 bytes of A in shared memory: ROWS_A rows, STEPS_A steps of k.
constexpr int ROWS_A = BM < QUAD ? BM : QUAD;
constexpr int STEPS_A = QUAD / ROWS_A;
// In floats: 16 bytes a slice, and 16 between them and those of other rows, to store to different banks.
constexpr int LD_SLICES_A = QUAD * (SLICES + (BM > QUAD));
constexpr int TILE_A = BM * TK * (LD_SLICES_A / QUAD);
constexpr int WIDE_A = TRANS_A && BM % 4 ? 1 : VEC_A;  // floats a load: a tile may be too narrow for VEC
constexpr int WIDE_B = !TRANS_B && TN % 4 ? 1 : VEC_B;
constexpr int WIDE_C = (TRANS_C ? BM : BN) % 4 ? 1 : VEC_C;
// Lanes along k are pairs with the same k: two equal addresses halve the passes of a 16-byte shared load.
constexpr int PAIR = COLUMNS > 1 ? 2 : 1;
// B float by float along k: neighbouring lanes take neighbouring k, and A is stored to match (`place_of`).
constexpr bool SCATTERED = TRANS_B && WIDE_B == 1;
static_assert((BM & (BM - 1)) == 0 && BM <= 32, "the sums of BM * TN results stay in registers");
static_assert(BN % TN == 0 && BK % TK == 0, "threads cover the block tile");
static_assert(TK % QUAD == 0, "k is taken in groups of four");
static_assert((COLUMNS & (COLUMNS - 1)) == 0 && (SLICES & (SLICES - 1)) == 0,
              "partial sums share out evenly");
static_assert((TN & (TN - 1)) == 0, "partial sums share out evenly");
static_assert(THREADS >= 32 && THREADS >= BM && THREADS <= 1024, "32 to 1024 threads a block");

// Partial sums are added up ROWS rows of C at a time, by PARTS threads an element, then the parts.
__device__ constexpr int rows_a_pass() {
    int rows = BM;
    while (rows > 1 && (rows * TN > SLICES || rows * SLICES * BN > 8192)) rows /= 2;
    return rows;
}
constexpr int ROWS = rows_a_pass();
constexpr int PASS = ROWS * BN;
constexpr int PARTS = THREADS > PASS ? THREADS / PASS : 1;
// Padded so that lanes that differ in both element and part (TRANS_B) or in n (TRANS_C) use different banks.
constexpr int LD_SLICES = SLICES + PARTS;
constexpr int LD_PARTS = BN * (BM + TRANS_C) + (TRANS_B ? 4 : 0);
constexpr int SUMS = TRANS_B ? PASS * LD_SLICES : PASS * SLICES;
constexpr int COMBINED = SUMS + PARTS * LD_PARTS;
constexpr int SHARED = 2 * TILE_A > COMBINED ? 2 * TILE_A : COMBINED;  // floats
static_assert(SLICES % PARTS == 0 && PASS * PARTS % THREADS == 0, "partial sums share out evenly");
static_assert(SHARED <= 12 * 1024, "a block has 48 KB of static shared memory");

#include "device/skinny_copy.cuh"

// The sum of `load(first)` and those after it, COUNT in all, two by two.
template <int COUNT, class Load>
__device__ __forceinline__ float sum_by_pairs(Load load, int first = 0) {
    if constexpr (COUNT == 1)
        return load(first);
    else
        return __fadd_rn(sum_by_pairs<COUNT / 2>(load, first),
                         sum_by_pairs<COUNT / 2>(load, first + COUNT / 2));
}

// Where a sum of partial sums lies among `parts`: in C's order, so that C is written by neighbours.
__device__ __forceinline__ int place_of_sum(int m, int n) {
    return TRANS_C ? n * (BM + 1) + m : m * BN + n;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    skinny(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
           const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C, long long ldc,
           int k_chunk, long long split_stride) {
    __shared__ __align__(16) float shared[SHARED];
    if (k_chunk < K) let_dependents_begin();  // the sum of the parts
    const unsigned tiles = count_tiles<BM, BN>(M, N);
    const int part = blockIdx.x / tiles;
    const Tile tile = tile_of_block<BM, BN, 8>(M, N, blockIdx.x % tiles);
    const int k0 = part * k_chunk;
    int left = min(k_chunk, K - k0);
    Rows a(A, lda, tile.m, M, k0);
    Columns b(B, ldb, tile.n, N, k0);

    float acc[CHAINS][BM][TN] = {};
    if (left > 0) {
        a.fetch<false>(left);
#pragma unroll
        for (int g = 0; g < TK / QUAD; ++g) b.fetch<false>(g, left);
        a.store(shared);
        a.fetch<false>(left - BK);
        __syncthreads();
    }
    // The branches do more than to spare whole tiles the comparisons: the compiler does not mix the groups'
    // FMAs across them, so that the registers of a group are free when it is sent for again.
#pragma unroll 1
    for (int now = 0; left > 0; left -= BK, now = TILE_A - now) {
        const float *As = shared + now;
        a.store(shared + TILE_A - now);
        if (left >= 3 * BK)
            a.fetch<true>(BK);
        else
            a.fetch<false>(left - 2 * BK);
#pragma unroll
        for (int g = 0; g < TK / QUAD; ++g) {
#pragma unroll
            for (int q = 0; q < QUAD; q += STEPS_A) {
                float some[BM / ROWS_A][QUAD];
#pragma unroll
                for (int i = 0; i < BM; i += ROWS_A)
                    load_fragment<QUAD>(some[i / ROWS_A], As + place_of(i, g, q, b.slice()));
#pragma unroll
                for (int p = 0; p < STEPS_A; ++p)
#pragma unroll
                    for (int i = 0; i < BM; ++i)
#pragma unroll
                        for (int jj = 0; jj < TN; ++jj) {
                            const int j = i % 2 ? TN - 1 - jj : jj;  // see device/outer_product.cuh
                            float &sum = acc[g % CHAINS][i][j];
                            sum = __fmaf_rn(some[i / ROWS_A][p * ROWS_A + i % ROWS_A], b.value[g][q + p][j],
                                            sum);
                        }
            }
            if (left >= 2 * BK)
                b.fetch<true>(g, BK);
            else
                b.fetch<false>(g, left - BK);
        }
        __syncthreads();
    }

    float *parts = shared + SUMS;  // [PARTS][LD_PARTS]
#pragma unroll
    for (int row = 0; row < BM; row += ROWS) {
        if (row) __syncthreads();
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int out = i * BN + b.column(j);
                shared[TRANS_B ? out * LD_SLICES + b.slice() : b.slice() * PASS + out] =
                    sum_by_pairs<CHAINS>([&](int chain) { return acc[chain][row + i][j]; });
            }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PASS * PARTS; i += THREADS) {
            const int t = threadIdx.x + i;
            const int p = TRANS_B ? t % PARTS : t / PASS;
            const int out = TRANS_B ? t / PARTS : t % PASS;
            parts[p * LD_PARTS + place_of_sum(row + out / BN, out % BN)] =
                sum_by_pairs<SLICES / PARTS>([&](int s) {
                    const int slice = p + s * PARTS;
                    return shared[TRANS_B ? out * LD_SLICES + slice : slice * PASS + out];
                });
        }
    }
    __syncthreads();
    C += part * split_stride;
#pragma unroll
    for (int i = 0; i < BM * BN; i += THREADS * WIDE_C) {
        const int t = threadIdx.x * WIDE_C + i;
        const int m = TRANS_C ? t % BM : t / BN;
        const int n = TRANS_C ? t / BM : t % BN;
        if (t >= BM * BN || tile.m + m >= M || tile.n + n >= N) continue;
        float sum[WIDE_C];
#pragma unroll
        for (int j = 0; j < WIDE_C; ++j)
            sum[j] = sum_by_pairs<PARTS>([&](int p) { return parts[p * LD_PARTS + place_of_sum(m, n) + j]; });
        const long long down = tile.m + m, right = tile.n + n;
        store_row<WIDE_C, WIDE_C>(C + (TRANS_C ? right * ldc + down : down * ldc + right), sum, WIDE_C, alpha,
                                  beta);
    }
}
