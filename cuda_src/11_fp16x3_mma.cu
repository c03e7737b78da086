// Rung 11, fp16x3, for devices without wgmma (sm_80 and later): the same arithmetic on the same split
// operands as in 11_fp16x3.cu. What differs: all warps both copy and multiply. cp.async copies tiles, 16
// bytes at a time, into a ring of stages of 32 steps of k. A warp loads fragments by ldmatrix, without bank
// conflicts because the split format is swizzled, and computes WM x WN elements by mma.
//
// Grid: tiles * parts blocks. Block: THREADS. Dynamic shared memory: SHARED bytes. Parts of K and the rest of
// the arguments as in 11_fp16x3.cu, except that part_blocks is any number.
#include "device/split_format.cuh"
#include "device/global_memory.cuh"
#include "device/warp_mma.cuh"
#include "device/scaled_store.cuh"
#include "device/raster.cuh"
#include "device/grouped_rows.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 128;     // rows of C per block: multiple of WM
constexpr int BN = 128;     // columns of C per block: multiple of WN
constexpr int WM = 64;      // rows of C per warp: multiple of 16
constexpr int WN = 32;      // columns of C per warp: multiple of 16
constexpr int STAGES = 3;   // of the ring, (BM + BN) * 128 bytes each: at least 2
constexpr int GROUP_M = 8;  // tile rows of C that are walked together, for L2
constexpr int TRANS_C = 0;  // 1: C is column-major
constexpr int VEC_C = 4;    // floats per store: 4 if C and ldc have 16-byte alignment and TRANS_C = 0, else 1
constexpr int SOURCE = 0;   // 0: beta multiplies C; 1, 4: the source, read so many floats at a time
constexpr int SYM = 0;      // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int ONE_A = 0;    // 1: A is single FP16 numbers, from a 16-bit operand, not pairs
constexpr int ONE_B = 0;    // 1: B is
constexpr int GROUPED = 0;  // 1: the rows are in groups, each with its own B; see device/grouped_rows.cuh
// constants:end

constexpr int WARPS_N = BN / WN;
constexpr int THREADS = BM / WM * WARPS_N * 32;
constexpr int STAGE_A = BM * LINE_BYTES<ONE_A>, STAGE_B = BN * LINE_BYTES<ONE_B>;  // bytes
constexpr int STAGE = STAGE_A + STAGE_B;
constexpr int SHARED = STAGES * STAGE;
constexpr int TILES_M = WM / 16, TILES_N = WN / 8;  // mma tiles of a warp
template <int ONE>
constexpr int PIECES = LINE_BYTES<ONE> / 16;  // of 16 bytes, per line
// rules:begin (tools/write_rules.py writes them)
static_assert((BM == 64 || BM == 128) && (BN == 64 || BN == 128) && (WM == 32 || WM == 64) &&
                  (WN == 32 || WN == 64),
              "the kernel is written for such tiles");
static_assert(THREADS == 32 * (BM / WM) * (BN / WN), "the host launches as many");
static_assert(STAGES >= 2, "one stage is filled while another is used");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "whole warps, 64 to 1024 threads");
// rules:end
static_assert(THREADS / 32 * STORE_SCRATCH * 4 <= SHARED, "the warps lay what they store in the ring");
static_assert(BM * PIECES<ONE_A> % THREADS == 0 && BN * PIECES<ONE_B> % THREADS == 0,
              "threads share out the copies");

using Layout = StoreLayout<BM, BN, TRANS_C, VEC_C, SYM>;

// Copy LINES lines of one block of k, from line `first` on. They are contiguous, and swizzled already. Lines
// past the end are zeros.
template <int LINES, int ONE>
__device__ __forceinline__ void copy_lines(unsigned to, const unsigned short *block, int first, int lines) {
#pragma unroll
    for (int i = 0; i < LINES * PIECES<ONE>; i += THREADS) {
        const int line = (i + threadIdx.x) / PIECES<ONE>, piece = threadIdx.x % PIECES<ONE>;
        const bool inside = first + line < lines;
        const unsigned short *from =
            block + (inside ? first + line : 0ll) * (LINE_BYTES<ONE> / 2) + piece * 8;
        cp_async_zfill<4>(to + line * LINE_BYTES<ONE> + piece * 16, reinterpret_cast<const float *>(from),
                          inside);
    }
}

// Load the fragments of 16 lines by 16 steps of k: one mma tile of A's rows or, with ACROSS, two mma tiles of
// B's columns.
template <bool ACROSS, int ONE>
__device__ __forceinline__ void load_fragments(unsigned (&fragment)[4], unsigned tile, int line, int piece) {
    const int lane = threadIdx.x % 32;
    const int own = ACROSS ? lane % 8 + lane / 16 * 8 : lane % 16, half = ACROSS ? lane / 8 % 2 : lane / 16;
    ldmatrix_x4(fragment, tile + (line + own) * LINE_BYTES<ONE> + swizzled<ONE>(piece + half, lane % 8) * 16);
}

struct Sums {
    float value[TILES_M][TILES_N * 4];
};

// Add the products of the lo of A and the hi of B to a row of mma tiles.
__device__ __forceinline__ void multiply_low(float (&cross)[TILES_N * 4], unsigned (&a)[4],
                                             const unsigned (&b_hi)[TILES_N / 2][4], unsigned stage, int line,
                                             int piece) {
    load_fragments<false, ONE_A>(a, stage, line, piece);
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
        float *rest = &cross[4 * j];
        mma_m16n8k16(rest, a, &b_hi[j / 2][j % 2 * 2], rest);
    }
}

