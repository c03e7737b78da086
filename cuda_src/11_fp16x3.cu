// Rung 11, fp16x3: FP32's accuracy from tensor cores, on Hopper (sm_90a). Both operands come as pairs of FP16
// numbers, x = (hi + lo 2^-12) 2^exponent with one exponent for a row of A or a column of B
// (device/split_format.cuh), and
//     A B = hi hi + 2^-12 (hi lo + lo hi),
// scaled by the exponents: three products of FP16 operands, summed in FP32. What lo lo would add is below
// 2^-22 of the product of the magnitudes. A 16-bit operand is hi alone, exactly (ONE_A, ONE_B): two products
// are left, or one, and half the bytes of that operand. What changed since rung 9:
// - The split format is that of shared memory, so a bulk copy brings a tile of an operand to a ring of stages
//   as it is. Memory barriers (mbarrier) say which stages are full and which are empty.
// - Warps have roles: one thread of the last warpgroup issues the copies; the other warpgroups multiply and
//   have most of the registers. The kernel is persistent: a block computes several tiles of C in turn, so the
//   copies for the next tile are under way while this one is stored.
// - A warpgroup computes 64 x BN of a tile, with both operands in shared memory (wgmma).
// - Tensor cores truncate their sums. So a chain of products that a tensor core accumulates is kept short and
//   then added to FP32 registers with correct rounding (promotion).
// A thread has three sets of registers: one for the sums, one for the chain of hi hi and one for the chain of
// the cross products, hi lo + lo hi. The chain of hi hi is promoted every PROMOTE_STAGES * 32 steps of k,
// while the cross products are computed. Their chain lasts to the end of K, because its truncation errors
// count 2^-11 as much. C is written only where both lines have few exceptions (device/split_format.cuh);
// guard_fp16x3.cu computes the other elements. The host swaps the operands for a C of few rows (TRANS_C = 1:
// C(m, n) lies at n * ldc + m) and for a column-major C.
//
// Grid: any number of blocks; best is min(SMs, tiles * parts). Block: THREADS. Dynamic shared memory: SHARED
// bytes. K is split into parts of `part_blocks` blocks of BLOCK_K steps, a multiple of PROMOTE_STAGES. Of
// several parts, part p is stored to C + p * part_stride, with alpha = 1 and beta = 0.
#include "device/split_format.cuh"
#include "device/stretch.cuh"
#include "device/mbarrier.cuh"
#include "device/cp_async_bulk.cuh"
#include "device/promoted_wgmma.cuh"
#include "device/stage_ring.cuh"
#include "device/scaled_store.cuh"
#include "device/raster.cuh"
#include "device/grouped_rows.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 128;            // rows of C per tile: 64 or 128, 64 per warpgroup
constexpr int BN = 128;            // columns of C per tile: 16, 32, 64 or 128
constexpr int PROMOTE_STAGES = 2;  // stages of 32 steps of k from one promotion to the next: 1 or 2
constexpr int STAGES = 7;          // of the ring, (BM + BN) * 128 bytes each: at least 4, and all in 226 KB
constexpr int GROUP_M = 8;         // tile rows of C that are walked together, for L2
constexpr int TRANS_C = 0;         // 1: C is column-major
constexpr int VEC_C = 4;   // floats per store: 4 if C and ldc have 16-byte alignment and TRANS_C = 0, else 1
constexpr int SOURCE = 0;  // 0: beta multiplies C; 1, 4: the source, read so many floats at a time
constexpr int SPLIT_BEFORE = 0;  // 1: A, 2: B was split before the call, and the other is split in it; else 0
constexpr int SYM = 0;           // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int EXCHANGED = 0;     // 1: A and B are the caller's B and A; see device/promoted_wgmma.cuh
constexpr int ONE_A = 0;         // 1: A is single FP16 numbers, from a 16-bit operand, not pairs
constexpr int ONE_B = 0;         // 1: B is
constexpr int GROUPED = 0;  // 1: the rows are in groups, each with its own B; see device/grouped_rows.cuh
// constants:end

