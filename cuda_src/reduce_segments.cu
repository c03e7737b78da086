// C <- alpha * ((s0 + s1) + s2 + ...) + beta * C, where the sums of segment p of an M x N product lie
// row-major and dense at W + p * part_stride. They are added from the first to the last, whatever their
// number: see docs/order-of-summation.md. Up to SERIAL_PARTS of them each thread reads what it adds. Of more,
// all threads of a block read TOGETHER parts of a few elements together, and one thread adds up those of an
// element; the next ones are on their way meanwhile.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;     // of a block: a multiple of GROUPS
constexpr int GROUPS = 8;        // of threads that read different parts together, for more than SERIAL_PARTS
constexpr int SERIAL_PARTS = 8;  // the most parts that each thread reads itself
constexpr int READS = 16;        // parts that a thread has on their way, for more than SERIAL_PARTS
// constants:end

#include "device/batch.cuh"
#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"
#include "device/operand.cuh"

constexpr int COLUMNS = THREADS / GROUPS, TOGETHER = GROUPS * READS;
static_assert(THREADS % GROUPS == 0, "groups share the threads out");

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_reduce_segments(int M, int N, int parts, const float *W, long long part_stride, float alpha,
                              float beta, float *__restrict__ C, long long row_stride,
                              long long column_stride, Batch batch) {
    if (!move_to_product(batch, W, C)) return;
    __shared__ float read_parts[TOGETHER][COLUMNS];
    const bool alone = parts <= SERIAL_PARTS;  // a thread reads what it adds
    const int columns = alone ? THREADS : COLUMNS;
    const int column = threadIdx.x % columns, group = threadIdx.x / columns;
    const long long size = static_cast<long long>(M) * N;
    const long long number = static_cast<long long>(blockIdx.x) * columns + column;  // of the element
    const float *w = W + number;
    float sum = 0.0f;
    wait_for_results();
    if (alone) {
        if (number >= size) return;
        float value[SERIAL_PARTS] = {};
#pragma unroll
        for (int p = 0; p < SERIAL_PARTS; ++p)
            if (p < parts) value[p] = w[p * part_stride];
        sum = value[0];
#pragma unroll
        for (int p = 1; p < SERIAL_PARTS; ++p)
            if (p < parts) sum = __fadd_rn(sum, value[p]);
    } else {
        float value[READS] = {};
        auto read = [&](int begin) {
#pragma unroll
            for (int r = 0; r < READS; ++r) {
                const int p = begin + r * GROUPS + group;
                if (p < parts && number < size) value[r] = w[p * part_stride];
            }
        };
        read(0);
#pragma unroll 1
        for (int begin = 0; begin < parts; begin += TOGETHER) {
#pragma unroll
            for (int r = 0; r < READS; ++r) read_parts[r * GROUPS + group][column] = value[r];
            __syncthreads();
            read(begin + TOGETHER);
            if (group == 0) {
                if (begin == 0) sum = read_parts[0][column];
#pragma unroll 16
                for (int p = begin == 0; p < min(TOGETHER, parts - begin); ++p)
                    sum = __fadd_rn(sum, read_parts[p][column]);
            }
            __syncthreads();  // what was read may be overwritten
        }
        if (group != 0 || number >= size) return;
    }
    const Element element = element_of(number, size, N);
    float *c = C + element.row * row_stride + element.column * column_stride;
    *c = epilogue(alpha, sum, beta, c);
}
