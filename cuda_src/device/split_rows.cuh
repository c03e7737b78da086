// Split lines that are contiguous (row-major A, column-major B): X(line, k) lies at line * ldx + k. A chunk
// of a line stays in the registers of its threads. A line of one chunk is read once. Of a longer one the
// largest magnitude is found chunk by chunk, and the chunks are read again in the opposite order: the last
// one is still in registers.
#pragma once
#include "device/split_format.cuh"

// Block `block` of a side, of THREADS threads, LINE_THREADS for a line; each keeps QUADS times four elements.
template <int THREADS, int LINE_THREADS, int QUADS, int VEC, int TYPE>
__device__ __forceinline__ void split_rows(const Side &side, int block) {
    constexpr int LINES = THREADS / LINE_THREADS;    // a block
    constexpr int WARPS = LINE_THREADS / 32;         // a line
    constexpr int CHUNK = 4 * QUADS * LINE_THREADS;  // steps of k
    static_assert(
        LINE_THREADS >= 32 && THREADS % LINE_THREADS == 0 && (LINE_THREADS & (LINE_THREADS - 1)) == 0,
        "32 to THREADS threads a line, a power of two");
    __shared__ unsigned partial[LINES * WARPS];
    __shared__ unsigned left_out[LINES];
    const int own = threadIdx.x / LINE_THREADS, t = threadIdx.x % LINE_THREADS;
    const long long line = static_cast<long long>(block) * LINES + own;
    const bool inside = line < side.lines;
    const auto x = reinterpret_cast<const ElementType<TYPE> *>(side.X) + (inside ? line : 0) * side.ldx;
    const int length = inside ? side.K : 0;
    const int padded = padded_k(length);
    const int chunks = (padded + CHUNK - 1) / CHUNK;

    float kept[QUADS][4];
    auto load = [&](int chunk) {
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const int k = chunk * CHUNK + 4 * (t + i * LINE_THREADS);
            load_elements<VEC, TYPE>(kept[i], x + k, length - k);
        }
    };
    unsigned largest = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
        load(chunk);
#pragma unroll
        for (int i = 0; i < QUADS; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) largest = max(largest, magnitude_bits(kept[i][j]));
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
    if (t == 0) left_out[own] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) largest = max(largest, partial[own * WARPS + i]);

    const int exponent = line_exponent(largest);
    const float smallest = smallest_split(side.K);
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        if (chunk < chunks - 1) load(chunk);
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const int k = chunk * CHUNK + 4 * (t + i * LINE_THREADS);
            if (k >= padded) continue;
            float scaled[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                scaled[j] = scale_or_leave_out<TYPE>(kept[i][j], exponent, smallest, [&] {
                    const unsigned slot = atomicAdd(&left_out[own], 1);
                    if (slot < SPARSE) side.where[line * SPARSE + slot] = k + j;
                });
            store_pairs<TYPE>(side, line, k, scaled);
        }
    }
    __syncthreads();
    if (t == 0 && inside) side.info[line] = {exponent, left_out[own] + (is_finite(largest) ? 0 : DENSE)};
}
