// C <- alpha * ((s0 + s1) + s2 + ...) + beta * C, where the sums of segment p of an M x N product lie
// row-major and dense at W + p * part_stride. They are added from the first to the last, whatever their
// number: see docs/batch-invariance.md. Up to SERIAL_PARTS parts, each thread reads and adds up those of
// one element. With more parts, a block has COLUMNS elements: all its threads read PASS parts of them to
// shared memory, and one thread for each element adds these up, while the next PASS parts are being read.
// With SYM, the parts have sums on and below the diagonal only.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;      // of a block: a multiple of GROUPS
constexpr int GROUPS = 8;         // of threads, each of which reads other parts, for more than SERIAL_PARTS
constexpr int SERIAL_PARTS = 16;  // the most parts of which one thread reads and adds all
constexpr int READS = 16;  // loads of a thread in flight, each of another part, for more than SERIAL_PARTS
constexpr int SOURCE = 0;  // 0: beta multiplies C; 1: the source, see device/source.cuh
constexpr int SYM = 0;     // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
// constants:end

#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"
#include "device/operand.cuh"
#include "device/source.cuh"
#include "device/triangle_patch.cuh"

constexpr int COLUMNS = THREADS / GROUPS;  // elements of a block, for more than SERIAL_PARTS
constexpr int PASS = GROUPS * READS;       // parts that are read together, and then added up
static_assert(THREADS % GROUPS == 0, "groups share the threads out");
constexpr int LEAST_BLOCKS = SYM ? 1024 / THREADS : 1;  // on a multiprocessor: 64 registers a thread

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    fastsgemm_reduce_segments(int M, int N, int parts, const float *W, long long part_stride, float alpha,
                              float beta, float *__restrict__ C, long long row_stride,
                              long long column_stride, BatchAndSource<SOURCE> batch) {
    if (!move_to_product(batch, W, C)) return;
    __shared__ float read_parts[PASS][COLUMNS];
    const bool serial = parts <= SERIAL_PARTS;
    const int columns = serial ? THREADS : COLUMNS;
    const int column = threadIdx.x % columns, group = threadIdx.x / columns;
    const long long size = static_cast<long long>(M) * N;
    const long long number = static_cast<long long>(blockIdx.x) * columns + column;  // of the element
    Patch patch;
    if constexpr (SYM)
        patch = serial ? Patch::of_block<THREADS>(N, column, columns)
                       : Patch::of_block<COLUMNS>(N, column, columns);
    const bool is_inside = SYM ? patch.is_inside(0) : number < size;
    const float *w = W + (SYM ? patch.offset(0) : number);
    float sum = 0.0f;
    griddepcontrol_wait();
    if (serial) {
        if (!SYM && !is_inside) return;
        float value[SERIAL_PARTS] = {};
#pragma unroll
        for (int p = 0; p < SERIAL_PARTS; ++p)
            if (p < parts && (!SYM || is_inside)) value[p] = w[p * part_stride];
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
                if (p < parts && is_inside) value[r] = w[p * part_stride];
            }
        };
        read(0);
#pragma unroll 1
        for (int begin = 0; begin < parts; begin += PASS) {
#pragma unroll
            for (int r = 0; r < READS; ++r) read_parts[r * GROUPS + group][column] = value[r];
            __syncthreads();
            read(begin + PASS);
            if (group == 0) {
                if (begin == 0) sum = read_parts[0][column];
#pragma unroll 16
                for (int p = begin == 0; p < min(PASS, parts - begin); ++p)
                    sum = __fadd_rn(sum, read_parts[p][column]);
            }
            __syncthreads();  // what was read may be overwritten
        }
        if (group != 0 || (!SYM && !is_inside)) return;
    }
    if constexpr (SYM) {
        __shared__ float transposed[THREADS * 17 / 16];
        patch.store<SYM>({sum}, transposed, column, columns, alpha, beta, C, row_stride, column_stride,
                         OldValues<SOURCE>(batch));
        return;
    }
    const Element element = element_of(number, size, N);
    float *c = C + element.row * row_stride + element.column * column_stride;
    const float *old = c;
    OldValues<SOURCE>(batch).find(old, element.row, element.column);
    *c = epilogue(alpha, sum, beta, old);
}
