// Rung 11 for 16-bit operands as they lie, on Hopper (sm_90a), with float32 results of float32's accuracy. Of
// two bfloat16 or two float16 operands the tensor cores take the elements themselves, so nothing is split,
// scaled or repaired. Beside bfloat16, A may be float32: those who multiply make three bfloat16 pieces of
// each element, in registers. What changed since 11_fp16x3.cu:
// - The operands are the caller's. A whole warpgroup copies them by cp.async, 16 bytes per thread, to their
//   places in the 128-byte swizzle. There is no tensor map, so a CUDA graph or XLA can pass everything on as
//   plain numbers. Each thread waits for its own copies and shows them to the tensor cores
//   (fence.proxy.async); its warp arrives at the memory barrier of the stage. LAG stages are on their way
//   meanwhile.
// - A stage has 64 steps of k, which are one chain: it is promoted to FP32 registers while the next one is
//   computed. A tile of 256 columns has a chain for 64 of them at a time, so that all fit in the registers:
//   what limits large products is how fast L2 fills shared memory, and a wider tile needs less of it. Where
//   the pieces of A take registers, too, a tile of 128 columns has the same.
// - A warp lays what it stores in shared memory of its own.
//
// Assumes: both operands have k contiguous, and lines and addresses are multiples of 16 bytes. A is M x K, B
// is N x K. Of several parts of K, part p writes its plain sums to C + p * part_stride, for reduce_parts.cu
// to add.
//
// Grid: any number of blocks; best is min(SMs, tiles * parts). Block: THREADS. Dynamic shared memory: SHARED.
#include "device/mbarrier.cuh"
#include "device/bfloat16_pieces.cuh"
#include "device/promoted_wgmma.cuh"
#include "device/stage_ring.cuh"
#include "device/global_memory.cuh"
#include "device/scaled_store.cuh"
#include "device/raster.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int BM = 128;     // rows of C per tile: 64 or 128, 64 per warpgroup
constexpr int BN = 128;     // columns of C per tile: 16, 32, 64, 128 or 256
constexpr int STAGES = 6;   // of the ring, (BM + BN) * 128 bytes each, twice BM with FLOAT_A: at least 4
constexpr int GROUP_M = 8;  // tile rows of C that are walked together, for L2
constexpr int TRANS_C = 0;  // 1: C is column-major
constexpr int VEC_C = 4;    // floats per store: 4 if C and ldc have 16-byte alignment and TRANS_C = 0, else 1
constexpr int SOURCE = 0;   // 0: beta multiplies C; 1, 4: the source, read so many floats at a time
constexpr int SYM = 0;      // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int TYPE = 1;     // of the elements: 1: bfloat16, 2: float16
constexpr int FLOAT_A = 0;  // 1: those of A are float32, and those of B bfloat16
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
// Stages that are on their way. A stage that is filled again was released once the one after it was full.
constexpr int LAG = STAGES - 2;
constexpr int COPY_REGISTERS = 40, MULTIPLY_REGISTERS = 232;  // see 11_fp16x3.cu
// rules:begin (tools/write_rules.py writes them)
static_assert((BM == 64 || BM == 128) && (BN == 16 || BN == 32 || BN == 64 || BN == 128 || BN == 256),
              "the kernel is written for such tiles");
static_assert(THREADS == 128 * (BM / 64 + 1), "the host launches as many");
static_assert(STAGES >= 4, "a stage is filled again once the one after it is full");
// rules:end
static_assert(SHARED <= 232448, "a block has 227 KB of shared memory");
static_assert(TYPE == 1 || (TYPE == 2 && !FLOAT_A), "operands have 16 bits, and float32 has bfloat16 pieces");
static_assert(!FLOAT_A || BN <= 128, "the pieces of A fit in the registers");

// The ring of stages, with what device/promoted_wgmma.cuh is compiled for.
struct Ring : StageRing<STAGES, STAGE, 1> {
    static constexpr int BN = ::BN, STAGE_A = ::STAGE_A;
    // Lanes of a warp that arrive: with FLOAT_A all, since each reads floats from a stage itself.
    static constexpr int ARRIVE = FLOAT_A ? 32 : 1;

