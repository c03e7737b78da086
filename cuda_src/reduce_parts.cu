// C <- alpha * (sum of the parts) + beta * C, where part p of an M x N product lies row-major and dense at
// W + p * part_stride. Up to SERIAL_PARTS parts, one thread adds up those of an element in ascending order.
// With more parts, PARTIAL_SUMS threads share an element, because a small C has too few elements to fill the
// device: thread s adds up parts s, s + PARTIAL_SUMS and so on in ascending order, and then these partial
// sums are added up in the order of s. The order depends on the number of parts alone, so the same call gives
// the same bits every time. With SYM, the parts have sums on and below the diagonal only.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;     // of a block: a multiple of PARTIAL_SUMS
constexpr int PARTIAL_SUMS = 8;  // of an element, each in its own thread, for more than SERIAL_PARTS
constexpr int SERIAL_PARTS = 8;  // the most parts of which one thread makes the whole sum
constexpr int ELEMENTS = 4;      // of C per thread, whose loads are in flight together
constexpr int SOURCE = 0;        // 0: beta multiplies C; 1: the source, see device/source.cuh
constexpr int SYM = 0;           // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
// constants:end

#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"
#include "device/operand.cuh"
#include "device/source.cuh"
#include "device/triangle_patch.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_reduce_parts(int M, int N, int parts, const float *W, long long part_stride, float alpha,
                           float beta, float *__restrict__ C, long long row_stride, long long column_stride,
                           BatchAndSource<SOURCE> batch) {
    if (!move_to_product(batch, W, C)) return;
    __shared__ float partial[PARTIAL_SUMS][THREADS / PARTIAL_SUMS * ELEMENTS];
    const int partial_sums = parts > SERIAL_PARTS ? PARTIAL_SUMS : 1;
    const int columns = THREADS / partial_sums;  // threads side by side
    const int column = threadIdx.x % columns;
    const int first_part = threadIdx.x / columns;
    const long long size = static_cast<long long>(M) * N;
    const long long first = static_cast<long long>(blockIdx.x) * columns * ELEMENTS + column;
    Patch patch;
    if constexpr (SYM)
        patch = partial_sums == 1 ? Patch::of_block<THREADS * ELEMENTS>(N, column, columns)
                                  : Patch::of_block<THREADS / PARTIAL_SUMS * ELEMENTS>(N, column, columns);
    const auto is_inside = [&](int i) { return SYM ? patch.is_inside(i) : first + i * columns < size; };
    float sum[ELEMENTS] = {};
    const float *w = W + first_part * part_stride + (SYM ? 0 : first);
    griddepcontrol_wait();
#pragma unroll(SYM ? 4 : 8)
    for (int p = first_part; p < parts; p += partial_sums, w += partial_sums * part_stride)
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i)
            if (is_inside(i)) sum[i] = __fadd_rn(sum[i], w[SYM ? patch.offset(i) : i * columns]);
    if (partial_sums > 1) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) partial[first_part][i * columns + column] = sum[i];
        __syncthreads();
        if (first_part != 0) return;
#pragma unroll
        for (int s = 1; s < PARTIAL_SUMS; ++s)
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) sum[i] = __fadd_rn(sum[i], partial[s][i * columns + column]);
    }
    const OldValues<SOURCE> values(batch);
    if constexpr (SYM) {
        __shared__ float transposed[THREADS * ELEMENTS * 33 / 32];
        patch.store<SYM>(sum, transposed, column, columns, alpha, beta, C, row_stride, column_stride, values);
        return;
    }
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
        if (first + i * columns >= size) return;
        const Element element = element_of(first + i * columns, size, N);
        float *c = C + element.row * row_stride + element.column * column_stride;
        const float *old = c;
        values.find(old, element.row, element.column);
        *c = epilogue(alpha, sum[i], beta, old);
    }
}
