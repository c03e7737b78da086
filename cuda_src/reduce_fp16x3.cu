// Rung 11: C <- alpha * (sum of the parts, scaled) + beta * C, where part p of the product lies row-major at
// W + p * part_stride, with ldw (a multiple of four) from row to row. The parts are added in ascending order,
// so the same call gives the same bits every time. Elements of lines that are dense in exceptions are the
// guard kernel's.
//
// Grid: one-dimensional, ceil(M * ceil(N / 4) / THREADS). Block: THREADS.
#include "device/split_format.cuh"
#include "device/dependent_launch.cuh"
#include "device/source.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int VEC_C = 4;   // floats per store: 4 where C and ldc have 16-byte alignment, else 1
constexpr int SOURCE = 0;  // 0: beta multiplies C; 1, 4: the source, read so many floats at a time
// constants:end

constexpr int THREADS = 256;
static_assert(VEC_C == 1 || VEC_C == 4, "C is stored 4 or 16 bytes at a time");

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_reduce_fp16x3(int M, int N, int parts, const float *W, long long ldw, long long part_stride,
                            float alpha, const Line *rows, const Line *columns, float beta,
                            float *__restrict__ C, long long ldc, const float *source, long long source_row,
                            long long source_column) {
    const int quads = N / 4 + (N % 4 != 0);
    const long long number = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long m = number / quads;
    const int n = static_cast<int>(number - m * quads) * 4;
    launch_dependents();
    griddepcontrol_wait();
    if (m >= M) return;

    float sum[4] = {};
    const float *w = W + m * ldw + n;
#pragma unroll 4
    for (int part = 0; part < parts; ++part, w += part_stride) {
        if (n + 4 <= N) {
            const float4 v = *reinterpret_cast<const float4 *>(w);
            sum[0] = __fadd_rn(sum[0], v.x);
            sum[1] = __fadd_rn(sum[1], v.y);
            sum[2] = __fadd_rn(sum[2], v.z);
            sum[3] = __fadd_rn(sum[3], v.w);
        } else {
#pragma unroll
            for (int i = 0; i < 3; ++i)
                if (n + i < N) sum[i] = __fadd_rn(sum[i], w[i]);
        }
    }
    const Line row = rows[m];
    float *c = C + m * ldc + n;
    const OldValues<SOURCE> old(source, source_row, source_column);
    bool stored[4];
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Line column = n + i < N ? columns[n + i] : Line{0, DENSE};
        stored[i] = max(row.left_out, column.left_out) <= most_left_out(alpha);
        all = all && stored[i];
        sum[i] = scale_by_power(sum[i], row.exponent + column.exponent);
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
