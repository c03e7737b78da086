// Rung 9, pipelined: rung 8 with two or more stages of shared memory, so that copies and arithmetic overlap.
// - While one stage is multiplied, others are filled: one barrier per tile, not two (device/pipeline.cuh).
// - With FRAGMENTS > 1, fragments are read FRAGMENTS - 1 steps of k ahead, so no FMA waits for shared memory.
//   The last steps of a tile read from the next tile, so the barrier stands before them.
// - The main loop checks no bounds. With GUARD = 0, a tile past the edge of C is moved back inside and stores
//   only its own elements. What whole tiles leave of K is multiplied last, or first with PEEL = 1.
// - Sliced-K (SLICED_K > 1): groups of threads, the slices, share out the steps of each tile. Split-K: part p
//   has blocks of its own and writes the sums of its k_chunk steps to C + p * split_stride.
// - With CHAINS = 1, a sum is made up of chains of k_chain FMAs each, for less rounding error or for the
//   order of docs/batch-invariance.md. Else an undivided K is one chain, as in rungs 1 to 8.
// Assumes: VEC_x = 4 or 2 only where the operand is aligned for it (see device/pipelined_copy.cuh), else 1.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 128;        // rows of C per block: a multiple of WM
constexpr int BN = 128;        // columns of C per block: a multiple of WN
constexpr int BK = 8;          // steps of k per tile: SLICED_K times an even number of at least 4
constexpr int WM = 64;         // rows of C per warp
constexpr int WN = 64;         // columns of C per warp
constexpr int WNITER = 2;      // sub-tiles of a warp tile along n
constexpr int TM = 8;          // rows of C per thread in one sub-tile: 1, 2 or a multiple of 4
constexpr int TN = 4;          // columns of C per thread in one sub-tile: 1, 2, 4, 8, 16 or 32
constexpr int GROUP_M = 8;     // tile rows of C that are walked together, for L2: 1 or more
constexpr int MIN_BLOCKS = 1;  // blocks that fit on an SM together, at least: 1 or more
constexpr int ORDER = 1;       // order of the FMAs: 0 to 5, see device/outer_product.cuh
constexpr int FRAGMENTS = 2;   // register buffers for fragments: 1, or 2, 4, 8 to read ahead
constexpr int CP_ASYNC = 1;    // by cp.async (sm_80): 0 none, 1 what is not transposed, 2 all, 3 all in lines
constexpr int SPREAD = 0;  // how a copy is spread over a tile's steps: 0, 1, 2, see device/pipelined_copy.cuh
constexpr int STAGES = 2;  // tiles in shared memory: 2, or 3 and more with CP_ASYNC of 2 or 3
constexpr int SLICED_K = 1;  // groups of threads that share out the steps of each tile: 1, 2, 4, 8
constexpr int CHAINS = 0;    // 1: a sum has several chains, see device/partial_accumulators.cuh
constexpr int PAD = 4;       // floats after a line of a transposed tile, to spread its stores over the banks
constexpr int TRANS_A = 0;   // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;   // 1: B is column-major
constexpr int VEC_A = 1;     // floats per read of A: 1, 2, 4
constexpr int VEC_B = 1;     // floats per read of B: 1, 2, 4
constexpr int VEC_C = 1;     // floats per store of C: 1, 4
constexpr int GUARD = 0;     // 1: M < BM or N < BN, and the copies check the edges
constexpr int PEEL = 0;      // 1: the end of K, behind a whole tile or more, is multiplied first
constexpr int BATCHED = 0;   // 1: the grid has several products, see device/batch.cuh
constexpr int SOURCE = 0;    // 0: beta multiplies C; 1, 4: the source, read so many floats at a time
constexpr int SYM = 0;       // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int GROUPED = 0;   // 1, 2, 3: groups of rows, of k, of columns; see device/groups.cuh
// constants:end

#include "device/dependent_launch.cuh"
#include "device/groups.cuh"
#include "device/outer_product.cuh"
#include "device/partial_accumulators.cuh"
#include "device/pipeline.cuh"
#include "device/raster.cuh"
#include "device/sliced_k.cuh"
#include "device/symmetric_store.cuh"

