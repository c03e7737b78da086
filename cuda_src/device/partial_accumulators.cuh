// Rung 9: partial accumulators. The rounding error of a chain of FMAs grows with its length, so a long sum is
// made of several short chains. At the end of a chain, every thread adds its accumulators to the partial sums
// that it has in shared memory, and starts again from zero. So the sums of the chains are added in the order
// of k. A second set of accumulators does not fit into the registers, and shared memory is accessed only once
// per chain.
// Each thread has a place of its own, so no barrier is needed.
//
// Traits: THREADS, ROWS, COLS (of accumulators per thread).
#pragma once
#include "device/shared_memory.cuh"

template <class Traits>
struct PartialAccumulators {
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;

    unsigned sums;     // [ROWS][COLS][THREADS] in shared memory, from this thread's first on
    bool any = false;  // whether a chain has ended

    explicit __device__ __forceinline__ PartialAccumulators(const float *sums)
        : sums(shared_address(sums + threadIdx.x)) {}

    // Float by float: vectors would tie neighbouring accumulators to neighbouring registers, and the compiler
    // could no longer keep the main loop free of register-bank conflicts.
    __device__ __forceinline__ unsigned place(int i, int j) const {
        return sums + 4 * (i * COLS + j) * Traits::THREADS;
    }

    // Add the partial sums in shared memory to the accumulators.
    __device__ __forceinline__ void add_to(float (&acc)[ROWS][COLS]) const {
        if (!any) return;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; ++j) acc[i][j] = __fadd_rn(load_shared(place(i, j)), acc[i][j]);
    }

    // End a chain: add the accumulators to the partial sums in shared memory, and set them to zero.
    __device__ __forceinline__ void end_chain(float (&acc)[ROWS][COLS]) {
        add_to(acc);
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; ++j) {
                store_shared(place(i, j), acc[i][j]);
                acc[i][j] = 0.0f;
            }
        any = true;
    }
};
