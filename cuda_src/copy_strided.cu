// Copy matrices between any two layouts. For operands that have no unit stride: A and B are packed before a
// rung runs, C is gathered before and scattered after; and for a C that is copied to where the result goes.
// Neighbouring threads have neighbouring columns, and each thread reads ELEMENTS elements before it writes
// one. 16-bit elements are copied as they are, converted to float32, or rounded from it (FROM, TO). Strides
// are in elements and may be zero (source only) or negative. No tiling: it moves M * K elements where the
// product does M * N * K multiplications.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;  // of a block: 1 to 1024
constexpr int ELEMENTS = 4;   // of a thread
constexpr int FROM = 0;       // type of what is read: 0: float32, 1: bfloat16, 2: float16
constexpr int TO = 0;         // type of what is written: the same, or one of the two is float32
// constants:end

#include "device/batch.cuh"
#include "device/element.cuh"
#include "device/operand.cuh"

static_assert(FROM == TO || FROM == 0 || TO == 0, "no 16-bit type is rounded to the other");

__device__ __forceinline__ ElementType<TO> converted(ElementType<FROM> x) {
    if constexpr (FROM == TO)
        return x;
    else if constexpr (FROM == 0)
        return from_float<TO>(x);
    else
        return to_float<FROM>(x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_copy_strided(int rows, int columns, const ElementType<FROM> *from, long long from_row,
                           long long from_column, ElementType<TO> *to, long long to_row, long long to_column,
                           Batch batch) {
    if (!move_to_product(batch, from, to)) return;
    const long long size = static_cast<long long>(rows) * columns;
    const long long first = blockIdx.x * static_cast<long long>(THREADS * ELEMENTS) + threadIdx.x;
    ElementType<FROM> value[ELEMENTS];
    ElementType<TO> *place[ELEMENTS];
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) {
        if (first + e * THREADS >= size) break;
        const Element element = element_of(first + e * THREADS, size, columns);
        value[e] = from[element.row * from_row + element.column * from_column];
        place[e] = to + element.row * to_row + element.column * to_column;
    }
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e)
        if (first + e * THREADS < size) *place[e] = converted(value[e]);
}