constexpr int THREADS_PER_SLICE = BM / WM * (BN / WN) * 32;  // one slice covers the block tile
constexpr int THREADS = SLICED_K * THREADS_PER_SLICE;
constexpr int STEPS = BK / SLICED_K, AHEAD = FRAGMENTS - 1;  // of k per thread and tile, and read ahead
constexpr int WMITER = WM * WN / (32 * TM * TN * WNITER);
constexpr bool HAS_CP_ASYNC = __CUDA_ARCH__ >= 800, MANY_STAGES = HAS_CP_ASYNC && STAGES > 2;
constexpr bool ASYNC_A = HAS_CP_ASYNC && (CP_ASYNC >= 2 || (CP_ASYNC && TRANS_A)),
               ASYNC_B = HAS_CP_ASYNC && (CP_ASYNC >= 2 || (CP_ASYNC && !TRANS_B));
constexpr bool IN_LINES_A = ASYNC_A && CP_ASYNC == 3 && !TRANS_A,
               IN_LINES_B = ASYNC_B && CP_ASYNC == 3 && TRANS_B;
// rules:begin (tools/write_rules.py writes them)
static_assert(THREADS == 32 * (BM / WM) * (BN / WN) * SLICED_K, "the host launches as many");
static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles cover the block tile");
static_assert(WM * WN % (32 * TM * TN * WNITER) == 0 && 32 * TM * TN * WNITER % WN == 0,
              "sub-tiles cover the warp tile");
static_assert(WN % WNITER == 0 && 32 * TM * TN * WNITER / WN % TM == 0 && WN / WNITER % TN == 0,
              "thread tiles cover a sub-tile");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "whole warps, 64 to 1024 threads");
static_assert(BK % 4 == 0 && BN % 4 == 0 && (BM < 3 || BM % 4 == 0) && (TM < 3 || TM % 4 == 0),
              "floats are read and written 16 bytes at a time");
static_assert(32 % TN == 0, "the lanes of a warp store whole thread tiles of a row of C");
static_assert(BK % SLICED_K == 0 && BK / SLICED_K % (larger(FRAGMENTS, 2)) == 0 &&
                  BK / SLICED_K >= 2 * larger(FRAGMENTS, 2),
              "fragments of the next tile land where its first steps read them, copies before that");
static_assert((!(CP_ASYNC == 3) || BK / SLICED_K % 4 == 0) && (!(CP_ASYNC == 3) || FRAGMENTS <= 4),
              "four steps of k are read at a time");
static_assert(!(STAGES > 2) || CP_ASYNC >= 2, "more stages are copied past the registers");
static_assert(4 * (SLICED_K - 1) * (THREADS / SLICED_K) * TN * WNITER <= 2 * 4 * BK * (BM + BN) &&
                  4 * (THREADS / SLICED_K) * (TN + 1) * WNITER <= 2 * 4 * BK * (BM + BN) &&
                  4 * (THREADS / SLICED_K / 32) * (32 * TM * TN * WNITER / WN + 4) <= 2 * 4 * BK * (BM + BN),
              "two stages have room for what threads exchange at the end");
// rules:end

// What the headers of this rung are templates on.
struct CopyTraits {
    static constexpr int TILE_K = BK, THREADS = ::THREADS, STEPS = ::STEPS, SPREAD = ::SPREAD;
    static constexpr int LAST = larger(AHEAD, 1), GUARDED = GUARD;
};
struct TraitsA : CopyTraits {
    static constexpr int TILE_MN = BM, T = TM, PAD = TRANS_A ? 0 : ASYNC_A ? smaller(TM, ::PAD) : ::PAD;
    static constexpr int VEC = TRANS_A ? smaller(VEC_A, BM) : ASYNC_A && !IN_LINES_A ? 1 : VEC_A;
    static constexpr bool K_CONTIGUOUS = !TRANS_A, ASYNC = ASYNC_A, IN_LINES = IN_LINES_A;
};
struct TraitsB : CopyTraits {
    static constexpr int TILE_MN = BN, T = TN, PAD = !TRANS_B ? 0 : ASYNC_B ? smaller(TN, ::PAD) : ::PAD;
    static constexpr int VEC = ASYNC_B && TRANS_B && !IN_LINES_B ? 1 : VEC_B;
    static constexpr bool K_CONTIGUOUS = TRANS_B, ASYNC = ASYNC_B, IN_LINES = IN_LINES_B;
};
struct Traits {
    using A = TraitsA;
    using B = TraitsB;
    static constexpr int BK = ::BK, STEPS = ::STEPS, FRAGMENTS = ::FRAGMENTS, SPREAD = ::SPREAD;
    static constexpr int THREADS = ::THREADS, THREADS_PER_SLICE = ::THREADS_PER_SLICE, SLICED_K = ::SLICED_K;
    static constexpr int TM = ::TM, TN = ::TN, WNITER = ::WNITER, STAGES = ::STAGES, SYM = ::SYM;
    static constexpr int WSUBM = WM / WMITER, WSUBN = WN / WNITER;  // rows and columns of a sub-tile
    static constexpr int ROWS = WMITER * TM, COLS = WNITER * TN;    // of C, per thread
    static constexpr int TILE_A_BYTES = 4 * PipelinedCopy<A>::FLOATS,
                         STAGE_BYTES = TILE_A_BYTES + 4 * PipelinedCopy<B>::FLOATS;
    static constexpr int SCRATCH_BYTES = 2 * STAGE_BYTES;  // of shared memory that the main loop leaves free
};
constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;

