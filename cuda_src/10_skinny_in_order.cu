// Rung 10 in one order: a C of one row, summed as docs/batch-invariance.md says, where the time is that of
// reading B once. Rung 10 divides a sum into as many chains of FMAs as it has threads; here K alone says
// where a chain ends, and each lane computes one. What changed:
// - A warp computes one segment of K for BN columns. A product of few columns has few chains, so the lanes
//   cannot have all bytes in flight in their registers. The operands go through shared memory instead, BK
//   steps at a time, and cp.async reads STAGES - 1 tiles ahead.
// - Each warp has stages of its own, so that it waits for its own copies only and needs no barrier of the
//   block in its main loop.
// - The warps of a block have neighbouring segments of the same columns, and the block adds their sums from
//   the first to the last. With more segments than warps, this repeats. So C is written by one kernel, and no
//   sum of a segment is written to memory.
// - Split-K where C has too few columns to fill the device: each segment has a block of its own, of one warp,
//   and reduce_segments adds the sums.
// If B is transposed, its tile has a line for each column, padded so that the lanes read 16 bytes of
// different lines from different banks. Assumes: VEC_x = 4 only where the operand is aligned for it. Lanes
// past the matrix read its last column, and store nothing.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 1;          // rows of C per block: 1
constexpr int BN = 32;         // columns of C per block: a power of two up to 32
constexpr int BK = 32;         // steps of k per tile: a power of two from 8 to SEGMENT
constexpr int WARPS = 4;       // of a block: segments that it computes at a time
constexpr int STAGES = 8;      // tiles of each warp in shared memory: 2 or more
constexpr int SEGMENT = 1024;  // steps of k in a chain of FMAs
constexpr int TRANS_A = 0;     // 1: A is column-major, see device/operand.cuh
constexpr int TRANS_B = 0;     // 1: B is column-major
constexpr int TRANS_C = 0;     // 1: C(m, n) lies at n * ldc + m, for a product of one column: C^T = B^T A^T
constexpr int VEC_A = 1;       // floats per read of A: 1, 4
constexpr int VEC_B = 1;       // floats per read of B: 1, 4
constexpr int BATCHED = 0;     // 1: the grid has several products, see device/batch.cuh
constexpr int SOURCE = 0;      // 0: beta multiplies C; 1, 4: the source, see device/source.cuh
// constants:end

#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"
#include "device/global_memory.cuh"
#include "device/operand.cuh"
#include "device/raster.cuh"
#include "device/shared_memory.cuh"
#include "device/source.cuh"

constexpr int WARP = 32;
constexpr int THREADS = WARP * WARPS;
constexpr int LOAD_A = TRANS_A ? 1 : VEC_A;
constexpr int LOAD_B = !TRANS_B && BN % 4 ? 1 : VEC_B;  // floats: a tile may be too narrow for VEC
constexpr int LD_B = TRANS_B ? BK + 4 : BN;             // of a tile of B: floats from one line to the next
constexpr int TILE_B = TRANS_B ? BN * LD_B : BK * LD_B;
constexpr int STAGE = TILE_B + BK;  // floats: a tile of B, then one of A
// rules:begin (tools/write_rules.py writes them)
static_assert(BM == 1 && (BN == 1 || BN == 2 || BN == 4 || BN == 8 || BN == 16 || BN == 32) &&
                  (BK == 8 || BK == 16 || BK == 32 || BK == 64 || BK == 128 || BK == 256 || BK == 512 ||
                   BK == 1024),
              "the kernel is written for such tiles");
static_assert(THREADS == 32 * WARPS, "the host launches as many");
static_assert(STAGES >= 2, "copies run under arithmetic");
static_assert(THREADS % 32 == 0 && THREADS >= 32 && THREADS <= 1024, "whole warps, 32 to 1024 threads");
// rules:end
static_assert(SEGMENT % BK == 0, "a segment is whole tiles");

// Start copying VEC floats to shared memory, zeros if not `inside`.
template <int VEC>
__device__ __forceinline__ void copy(float *to, const float *from, bool inside) {
#if __CUDA_ARCH__ >= 800
    cp_async_zfill<VEC>(shared_address(to), from, inside);
#else
    float value[VEC];
    load_global_or_zero(value, from, inside);
    store_shared(shared_address(to), value);
#endif
}

// The tiles of one warp: their copies are started in ascending k, and used in the same order.
struct Stages {
    float *const shared;
    const float *const A, *const B;  // at the row and the first column of the block
    const long long lda, ldb;
    const unsigned end;  // of the block's part of K
    const int columns;   // of B, from the first column of the block on
    const int lane = threadIdx.x % WARP;
    int issued = 0, used = 0;  // places of the next tiles, in floats

    static __device__ __forceinline__ void walk(int &place) {
        place = place == (STAGES - 1) * STAGE ? 0 : place + STAGE;
    }

