// Rung 11 for 16-bit operands as they lie, on Hopper (sm_90a), with float32 results of float32's accuracy. Of
// two bfloat16 or two float16 operands the tensor cores take the elements themselves, so nothing is split,
// scaled or repaired. Beside bfloat16, A may be float32: those who multiply make three bfloat16 pieces of
// each element, in registers. What changed since 11_fp16x3.cu:
// - The operands are the caller's, so shared memory gets them by tensor copies (device/tensor_map.cuh), which
//   swizzle them and fill up their ends with zeros.
// - A stage has 64 steps of k, which are one chain, or with the pieces of A two: it is promoted to FP32
//   registers while the next one is computed. A wide tile has a chain for 64 of its columns at a time, so
//   that all fit in the registers: what limits large products is how fast L2 fills shared memory, and a wider
//   tile needs less of it.
// - A warp lays what it stores in shared memory of its own. C may have 16 bits, too: each element is rounded
//   once, as it is stored.
//
// Assumes: both operands have k contiguous, and lines and addresses are multiples of 16 bytes. A is M x K, B
// is N x K. Of several parts of K, part p writes its plain sums to C + p * part_stride, for reduce_parts.cu
// to add.
//
// Grid: any number of blocks; best is min(SMs, tiles * parts * products). Block: THREADS. Dynamic shared
// memory: SHARED.
#include "device/mbarrier.cuh"
#include "device/tensor_map.cuh"
#include "device/bfloat16_pieces.cuh"
#include "device/promoted_wgmma.cuh"
#include "device/stage_ring.cuh"
#include "device/global_memory.cuh"
#include "device/scaled_store.cuh"
#include "device/raster.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 128;      // rows of C per tile: 64 or 128, 64 per warpgroup
constexpr int BN = 128;      // columns of C per tile: 16, 32, 64, 128 or 256
constexpr int STAGES = 6;    // of the ring, (BM + BN) * 128 bytes each, twice BM with FLOAT_A: at least 2
constexpr int GROUP_M = 8;   // tile rows of C that are walked together, for L2
constexpr int TRANS_C = 0;   // 1: C is column-major
constexpr int VEC_C = 4;     // elements per store: 4 if C and ldc are aligned to it and TRANS_C = 0, else 1
constexpr int SOURCE = 0;    // 0: beta multiplies C; 1, 4: the source, read so many elements at a time
constexpr int SYM = 0;       // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int TYPE = 1;      // of the elements: 1: bfloat16, 2: float16
constexpr int FLOAT_A = 0;   // 1: those of A are float32, and those of B bfloat16
constexpr int TYPE_C = 0;    // of the elements of C: 0: float32, 1: bfloat16, 2: float16
constexpr int TYPE_OLD = 0;  // of those that beta multiplies: that of C, or the source's
// constants:end

constexpr int CONSUMERS = BM / 64;  // warpgroups that multiply
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int STEPS = 64;                                           // of k in a stage
constexpr int CHAIN_COLUMNS = BN > (FLOAT_A ? 64 : 128) ? 64 : BN;  // columns of a chain
using ElementA = ElementType<FLOAT_A ? 0 : TYPE>;
constexpr int LINE_A = STEPS * sizeof(ElementA), LINE_B = STEPS * 2;  // bytes of a line in a stage
constexpr int STAGE_A = BM * LINE_A, STAGE_B = BN * LINE_B, STAGE = STAGE_A + STAGE_B;  // bytes
constexpr int SWIZZLE_PERIOD = 1024;  // bytes: tiles begin at multiples
constexpr int SHARED =
    SWIZZLE_PERIOD + StageRing<STAGES, STAGE, 1>::BYTES + CONSUMERS * 4 * STORE_SCRATCH * 4;
