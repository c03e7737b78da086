// Rung 11: C <- alpha * (sum of the parts, scaled) + beta * C, where part p of the product lies row-major at
// W + p * part_stride, with ldw (a multiple of four) from row to row. The parts are added in ascending order,
// so the same call gives the same bits every time. Elements of lines that are dense in exceptions are the
// guard kernel's. With SYM, the parts have sums on and below the diagonal only.
//
// Grid: one-dimensional, ceil(M * ceil(N / 4) / THREADS), and with SYM a block for each SIDE x SIDE tile that
// meets the lower triangle. Block: THREADS.
#include "device/split_format.cuh"
#include "device/dependent_launch.cuh"
#include "device/raster.cuh"
#include "device/source.cuh"
#include "device/triangle.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int VEC_C = 4;   // floats per store: 4 where C and ldc have 16-byte alignment, else 1
constexpr int SOURCE = 0;  // 0: beta multiplies C; 1, 4: the source, read so many floats at a time
constexpr int SYM = 0;     // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
// constants:end

constexpr int THREADS = 256;
constexpr int SIDE = 32;  // with SYM: rows and columns of a block
static_assert(VEC_C == 1 || VEC_C == 4, "C is stored 4 or 16 bytes at a time");

// Store the transpose of a tile, of which each thread has four neighbours of a row. By all threads, through
// shared memory, so that a warp stores neighbours.
template <class Old>
__device__ __forceinline__ void store_transposed(Tile tile, const float (&sum)[4], int N, float alpha,
                                                 const Line *rows, const Line *columns, float beta, float *C,
                                                 long long ldc, const Old &values) {
    __shared__ float shared[SIDE][SIDE + 1];
#pragma unroll
    for (int i = 0; i < 4; ++i) shared[threadIdx.x / (SIDE / 4)][threadIdx.x % (SIDE / 4) * 4 + i] = sum[i];
    __syncthreads();
    const int m = tile.m + threadIdx.x % SIDE;
    if (m >= N) return;
#pragma unroll
    for (int i = threadIdx.x / SIDE; i < SIDE; i += THREADS / SIDE) {
        const int n = tile.n + i;
        if (!is_inside<upper_of(SYM)>(n, m)) continue;
        if (max(rows[m].left_out, columns[n].left_out) > most_left_out(alpha)) continue;
        float *c = C + n * ldc + m;
        const float *old = c;
        values.find(old, n, m);
        *c = epilogue(alpha, shared[threadIdx.x % SIDE][i], beta, old);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_reduce_fp16x3(int M, int N, int parts, const float *W, long long ldw, long long part_stride,
                            float alpha, const Line *rows, const Line *columns, float beta,
                            float *__restrict__ C, long long ldc, const float *source, long long source_row,
                            long long source_column) {
    const int quads = N / 4 + (N % 4 != 0);
    const long long number = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    Tile tile;
    if constexpr (SYM) tile = tile_of_block<SIDE, SIDE, 1, SYM>(M, N);
    const long long m = SYM ? tile.m + threadIdx.x / (SIDE / 4) : number / quads;
    const int n = SYM ? tile.n + threadIdx.x % (SIDE / 4) * 4 : static_cast<int>(number - m * quads) * 4;
    launch_dependents();
    griddepcontrol_wait();
    if (!SYM && m >= M) return;

    const int end = !SYM ? N : m < M ? min(N, int(m) + 1) : 0;  // of the columns in which the row has sums
    float sum[4] = {};
    const float *w = W + m * ldw + n;
#pragma unroll 4
    for (int part = 0; part < parts; ++part, w += part_stride) {
        if (n + 4 <= end) {
            const float4 v = *reinterpret_cast<const float4 *>(w);
            sum[0] = __fadd_rn(sum[0], v.x);
            sum[1] = __fadd_rn(sum[1], v.y);
            sum[2] = __fadd_rn(sum[2], v.z);
            sum[3] = __fadd_rn(sum[3], v.w);
        } else {
#pragma unroll
            for (int i = 0; i < 3; ++i)
                if (n + i < end) sum[i] = __fadd_rn(sum[i], w[i]);
        }
    }
    const Line row = !SYM || m < M ? rows[m] : Line{0, DENSE};
    float *c = C + m * ldc + n;
    const OldValues<SOURCE> old(source, source_row, source_column);
    bool stored[4];
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Line column = n + i < end ? columns[n + i] : Line{0, DENSE};
        stored[i] = max(row.left_out, column.left_out) <= most_left_out(alpha);
        all = all && stored[i];
        sum[i] = scale_by_power(sum[i], row.exponent + column.exponent);
    }
    if constexpr (stores_upper(SYM)) {
        store_transposed(tile, sum, N, alpha, rows, columns, beta, C, ldc, old);
        if constexpr (!stores_lower(SYM)) return;
    }
    if (VEC_C == 4 && all) {
        store_row<4, VEC_C>(c, sum, 4, alpha, beta, old, m, n);
    } else {
        const float *values = c;
        old.find(values, m, n);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (stored[i]) c[i] = epilogue(alpha, sum[i], beta, values + i * old.step());
    }
}