    __device__ __forceinline__ void release(const Group &group) const {
        if (threadIdx.x % 32 < ARRIVE) mbarrier_arrive(empty(group.stage[0]));
    }
};

// What a block works on: a tile of C, and a part of K.
struct Work {
    Tile tile;
    int part;
    int first, steps, stages;  // steps of k before the part, and its own; its stages

    __device__ __forceinline__ Work(int M, int N, int K, int part_steps, unsigned tiles, unsigned number)
        : tile(tile_of_block<BM, BN, GROUP_M, SYM>(M, N, number % tiles)),
          part(number / tiles),
          first(part * part_steps),
          steps(min(part_steps, K - first)),
          stages((steps + STEPS - 1) / STEPS) {}
};

using Layout = StoreLayout<BM, BN, TRANS_C, VEC_C, SYM>;

// A thread's share of the lines of a tile: one piece of 16 bytes of every 16th line, or of every 8th of
// floats.
template <class Element>
struct Lines {
    static constexpr int COUNT = 16 / sizeof(Element);  // elements of a piece
    static constexpr int PIECES = STEPS / COUNT, LINE = PIECES * 16, EVERY = 128 / PIECES;

    const Element *from;  // its piece of its first line
    long long step;       // elements from one of its lines to the next
    int left;             // lines from its first one on that exist

    static __device__ __forceinline__ int own_line() { return threadIdx.x % 128 / PIECES; }
    static __device__ __forceinline__ int own_piece() { return threadIdx.x % PIECES; }

    __device__ __forceinline__ Lines(const Element *X, long long ld, int first, int lines, int k)
        : from(X + (first + own_line()) * ld + k + own_piece() * COUNT),
          step(EVERY * ld),
          left(lines - first - own_line()) {}

    // Start copying LINES lines of a stage to shared memory, of which `steps` steps of k exist.
    template <int LINES>
    __device__ __forceinline__ void copy(unsigned to, int steps) {
        const int line = own_line(), piece = own_piece();
        const int bytes = max(0, min(16, int(sizeof(Element)) * (steps - piece * COUNT)));
        to += line * LINE + (PIECES == 8 ? piece ^ line % 8 : Pieces::swizzled(piece, line)) * 16;
#pragma unroll
        for (int i = 0; i < LINES; i += EVERY) {
            const bool inside = i < left && bytes > 0;
            const Element *place = inside ? from + i / EVERY * step : from;
            cp_async_16_bytes(to + i * LINE, place, inside ? bytes : 0);
        }
        from += STEPS;
    }
};

// Let the tensor cores read the oldest stage that was not announced yet, of which this thread's copies are
// complete.
__device__ __forceinline__ void announce(Ring &announced) {
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 < Ring::ARRIVE) mbarrier_arrive(announced.full(announced.stage));
    announced.next();
}

// Copy what the tiles of this block need, stage after stage. By one warpgroup.
__device__ __forceinline__ void copy_tiles(const ElementA *A, long long lda, const unsigned short *B,
                                           long long ldb, Ring ring, int M, int N, int K, int part_steps,
                                           unsigned tiles, unsigned works) {
    Ring announced = ring;
    int flying = 0;  // stages that were not announced yet
    for (unsigned number = blockIdx.x; number < works; number += gridDim.x) {
        const Work work(M, N, K, part_steps, tiles, number);
        Lines<ElementA> a(A, lda, work.tile.m, M, work.first);
        Lines<unsigned short> b(B, ldb, work.tile.n, N, work.first);
        int steps = work.steps;
#pragma unroll 1
        for (int i = 0; i < work.stages; ++i, steps -= STEPS) {
            ring.wait_empty();
            a.copy<BM>(ring.data(ring.stage), steps);
            b.copy<BN>(ring.data(ring.stage) + STAGE_A, steps);
            cp_async_commit_group();
            ring.next();
            if (flying == LAG) {
                cp_async_wait_group<LAG>();
                announce(announced);
            } else {
                ++flying;
            }
        }
    }
    cp_async_wait_group<0>();
    for (; flying > 0; --flying) announce(announced);
}

