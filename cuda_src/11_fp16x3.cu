// Rung 11, fp16x3: FP32's accuracy from tensor cores, on Hopper (sm_90a). Both operands come as pairs of FP16 numbers,
// x = (hi + lo 2^-12) 2^exponent with one exponent for a row of A or a column of B (device/split_format.cuh), and
//     A B = hi hi + 2^-12 (hi lo + lo hi),
// scaled by the exponents: three products of FP16 operands, summed in FP32. What lo lo would add is below FP32's
// rounding. What changed since rung 9:
// - The copy engine brings tiles to a ring of stages in shared memory (TMA); memory barriers say what is full and empty.
// - Warps have roles: one thread of the last warpgroup asks for copies, the other warpgroups multiply, with most of the
//   registers. A block stays and takes one tile of C after the other, so that copies for the next tile are under way
//   while this one is stored.
// - A warpgroup multiplies 64 x BN straight from shared memory (wgmma).
// - Tensor cores truncate what they add. So a chain of products in the tensor core's accumulators is short, and is added
//   to FP32 registers by ordinary rounded additions ("promotion") for every 64 steps of k.
// With SETS = 3 sets of registers (sums, chain of hi hi, chain of the cross products) the promotion of hi hi runs beside
// the cross products. Their chain lasts to the end: its truncations count 2^-11 as much. With SETS = 2 the tile is wider,
// and one set serves both chains in turn: cross | hi hi, hi hi | cross, cross | ... where a comma joins two blocks of
// 64 steps in one chain of 128, and | is a promotion.
// C is written only where both lines are sparse in exceptions; the guard kernel does the rest. The host swaps the
// operands for a narrow C (TRANS_C = 1: C(m, n) lies at n * ldc + m) and for a column-major one.
//
// Grid: min(SMs, tiles * parts) or any other number of blocks. Block: THREADS. Dynamic shared memory: SHARED bytes.
// K is split into parts of `part_blocks` blocks (a multiple of four) of BLOCK_K steps; with more than one part, part p
// writes its plain sums to C + p * part_stride for reduce_fp16x3.cu to add, scale and store.
#include "device/split_format.cuh"
#include "device/mbarrier.cuh"
#include "device/tma.cuh"
#include "device/raster.cuh"
#include "device/epilogue.cuh"
#include "device/dependent_launch.cuh"

#ifndef CONSTANTS
constexpr int BM = 128;     // rows of C a tile: 64 a warpgroup that multiplies; 64, 128 or 192
constexpr int BN = 192;     // columns of C a tile: 16, 32, 64, 96, 128 or 192
constexpr int SETS = 2;     // sets of BN / 2 registers: 2 or 3 (BN up to 128 then)
constexpr int PROMOTE_STAGES = 2;  // 32 steps of k each: the sums are promoted every so many; 1 or 2
constexpr int STAGES = 5;   // of the ring, (BM + BN) * 128 bytes each: at least 4, and all in 226 KB
constexpr int GROUP_M = 8;  // rows of tiles that are walked together, for L2
constexpr int TRANS_C = 0;  // 1: C is column-major
constexpr int VEC_C = 2;    // floats a store: 2 where C and ldc have 8-byte alignment and TRANS_C = 0, else 1
#endif

constexpr int CONSUMERS = BM / 64;  // warpgroups that multiply
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int STAGE_A = BM * 128, STAGE_B = BN * 128, STAGE = STAGE_A + STAGE_B;  // bytes
constexpr int SWIZZLE_PERIOD = 1024;  // bytes: tiles begin at multiples
constexpr int SHARED = SWIZZLE_PERIOD + STAGES * (STAGE + 16);
// Registers: 65536 a multiprocessor. What the compiler gives each thread is the same for all; the warpgroup that only
// copies hands most of its own over.
constexpr int COPY_REGISTERS = CONSUMERS == 3 ? 32 : 40;
constexpr int MULTIPLY_REGISTERS = CONSUMERS == 3 ? 160 : 232;
static_assert(BM % 64 == 0 && CONSUMERS >= 1 && CONSUMERS <= 3, "BM is 64, 128 or 192");
static_assert(SETS == 2 || SETS == 3, "two or three sets of registers");
static_assert(SETS * BN / 2 + 32 <= MULTIPLY_REGISTERS, "the sets fit in the registers");
static_assert(STAGES >= 4, "a chain of 128 steps needs two stages while two more are filled");
static_assert(SHARED <= 232448, "a block has 227 KB of shared memory");
static_assert(!TRANS_C || VEC_C == 1, "a column-major C is stored float by float");

