// Rung 11: sums of scaled FP16 products, promoted to FP32 registers before truncation errors grow. One
// warpgroup computes 64 x BN of a tile. Included after the rung's constants and its Ring, which it uses.
#pragma once
#include "device/wgmma.cuh"

// A stage, at `data`, has 32 steps of k: each product takes two wgmmas of 16 steps.
constexpr unsigned LO = 64, STEP = 32;  // bytes from hi to lo, and from 16 steps to the next

__device__ __forceinline__ void multiply_high(float (&chain)[BN / 2], unsigned data, int warpgroup,
                                              bool go_on) {
    const unsigned a = data + warpgroup * 64 * 128, b = data + STAGE_A;
    wgmma<BN>(chain, describe_tile(a), describe_tile(b), go_on);
    wgmma<BN>(chain, describe_tile(a + STEP), describe_tile(b + STEP), true);
}

__device__ __forceinline__ void multiply_cross(float (&chain)[BN / 2], unsigned data, int warpgroup,
                                               bool go_on) {
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

// The stages of the ring between two promotions.
struct Batch {
    int stage[PROMOTE_STAGES];
};

__device__ __forceinline__ Batch wait_for_batch(Ring &ring) {
    Batch batch;
#pragma unroll
    for (int i = 0; i < PROMOTE_STAGES; ++i) {
        barrier_wait(ring.full(ring.stage), ring.phase);
        batch.stage[i] = ring.stage;
        ring.next();
    }
    return batch;
}

// Mark the stages of a batch as empty, once for each warp.
__device__ __forceinline__ void release(const Ring &ring, const Batch &batch) {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < PROMOTE_STAGES; ++i) barrier_arrive(ring.empty(batch.stage[i]));
}

// Compute sum = A B over `batches` batches, an even number, for one warpgroup.
__device__ __forceinline__ void multiply(float (&sum)[BN / 2], Ring &ring, int batches, int warpgroup) {
    auto high = [&](float (&chain)[BN / 2], const Batch &batch, bool go_on) {
#pragma unroll
        for (int i = 0; i < PROMOTE_STAGES; ++i)
            multiply_high(chain, ring.data(batch.stage[i]), warpgroup, go_on || i > 0);
        wgmma_commit();
    };
    auto cross = [&](float (&chain)[BN / 2], const Batch &batch, bool go_on) {
#pragma unroll
        for (int i = 0; i < PROMOTE_STAGES; ++i)
            multiply_cross(chain, ring.data(batch.stage[i]), warpgroup, go_on || i > 0);
        wgmma_commit();
    };
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.0f;
    if constexpr (SETS == 3) {
        float high_chain[BN / 2], cross_chain[BN / 2];
        Batch last;
#pragma unroll 1
        for (int i = 0; i < batches; ++i) {
            const Batch batch = wait_for_batch(ring);
            pin(high_chain);
            wgmma_begin();
            high(high_chain, batch, false);
            cross(cross_chain, batch, i > 0);
            wgmma_wait<1>();  // for hi hi, and so for the cross products of the batch before
            pin(high_chain);
            if (i > 0) release(ring, last);
            last = batch;
            promote_high(sum, high_chain);
        }
        wgmma_wait<0>();
        release(ring, last);
        pin(cross_chain);
        promote_cross(sum, cross_chain);
    } else {
        float chain[BN / 2];
        Batch odd;
#pragma unroll 1
        for (int i = 0; i < batches; i += 2) {
            const Batch even = wait_for_batch(ring);
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
            odd = wait_for_batch(ring);
            wgmma_begin();
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