// Two stages: issue the copies of a tile step by step while the tile before it is multiplied. Stop once
// `tiles_left`, the tiles after the current one, is below `until`; return it.
__device__ __forceinline__ int main_loop(TwoStages<Traits> &stages, float (&acc)[ROWS][COLS], int tiles_left,
                                         int until) {
#pragma unroll 1
    for (; tiles_left >= until; --tiles_left) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (AHEAD && k == STEPS - AHEAD) {
                stages.wait();
                stages.release(tiles_left > 0);
            }
            stages.issue_before_fragments(k, tiles_left > 1);
            stages.load_fragments((k + AHEAD) % STEPS);
            stages.issue_after_fragments(k, tiles_left > 1);
            outer_product<ORDER, !IN_LINES_B>(acc, stages.a.of_step(k), stages.b.of_step(k));
        }
        if (!AHEAD) {
            stages.wait();
            stages.release(tiles_left > 0);
        }
    }
    return tiles_left;
}

// More stages: issue the copies of a tile at once, STAGES - 1 tiles ahead.
__device__ __forceinline__ int main_loop(ManyStages<Traits> &stages, float (&acc)[ROWS][COLS], int tiles_left,
                                         int until) {
#pragma unroll 1
    for (; tiles_left >= until; --tiles_left) {
        stages.issue();
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (AHEAD && k == STEPS - AHEAD) {
                stages.wait();
                stages.release(tiles_left > 0);
            }
            stages.load_fragments((k + AHEAD) % STEPS);
            outer_product<ORDER, !IN_LINES_B>(acc, stages.a.of_step(k), stages.b.of_step(k));
        }
        if (!AHEAD) {
            stages.wait();
            stages.release(tiles_left > 0);
        }
    }
    return tiles_left;
}

// Multiply the first `steps` steps of k of the tile in the first stage. Each slice takes every SLICED_K-th.
__device__ __forceinline__ void multiply_end(Stages<Traits> &stages, float (&acc)[ROWS][COLS], int steps) {
    stages.read_first(stages.slice);
#pragma unroll 1
    for (int k = stages.slice; k < steps; k += SLICED_K) {
        stages.load_one_step(SLICED_K);
        outer_product<ORDER, !IN_LINES_B>(acc, stages.a.of_step(0), stages.b.of_step(0));
    }
}

