// A ring of stages in shared memory (sm_90), and the stage that a role has reached. The stages lie one behind
// the other, STAGE bytes each. Behind the last one lie the memory barriers (see device/mbarrier.cuh): of each
// stage the one that says that it is full, and then of each the one that says that it is empty.
#pragma once

template <int STAGES, int STAGE>
struct StageRing {
    unsigned base;  // shared address of stage 0
    int stage = 0;
    unsigned phase = 0;  // of the barriers of the stage that was reached

    __device__ __forceinline__ unsigned data(int stage) const { return base + stage * STAGE; }
    __device__ __forceinline__ unsigned full(int stage) const { return base + STAGES * STAGE + stage * 8; }
    __device__ __forceinline__ unsigned empty(int stage) const {
        return base + STAGES * (STAGE + 8) + stage * 8;
    }
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};
