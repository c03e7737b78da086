// C <- alpha * (sum of the parts) + beta * C, where part p of an M x N product lies row-major and dense at
// W + p * part_stride. Up to FEW parts one thread adds up an element in ascending order. More of them are
// dealt out to STRANDS strands, which add up every STRANDS-th part in ascending order, and then the strands:
// few elements have too few threads otherwise. Which it is depends on the number of parts alone, so the same
// call gives the same bits every time.
// A thread has EACH elements, so that their loads are under way together; neighbours have neighbours.
#include "device/dependent_launch.cuh"
#include "device/epilogue.cuh"

constexpr int THREADS = 256;
constexpr int STRANDS = 8;
constexpr int FEW = 8;
constexpr int EACH = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_parts(int M, int N, int count, const float *__restrict__ W, long long part_stride, float alpha,
                 float beta, float *__restrict__ C, long long row_stride, long long column_stride) {
    __shared__ float sums[STRANDS][THREADS / STRANDS * EACH];
    const int strands = count > FEW ? STRANDS : 1;
    const int lanes = THREADS / strands;
    const int lane = threadIdx.x % lanes;
    const int strand = threadIdx.x / lanes;
    const long long size = static_cast<long long>(M) * N;
    const long long first = static_cast<long long>(blockIdx.x) * lanes * EACH + lane;
    float sum[EACH] = {};
    const float *w = W + strand * part_stride + first;
    wait_for_results();
#pragma unroll 8
    for (int p = strand; p < count; p += strands, w += strands * part_stride)
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (first + i * lanes < size) sum[i] = __fadd_rn(sum[i], w[i * lanes]);
    if (strands > 1) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) sums[strand][i * lanes + lane] = sum[i];
        __syncthreads();
        if (strand != 0) return;
#pragma unroll
        for (int s = 1; s < STRANDS; ++s)
#pragma unroll
            for (int i = 0; i < EACH; ++i) sum[i] = __fadd_rn(sum[i], sums[s][i * lanes + lane]);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const long long element = first + i * lanes;
        if (element >= size) return;
        const long long m = size >> 32 ? element / N : unsigned(element) / unsigned(N);
        float *c = C + m * row_stride + (element - m * N) * column_stride;
        *c = epilogue(alpha, sum[i], beta, c);
    }
}
