// Copy a matrix between any two layouts, one element a thread. For operands that have no unit stride: A and B
// are packed before a rung runs, C is gathered before and scattered after. Neighbouring threads walk the
// columns. Strides are in elements and may be zero (source only) or negative. No tiling: it moves M * K
// elements where the product does M * N * K multiplications.
// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;  // of a block, one element each: 1 to 1024
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
    const long long e = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (e >= static_cast<long long>(rows) * columns) return;
    const long long i = e / columns;
    const long long j = e % columns;
    to[i * to_row + j * to_column] = from[i * from_row + j * from_column];
}