constexpr int CONSUMERS = BM / 64;  // warpgroups that multiply
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int STAGE_A = BM * LINE_BYTES<ONE_A>, STAGE_B = BN * LINE_BYTES<ONE_B>;  // bytes
constexpr int STAGE = STAGE_A + STAGE_B;
constexpr int SWIZZLE_PERIOD = 1024;  // bytes: tiles begin at multiples
constexpr int PREFETCHED = STAGES;    // blocks of k that are brought to L2 before the wait
// Where a warp's rows of A in a stage are too few bytes for what it lays there to store it, it has others.
constexpr int SCRATCH = ONE_A ? CONSUMERS * 4 * STORE_SCRATCH * 4 : 0;
constexpr int SHARED = SWIZZLE_PERIOD + StageRing<STAGES, STAGE, 1>::BYTES + SCRATCH;
// Registers per thread. An SM has 65536, and the compiler gives every thread the same number; the warpgroup
// that copies releases most of its share to those that multiply.
constexpr int COPY_REGISTERS = 40;
constexpr int MULTIPLY_REGISTERS = 232;
// rules:begin (tools/write_rules.py writes them)
static_assert((BM == 64 || BM == 128) && (BN == 16 || BN == 32 || BN == 64 || BN == 128),
              "the kernel is written for such tiles");
static_assert(THREADS == 128 * (BM / 64 + 1), "the host launches as many");
static_assert(STAGES >= 4, "the stages of a promotion are released once those of the next are full");
static_assert(3 * BN / 2 + 32 <= 232, "the sets fit in the registers");
// rules:end
static_assert(PAD_K % (PROMOTE_STAGES * BLOCK_K) == 0, "the stages of a promotion are all in memory");
static_assert(SHARED <= 232448, "a block has 227 KB of shared memory");
static_assert(ONE_A || STORE_SCRATCH * 4 <= 16 * 128, "a warp lays what it stores in its rows of a stage");

// The ring of stages, with what device/promoted_wgmma.cuh is compiled for.
struct Ring : StageRing<STAGES, STAGE, PROMOTE_STAGES> {
    static constexpr int BN = ::BN, STAGE_A = ::STAGE_A;
    static constexpr int ONE_A = ::ONE_A, ONE_B = ::ONE_B, EXCHANGED = ::EXCHANGED;
};

// What a block works on: a tile of C, and a part of K.
struct Work {
    Tile tile;
    int part;
    int groups;  // of PROMOTE_STAGES stages; K is filled up with zeros

    __device__ __forceinline__ Work(int M, int N, int k_blocks, int part_blocks, unsigned tiles,
                                    unsigned number)
        : tile(tile_of_block<BM, BN, GROUP_M, SYM>(M, N, number % tiles)),
          part(number / tiles),
          groups((min(part_blocks, k_blocks - part * part_blocks) + PROMOTE_STAGES - 1) / PROMOTE_STAGES) {}
};

using Layout = StoreLayout<BM, BN, TRANS_C, VEC_C, SYM>;
using Walk = GroupWalk<BM, BN, GROUP_M>;

// The groups of PROMOTE_STAGES stages of so many blocks of k.
__device__ __forceinline__ int stages_of(int k_blocks) {
    return (k_blocks + PROMOTE_STAGES - 1) / PROMOTE_STAGES;
}

// Copy what a tile needs, stage after stage. By one thread, or by a warp of which one does.
template <bool BY_WARP>
__device__ __forceinline__ void copy_tile(Stretch<ONE_A> a, Stretch<ONE_B> b, Ring &ring, int stages) {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
        const unsigned data = ring.data(ring.stage), full = ring.full(ring.stage);
        ring.wait_empty();
        if (!BY_WARP || threadIdx.x % 32 == 0) {
            mbarrier_arrive_expect_tx(full, a.bytes + b.bytes);
            cp_async_bulk(data, a.from, a.bytes, full);
            cp_async_bulk(data + STAGE_A, b.from, b.bytes, full);
        }
        if (BY_WARP) __syncwarp();  // a lane that lags by rounds would wait for a phase that never comes
        a.from += a.step, b.from += b.step;
        ring.next();
    }
}

