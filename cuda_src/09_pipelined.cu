// Rung 9, pipelined: rung 8 with two or more stages of shared memory, so that copies and arithmetic overlap.
// While one stage is used the next tiles are on their way into the others, and a tile needs one barrier
// instead of two. With FRAGMENTS = 2 the fragments of step k + 1 are read before the arithmetic of step k,
// across tiles too: the barrier that opens the next tile stands before the last step of this one. The main
// loop has no bounds: a tile that would reach past the edge of C is moved back inside and stores only what is
// its own (GUARD = 0), and the end of K, where it is no whole tile, comes after it or before (PEEL).
//   FRAGMENTS   fragments of A and B in registers, 1 or 2
//   ORDER       how the outer product is walked, see device/outer_product.cuh
//   ASYNC       1: an operand that is not transposed is copied past the registers; 2: the other too, float by
//               float
//   SPREAD      0: a tile is fetched at the first step and written before the last but one; 1, 2: written
//               little by little over the second half, so that fragments do not queue behind it; 1: fetched
//               so too
//   STAGES      tiles in shared memory: 2, or with ASYNC = 2 more, so that more copies are under way; a tile
//               is then fetched at the first step, and SPREAD says nothing
//   SLICES      groups of threads that share out the steps of each tile and add up their sums in the end, for
//               more warps where a small C gives few
//   CHAINS      0: a sum is one chain of FMAs; else about so many, added up: less rounding error
//   GROUP_M     tiles of C are walked in groups of that many rows, for L2
//   MIN_BLOCKS  blocks that must fit on an SM together
//   GUARD       1: M < BM or N < BN, and the copies must look at the edges
//   PEEL        1: the end of K comes first instead of last: the first tile is a whole one, of which only so
//               many steps are used, and the next begins where they end. So no copy is waited for on its own;
//               but the main loop of a large tile comes out of the compiler slower, by up to 8 % on an H200
// Blocks past the tiles of C split K: part p computes k_chunk steps from p * k_chunk on and writes to C + p *
// split_stride. Assumes: VEC_x = 4 or 2 only where the operand is aligned for it (see
// device/pipelined_copy.cuh), else VEC_x = 1.
#include "device/operand.cuh"
#include "device/pipelined_copy.cuh"
#include "device/outer_product.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"
#include "device/dependent_launch.cuh"

constexpr int SLICE = BM / WM * (BN / WN) * 32;  // threads that cover the block tile
constexpr int THREADS = SLICES * SLICE;
constexpr int STEPS = BK / SLICES;  // of a thread, a tile
constexpr int WMITER = WM * WN / (32 * TM * TN * WNITER);
constexpr int WSUBM = WM / WMITER;  // rows of a sub-tile
constexpr int WSUBN = WN / WNITER;  // columns of a sub-tile
constexpr int ROWS = WMITER * TM;   // of C, a thread
constexpr int COLS = WNITER * TN;
constexpr int PAD_A = TRANS_A ? 0 : 4;  // floats: spreads a transposing store over the banks
constexpr int PAD_B = TRANS_B ? 4 : 0;
constexpr int LINE_A = 4 * (BM + PAD_A);  // bytes from one k to the next
constexpr int LINE_B = 4 * (BN + PAD_B);
constexpr int STAGE = BK * (LINE_A + LINE_B);  // bytes: the tile of A, then that of B
#if __CUDA_ARCH__ >= 800
constexpr bool ASYNC_A = ASYNC == 2 || (ASYNC && TRANS_A), ASYNC_B = ASYNC == 2 || (ASYNC && !TRANS_B);
constexpr bool DEEP = STAGES > 2;
#else
constexpr bool ASYNC_A = false, ASYNC_B = false, DEEP = false;
#endif
constexpr int COPY_A = ASYNC_A && !TRANS_A ? 1 : VEC_A;  // floats at a time
constexpr int COPY_B = ASYNC_B && TRANS_B ? 1 : VEC_B;
static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles cover the block tile");
static_assert(WM * WN % (32 * TM * TN * WNITER) == 0, "WMITER is whole");
static_assert(WM % WMITER == 0 && WN % WNITER == 0, "sub-tiles cover the warp tile");
static_assert(WSUBM % TM == 0 && WSUBN % TN == 0, "thread tiles cover a sub-tile");
static_assert(TM % 4 == 0 && TN % 4 == 0, "fragments are read 16 bytes at a time");
static_assert(THREADS <= 1024, "at most 1024 threads a block");
static_assert(STAGES == 2 || ASYNC == 2, "more than two stages are copied past the registers");
static_assert(BK % SLICES == 0 && STEPS % 2 == 0 && STEPS >= 4,
              "the fragments of the next tile's first step land where it looks for them, copies before it");

