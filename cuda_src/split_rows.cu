// Split an operand whose lines are contiguous (row-major A, column-major B) into pairs of FP16 numbers: see
// device/split_format.cuh. One pass: a line stays in the registers of its threads between the search for its
// largest magnitude and the split. What does not fit, of very long lines, is read again.
//
// Grid: one-dimensional, ceil(lines / LINES) blocks. Block: THREADS.
#include "device/split_format.cuh"
#include "device/dependent_launch.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int LINE_THREADS = 128;  // per line: 32, 64, ... 1024; with K / 32 threads it stays in registers
constexpr int VEC = 4;             // floats a load: 4 where X and ldx have 16-byte alignment, else 1
// constants:end

constexpr int THREADS = LINE_THREADS > 256 ? LINE_THREADS : 256;
constexpr int LINES = THREADS / LINE_THREADS;  // a block
constexpr int WARPS = LINE_THREADS / 32;       // a line
constexpr int QUADS = 8;                       // of elements that a thread keeps in registers
static_assert(LINE_THREADS >= 32 && LINE_THREADS <= 1024 && (LINE_THREADS & (LINE_THREADS - 1)) == 0,
              "32 to 1024 threads a line, a power of two");
static_assert(VEC == 1 || VEC == 4, "X is read 4 or 16 bytes at a time");

__device__ __forceinline__ void load_quad(float (&x)[4], const float *line, int k, int K) {
    if (VEC == 4 && k + 4 <= K) {
        const float4 v = *reinterpret_cast<const float4 *>(line + k);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = k + i < K ? line[k + i] : 0.0f;
    }
}

__device__ __forceinline__ unsigned largest_of(unsigned largest, const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max(largest, magnitude_bits(x[i]));
    return largest;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_split_rows(int lines, int K, const float *X, long long ldx, unsigned short *__restrict__ pairs,
                         Line *__restrict__ info, int *__restrict__ where) {
    __shared__ unsigned partial[LINES * WARPS];
    __shared__ int left_out[LINES];
    const int own = threadIdx.x / LINE_THREADS, t = threadIdx.x % LINE_THREADS;
    const long long line = static_cast<long long>(blockIdx.x) * LINES + own;
    const bool inside = line < lines;
    const float *x = X + (inside ? line : 0) * ldx;
    const int padded = inside ? (K + BLOCK_K - 1) / BLOCK_K * BLOCK_K : 0;
    const int length = inside ? K : 0;
    let_dependents_begin();
    wait_for_results();

    float kept[QUADS][4];
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < QUADS; ++i) load_quad(kept[i], x, 4 * (t + i * LINE_THREADS), length);
#pragma unroll
    for (int i = 0; i < QUADS; ++i) largest = largest_of(largest, kept[i]);
    for (int k = 4 * (t + QUADS * LINE_THREADS); k < length; k += 4 * LINE_THREADS) {
        float more[4];
        load_quad(more, x, k, length);
        largest = largest_of(largest, more);
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
    auto store = [&](const float (&raw)[4], int k) {
        float scaled[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            scaled[i] = scale_or_leave_out(raw[i], exponent, [&] {
                const int slot = atomicAdd(&left_out[own], 1);
                if (slot < SPARSE) where[line * SPARSE + slot] = k + i;
            });
        store_pairs(pairs + (static_cast<long long>(k / BLOCK_K) * lines + line) * LINE_HALVES, k % BLOCK_K,
                    scaled);
    };
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const int k = 4 * (t + i * LINE_THREADS);
        if (k < padded) store(kept[i], k);
    }
    for (int k = 4 * (t + QUADS * LINE_THREADS); k < padded; k += 4 * LINE_THREADS) {
        float more[4];
        load_quad(more, x, k, length);
        store(more, k);
    }
    __syncthreads();
    if (t == 0 && inside) info[line] = {exponent, left_out[own] + (is_finite(largest) ? 0 : DENSE)};
}
