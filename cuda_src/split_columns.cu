// Split an operand whose lines are strided (row-major B, column-major A) into pairs of FP16 numbers: see
// device/split_format.cuh. X(k, line) lies at k * ldx + line. A tile goes through shared memory, because it
// is read along the lines' number and written along k. The blocks of a cluster have the same LINES lines and
// share out K. They look for the largest magnitudes, exchange them through shared memory, and read their
// elements again, in the opposite order: the last tile is still in registers, the others are mostly in L2, so
// memory is read once. Devices without clusters have too few blocks for that where K is long. There,
// column_maxima.cu has found the magnitudes before, in `maxima_parts` parts; else `maxima` is null.
//
// Grid: ceil(lines / LINES) x CLUSTER, or x any number with `maxima`. Block: THREADS.
#include "device/split_format.cuh"
#include "device/cluster.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int VEC = 4;        // floats a load: 4 where X and ldx have 16-byte alignment, else 1
constexpr int CLUSTER = 8;    // blocks that share out K: 1, 2, 4 or 8, below sm_90 only 1; best is K / TILE
constexpr int THREADS = 512;  // of a block: a multiple of 64, at most 512
// constants:end

constexpr int LINES = 32;              // a block
constexpr int LANES = LINES / 4;       // threads side by side, of four lines each
constexpr int ROWS = THREADS / LANES;  // of X that a block reads at a time
constexpr int STEPS = 4;               // such reads a tile
constexpr int TILE = ROWS * STEPS;     // steps of k
constexpr int PITCH = LINES + 1;       // floats: a warp then reads four lines of 32 steps from 32 banks
static_assert(VEC == 1 || VEC == 4, "X is read 4 or 16 bytes at a time");
static_assert(TILE % BLOCK_K == 0 && THREADS <= 512,
              "a tile is whole blocks of k, in 48 KB of shared memory");
static_assert(CLUSTER == 1 || CLUSTER == 2 || CLUSTER == 4 || CLUSTER == 8, "a portable cluster, or none");

// Four elements of X per thread, in each of the four lines column(0) .. column(3).
struct Reader {
    const float *X;
    long long ldx, base;  // the block's first line
    int lines, lane, row;
    bool whole;

    __device__ __forceinline__ Reader(const float *X, long long ldx, int lines)
        : X(X),
          ldx(ldx),
          base(static_cast<long long>(blockIdx.x) * LINES),
          lines(lines),
          lane(threadIdx.x % LANES),
          row(threadIdx.x / LANES),
          whole(VEC == 4 && base + column(3) < lines) {}
    // Neighbouring lanes read neighbouring floats, four or one each.
    __device__ __forceinline__ int column(int i) const { return VEC == 4 ? 4 * lane + i : lane + LANES * i; }
    __device__ __forceinline__ void read(float (&x)[STEPS][4], int k0, int end) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int k = k0 + row + step * ROWS;
            const float *from = X + k * ldx + base;
#pragma unroll
            for (int i = 0; i < 4; ++i) x[step][i] = 0.0f;
            if (k >= end) continue;
            if (whole) {
                const float4 v = *reinterpret_cast<const float4 *>(from + column(0));
                x[step][0] = v.x, x[step][1] = v.y, x[step][2] = v.z, x[step][3] = v.w;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (base + column(i) < lines) x[step][i] = from[column(i)];
            }
        }
    }
};

extern "C" __global__ void
#if __CUDA_ARCH__ >= 900
__cluster_dims__(1, CLUSTER, 1)
#endif
    __launch_bounds__(THREADS, 2)
        fastsgemm_split_columns(int lines, int K, const float *X, long long ldx, const unsigned *maxima,
                                int maxima_parts, unsigned short *__restrict__ pairs, Line *__restrict__ info,
                                int *__restrict__ where) {
    __shared__ float tile[TILE * PITCH];
    __shared__ unsigned largest[LINES];
    __shared__ int exponents[LINES];
    const Reader reader(X, ldx, lines);
    const long long line = reader.base + threadIdx.x;  // of the first LINES threads
    const bool speaks = threadIdx.x < LINES && line < lines;
    // Each block has whole blocks of BLOCK_K steps.
    const int blocks = (K + BLOCK_K - 1) / BLOCK_K, chunk = (blocks + gridDim.y - 1) / gridDim.y * BLOCK_K;
    const int first = min(K, int(blockIdx.y) * chunk), end = min(K, first + chunk);
    const int tiles = (end - first + TILE - 1) / TILE;
    float x[STEPS][4];
    let_dependents_begin();
    wait_for_results();

    if (maxima == nullptr) {
        if (threadIdx.x < LINES) largest[threadIdx.x] = 0;
        if (speaks && blockIdx.y == 0) info[line].left_out = 0;
        __syncthreads();
        unsigned own[4] = {};
        for (int number = 0; number < tiles; ++number) {
            reader.read(x, first + number * TILE, end);
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) own[i] = max(own[i], magnitude_bits(x[step][i]));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int lanes = 16; lanes >= LANES; lanes /= 2)
                own[i] = max(own[i], __shfl_xor_sync(0xffffffffu, own[i], lanes));
            if (threadIdx.x % 32 < LANES) atomicMax(&largest[reader.column(i)], own[i]);
        }
        if constexpr (CLUSTER > 1)
            cluster_barrier();
        else
            __syncthreads();
    }
    if (threadIdx.x < LINES) {
        unsigned most = 0;
        if (maxima != nullptr)
            for (int part = 0; part < maxima_parts && speaks; ++part)
                most = max(most, maxima[static_cast<long long>(part) * lines + line]);
        else if constexpr (CLUSTER > 1)
            for (int rank = 0; rank < CLUSTER; ++rank)
                most = max(most, read_cluster(&largest[threadIdx.x], rank));
        else
            most = largest[threadIdx.x];
        exponents[threadIdx.x] = line_exponent(most);
        if (speaks && blockIdx.y == 0) {
            info[line].exponent = exponents[threadIdx.x];
            if (!is_finite(most)) atomicAdd(&info[line].left_out, DENSE);
        }
    }
    __syncthreads();
    int exponent[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) exponent[i] = exponents[reader.column(i)];

    for (int number = tiles - 1; number >= 0; --number) {
        const int k0 = first + number * TILE;
        if (maxima != nullptr || number < tiles - 1) reader.read(x, k0, end);
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int k = reader.row + step * ROWS;
                tile[k * PITCH + reader.column(i)] = scale_or_leave_out(x[step][i], exponent[i], [&] {
                    const long long found = reader.base + reader.column(i);
                    const int slot = atomicAdd(&info[found].left_out, 1);
                    if (slot < SPARSE) where[found * SPARSE + slot] = k0 + k;
                });
            }
        __syncthreads();
        // Eight threads write a line of 128 bytes, four elements each.
#pragma unroll
        for (int i = threadIdx.x / 8; i < LINES * TILE / BLOCK_K; i += THREADS / 8) {
            const int n = i % LINES, part = i / LINES, k = threadIdx.x % 8 * 4;
            if (reader.base + n >= lines || k0 + part * BLOCK_K >= end) continue;
            float quad[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) quad[j] = tile[(part * BLOCK_K + k + j) * PITCH + n];
            store_pairs(
                pairs + (static_cast<long long>(k0 / BLOCK_K + part) * lines + reader.base + n) * LINE_HALVES,
                k, quad);
        }
        __syncthreads();
    }
    if constexpr (CLUSTER > 1) cluster_barrier();  // before this block's shared memory goes
}