constexpr int COPY_REGISTERS = 40, MULTIPLY_REGISTERS = 232;  // see 11_fp16x3.cu
// rules:begin (tools/write_rules.py writes them)
static_assert((BM == 64 || BM == 128) && (BN == 16 || BN == 32 || BN == 64 || BN == 128 || BN == 256),
              "the kernel is written for such tiles");
static_assert(THREADS == 128 * (BM / 64 + 1), "the host launches as many");
static_assert(STAGES >= 2, "a stage is filled again once the one after it is full");
// rules:end
static_assert(SHARED <= 232448, "a block has 227 KB of shared memory");
static_assert(TYPE == 1 || (TYPE == 2 && !FLOAT_A), "operands have 16 bits, and float32 has bfloat16 pieces");
static_assert(!FLOAT_A || BN <= 128, "the pieces of A fit in the registers");
static_assert(SOURCE || TYPE_OLD == TYPE_C, "the old values lie in C");

// The ring of stages, with what device/promoted_wgmma.cuh is compiled for. With FLOAT_A all lanes say that
// they have read a stage, since each reads floats itself.
struct Ring : StageRing<STAGES, STAGE, 1, FLOAT_A ? 32 : 1> {
    static constexpr int BN = ::BN, STAGE_A = ::STAGE_A;
};

// What a block works on: a tile of C of one product of a batch, and a part of K.
struct Work {
    unsigned product;
    Tile tile;
    int part;
    int first, steps, stages;  // steps of k before the part, and its own; its stages

    __device__ __forceinline__ Work(int M, int N, int K, int part_steps, unsigned tiles, unsigned of_product,
                                    unsigned number)
        : product(number / of_product),
          tile(tile_of_block<BM, BN, GROUP_M, SYM>(M, N, number % of_product % tiles)),
          part(number % of_product / tiles),
          first(part * part_steps),
          steps(min(part_steps, K - first)),
          stages((steps + STEPS - 1) / STEPS) {}
};

using Layout = StoreLayout<BM, BN, TRANS_C, VEC_C, SYM, TYPE_C>;
using RaggedLayout = StoreLayout<BM, BN, TRANS_C, VEC_C, SYM, TYPE_C, true>;

// Copy what the tiles of this block need, stage after stage. By one thread.
__device__ __forceinline__ void copy_tiles(const TensorMap &map_a, const ElementA *first_a,
                                           const TensorMap &map_b, const unsigned short *first_b,
                                           const Batch &batch, Ring ring, int M, int N, int K, int part_steps,
                                           unsigned tiles, unsigned of_product) {
    // A box has no more lines than the matrix. What a stage holds in place of others, be it NaN, takes part
    // only in sums past the end of C. Boxes of float32 are whole: what is left of a float there would have
    // rows of C repaired, too.
    const int bytes = (FLOAT_A ? STAGE_A : min(BM, M) * LINE_A) + min(BN, N) * LINE_B;
    for (unsigned number = blockIdx.x; number < of_product * batch.count; number += gridDim.x) {
        const Work work(M, N, K, part_steps, tiles, of_product, number);
        const Boxes A(map_a, first_a + batch_offset(batch, batch.a, work.product));
        const Boxes B(map_b, first_b + batch_offset(batch, batch.b, work.product));
        int k = work.first;
#pragma unroll 1
        for (int i = 0; i < work.stages; ++i, k += STEPS) {
            const unsigned data = ring.data(ring.stage), full = ring.full(ring.stage);
            ring.wait_empty();
            mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll
            for (int box = 0; box < LINE_A / LINE_B; ++box) {
                // No box may be outside of the matrix as a whole. In place of a second one that is, the first
                // is copied twice. B has zeros there, and rows with an infinity are repaired anyway.
                const int there = k + box * (STEPS / 2) < K ? box * (STEPS / 2) : 0;
                A.copy(data + box * BM * LINE_B, k + there, work.tile.m, full);
            }
            B.copy(data + STAGE_A, k, work.tile.n, full);
            ring.next();
        }
    }
}

