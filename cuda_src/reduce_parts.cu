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
constexpr int ELEMENTS = 4;      // of C per thread
constexpr int READS = 4;         // parts of which a thread's loads are in flight together
constexpr int VEC_C = 1;   // elements per load and store: 4 if N and ldc are multiples of 4, C is aligned to
                           // four elements and SYM = 0, else 1
constexpr int SOURCE = 0;  // 0: beta multiplies C; 1, 4: the source, read so many elements at a time
constexpr int SYM = 0;     // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int TYPE_C = 0;  // of the elements of C: 0: float32, 1: bfloat16, 2: float16
constexpr int TYPE_OLD = 0;  // of those that beta multiplies: that of C, or the source's
// constants:end

#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"
#include "device/operand.cuh"
#include "device/source.cuh"
#include "device/triangle_patch.cuh"

constexpr int LEAST_BLOCKS = 1024 / THREADS;  // on a multiprocessor: for more, loads wait for each other
static_assert(SOURCE || TYPE_OLD == TYPE_C, "the old values lie in C");
static_assert(VEC_C == 1 || (VEC_C == 4 && ELEMENTS == 4 && !SYM),
              "a thread has one vector or single floats");

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    fastsgemm_reduce_parts(int M, int N, int parts, const float *W, long long part_stride, float alpha,
                           float beta, ElementType<TYPE_C> *__restrict__ C, long long row_stride,
                           long long column_stride, BatchAndSource<SOURCE> batch) {
    if (!move_to_product(batch, W, C)) return;
    __shared__ float partial[PARTIAL_SUMS][THREADS / PARTIAL_SUMS * ELEMENTS];
    const int partial_sums = parts > SERIAL_PARTS ? PARTIAL_SUMS : 1;
    const int columns = THREADS / partial_sums;  // threads side by side
    const int column = threadIdx.x % columns;
    const int first_part = threadIdx.x / columns;
    const long long size = static_cast<long long>(M) * N;
    const long long first = static_cast<long long>(blockIdx.x) * columns * ELEMENTS + column * VEC_C;
    Patch patch;
    if constexpr (SYM)
        patch = partial_sums == 1 ? Patch::of_block<THREADS * ELEMENTS>(N, column, columns)
                                  : Patch::of_block<THREADS / PARTIAL_SUMS * ELEMENTS>(N, column, columns);
    // From one of a thread's elements to the next.
    const long long stride = SYM ? static_cast<long long>(patch.down) * N : VEC_C == 4 ? 1 : columns;
    const auto is_inside = [&](int i) { return SYM ? patch.is_inside(i) : first + i * stride < size; };
    float sum[ELEMENTS] = {};
    const long long step = partial_sums * part_stride;
    const float *w = W + first_part * part_stride + (SYM ? patch.offset(0) : first);
    griddepcontrol_wait();
#pragma unroll 1
    for (int p = first_part; p < parts;) {
        float value[READS][ELEMENTS] = {};
#pragma unroll
        for (int r = 0; r < READS; ++r, p += partial_sums, w += step) {
            if constexpr (VEC_C == 4) {
                if (p < parts && is_inside(0)) {
                    const float4 four = four_values<4>(w, 1);
                    value[r][0] = four.x, value[r][1] = four.y, value[r][2] = four.z, value[r][3] = four.w;
                }
            } else {
#pragma unroll
                for (int i = 0; i < ELEMENTS; ++i)
                    if (p < parts && is_inside(i)) value[r][i] = w[i * stride];
            }
        }
#pragma unroll
        for (int r = 0; r < READS; ++r)
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) sum[i] = __fadd_rn(sum[i], value[r][i]);
    }
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
    const OldValues<SOURCE, 0, TYPE_OLD> values(batch);
    if constexpr (SYM) {
        __shared__ float transposed[THREADS * ELEMENTS * 33 / 32];
        patch.store<SYM, TYPE_C>(sum, transposed, column, columns, alpha, beta, C, row_stride, column_stride,
                                 values);
        return;
    }
#pragma unroll
    for (int i = 0; i < ELEMENTS; i += VEC_C) {
        if (first + i * stride >= size) return;
        const Element element = element_of(first + i * stride, size, N);
        ElementType<TYPE_C> *c = C + element.row * row_stride + element.column * column_stride;
        store_row<VEC_C, VEC_C, TYPE_C>(c, sum + i, VEC_C, alpha, beta, values, element.row, element.column);
    }
}