// Compute the products of a stage: `high` = hi hi, and `cross` += the cross products.
__device__ __forceinline__ void multiply(Sums &high, Sums &cross, unsigned stage, int warp_m, int warp_n) {
    constexpr float ZERO[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    constexpr int LO = 4, STEP = 2;            // pieces from hi to lo, and in 16 steps of k
    constexpr bool ONE_ROW = ONE_B && !ONE_A;  // fragments of one row of mma tiles at a time: else they spill
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        unsigned a[TILES_M][4], b_hi[TILES_N / 2][4], b_lo[TILES_N / 2][4];
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            if (!ONE_ROW) load_fragments<false, ONE_A>(a[i], stage, warp_m + 16 * i, k * STEP);
#pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) {
            load_fragments<true, ONE_B>(b_hi[j], stage + STAGE_A, warp_n + 16 * j, k * STEP);
            if constexpr (!ONE_B)
                load_fragments<true, ONE_B>(b_lo[j], stage + STAGE_A, warp_n + 16 * j, k * STEP + LO);
        }
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            if (ONE_ROW) load_fragments<false, ONE_A>(a[i], stage, warp_m + 16 * i, k * STEP);
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                float *sum = &high.value[i][4 * j], *rest = &cross.value[i][4 * j];
                mma_m16n8k16(sum, a[i], &b_hi[j / 2][j % 2 * 2], k == 0 ? ZERO : sum);
                if constexpr (!ONE_B) mma_m16n8k16(rest, a[i], &b_lo[j / 2][j % 2 * 2], rest);
            }
            if (ONE_ROW) multiply_low(cross.value[i], a[i], b_hi, stage, warp_m + 16 * i, k * STEP + LO);
        }
        if constexpr (ONE_A || ONE_ROW) continue;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            multiply_low(cross.value[i], a[i], b_hi, stage, warp_m + 16 * i, k * STEP + LO);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fastsgemm_fp16x3_mma(const unsigned short *pairs_a, const unsigned short *pairs_b, int M, int N,
                         int k_blocks, int part_blocks, float alpha, const Line *rows, const Line *columns,
                         float beta, float *__restrict__ C, long long ldc, long long part_stride,
                         int *__restrict__ exceptions, const float *source, long long source_row,
                         LastArgument<GROUPED>::Type last) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const GroupedRows grouped = LastArgument<GROUPED>::rows(last);
    const unsigned tiles = count_tiles<BM, BN, SYM>(M, N);
    const int part = GROUPED ? 0 : blockIdx.x / tiles, first = part * part_blocks,
              blocks = min(part_blocks, k_blocks - first);
    const int warp = threadIdx.x / 32, warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;
    launch_dependents();
    griddepcontrol_wait();
    GroupedTile work{};
    if (GROUPED && !find_tile<BM, BN, GROUP_M, THREADS>(work, reinterpret_cast<int *>(shared), grouped, M, N))
        return;
    const Tile tile = GROUPED ? work.tile : tile_of_block<BM, BN, GROUP_M, SYM>(M, N, blockIdx.x % tiles);
    // Lines of B from a block of k to the next, and those of the groups before.
    const int lines_b = GROUPED ? int(first_line_of_b(int(grouped.count), N)) : N;
    const long long first_b = GROUPED ? first_line_of_b(work.group, N) : 0;
    const int end_a = GROUPED ? work.rows.end : M;
    __shared__ GroupedTile kept;  // over the main loop, which needs the registers
    if (GROUPED && threadIdx.x == 0) kept = work;

    auto copy = [&](int block) {
        if (block < blocks) {
            const unsigned to = ring + block % STAGES * STAGE;
            copy_lines<BM, ONE_A>(
                to, pairs_a + static_cast<long long>(first + block) * M * (LINE_BYTES<ONE_A> / 2), tile.m,
                end_a);
            copy_lines<BN, ONE_B>(to + STAGE_A,
                                  pairs_b + (static_cast<long long>(first + block) * lines_b + first_b) *
                                                (LINE_BYTES<ONE_B> / 2),
                                  tile.n, N);
        }
        cp_async_commit_group();
    };
    Sums sum = {}, high, cross = {};
#pragma unroll
    for (int block = 0; block < STAGES - 1; ++block) copy(block);
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // all threads' copies are complete, and all have read the stage before
        copy(block + STAGES - 1);
        multiply(high, cross, ring + block % STAGES * STAGE, warp_m, warp_n);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N * 4; ++j)
                sum.value[i][j] = __fadd_rn(sum.value[i][j], high.value[i][j]);
    }
    cp_async_wait_group<0>();
    __syncthreads();  // all have read the last stage
    float *const scratch = reinterpret_cast<float *>(shared) + warp * STORE_SCRATCH;

    const OldValues<SOURCE, TRANS_C> old(source, source_row, grouped.source_column);
    if constexpr (GROUPED) work = kept;
    const long long first_line = GROUPED ? first_line_of_b(work.group, N) : 0;
    if constexpr (GROUPED) {
        if (warp == 0) note_group<Layout>(work, N, rows, columns + first_line, exceptions);
    } else {
        if (warp == 0 && part == 0) note_exceptions<Layout>(tile, M, N, rows, columns, exceptions);
    }
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N * 4; ++j)
            sum.value[i][j] = __fmaf_rn(cross.value[i][j], 1.0f / LO_SCALE, sum.value[i][j]);
        const int m = tile.m + warp_m + 16 * i, n = tile.n + warp_n;
        if constexpr (GROUPED)
            store_sums<Layout>(sum.value[i], scratch, m, n, work.rows, N, alpha, rows, columns + first_line,
                               beta, C, ldc, old);
        else
            store_triangles<Layout>(sum.value[i], scratch, m, n, M, N, alpha, rows, columns, beta,
                                    C + part * part_stride, ldc, old);
    }
}
