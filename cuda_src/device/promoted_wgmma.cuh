// Rung 11: sums of scaled FP16 products, promoted to FP32 registers in time. For one warpgroup, 64 x BN of a tile.
// Included after the rung's constants and its ring of stages, which it computes with.
#pragma once
#include "device/wgmma.cuh"

// The products of the 32 steps of k of a stage at `data`: two wgmmas a product, of 16 steps each.
constexpr unsigned LO = 64, STEP = 32;  // bytes from hi to lo, and from 16 steps to the next

__device__ __forceinline__ void multiply_high(float (&chain)[BN / 2], unsigned data, int warpgroup, bool go_on) {
    const unsigned a = data + warpgroup * 64 * 128, b = data + STAGE_A;
    wgmma<BN>(chain, describe_tile(a), describe_tile(b), go_on);
    wgmma<BN>(chain, describe_tile(a + STEP), describe_tile(b + STEP), true);
}

__device__ __forceinline__ void multiply_cross(float (&chain)[BN / 2], unsigned data, int warpgroup, bool go_on) {
    const unsigned a = data + warpgroup * 64 * 128, b = data + STAGE_A;
    wgmma<BN>(chain, describe_tile(a + LO), describe_tile(b), go_on);
    wgmma<BN>(chain, describe_tile(a + LO + STEP), describe_tile(b + STEP), true);
    wgmma<BN>(chain, describe_tile(a), describe_tile(b + LO), true);
    wgmma<BN>(chain, describe_tile(a + STEP), describe_tile(b + LO + STEP), true);
}

__device__ __forceinline__ void promote_high(float (&sum)[BN / 2], const float (&chain)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = __fadd_rn(sum[i], chain[i]);
    pin(sum);
}

__device__ __forceinline__ void promote_cross(float (&sum)[BN / 2], const float (&chain)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = __fmaf_rn(chain[i], 1.0f / LO_SCALE, sum[i]);
    pin(sum);
}

// Two stages of the ring, 64 steps of k.
struct Pair {
    int first, second;
};

__device__ __forceinline__ Pair wait_for_pair(Ring &ring) {
    Pair pair;
    barrier_wait(ring.full(ring.stage), ring.phase);
    pair.first = ring.stage;
    ring.next();
    barrier_wait(ring.full(ring.stage), ring.phase);
    pair.second = ring.stage;
    ring.next();
    return pair;
}

// By each warp: the pair has been read for the last time.
__device__ __forceinline__ void release(const Ring &ring, Pair pair) {
    if (threadIdx.x % 32 != 0) return;
    barrier_arrive(ring.empty(pair.first));
    barrier_arrive(ring.empty(pair.second));
}

// sum = A B of `quads` times 128 steps of k, for a warpgroup.
__device__ __forceinline__ void multiply(float (&sum)[BN / 2], Ring &ring, int quads, int warpgroup) {
    auto high = [&](float(&chain)[BN / 2], Pair pair, bool go_on) {
        multiply_high(chain, ring.data(pair.first), warpgroup, go_on);
        multiply_high(chain, ring.data(pair.second), warpgroup, true);
        wgmma_commit();
    };
    auto cross = [&](float(&chain)[BN / 2], Pair pair, bool go_on) {
        multiply_cross(chain, ring.data(pair.first), warpgroup, go_on);
        multiply_cross(chain, ring.data(pair.second), warpgroup, true);
        wgmma_commit();
    };
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.0f;
    if constexpr (SETS == 3) {
        float high_chain[BN / 2], cross_chain[BN / 2];
        Pair last;
#pragma unroll 1
        for (int i = 0; i < 2 * quads; ++i) {
            const Pair pair = wait_for_pair(ring);
            pin(high_chain);
            wgmma_begin();
            high(high_chain, pair, false);
            cross(cross_chain, pair, i > 0);
            wgmma_wait<1>();  // for hi hi, and so for the cross products of the pair before
            pin(high_chain);
            if (i > 0) release(ring, last);
            last = pair;
            promote_high(sum, high_chain);
        }
        wgmma_wait<0>();
        release(ring, last);
        pin(cross_chain);
        promote_cross(sum, cross_chain);
    } else {
        float chain[BN / 2];
        Pair odd;
#pragma unroll 1
        for (int i = 0; i < quads; ++i) {
            const Pair even = wait_for_pair(ring);
            pin(chain);
            wgmma_begin();
            cross(chain, even, i > 0);
            if (i > 0) {
                wgmma_wait<1>();
                release(ring, odd);
            }
            wgmma_wait<0>();
            pin(chain);
            promote_cross(sum, chain);

            pin(chain);
            wgmma_begin();
            high(chain, even, false);
            odd = wait_for_pair(ring);
            high(chain, odd, true);
            wgmma_wait<1>();
            release(ring, even);
            wgmma_wait<0>();
            pin(chain);
            promote_high(sum, chain);

            pin(chain);
            wgmma_begin();
            cross(chain, odd, false);
        }
        wgmma_wait<0>();
        release(ring, odd);
        pin(chain);
        promote_cross(sum, chain);
    }
}