// Copy what the tiles of this block need. By one thread.
__device__ __forceinline__ void copy_tiles(const unsigned short *pairs_a, const unsigned short *pairs_b,
                                           Ring ring, int M, int N, int k_blocks, int part_blocks,
                                           unsigned tiles, unsigned works) {
    for (unsigned number = blockIdx.x; number < works; number += gridDim.x) {
        const Work work(M, N, k_blocks, part_blocks, tiles, number);
        const int block = work.part * part_blocks;
        copy_tile<false>({pairs_a, M, block, work.tile.m, BM}, {pairs_b, N, block, work.tile.n, BN}, ring,
                         work.groups * PROMOTE_STAGES);
    }
}

// The same for groups of rows. By a warp.
__device__ __forceinline__ void copy_groups(const unsigned short *pairs_a, const unsigned short *pairs_b,
                                            Ring ring, int M, int N, int k_blocks, const GroupedRows &last) {
    const int lines_b = int(first_line_of_b(int(last.count), N));
    Walk walk(last, M, N);
    GroupedTile work;
    for (unsigned number = blockIdx.x; walk.find(work, number); number += gridDim.x) {
        const Tile tile = work.tile;
        copy_tile<true>({pairs_a, M, 0, tile.m, min(BM, work.rows.end - tile.m)},
                        {pairs_b, lines_b, 0, first_line_of_b(work.group, N) + tile.n, min(BN, N - tile.n)},
                        ring, stages_of(k_blocks) * PROMOTE_STAGES);
    }
}

// Note for the guard kernel which of this block's tiles hold lines with exceptions. By a warp.
__device__ __forceinline__ void note_groups(int M, int N, const Line *rows, const Line *columns,
                                            int *exceptions, const GroupedRows &last) {
    Walk walk(last, M, N);
    GroupedTile work;
    for (unsigned number = blockIdx.x; walk.find(work, number); number += gridDim.x)
        note_group<Layout>(work, N, rows, columns + first_line_of_b(work.group, N), exceptions);
}

// Bring what the first tile of this block needs of the operand that was split before the call to L2, as far
// ahead as the launch before takes to split the other.
__device__ __forceinline__ void prefetch_tile(const unsigned short *pairs_a, const unsigned short *pairs_b,
                                              int M, int N, int k_blocks, int part_blocks, unsigned tiles) {
    const Work work(M, N, k_blocks, part_blocks, tiles, blockIdx.x);
    const int block = work.part * part_blocks;
    constexpr bool OF_A = SPLIT_BEFORE == 1;
    Stretch<OF_A ? ONE_A : ONE_B> lines(OF_A ? pairs_a : pairs_b, OF_A ? M : N, block,
                                        OF_A ? work.tile.m : work.tile.n, OF_A ? BM : BN);
#pragma unroll 1
    for (int i = 0; i < min(work.groups * PROMOTE_STAGES, PREFETCHED); ++i, lines.from += lines.step)
        cp_async_bulk_prefetch(lines.from, lines.bytes);
}

// The address of a warp's scratch for what it stores: its own rows of A in the last stage, 16 lines of 128
// bytes. No other warp's wgmma reads them, so this warp's wait is enough.
__device__ __forceinline__ unsigned own_scratch(const Ring &ring, int last_stage, int warp) {
    return ONE_A ? ring.base + Ring::BYTES + warp * STORE_SCRATCH * 4
                 : ring.data(last_stage) + warp * 16 * 128;
}

