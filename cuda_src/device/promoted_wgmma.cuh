// Rung 11 on Hopper: products on tensor cores in short chains, which are added to FP32 registers before their
// truncation errors grow (promotion). One warpgroup computes 64 x BN of a tile.
//
// Ring is the kernel's StageRing, a group of which has the stages between two promotions, with these
// constants: BN, columns of a tile; STAGE_A, bytes of A in a stage; and for `multiply` ONE_A and ONE_B, 1
// where an operand has no lo, and EXCHANGED, 1 where A and B are the caller's B and A.
#pragma once
#include "device/split_format.cuh"
#include "device/stage_ring.cuh"
#include "device/wgmma.cuh"

// A stage, at `data`, has 32 steps of k: each product takes two wgmmas of 16 steps.
constexpr unsigned LO = 64, STEP = 32;  // bytes from hi to lo, and from 16 steps to the next

// Multiply 32 steps of k from these bytes of A and B on.
template <class Ring>
__device__ __forceinline__ void multiply_stage(float (&chain)[Ring::BN / 2], unsigned a, unsigned b,
                                               bool accumulate) {
    constexpr int LINE_A = LINE_BYTES<Ring::ONE_A>, LINE_B = LINE_BYTES<Ring::ONE_B>;
    wgmma_mma_async<Ring::BN>(chain, matrix_descriptor<LINE_A>(a), matrix_descriptor<LINE_B>(b), accumulate);
    wgmma_mma_async<Ring::BN>(chain, matrix_descriptor<LINE_A>(a + STEP), matrix_descriptor<LINE_B>(b + STEP),
                              true);
}

template <class Ring>
__device__ __forceinline__ void multiply_high(float (&chain)[Ring::BN / 2], unsigned data, int warpgroup,
                                              bool accumulate) {
    const unsigned a = data + warpgroup * 64 * LINE_BYTES<Ring::ONE_A>, b = data + Ring::STAGE_A;
    multiply_stage<Ring>(chain, a, b, accumulate);
}

template <class Ring>
__device__ __forceinline__ void multiply_cross(float (&chain)[Ring::BN / 2], unsigned data, int warpgroup,
                                               bool accumulate) {
    const unsigned a = data + warpgroup * 64 * LINE_BYTES<Ring::ONE_A>, b = data + Ring::STAGE_A;
    if constexpr (!Ring::ONE_A && !Ring::ONE_B) {  // first the lo of the caller's A: the bits are the same
        multiply_stage<Ring>(chain, Ring::EXCHANGED ? a : a + LO, Ring::EXCHANGED ? b + LO : b, accumulate);
        multiply_stage<Ring>(chain, Ring::EXCHANGED ? a + LO : a, Ring::EXCHANGED ? b : b + LO, true);
    } else if constexpr (!Ring::ONE_A) {
        multiply_stage<Ring>(chain, a + LO, b, accumulate);
    } else if constexpr (!Ring::ONE_B) {
        multiply_stage<Ring>(chain, a, b + LO, accumulate);
    }
}

// Start all sums, or a chain, from zero.
template <int COUNT>
__device__ __forceinline__ void clear(float (&sum)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum[i] = 0.0f;
}

// Add a chain, which is complete, to the sums of its columns, the first of which is sum[first].
template <int COUNT, int ALL>
__device__ __forceinline__ void promote_high(float (&sum)[ALL], float (&chain)[COUNT], int first = 0) {
    warpgroup_fence_operand(chain);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum[first + i] = __fadd_rn(sum[first + i], chain[i]);
    warpgroup_fence_operand(sum);
}

template <int COUNT>
__device__ __forceinline__ void promote_cross(float (&sum)[COUNT], float (&chain)[COUNT]) {
    warpgroup_fence_operand(chain);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum[i] = __fmaf_rn(chain[i], 1.0f / LO_SCALE, sum[i]);
    warpgroup_fence_operand(sum);
}

// Compute sum = A B where there is one kind of chain: each is promoted while the next one is computed, in two
// sets of registers. A chain has PIECE columns: BN, or fewer in a tile so wide that two chains of all its
// columns do not fit beside the sums. start(chain, group, piece) starts the products of a group of stages
// with such columns. Returns as `multiply` below.
template <int PIECE, class Ring, class Start>
__device__ __forceinline__ typename Ring::Group multiply_chains(float (&sum)[Ring::BN / 2], Ring &ring,
                                                                int groups, Start start) {
    constexpr int COUNT = PIECE / 2, PIECES = Ring::BN / PIECE, LAST = (PIECES - 1) * COUNT;
    static_assert(PIECES * PIECE == Ring::BN, "a tile is whole pieces");
    constexpr int GROUPS = PIECES % 2 + 1;  // an iteration has an even number of chains
    float chains[2][COUNT];
    typename Ring::Group last;
    clear(sum);
    clear(chains[1]);  // which is promoted while the first chain is computed
#pragma unroll 1
    for (int i = 0; i < groups; i += GROUPS) {
#pragma unroll
        for (int j = 0; j < GROUPS && i + j < groups; ++j) {
            const typename Ring::Group group = ring.wait_full();
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                const int turn = j * PIECES + piece;
                float (&chain)[COUNT] = chains[turn % 2], (&before)[COUNT] = chains[1 - turn % 2];
                warpgroup_fence_operand(chain);
                wgmma_fence();
                start(chain, group, piece);
                wgmma_commit_group();
                wgmma_wait_group<1>();
                if (piece == 0 && i + j > 0) ring.release(last);
                promote_high(sum, before, piece > 0 ? (piece - 1) * COUNT : LAST);
            }
            last = group;
        }
    }
    wgmma_wait_group<0>();
    if (GROUPS == 2 && groups % 2 == 1)
        promote_high(sum, chains[0], LAST);
    else
        promote_high(sum, chains[1], LAST);
    return last;
}

// Compute sum = A B over `groups` groups of stages, for one warpgroup. Return the last group, which the
// caller releases: the warpgroup no longer needs its rows of A there, and may use their memory until then.
template <class Ring>
__device__ __forceinline__ typename Ring::Group multiply(float (&sum)[Ring::BN / 2], Ring &ring, int groups,
                                                         int warpgroup) {
    constexpr int COUNT = Ring::BN / 2, STAGES = Ring::Group::COUNT;
    if constexpr (Ring::ONE_A && Ring::ONE_B)  // the set of the cross products is free
        return multiply_chains<Ring::BN>(
            sum, ring, groups, [&](float (&chain)[COUNT], const typename Ring::Group &group, int) {
#pragma unroll
                for (int j = 0; j < STAGES; ++j)
                    multiply_high<Ring>(chain, ring.data(group.stage[j]), warpgroup, j > 0);
            });
    float high_chain[COUNT], cross_chain[COUNT];
    clear(sum);
    typename Ring::Group last;
#pragma unroll 1
    for (int i = 0; i < groups; ++i) {
        const typename Ring::Group group = ring.wait_full();
        warpgroup_fence_operand(high_chain);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < STAGES; ++j)
            multiply_high<Ring>(high_chain, ring.data(group.stage[j]), warpgroup, j > 0);
        wgmma_commit_group();
#pragma unroll
        for (int j = 0; j < STAGES; ++j)
            multiply_cross<Ring>(cross_chain, ring.data(group.stage[j]), warpgroup, i > 0 || j > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // for hi hi, and so for the cross products of the group before
        if (i > 0) ring.release(last);
        last = group;
        promote_high(sum, high_chain);
    }
    wgmma_wait_group<0>();
    promote_cross(sum, cross_chain);
    return last;
}
