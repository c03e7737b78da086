// A float32 operand of a product with bfloat16: each element is the sum of three bfloat16 pieces, 8 of its 24
// significant bits in each. It takes three products then, exact ones, and nothing is scaled or written back.
//
// A piece has the upper 16 bits of what the pieces before it leave, so it is the exact sign, exponent and
// first 8 bits of that, and each difference is exact. Two things are computed by FMAs instead (`repair`): the
// rows of C of which a float has bits below 2^-133, the least bfloat16 number, or is an infinity or a NaN,
// which leaves a NaN; and what is no finite number because a piece that is zero met an infinity.
#pragma once
#include "device/element.cuh"
#include "device/promoted_wgmma.cuh"
#include "device/shared_memory.cuh"

// The pieces of 64 lines of a warpgroup and 32 steps of k, in the registers that wgmma takes A from: for 16
// steps a thread has row 16 (t / 32) + t % 32 / 4 and steps 2 (t % 4) and the next in the first, the row 8
// below in the second, and the steps 8 behind in the last two.
struct Pieces {
    static constexpr int LINE = 128;  // bytes: 32 floats
    unsigned of[3][2][4];  // the lowest pieces first, so that most sums that are truncated are small

    // Take the upper halves of two floats, and leave the rest.
    static __device__ __forceinline__ unsigned take(float (&x)[2]) {
        const unsigned first = __float_as_uint(x[0]), second = __float_as_uint(x[1]);
        x[0] -= __uint_as_float(first & 0xffff0000u);
        x[1] -= __uint_as_float(second & 0xffff0000u);
        return __byte_perm(first, second, 0x7632);
    }

    // Read the lines that begin at this shared address, and note in the lower half of `left` bits that the
    // pieces leave of any float.
    __device__ __forceinline__ void read(unsigned lines, unsigned &left) {
        const int lane = threadIdx.x % 32, line = line_of(lane / 4);
        lines += (threadIdx.x % 128 / 32 * 16 + line) * LINE + lane % 2 * 8;
#pragma unroll
        for (int k = 0; k < 2; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float x[2];
                load_shared<2>(x,
                               lines + i % 2 * 8 * LINE + ((4 * k + i / 2 * 2 + lane % 4 / 2) ^ line) * 16);
                of[2][k][i] = take(x);
                of[1][k][i] = take(x);
                of[0][k][i] = take(x);
                left |= __float_as_uint(x[0]) | __float_as_uint(x[1]);
            }
        __syncwarp();  // wgmma, which follows, is executed by whole warps
    }

    // The line of eight that is read for a row of eight. Half a warp reads four lines at a time, 32 bytes of
    // each: of every second line, so that the swizzle puts them in different banks.
    static __device__ __forceinline__ int line_of(int row) { return row % 4 * 2 + row / 4; }

    // Give each lane what was computed for its own row, not for the line that it read.
    template <class T>
    static __device__ __forceinline__ T of_own_row(T value) {
        const int lane = threadIdx.x % 32, row = lane / 4;
        return __shfl_sync(0xffffffffu, value, (row % 2 * 4 + row / 2) * 4 + lane % 4);
    }
};

// Compute sum = A B of the floats and bfloat16 numbers of so many stages, for one warpgroup; `left` as above.
// A chain has 32 steps of COLUMNS columns. The pieces of A for the next ones are made while the tensor cores
// work on those before. A stage has the floats in two boxes of 32 steps. Returns the last stage, which the
// caller releases.
template <int COLUMNS, class Ring>
__device__ __forceinline__ typename Ring::Group multiply_pieces(float (&sum)[Ring::BN / 2], unsigned &left,
                                                                Ring &ring, int stages, int warpgroup) {
    constexpr int COUNT = COLUMNS / 2, CHAINS = Ring::BN / COLUMNS, BOX = Ring::STAGE_A / 2;
    static_assert(CHAINS == 1 || CHAINS == 2, "there are two sets of registers");
    float chains[2][COUNT];
    Pieces pieces[2];
    typename Ring::Group last;
    clear(sum);
    clear(chains[0]);
    clear(chains[1]);
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
        const typename Ring::Group group = ring.wait_full();
        const unsigned a = ring.data(group.stage[0]), b = a + Ring::STAGE_A;
#pragma unroll
        for (int turn = 0; turn < 2 * CHAINS; ++turn) {
            const int half = turn / CHAINS, part = turn % CHAINS;
            float (&chain)[COUNT] = chains[turn % 2];
            // With one chain for all columns, that before the last one still has the registers of the pieces.
            if (CHAINS == 1) wgmma_wait_group<1>();
            if (part == 0) pieces[half].read(a + half * BOX + warpgroup * 64 * Pieces::LINE, left);
            wgmma_wait_group<1>();
            if (turn == 1 && i > 0) ring.release(last);
            promote_high(sum, chain, part * COUNT);
            warpgroup_fence_operand(chain);
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 6; ++j)
                wgmma_mma_async<COLUMNS>(
                    chain, pieces[half].of[j / 2][j % 2],
                    matrix_descriptor(b + part * COLUMNS * 128 + (2 * half + j % 2) * STEP), j > 0);
            wgmma_commit_group();
        }
        last = group;
    }
    wgmma_wait_group<0>();
    promote_high(sum, chains[0], 0);
    promote_high(sum, chains[1], CHAINS == 2 ? COUNT : 0);
#pragma unroll
    for (int i = 0; i < Ring::BN / 2; ++i) sum[i] = Pieces::of_own_row(sum[i]);
    left = Pieces::of_own_row(left);
    return last;
}

// Compute the sums of a warp anew where the pieces do not give them, each by one chain of FMAs. `row` and
// `column` are those of its first element of C. A, M x K, and B, N x K, begin at the first of `steps` steps
// of k.
template <int COUNT>
__device__ __forceinline__ void repair(float (&sum)[COUNT], unsigned left, const float *A, long long lda,
                                       const unsigned short *B, long long ldb, int row, int column, int M,
                                       int N, int steps) {
    static_assert(COUNT <= 64, "a bit for each");
    left &= 0xffffu;  // four lanes have read the rows of each sum
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
__device__ __forceinline__ void repair(float (&)[COUNT], unsigned, const unsigned short *, long long,
                                       const unsigned short *, long long, int, int, int, int, int) {
}  // has no pieces