// Start the products of a stage with the columns of a chain. The first chain of a stage reads the floats of
// A.
template <class Element>
__device__ __forceinline__ void multiply_stage(float (&chain)[CHAIN_COLUMNS / 2], Pieces &pieces, unsigned a,
                                               unsigned b, bool first) {
    if constexpr (sizeof(Element) == 2) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            wgmma_mma_async<CHAIN_COLUMNS, TYPE>(chain, matrix_descriptor(a + k * STEP),
                                                 matrix_descriptor(b + k * STEP), k > 0);
    } else {
        if (first) {
            wgmma_wait_group<0>();  // the products of the stage before have these registers
            pieces.read(a);
            wgmma_fence();
        }
#pragma unroll
        for (int i = 0; i < 12; ++i)
            wgmma_mma_async<CHAIN_COLUMNS>(chain, pieces.of[i / 4][i % 4],
                                           matrix_descriptor(b + i % 4 * STEP), i > 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fastsgemm_half(const ElementA *A, long long lda, const unsigned short *B, long long ldb, int M, int N,
                   int K, int part_steps, float alpha, float beta, float *__restrict__ C, long long ldc,
                   long long part_stride, const float *source, long long source_row,
                   long long source_column) {
    extern __shared__ unsigned char shared[];
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    Ring ring{{(address + SWIZZLE_PERIOD - 1) / SWIZZLE_PERIOD * SWIZZLE_PERIOD}};
    // The shuffle tells the compiler that the value is the same in all threads of a warp.
    const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0), warpgroup = warp / 4;
    const unsigned tiles = count_tiles<BM, BN, SYM>(M, N);
    const bool split = part_steps < K;
    const unsigned works = tiles * ((unsigned(K) + part_steps - 1u) / part_steps);
    // ARRIVE threads of each warp that copies, and of each that multiplies.
    if (threadIdx.x == 0) ring.init(4 * Ring::ARRIVE, 4 * CONSUMERS * Ring::ARRIVE);
    __syncthreads();
    launch_dependents();

    const OldValues<SOURCE, TRANS_C> old(source, source_row, source_column);
    if (warpgroup == CONSUMERS) {
        setmaxnreg_dec<COPY_REGISTERS>();
        copy_tiles(A, lda, B, ldb, ring, M, N, K, part_steps, tiles, works);
    } else {
        setmaxnreg_inc<MULTIPLY_REGISTERS>();
        const unsigned own = ring.base + Ring::BYTES + warp * STORE_SCRATCH * 4 - address;
        for (unsigned number = blockIdx.x; number < works; number += gridDim.x) {
            const Work work(M, N, K, part_steps, tiles, number);
            float sum[BN / 2];
            Pieces pieces;
            const auto start = [&](float (&chain)[CHAIN_COLUMNS / 2], const Ring::Group &group, int piece) {
                const unsigned data = ring.data(group.stage[0]);
                multiply_stage<ElementA>(chain, pieces, data + warpgroup * 64 * LINE_A,
                                         data + STAGE_A + piece * CHAIN_COLUMNS * LINE_B, piece == 0);
            };
            const auto last = multiply_chains<CHAIN_COLUMNS>(sum, ring, work.stages, start);
            ring.release(last);
            repair(sum, pieces, A + work.first, lda, B + work.first, ldb, work.tile.m + 16 * warp,
                   work.tile.n, M, N, work.steps);
            store_triangles<Layout>(sum, reinterpret_cast<float *>(shared + own), work.tile.m + 16 * warp,
                                    work.tile.n, M, N, split ? 1.0f : alpha, nullptr, nullptr,
                                    split ? 0.0f : beta, C + work.part * part_stride, ldc, old);
        }
    }
}