// The addresses of a triangle and of a source need registers: with both, room for one block less.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS - (SYM && SOURCE && MIN_BLOCKS > 1))
    fastsgemm_pipelined(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                        const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                        long long ldc, int k_chunk, long long split_stride, int k_chain,
                        GroupedBatch<SOURCE, GROUPED> batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    extern __shared__ __align__(16) float shared[];  // the stages, then the partial accumulators
    launch_dependents();                             // reduce_parts, which adds up the parts
    unsigned block;                                  // of a group
    if (GROUPED && !move_to_group<Traits>(shared, batch, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc, block))
        return;
    const unsigned tiles = count_tiles<BM, BN, SYM>(M, N);
    const int part = GROUPED ? 0 : blockIdx.x / tiles;
    const Tile own = tile_of_block<BM, BN, GROUP_M, SYM>(M, N, GROUPED ? block : blockIdx.x % tiles);
    const Tile tile{PipelinedCopy<TraitsA>::first(own.m, M), PipelinedCopy<TraitsB>::first(own.n, N)};
    const int k_first = part * k_chunk, depth = max(0, min(K - k_first, k_chunk));
    const int lane = threadIdx.x % 32, slice = SLICED_K > 1 ? threadIdx.x / THREADS_PER_SLICE : 0;
    const int warp = (SLICED_K > 1 ? threadIdx.x % THREADS_PER_SLICE : threadIdx.x) / 32;
    const int warp_m = warp / (BN / WN) * WM, warp_n = warp % (BN / WN) * WN;
    const int row = warp_m + lane / (Traits::WSUBN / TN) * TM;  // of the first sub-tile, in the block tile
    const int col = warp_n + lane % (Traits::WSUBN / TN) * TN;
    PipelinedCopy<TraitsA> copy_a(A + element_offset<TRANS_A>(0, k_first, lda), lda, tile.m, M);
    PipelinedCopy<TraitsB> copy_b(B + element_offset<TRANS_B>(k_first, 0, ldb), ldb, tile.n, N);
    ChooseStages<Traits, MANY_STAGES>::Type stages(shared, copy_a, copy_b, slice, row, col);
    PartialAccumulators<Traits> partial(shared + STAGES * Traits::STAGE_BYTES / 4);
    float acc[ROWS][COLS] = {};

    const int k_tiles = depth / BK, end = depth % BK;  // whole tiles of BK steps, and steps that remain
    const bool peel = PEEL && end;  // saves a wait, but the main loop of a large tile is slower
    const int chain_length = CHAINS ? k_chain / BK : k_tiles;  // in tiles
    if (k_tiles) {
        stages.fill(k_tiles, peel, end);
        if (peel) {
            stages.begin_next(end);
            multiply_end(stages, acc, end);
            stages.read_first(slice * STEPS);
            stages.finish_next(k_tiles > 1);
            stages.wait();
            stages.release(true);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) stages.load_fragments(k);
        int tiles_left = k_tiles - 1;  // after this one
        do {
            tiles_left = main_loop(stages, acc, tiles_left, max(tiles_left + 1 - chain_length, 0));
            // The end of K belongs to the last chain, unless that is complete.
            const bool apart = end && !PEEL && k_tiles % chain_length == 0;
            if (CHAINS && (tiles_left >= 0 || apart)) partial.end_chain(acc);
        } while (CHAINS && tiles_left >= 0);
        if (AHEAD) __syncthreads();  // the fragments read ahead may come from the stage that is written next
        copy_a.source += copy_a.next_tile;
        copy_b.source += copy_b.next_tile;
    }
    if (end && !PEEL) {
        copy_a.copy_end(stages.first_a + copy_a.place, end);
        copy_b.copy_end(stages.first_b + copy_b.place, end);
        __syncthreads();
        multiply_end(stages, acc, end);
    }
    if (CHAINS) partial.add_to(acc);
    if constexpr (SLICED_K > 1) SlicedK<Traits>::add_up(shared, acc, slice);
    C += part * split_stride;
    const OldValues<SOURCE> old(batch);
    constexpr int VEC = TN < VEC_C ? 1 : VEC_C;
    if constexpr (VEC == 1 || SYM) __syncthreads();  // WarpStore writes where slower warps may still read
    if (slice != 0) return;
    if constexpr (SYM)
        SymmetricStore<Traits, VEC_C>::store(shared, acc, tile.m + warp_m, tile.n + warp_n, own,
                                             own.n + BN - 1 > own.m, N, alpha, beta, C, ldc, old);
    else if constexpr (VEC == 1)
        WarpStore<Traits>::store(shared, acc, tile.m + warp_m, tile.n + warp_n, own.m, own.n, M, N, alpha,
                                 beta, C, ldc, old);
    else
        ThreadStore<Traits>::store(acc, tile.m + row, tile.n + col, own.m, own.n, M, N, alpha, beta, C, ldc,
                                   old);
    griddepcontrol_wait();  // returns at once; without it ptxas schedules the main loop otherwise, and slower
}