// The ring: where a role is in it.
struct Ring {
    unsigned base;  // shared address of stage 0; the barriers follow the last stage
    int stage = 0;
    unsigned phase = 0;

    __device__ __forceinline__ unsigned data(int stage) const { return base + stage * STAGE; }
    __device__ __forceinline__ unsigned full(int stage) const { return base + STAGES * STAGE + stage * 8; }
    __device__ __forceinline__ unsigned empty(int stage) const { return base + STAGES * (STAGE + 8) + stage * 8; }
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// What a block works on: a tile of C, and a part of K.
struct Work {
    Tile tile;
    int part;
    int blocks;  // of BLOCK_K steps

    __device__ __forceinline__ Work(int M, int N, int k_blocks, int part_blocks, unsigned tiles, unsigned number)
        : tile(tile_of_block<BM, BN, GROUP_M>(M, N, number % tiles)),
          part(number / tiles),
          blocks(min(part_blocks, k_blocks - part * part_blocks)) {}
};

#include "device/promoted_wgmma.cuh"

// Copy what the tiles of this block need, stage after stage. By one thread.
__device__ __forceinline__ void copy_tiles(const TensorMap &map_a, const TensorMap &map_b, Ring ring, int M, int N,
                                           int k_blocks, int part_blocks, unsigned tiles, unsigned works) {
    for (unsigned number = blockIdx.x; number < works; number += gridDim.x) {
        const Work work(M, N, k_blocks, part_blocks, tiles, number);
        const int first = work.part * part_blocks, last = first + (work.blocks + 3) / 4 * 4;
#pragma unroll 1
        for (int block = first; block < last; ++block) {
            const unsigned data = ring.data(ring.stage), full = ring.full(ring.stage);
            barrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
            barrier_arrive_expecting(full, STAGE);
            copy_box(data, map_a, full, 0, work.tile.m, block);
            copy_box(data + STAGE_A, map_b, full, 0, work.tile.n, block);
            ring.next();
        }
    }
}

// Note for the guard kernel which tiles hold lines with exceptions. By one warp.
__device__ __forceinline__ void note_exceptions(int M, int N, const Line *rows, const Line *columns, unsigned tiles,
                                                int *exceptions) {
    const int lane = threadIdx.x % 32;
    for (unsigned number = blockIdx.x; number < tiles; number += gridDim.x) {
        const Tile tile = tile_of_block<BM, BN, GROUP_M>(M, N, number);
        int any = 0;
        for (int i = tile.m + lane; i < min(M, tile.m + BM); i += 32) any |= rows[i].left_out;
        for (int i = tile.n + lane; i < min(N, tile.n + BN); i += 32) any |= columns[i].left_out;
        any = __any_sync(0xffffffffu, any);
        const unsigned down = tile.m / BM, right = tile.n / BN;
        // In the order of C's memory: row by row where C is row-major.
        const unsigned place = TRANS_C ? right * ((M + BM - 1u) / BM) + down : down * ((N + BN - 1u) / BN) + right;
        if (lane == 0) exceptions[place] = any;
    }
}

// Write the sums of a warpgroup: scaled, with alpha and beta, where both lines are sparse in exceptions; or, of a part of
// K, plainly.
template <bool PLAIN>
__device__ __forceinline__ void store_tile(const float (&sum)[BN / 2], Tile tile, int warpgroup, int M, int N,
                                           float alpha, const Line *rows, const Line *columns, float beta, float *C,
                                           long long ldc) {
    // The old C of so many times eight columns is read together, so that the loads wait side by side. Wide tiles leave
    // registers for few.
    constexpr int EIGHTS = BN > 128 || CONSUMERS == 3 || BN % 32 != 0 ? 2 : BN % 64 != 0 ? 4 : 8;
    const int lane = threadIdx.x % 32;
    const int m = tile.m + warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    const int n0 = tile.n + lane % 4 * 2;
    const long long right = TRANS_C ? ldc : 1;  // from a column of C to the next
    Line row[2];                                // the rows m and m + 8
    bool row_stored[2];
    float *row_c[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const bool inside = m + 8 * h < M;
        row_c[h] = C + (m + 8 * h) * (TRANS_C ? 1 : ldc) + n0 * right;
        row[h] = inside && !PLAIN ? rows[m + 8 * h] : Line{0, 0};
        row_stored[h] = inside && row[h].left_out <= SPARSE;
    }
#pragma unroll
    for (int j = 0; j < BN / 8; j += EIGHTS) {
        const int n = n0 + 8 * j;
        int exponent[EIGHTS][2];
        bool stored[EIGHTS][2][2];
        float old[EIGHTS][2][2];
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) {
            int4 pair = make_int4(0, 0, 0, 0);  // two columns
            if (!PLAIN && n + 8 * e < N) pair = *reinterpret_cast<const int4 *>(columns + n + 8 * e);
            exponent[e][0] = pair.x, exponent[e][1] = pair.z;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                stored[e][h][0] = row_stored[h] && n + 8 * e < N && pair.y <= SPARSE;
                stored[e][h][1] = row_stored[h] && n + 8 * e + 1 < N && pair.w <= SPARSE;
                if (PLAIN || beta == 0.0f) continue;
                const float *c = row_c[h] + 8 * (j + e) * right;
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (stored[e][h][i]) old[e][h][i] = c[i * right];
            }
        }
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float value[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float plain = sum[4 * (j + e) + 2 * h + i];
                    value[i] = PLAIN ? plain
                                     : epilogue(alpha, scale_by_power(plain, row[h].exponent + exponent[e][i]), beta,
                                                &old[e][h][i]);
                }
                float *c = row_c[h] + 8 * (j + e) * right;
                if (VEC_C == 2 && stored[e][h][0] && stored[e][h][1]) {
                    *reinterpret_cast<float2 *>(c) = make_float2(value[0], value[1]);
                } else {
                    if (stored[e][h][0]) c[0] = value[0];
                    if (stored[e][h][1]) c[right] = value[1];
                }
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp16x3(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N,
           int k_blocks, int part_blocks, float alpha, const Line *__restrict__ rows,
           const Line *__restrict__ columns, float beta, float *__restrict__ C, long long ldc, long long part_stride,
           int *__restrict__ exceptions) {
    extern __shared__ unsigned char shared[];
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    Ring ring{(address + SWIZZLE_PERIOD - 1) / SWIZZLE_PERIOD * SWIZZLE_PERIOD};
    // The same for all of a warp, and the compiler is to know it.
    const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0), warpgroup = warp / 4;
    const unsigned tiles = count_tiles<BM, BN>(M, N);
    const bool split = part_blocks < k_blocks;
    const unsigned works = tiles * ((k_blocks + part_blocks - 1) / part_blocks);
    if (threadIdx.x == 0) {
        prefetch_tensor_map(map_a);
        prefetch_tensor_map(map_b);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.full(stage), 1);
            barrier_init(ring.empty(stage), 4 * CONSUMERS);  // one thread of each warp
        }
        barrier_init_done();
    }
    __syncthreads();
    let_dependents_begin();
    wait_for_results();

    if (warpgroup == CONSUMERS) {
        give_registers<COPY_REGISTERS>();
        if (warp == 4 * CONSUMERS && threadIdx.x % 32 == 0)
            copy_tiles(map_a, map_b, ring, M, N, k_blocks, part_blocks, tiles, works);
        if (warp == 4 * CONSUMERS + 1) note_exceptions(M, N, rows, columns, tiles, exceptions);
    } else {
        take_registers<MULTIPLY_REGISTERS>();
        for (unsigned number = blockIdx.x; number < works; number += gridDim.x) {
            const Work work(M, N, k_blocks, part_blocks, tiles, number);
            float sum[BN / 2];
            multiply(sum, ring, (work.blocks + 3) / 4 * (4 / PROMOTE_STAGES), warpgroup);
            if (split)
                store_tile<true>(sum, work.tile, warpgroup, M, N, alpha, rows, columns, beta,
                                 C + work.part * part_stride, ldc);
            else
                store_tile<false>(sum, work.tile, warpgroup, M, N, alpha, rows, columns, beta, C, ldc);
        }
    }
}
