// A float32 operand of a product with bfloat16: each element is the sum of three bfloat16 pieces, 8 of its 24
// significant bits in each. It takes three products then, exact ones, and nothing is scaled or written back.
//
// A piece has the upper 16 bits of what the pieces before it leave, so it is the exact sign, exponent and
// first 8 bits of that, and each difference is exact. Two things are computed by FMAs instead (`repair`): the
// rows of C of which a float has bits below 2^-133, the least bfloat16 number, or is an infinity or a NaN,
// which leaves a NaN; and what is no finite number because a piece that is zero met an infinity.
#pragma once
#include "device/element.cuh"
#include "device/shared_memory.cuh"

// The pieces of 64 lines of a warpgroup and 64 steps of k, in the registers that wgmma takes A from: for 16
// steps a thread has row 16 (t / 32) + t % 32 / 4 and steps 2 (t % 4) and the next in the first, the row 8
// below in the second, and the steps 8 behind in the last two.
struct Pieces {
    static constexpr int LINE = 256;  // bytes: 64 floats
    unsigned of[3][4][4];  // the lowest pieces first, so that most sums that are truncated are small
    unsigned left = 0;     // bits that the pieces leave of any float so far, in the lower half

    // The place of a 16-byte piece of a line. Four lines of a warp are read at a time, two pieces of each.
    static __device__ __forceinline__ int swizzled(int piece, int line) { return piece ^ line % 4 * 2; }

    // Take the upper halves of two floats, and leave the rest.
    static __device__ __forceinline__ unsigned take(float (&x)[2]) {
        const unsigned first = __float_as_uint(x[0]), second = __float_as_uint(x[1]);
        x[0] -= __uint_as_float(first & 0xffff0000u);
        x[1] -= __uint_as_float(second & 0xffff0000u);
        return __byte_perm(first, second, 0x7632);
    }

    // Read the lines that begin at this shared address.
    __device__ __forceinline__ void read(unsigned lines) {
        const int lane = threadIdx.x % 32, line = threadIdx.x % 128 / 32 * 16 + lane / 4;
        lines += line * LINE + lane % 2 * 8;
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float x[2];
                load_shared<2>(
                    x, lines + i % 2 * 8 * LINE + swizzled(4 * k + i / 2 * 2 + lane % 4 / 2, line) * 16);
                of[2][k][i] = take(x);
                of[1][k][i] = take(x);
                of[0][k][i] = take(x);
                left |= __float_as_uint(x[0]) | __float_as_uint(x[1]);
            }
        __syncwarp();  // wgmma, which follows, is executed by whole warps
    }
};

// Compute the sums of a warp anew where the pieces do not give them, each by one chain of FMAs. `row` and
// `column` are those of its first element of C. A, M x K, and B, N x K, begin at the first of `steps` steps
// of k.
template <int COUNT>
__device__ __forceinline__ void repair(float (&sum)[COUNT], const Pieces &pieces, const float *A,
                                       long long lda, const unsigned short *B, long long ldb, int row,
                                       int column, int M, int N, int steps) {
    static_assert(COUNT <= 64, "a bit for each");
    unsigned left = pieces.left & 0xffffu;  // four lanes have read the rows of each sum
    left |= __shfl_xor_sync(0xffffffffu, left, 1);
    left |= __shfl_xor_sync(0xffffffffu, left, 2);
    unsigned long long broken = left != 0 ? ~0ull : 0ull;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) broken |= static_cast<unsigned long long>(!isfinite(sum[i])) << i;
    const int lane = threadIdx.x % 32;
    row += lane / 4, column += lane % 4 * 2;
    if (broken == 0) return;
#pragma unroll 1
    for (int which = 0; which < COUNT; ++which) {
        if ((broken >> which & 1) == 0) continue;
        const int m = row + which / 2 % 2 * 8, n = column + which / 4 * 8 + which % 2;
        if (m >= M || n >= N) continue;
        float value = 0.0f;
        for (int k = 0; k < steps; ++k) value = fmaf(A[m * lda + k], to_float<1>(B[n * ldb + k]), value);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sum[i] = i == which ? value : sum[i];
    }
}
template <int COUNT>
__device__ __forceinline__ void repair(float (&)[COUNT], const Pieces &, const unsigned short *, long long,
                                       const unsigned short *, long long, int, int, int, int, int) {
}  // has no pieces
