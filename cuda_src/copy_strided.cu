// Copy matrices between any two layouts. For operands that have no unit stride: A and B are packed before a
// rung runs, C is gathered before and scattered after; and for a C that is copied to where the result goes.
// Neighbouring threads walk the columns, and each thread has several elements on their way. Strides are in
// elements and may be zero (source only) or negative. No tiling: it moves M * K elements where the product
// does M * N * K multiplications.
// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;  // of a block: 1 to 1024
constexpr int ELEMENTS = 4;   // of a thread
// constants:end

#include "device/batch.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_copy_strided(int rows, int columns, const float *from, long long from_row,
                           long long from_column, float *to, long long to_row, long long to_column,
                           Batch batch) {
    if (batch.count > 1) {
        if (!is_in_batch(batch)) return;
        from += batch_offset(batch, batch.a);
        to += batch_offset(batch, batch.c);
    }
    const long long size = static_cast<long long>(rows) * columns;
    const long long first = blockIdx.x * static_cast<long long>(THREADS * ELEMENTS) + threadIdx.x;
    float value[ELEMENTS];
    float *place[ELEMENTS];
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) {
        const long long element = first + e * THREADS;
        if (element >= size) break;
        const long long i = size >> 32 ? element / columns : unsigned(element) / unsigned(columns);
        const long long j = element - i * columns;
        value[e] = from[i * from_row + j * from_column];
        place[e] = to + i * to_row + j * to_column;
    }
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e)
        if (first + e * THREADS < size) *place[e] = value[e];
}
