// Split an operand whose lines are strided (row-major B, column-major A) into pairs of FP16 numbers, after
// column_maxima.cu: see device/split_format.cuh. X(k, line) lies at k * ldx + line. A tile of 64 x 64 elements goes
// through shared memory, because it is read along the lines' number and written along k.
//
// Grid: ceil(lines / 64) x any: blocks share out the tiles of K. Block: 256.
#include "device/split_format.cuh"
#include "device/dependent_launch.cuh"

#ifndef CONSTANTS
constexpr int VEC = 4;  // floats a load: 4 where X and ldx have 16-byte alignment, else 1
#endif

constexpr int THREADS = 256;
constexpr int TILE = 64;              // lines, and steps of k
constexpr int LANES = TILE / 4;       // threads side by side, of four lines each
constexpr int ROWS = THREADS / LANES;  // of X that a block reads at a time
constexpr int STEPS = TILE / ROWS;
constexpr int PITCH = TILE + 1;       // floats: a warp then reads four lines of 32 steps from 32 banks
static_assert(VEC == 1 || VEC == 4, "X is read 4 or 16 bytes at a time");

extern "C" __global__ void __launch_bounds__(THREADS)
    split_columns(int lines, int K, const float *__restrict__ X, long long ldx, const unsigned *__restrict__ maxima,
                  int parts, unsigned short *__restrict__ pairs, Line *__restrict__ info, int *__restrict__ where) {
    __shared__ float tile[TILE * PITCH];
    __shared__ int exponents[TILE];
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const long long base = static_cast<long long>(blockIdx.x) * TILE;
    // Neighbouring lanes read neighbouring floats, four or one each.
    auto column = [&](int i) { return VEC == 4 ? 4 * lane + i : lane + LANES * i; };
    const bool whole = VEC == 4 && base + column(3) < lines;
    const int blocks = (K + BLOCK_K - 1) / BLOCK_K, tiles = (K + TILE - 1) / TILE;
    let_dependents_begin();
    wait_for_results();

    if (threadIdx.x < TILE) {
        const long long line = base + threadIdx.x;
        unsigned largest = 0;
        for (int part = 0; part < parts && line < lines; ++part)
            largest = max(largest, maxima[static_cast<long long>(part) * lines + line]);
        const int exponent = line_exponent(largest);
        exponents[threadIdx.x] = exponent;
        if (blockIdx.y == 0 && line < lines) {
            info[line].exponent = exponent;
            if (!is_finite(largest)) atomicAdd(&info[line].left_out, DENSE);
        }
    }
    __syncthreads();
    int exponent[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) exponent[i] = exponents[column(i)];

    // The last rows come first: column_maxima has left them in L2.
    for (int number = blockIdx.y; number < tiles; number += gridDim.y) {
        const int k0 = (tiles - 1 - number) * TILE;
        float x[STEPS][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int k = k0 + row + step * ROWS;
            const float *from = X + k * ldx + base;
            if (k >= K) continue;
            if (whole) {
                const float4 v = *reinterpret_cast<const float4 *>(from + column(0));
                x[step][0] = v.x, x[step][1] = v.y, x[step][2] = v.z, x[step][3] = v.w;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (base + column(i) < lines) x[step][i] = from[column(i)];
            }
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int k = row + step * ROWS;
                tile[k * PITCH + column(i)] = scale_or_leave_out(x[step][i], exponent[i], [&] {
                    const long long line = base + column(i);
                    const int slot = atomicAdd(&info[line].left_out, 1);
                    if (slot < SPARSE) where[line * SPARSE + slot] = k0 + k;
                });
            }
        __syncthreads();
        // Eight threads write a line of 128 bytes, four elements each.
#pragma unroll
        for (int half = 0; half < TILE / BLOCK_K; ++half)
#pragma unroll
            for (int n = threadIdx.x / 8; n < TILE; n += THREADS / 8) {
                const int k = threadIdx.x % 8 * 4, block = k0 / BLOCK_K + half;
                if (base + n >= lines || block >= blocks) continue;
                float quad[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) quad[i] = tile[(half * BLOCK_K + k + i) * PITCH + n];
                store_pairs(pairs + (static_cast<long long>(block) * lines + base + n) * LINE_HALVES, k, quad);
            }
        __syncthreads();
    }
}