// Release the last stages of a tile that this warp has stored.
template <class Last>
__device__ __forceinline__ void release_stored(Ring &ring, const Last &last) {
    fence_proxy_async();  // before the copies that fill the rows again
    __syncwarp();
    ring.release(last);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fastsgemm_fp16x3(const unsigned short *pairs_a, const unsigned short *pairs_b, int M, int N, int k_blocks,
                     int part_blocks, float alpha, const Line *rows, const Line *columns, float beta,
                     float *__restrict__ C, long long ldc, long long part_stride,
                     int *__restrict__ exceptions, const float *source, long long source_row,
                     LastArgument<GROUPED>::Type last) {
    extern __shared__ unsigned char shared[];
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    Ring ring{{(address + SWIZZLE_PERIOD - 1) / SWIZZLE_PERIOD * SWIZZLE_PERIOD}};
    // The shuffle tells the compiler that the value is the same in all threads of a warp.
    const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0), warpgroup = warp / 4;
    const unsigned tiles = count_tiles<BM, BN, SYM>(M, N);
    const unsigned works = tiles * ((k_blocks + part_blocks - 1) / part_blocks);
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS);
        if (SPLIT_BEFORE) prefetch_tile(pairs_a, pairs_b, M, N, k_blocks, part_blocks, tiles);
    }
    __syncthreads();
    launch_dependents();
    griddepcontrol_wait();

    const GroupedRows grouped = LastArgument<GROUPED>::rows(last);
    const OldValues<SOURCE, TRANS_C> old(source, source_row, grouped.source_column);
    if (warpgroup == CONSUMERS) {
        setmaxnreg_dec<COPY_REGISTERS>();
        if constexpr (GROUPED) {
            if (warp == 4 * CONSUMERS) copy_groups(pairs_a, pairs_b, ring, M, N, k_blocks, grouped);
            if (warp == 4 * CONSUMERS + 1) note_groups(M, N, rows, columns, exceptions, grouped);
            return;
        }
        if (warp == 4 * CONSUMERS && threadIdx.x % 32 == 0)
            copy_tiles(pairs_a, pairs_b, ring, M, N, k_blocks, part_blocks, tiles, works);
        if (warp == 4 * CONSUMERS + 1)
            for (unsigned number = blockIdx.x; number < tiles; number += gridDim.x)
                note_exceptions<Layout>(tile_of_block<BM, BN, GROUP_M, SYM>(M, N, number), M, N, rows,
                                        columns, exceptions);
    } else {
        setmaxnreg_inc<MULTIPLY_REGISTERS>();
        if constexpr (GROUPED) {
            Walk walk(grouped, M, N);
            GroupedTile work;
            for (unsigned number = blockIdx.x; walk.find(work, number); number += gridDim.x) {
                float sum[BN / 2];
                const auto at_end = multiply(sum, ring, stages_of(k_blocks), warpgroup);
                const unsigned own = own_scratch(ring, at_end.stage[0], warp) - address;
                store_sums<Layout>(sum, reinterpret_cast<float *>(shared + own), work.tile.m + 16 * warp,
                                   work.tile.n, work.rows, N, alpha, rows,
                                   columns + first_line_of_b(work.group, N), beta, C, ldc, old);
                release_stored(ring, at_end);
            }
            return;
        }
        for (unsigned number = blockIdx.x; number < works; number += gridDim.x) {
            const Work work(M, N, k_blocks, part_blocks, tiles, number);
            float sum[BN / 2];
            const auto at_end = multiply(sum, ring, work.groups, warpgroup);
            const unsigned own = own_scratch(ring, at_end.stage[0], warp) - address;
            store_triangles<Layout>(sum, reinterpret_cast<float *>(shared + own), work.tile.m + 16 * warp,
                                    work.tile.n, M, N, alpha, rows, columns, beta,
                                    C + work.part * part_stride, ldc, old);
            release_stored(ring, at_end);
        }
    }
}