#include "device/chains.cuh"
#include "device/slices.cuh"
#include "device/warp_store.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    pipelined(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
              const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C, long long ldc,
              int k_chunk, long long split_stride) {
    extern __shared__ __align__(16) float shared[];  // [STAGES][STAGE / 4]
    if (k_chunk < K) let_dependents_begin();         // the sum of the parts
    const unsigned tiles = count_tiles<BM, BN>(M, N);
    const int part = blockIdx.x / tiles;
    const Tile own = tile_of_block<BM, BN, GROUP_M>(M, N, blockIdx.x % tiles);
    const Tile tile = GUARD ? own : Tile{min(own.m, M - BM), min(own.n, N - BN)};
    const int k_first = part * k_chunk;
    const int depth = max(0, min(K - k_first, k_chunk));
    const int slice = SLICES > 1 ? threadIdx.x / SLICE : 0;
    const int warp = (SLICES > 1 ? threadIdx.x % SLICE : threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    const int row = warp / (BN / WN) * WM + lane / (WSUBN / TN) * TM;  // in the block tile, first sub-tile
    const int col = warp % (BN / WN) * WN + lane % (WSUBN / TN) * TN;
    PipelinedCopy<BM, BK, !TRANS_A, COPY_A, GUARD, ASYNC_A, THREADS, PAD_A, STEPS> copy_a(
        A + offset_a(0, k_first, lda), lda, tile.m, M);
    PipelinedCopy<BN, BK, TRANS_B, COPY_B, GUARD, ASYNC_B, THREADS, PAD_B, STEPS> copy_b(
        B + offset_b(k_first, 0, ldb), ldb, tile.n, N);

    const unsigned stage_a = shared_address(shared), stage_b = stage_a + BK * LINE_A;
    unsigned from_a = stage_a + slice * STEPS * LINE_A + 4 * row;  // where fragments are read
    unsigned from_b = stage_b + slice * STEPS * LINE_B + 4 * col;
    unsigned to_a = stage_a + copy_a.place, to_b = stage_b + copy_b.place;  // where tiles are written
    int turn = STAGE;                                                       // to the other stage of two
    int from_turn = 0, to_turn = 0;                                         // of more: from the first
    float a[FRAGMENTS][ROWS], b[FRAGMENTS][COLS];
    auto load_fragments = [&](int which, int k) {
#pragma unroll
        for (int j = 0; j < COLS; j += 4)
            load_shared(b[which] + j, from_b + k * LINE_B + 4 * (j / TN * WSUBN + j % TN));
#pragma unroll
        for (int i = 0; i < ROWS; i += 4)
            load_shared(a[which] + i, from_a + k * LINE_A + 4 * (i / TM * WSUBM + i % TM));
    };
    auto fetch = [&](int k, bool more) {
        copy_a.fetch_at(to_a, k, more);
        copy_b.fetch_at(to_b, k, more);
    };
    auto store = [&](int k) {
        copy_a.store_at(to_a, k);
        copy_b.store_at(to_b, k);
    };
    auto finish = [&](bool more) {
        copy_a.finish(to_a, more);
        copy_b.finish(to_b, more);
    };
    auto next_of_many = [&](int &now) {
        const int step = now == (STAGES - 1) * STAGE ? -now : STAGE;
        now += step;
        return step;
    };
    auto next_stage = [&](bool more) {
        if constexpr (DEEP) {
            wait_for_groups<STAGES - 2>();
            __syncthreads();
            const int step = more ? next_of_many(from_turn) : 0;  // else the next stage may never be written
            from_a += step, from_b += step;
            return;
        }
        if (ASYNC_A || ASYNC_B) wait_for_copies();
        __syncthreads();
        from_a += turn, from_b += turn;
        to_a -= turn, to_b -= turn;
        turn = -turn;
    };

    float acc[ROWS][COLS] = {};
    // The first steps of the tile in the first stage.
    auto few_steps = [&](int count) {
        from_a = stage_a + slice * LINE_A + 4 * row, from_b = stage_b + slice * LINE_B + 4 * col;
#pragma unroll 1
        for (int k = slice; k < count; k += SLICES) {
            load_fragments(0, 0);
            from_a += SLICES * LINE_A, from_b += SLICES * LINE_B;
            outer_product<ORDER>(acc, a[0], b[0]);
        }
    };
    const int whole = depth / BK;  // tiles of all BK steps
    const int end = depth % BK;
    const bool peel = PEEL && whole && end;
    const int chain = chain_length(whole);  // tiles
    float *const kept = shared + STAGES * STAGE / 4;
    bool anything = false;  // was kept
    int sent = 0;           // tiles, of more than two stages
    auto send = [&] {
        if (sent < whole + peel) {
            const int steps = sent == 0 ? 0 : sent == 1 && peel ? end : BK;
            copy_a.begin(to_a, steps);
            copy_b.begin(to_b, steps);
            ++sent;
        }
        end_group();
        const int step = next_of_many(to_turn);
        to_a += step, to_b += step;
    };
    if (whole) {
        if constexpr (DEEP) {
#pragma unroll 1
            for (int ahead = 1; ahead < STAGES; ++ahead) send();
            wait_for_groups<STAGES - 2>();
            __syncthreads();
        } else {
            copy_a.begin(to_a);
            copy_b.begin(to_b);
            finish(!peel && whole > 1);
            to_a += turn, to_b += turn;
            if (ASYNC_A || ASYNC_B) wait_for_copies();
            __syncthreads();
        }
        if (peel) {
            if constexpr (DEEP) {
                send();
            } else {
                copy_a.begin(to_a, end);
                copy_b.begin(to_b, end);
            }
            few_steps(end);
            from_a = stage_a + slice * STEPS * LINE_A + 4 * row;
            from_b = stage_b + slice * STEPS * LINE_B + 4 * col;
            if (!DEEP) finish(whole > 1);
            next_stage(true);
        }
        if (FRAGMENTS == 2) load_fragments(0, 0);
        int t = whole - 1;  // tiles after this one
        do {
            const int until = max(t + 1 - chain, 0);
#pragma unroll 1
            for (; t >= until; --t) {
                // Of two stages, the last time round the same tile again, into a stage that nobody reads.
                if (DEEP) send();
#pragma unroll
                for (int k = 0; k < STEPS; ++k) {
                    const bool last = k == STEPS - 1;
                    if (FRAGMENTS == 2 && last) next_stage(t > 0);
                    if (!DEEP && SPREAD != 1) fetch(k, t > 1);
                    if (!DEEP && SPREAD == 0) store(k);
                    load_fragments(FRAGMENTS == 2 ? (k + 1) % 2 : 0, FRAGMENTS == 2 ? (k + 1) % STEPS : k);
                    if (!DEEP && SPREAD == 1) fetch(k, t > 1);
                    if (!DEEP && SPREAD != 0) store(k);
                    outer_product<ORDER>(acc, a[k % FRAGMENTS], b[k % FRAGMENTS]);
                    if (FRAGMENTS == 1 && last) next_stage(t > 0);
                }
            }
            if (CHAINS && (t >= 0 || (end && !peel))) {
                end_chain(kept, acc, anything);
                anything = true;
            }
        } while (CHAINS && t >= 0);
        if (FRAGMENTS == 2) __syncthreads();  // what was read ahead may be from the stage that comes next
        copy_a.source += copy_a.step;
        copy_b.source += copy_b.step;
    }
    if (end && !peel) {
        copy_a.copy_end(stage_a + copy_a.place, end);
        copy_b.copy_end(stage_b + copy_b.place, end);
        __syncthreads();
        few_steps(end);
    }

    if (CHAINS) add_kept(kept, acc, anything);
    if constexpr (SLICES > 1) add_slices(shared, acc, slice);
    C += part * split_stride;
    if constexpr (VEC_C == 1) __syncthreads();  // the next lines write where slower warps may still read
    if (slice != 0) return;
    if constexpr (VEC_C == 1) {
        store_by_warps(shared, acc, tile.m + warp / (BN / WN) * WM, tile.n + warp % (BN / WN) * WN, own.m,
                       own.n, M, N, alpha, beta, C, ldc);
        return;
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int m = tile.m + row + i / TM * WSUBM + i % TM;
        if (m < own.m || m >= M) continue;
#pragma unroll
        for (int w = 0; w < WNITER; ++w) {
            const int n = tile.n + col + w * WSUBN;
            store_row<TN, VEC_C>(C + m * ldc + n, acc[i] + w * TN, N - n, alpha, beta, own.n - n);
        }
    }
}
