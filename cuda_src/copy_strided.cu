// Copy matrices between any two layouts. For operands that have no unit stride: A and B are packed before a
// rung runs, C is gathered before and scattered after; and for a C that is copied to where the result goes.
// Neighbouring threads have neighbouring columns, and each thread reads ELEMENTS elements before it writes
// one. Strides are in elements and may be zero (source only) or negative. No tiling: it moves M * K elements
// where the product does M * N * K multiplications.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;  // of a block: 1 to 1024
constexpr int ELEMENTS = 4;   // of a thread
// constants:end

#include "device/batch.cuh"
#include "device/operand.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_copy_strided(int rows, int columns, const float *from, long long from_row,
                           long long from_column, float *to, long long to_row, long long to_column,
                           Batch batch) {
    if (!move_to_product(batch, from, to)) return;
    const long long size = static_cast<long long>(rows) * columns;
    const long long first = blockIdx.x * static_cast<long long>(THREADS * ELEMENTS) + threadIdx.x;
    float value[ELEMENTS];
    float *place[ELEMENTS];
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) {
        if (first + e * THREADS >= size) break;
        const Element element = element_of(first + e * THREADS, size, columns);
        value[e] = from[element.row * from_row + element.column * from_column];
        place[e] = to + element.row * to_row + element.column * to_column;
    }
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e)
        if (first + e * THREADS < size) *place[e] = value[e];
}
