// C <- alpha * (sum of the parts) + beta * C, where part p of a product lies row-major at W + p * part_stride
// with ldw floats from row to row. The parts are added in ascending order within STRANDS strands, then the
// strands, so the same call gives the same bits every time. A warp is one strand of 32 neighbouring elements.
#include "device/epilogue.cuh"

constexpr int STRANDS = 8;

extern "C" __global__ void __launch_bounds__(32 * STRANDS)
    reduce_parts(int M, int N, int count, const float *__restrict__ W, long long ldw, long long part_stride,
                 float alpha, float beta, float *__restrict__ C, long long row_stride,
                 long long column_stride) {
    __shared__ float strands[STRANDS][32];
    const int lane = threadIdx.x % 32;
    const int strand = threadIdx.x / 32;
    const long long element = blockIdx.x * 32ll + lane;
    const long long m = element / N;
    const long long n = element % N;
    float sum = 0.0f;
    if (m < M) {
        const float *w = W + m * ldw + n;
#pragma unroll 4
        for (int p = strand; p < count; p += STRANDS) sum = __fadd_rn(sum, w[p * part_stride]);
    }
    strands[strand][lane] = sum;
    __syncthreads();
    if (strand != 0 || m >= M) return;
#pragma unroll
    for (int s = 1; s < STRANDS; ++s) sum = __fadd_rn(sum, strands[s][lane]);
    float *c = C + m * row_stride + n * column_stride;
    *c = epilogue(alpha, sum, beta, c);
}