// Compute the sums of a warpgroup over so many stages. Return the last one, which the caller releases. Bits
// of an element of A that its pieces leave, if it has any, are noted in `left`.
template <class Element>
__device__ __forceinline__ Ring::Group multiply_tile(float (&sum)[BN / 2], unsigned &left, Ring &ring,
                                                     int stages, int warpgroup) {
    if constexpr (sizeof(Element) == 4) {
        return multiply_pieces<CHAIN_COLUMNS>(sum, left, ring, stages, warpgroup);
    } else {
        const auto start = [&](float (&chain)[CHAIN_COLUMNS / 2], const Ring::Group &group, int piece) {
            const unsigned data = ring.data(group.stage[0]), a = data + warpgroup * 64 * LINE_A,
                           b = data + STAGE_A + piece * CHAIN_COLUMNS * LINE_B;
#pragma unroll
            for (int k = 0; k < 4; ++k)
                wgmma_mma_async<CHAIN_COLUMNS, TYPE>(chain, matrix_descriptor(a + k * STEP),
                                                     matrix_descriptor(b + k * STEP), k > 0);
        };
        return multiply_chains<CHAIN_COLUMNS>(sum, ring, stages, start);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fastsgemm_half(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                   const ElementA *A, long long lda, const unsigned short *B, long long ldb, int M, int N,
                   int K, int part_steps, float alpha, float beta, ElementType<TYPE_C> *__restrict__ C,
                   long long ldc, long long part_stride, BatchAndSource<SOURCE> batch) {
    extern __shared__ unsigned char shared[];
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    Ring ring{{(address + SWIZZLE_PERIOD - 1) / SWIZZLE_PERIOD * SWIZZLE_PERIOD}};
    // The shuffle tells the compiler that the value is the same in all threads of a warp.
    const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0), warpgroup = warp / 4;
    const unsigned tiles = count_tiles<BM, BN, SYM>(M, N);
    const bool split = part_steps < K;
    const unsigned of_product = tiles * ((unsigned(K) + part_steps - 1u) / part_steps);
    if (threadIdx.x == 0) ring.init(4 * CONSUMERS);
    __syncthreads();
    launch_dependents();

    if (warpgroup == CONSUMERS) {
        setmaxnreg_dec<COPY_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            copy_tiles(map_a, A, map_b, B, batch, ring, M, N, K, part_steps, tiles, of_product);
    } else {
        setmaxnreg_inc<MULTIPLY_REGISTERS>();
        const unsigned own = ring.base + Ring::BYTES + warp * STORE_SCRATCH * 4 - address;
        for (unsigned number = blockIdx.x; number < of_product * batch.count; number += gridDim.x) {
            const Work work(M, N, K, part_steps, tiles, of_product, number);
            float sum[BN / 2];
            unsigned left = 0;
            const auto last = multiply_tile<ElementA>(sum, left, ring, work.stages, warpgroup);
            ring.release(last);
            repair(sum, left, A + work.first + batch_offset(batch, batch.a, work.product), lda,
                   B + work.first + batch_offset(batch, batch.b, work.product), ldb, work.tile.m + 16 * warp,
                   work.tile.n, M, N, work.steps);
            const int m = work.tile.m + 16 * warp, n = work.tile.n;
            float *const scratch = reinterpret_cast<float *>(shared + own);
            ElementType<TYPE_C> *const c =
                C + work.part * part_stride + batch_offset(batch, batch.c, work.product);
            const OldValues<SOURCE, TRANS_C, TYPE_OLD> old(batch, work.product);
            const float a = split ? 1.0f : alpha, b = split ? 0.0f : beta;
            if (!SYM && m + 16 <= M && n + BN <= N)
                store_whole<Layout>(sum, scratch, m, n, a, b, c, ldc, old);
            else
                store_triangles<RaggedLayout>(sum, scratch, m, n, M, N, a, nullptr, nullptr, b, c, ldc, old);
        }
    }
}
