// Rung 9: sliced-K. The slices of a block have accumulators for the same tile of C, each for its share of K.
// They are added up in the order of the slices, in the registers of slice 0, through shared memory.
//
// Traits: SLICED_K, THREADS_PER_SLICE, ROWS, COLS (of accumulators per thread), SCRATCH_BYTES (of shared
// memory).
#pragma once
#include "device/shared_memory.cuh"

template <class Traits>
struct SlicedK {
    static constexpr int SLICES = Traits::SLICED_K, THREADS = Traits::THREADS_PER_SLICE;
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;

    // Rows of a thread per pass: as many as fit into shared memory.
    static __device__ constexpr int rows_per_pass() {
        for (int rows = ROWS; rows > 0; --rows)
            if (ROWS % rows == 0 && 4 * (SLICES - 1) * THREADS * rows * COLS <= Traits::SCRATCH_BYTES)
                return rows;
        return 0;
    }
    static constexpr int PASS_ROWS = rows_per_pass();
    static_assert(PASS_ROWS > 0, "the sums of a row of every thread fit into shared memory");

    // Add the accumulators of all slices to those of slice 0.
    static __device__ __forceinline__ void add_up(float *scratch, float (&acc)[ROWS][COLS], int slice) {
        const unsigned mine = shared_address(scratch + threadIdx.x % THREADS);
        // Float by float: see device/partial_accumulators.cuh for why.
        auto place = [&](int s, int i, int j) {
            return mine + 4 * ((s * PASS_ROWS + i) * COLS + j) * THREADS;
        };
#pragma unroll
        for (int first = 0; first < ROWS; first += PASS_ROWS) {
            __syncthreads();  // the scratch is no longer read: by the main loop, or by the pass before
            if (slice != 0) {
#pragma unroll
                for (int i = 0; i < PASS_ROWS; ++i)
#pragma unroll
                    for (int j = 0; j < COLS; ++j) store_shared(place(slice - 1, i, j), acc[first + i][j]);
            }
            __syncthreads();  // all slices have written
            if (slice == 0) {
                // A loop over the slices, because unrolled it takes longer to compile.
#pragma unroll 1
                for (int s = 0; s < SLICES - 1; ++s)
#pragma unroll
                    for (int i = 0; i < PASS_ROWS; ++i)
#pragma unroll
                        for (int j = 0; j < COLS; ++j)
                            acc[first + i][j] = __fadd_rn(acc[first + i][j], load_shared(place(s, i, j)));
            }
        }
    }
};
