// The first of two passes over an operand whose lines are strided (row-major B, column-major A): the largest
// magnitude of each line, in each of gridDim.y parts of K. The second pass is split.cu. X(k, line)
// lies at k * ldx + line. The counts of the lines are set to zero here, for the second pass to add to.
//
// Grid: ceil(lines / 128) x parts of K. Block: 256.
#include "device/split_format.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int VEC = 4;   // elements per load: 4 where X and ldx are aligned to so many, else 1
constexpr int TYPE = 0;  // of the elements: 0: float32, 1: bfloat16, 2: float16
// constants:end

constexpr int THREADS = 256;
constexpr int ROWS = THREADS / 32;  // of X that a block reads at a time
constexpr int LINES = 128;          // a block; four a thread
static_assert(VEC == 1 || VEC == 4, "X is read 4 or 16 bytes at a time");

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_column_maxima(int lines, int K, const ElementType<TYPE> *X, long long ldx,
                            unsigned *__restrict__ maxima, Line *__restrict__ info) {
    __shared__ unsigned partial[ROWS][LINES];
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
    const int chunk = (K + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * chunk, last = min(K, first + chunk);
    // Neighbouring lanes read neighbouring floats, four or one each.
    auto column = [&](int i) { return VEC == 4 ? 4 * lane + i : lane + 32 * i; };
    const long long base = static_cast<long long>(blockIdx.x) * LINES;
    const bool whole = VEC == 4 && base + column(3) < lines;
    launch_dependents();
    griddepcontrol_wait();

    unsigned largest[4] = {};
#pragma unroll 8
    for (int k = first + row; k < last; k += ROWS) {
        const ElementType<TYPE> *x = X + k * ldx + base;
        if (whole) {
            float value[4];
            load_elements<4, TYPE>(value, x + column(0), 4);
#pragma unroll
            for (int i = 0; i < 4; ++i) largest[i] = max(largest[i], magnitude_bits(value[i]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (base + column(i) < lines)
                    largest[i] = max(largest[i], magnitude_bits(to_float<TYPE>(x[column(i)])));
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[row][column(i)] = largest[i];
    __syncthreads();
    const long long line = base + threadIdx.x;
    if (threadIdx.x >= LINES || line >= lines) return;
    unsigned result = 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) result = max(result, partial[i][threadIdx.x]);
    maxima[static_cast<long long>(blockIdx.y) * lines + line] = result;
    if (blockIdx.y == 0) info[line].left_out = 0;
}
