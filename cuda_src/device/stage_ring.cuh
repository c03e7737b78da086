// A ring of stages in shared memory (sm_90), and the stage that a role has reached. The stages lie one behind
// the other, STAGE bytes each. Behind the last one lie the memory barriers (see device/mbarrier.cuh): of each
// stage the one that says that it is full, and then of each the one that says that it is empty. Those who
// read the stages take and release GROUP of them at a time; ARRIVE lanes of each warp say so.
#pragma once
#include "device/mbarrier.cuh"

template <int STAGES, int STAGE, int GROUP, int ARRIVE = 1>
struct StageRing {
    static_assert(STAGE % 8 == 0, "a memory barrier begins at a multiple of 8 bytes");
    static constexpr int BYTES = STAGES * (STAGE + 16);  // with the barriers

    struct Group {
        static constexpr int COUNT = GROUP;
        int stage[GROUP];
    };

    unsigned base;  // shared address of stage 0
    int stage = 0;
    unsigned phase = 0;  // of the barriers of the stage that was reached

    __device__ __forceinline__ unsigned data(int i) const { return base + i * STAGE; }
    __device__ __forceinline__ unsigned full(int i) const { return base + STAGES * STAGE + i * 8; }
    __device__ __forceinline__ unsigned empty(int i) const { return base + STAGES * (STAGE + 8) + i * 8; }

    // Make the barriers: one thread fills a stage, and `warps` read it. One thread calls this;
    // __syncthreads() must follow before any other uses the ring.
    __device__ __forceinline__ void init(int warps) const {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(full(i), 1);
            mbarrier_init(empty(i), warps * ARRIVE);
        }
        fence_mbarrier_init();
        fence_proxy_async();
    }

    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }

    __device__ __forceinline__ void wait_empty() const { mbarrier_wait_parity(empty(stage), phase ^ 1); }

    // Wait until the next stages are full, and go on to those behind them.
    __device__ __forceinline__ Group wait_full() {
        Group group;
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            mbarrier_wait_parity(full(stage), phase);
            group.stage[i] = stage;
            next();
        }
        return group;
    }

    // Mark the stages of a group as empty. By all lanes of a warp.
    __device__ __forceinline__ void release(const Group &group) const {
        if (threadIdx.x % 32 >= ARRIVE) return;
#pragma unroll
        for (int i = 0; i < GROUP; ++i) mbarrier_arrive(empty(group.stage[i]));
    }
};
