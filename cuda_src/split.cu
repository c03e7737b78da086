// Split one operand or two into pairs of FP16 numbers, in one launch: see device/split_format.cuh. A side is
// an operand, or a panel of its lines. The first blocks_1 blocks split the first side and the others the
// second; with a single side there are no others. Lines that are contiguous (row-major A, column-major B) and
// lines that are strided (row-major B, column-major A) are split in different ways.
//
// Grid: one-dimensional, a multiple of CLUSTER; so is blocks_1. A side of strided lines has ceil(lines / 32)
// x CLUSTER blocks, or x any number with `maxima`. One of contiguous lines has at least
// ceil(lines LINE_THREADS / THREADS). Block: THREADS. Dynamic shared memory: 16384 TILES bytes if lines are
// strided, else none.
#include "device/split_format.cuh"
#include "device/split_rows.cuh"
#include "device/split_columns.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int STRIDED_1 = 1;       // 1: the lines of the first side are strided, 0: contiguous
constexpr int VEC_1 = 4;           // elements a load: 4 where X and ldx are aligned to so many, else 1
constexpr int STRIDED_2 = 0;       // the same of the second side
constexpr int VEC_2 = 4;           // the same of the second side
constexpr int TYPE_1 = 0;          // of the elements of the first side: 0: float32, 1: bfloat16, 2: float16
constexpr int TYPE_2 = 0;          // the same of the second side
constexpr int LINE_THREADS = 128;  // per contiguous line: 32, 64, ... 512
constexpr int QUADS = 4;           // 4 QUADS LINE_THREADS elements of a contiguous line stay in registers
constexpr int TILES = 4;           // of 16 KB, which a block of strided lines keeps in shared memory
constexpr int BATCHED = 0;         // 1: gridDim.y matrices, ldx_2 elements of X_1 apart; no second side
constexpr int CLUSTER = 8;  // blocks that share out K of strided lines: 1, 2, 4 or 8, below sm_90 only 1
// constants:end

constexpr int THREADS = 512;
static_assert((VEC_1 == 1 || VEC_1 == 4) && (VEC_2 == 1 || VEC_2 == 4),
              "X is read 1 or 4 elements at a time");

template <int STRIDED, int VEC, int TYPE>
__device__ __forceinline__ void split_side(const Side &side, int block, int blocks) {
    if constexpr (STRIDED)
        split_columns<THREADS, CLUSTER, TILES, VEC, TYPE>(side, block, blocks);
    else
        split_rows<THREADS, LINE_THREADS, QUADS, VEC, TYPE>(side, block);
}

// Matrix blockIdx.y of a batch, which lies `step` elements after the one before.
__device__ __forceinline__ Side of_matrix(Side side, long long step) {
    const int lines = whole_periods(side.lines);
    const long long before = static_cast<long long>(blockIdx.y) * lines;
    side.pitch = lines * int(gridDim.y);
    const auto X = reinterpret_cast<const ElementType<TYPE_1> *>(side.X) + blockIdx.y * step;
    side.X = reinterpret_cast<const float *>(X);
    side.pairs += before * (LINE_BYTES<TYPE_1 != 0> / 2);
    side.info += before;
    side.where += before * SPARSE;
    return side;
}

extern "C" __global__ void
#if __CUDA_ARCH__ >= 900
__cluster_dims__(CLUSTER, 1, 1)
#endif
    __launch_bounds__(THREADS, (STRIDED_2 && !BATCHED ? 1536 : 1024) / THREADS)  // at most 40 or 64 registers
    fastsgemm_split(int K, int blocks_1, int lines_1, const float *X_1, long long ldx_1,
                    const unsigned *maxima_1, int maxima_parts_1, unsigned short *pairs_1, Line *info_1,
                    int *where_1, int lines_2, const float *X_2, long long ldx_2, const unsigned *maxima_2,
                    int maxima_parts_2, unsigned short *pairs_2, Line *info_2, int *where_2) {
    const Side first = {X_1, ldx_1, lines_1, K, lines_1, maxima_1, maxima_parts_1, pairs_1, info_1, where_1};
    const Side second = {X_2, ldx_2, lines_2, K, lines_2, maxima_2, maxima_parts_2, pairs_2, info_2, where_2};
    const int blocks_2 = int(gridDim.x) - blocks_1, block = int(blockIdx.x) - blocks_1;  // of the second
    launch_dependents();
    griddepcontrol_wait();
    if constexpr (BATCHED) {
        split_side<STRIDED_1, VEC_1, TYPE_1>(of_matrix(first, ldx_2), int(blockIdx.x), int(gridDim.x));
    } else if constexpr (STRIDED_1 == STRIDED_2 && VEC_1 == VEC_2 &&
                         TYPE_1 == TYPE_2) {  // the same code, once
        const bool of_first = block < 0;
        const Side side = of_first ? first : second;
        split_side<STRIDED_1, VEC_1, TYPE_1>(side, of_first ? block + blocks_1 : block,
                                             of_first ? blocks_1 : blocks_2);
    } else if (block < 0) {
        split_side<STRIDED_1, VEC_1, TYPE_1>(first, block + blocks_1, blocks_1);
    } else {
        split_side<STRIDED_2, VEC_2, TYPE_2>(second, block, blocks_2);
    }
}