    // Start copying the tile that begins at step k, and make a group of its copies. There may be no such
    // step.
    __device__ __forceinline__ void issue(unsigned k) {
        if (k < end) {
            float *const tile = shared + issued;
            constexpr int LINE = TRANS_B ? BK : BN, VECTORS = (TRANS_B ? BN : BK) * LINE / LOAD_B;
#pragma unroll
            for (int i = 0; i < VECTORS; i += WARP) {
                const int line = (lane + i) / (LINE / LOAD_B), place = (lane + i) % (LINE / LOAD_B) * LOAD_B;
                const unsigned step = k + (TRANS_B ? place : line);
                const int column = min(TRANS_B ? line : place, columns - (TRANS_B ? 1 : LOAD_B));
                if (VECTORS % WARP == 0 || lane + i < VECTORS)
                    copy<LOAD_B>(tile + line * LD_B + place, B + element_offset<TRANS_B>(step, column, ldb),
                                 step < end);
            }
#pragma unroll
            for (int i = 0; i < BK / LOAD_A; i += WARP) {
                const int place = (lane + i) * LOAD_A;
                if (BK / LOAD_A % WARP == 0 || place < BK)
                    copy<LOAD_A>(tile + TILE_B + place, A + element_offset<TRANS_A>(0, k + place, lda),
                                 k + place < end);
            }
            walk(issued);
        }
#if __CUDA_ARCH__ >= 800
        cp_async_commit_group();
#endif
    }

    // Wait for the oldest tile that was not used yet, and until its predecessor may be overwritten.
    __device__ __forceinline__ void wait() const {
#if __CUDA_ARCH__ >= 800
        cp_async_wait_group<STAGES - 2>();
#endif
        __syncwarp();
    }

    // Add `steps` products of the oldest tile to a chain.
    __device__ __forceinline__ float multiply(float sum, unsigned steps) {
        const float *const b = shared + used + lane % BN * (TRANS_B ? LD_B : 1);
        const float *const a = shared + used + TILE_B;
        if (steps >= BK) {
#pragma unroll(BK < 64 ? BK / 4 : 16)
            for (int q = 0; q < BK; q += 4) {
                float left[4], right[4];
                load_fragment<4>(left, a + q);
                if constexpr (TRANS_B) {
                    load_fragment<4>(right, b + q);
                } else {
#pragma unroll
                    for (int p = 0; p < 4; ++p) right[p] = b[(q + p) * LD_B];
                }
#pragma unroll
                for (int p = 0; p < 4; ++p) sum = __fmaf_rn(left[p], right[p], sum);
            }
        } else {
#pragma unroll 1
            for (unsigned q = 0; q < steps; ++q) sum = __fmaf_rn(a[q], b[q * (TRANS_B ? 1 : LD_B)], sum);
        }
        walk(used);
        return sum;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_skinny_in_order(int M, int N, int K, float alpha, const float *__restrict__ A, long long lda,
                              const float *__restrict__ B, long long ldb, float beta, float *__restrict__ C,
                              long long ldc, int k_chunk, long long split_stride,
                              BatchAndSource<SOURCE> batch) {
    if (BATCHED && !move_to_product(batch, A, B, C)) return;
    extern __shared__ __align__(16) float shared[];  // the stages of each warp, then the sums of segments
    if (k_chunk < K) launch_dependents();            // reduce_segments, which adds up the segments
    float *const sums = shared + WARPS * STAGES * STAGE;  // [WARPS][BN]
    const unsigned tiles = count_tiles<BM, BN>(M, N);
    const int part = blockIdx.x / tiles;
    const Tile tile = tile_of_block<BM, BN, 8>(M, N, blockIdx.x % tiles);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const unsigned begin = part * k_chunk, end = begin + max(0, min(K - int(begin), k_chunk));
    Stages stages{shared + warp * STAGES * STAGE,
                  A + element_offset<TRANS_A>(tile.m, 0, lda),
                  B + element_offset<TRANS_B>(0, tile.n, ldb),
                  lda,
                  ldb,
                  end,
                  N - tile.n};

    // The steps of k that a warp takes: those of its segment, then of the one WARPS segments further.
    auto after = [](unsigned k) { return k + BK + ((k + BK) % SEGMENT ? 0 : (WARPS - 1) * SEGMENT); };
    unsigned k = begin + warp * SEGMENT, k_issue = k;
    for (int i = 0; i < STAGES - 1; ++i, k_issue = after(k_issue)) stages.issue(k_issue);
    float total = 0.0f;  // of the thread's column, in the first warp
    for (unsigned first = begin; first < end; first += WARPS * SEGMENT) {  // the segments of all warps
        float sum = 0.0f;
        for (int i = 0; i < SEGMENT && k < end; i += BK, k = after(k), k_issue = after(k_issue)) {
            stages.wait();
            stages.issue(k_issue);
            sum = stages.multiply(sum, end - k);
        }
        if (lane < BN) sums[warp * BN + lane] = sum;
        __syncthreads();  // all warps have written
        if (threadIdx.x < BN) {
            if (first == begin) total = sums[lane];
#pragma unroll 4
            for (int s = first == begin; s < WARPS && first + s * SEGMENT < end; ++s)
                total = __fadd_rn(total, sums[s * BN + lane]);
        }
        __syncthreads();  // what was added may be overwritten
    }
    const int n = tile.n + lane;
    if (threadIdx.x >= BN || n >= N) return;
    const long long place = TRANS_C ? n * ldc + tile.m : tile.m * ldc + n;
    store_row<1, 1>(C + part * split_stride + place, &total, 1, alpha, beta, OldValues<SOURCE>(batch), tile.m,
                    n);
}
