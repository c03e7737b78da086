// Rung 9: the sums so far of every thread, kept in shared memory while it begins its sums anew. The rounding
// errors of a chain of FMAs grow with its length: CHAINS short ones, added up in their order, err less than
// one long one. In registers there is no room for a second set of sums; here a thread visits its own a few
// times in all, and no other thread does. Included after the rung's constants, which it computes with.
#pragma once

constexpr int SHORTEST_CHAIN = (16 + BK - 1) / BK;  // tiles: of 16 steps, or adding up would cost too much

// The tiles of a chain, of `whole` in all.
__device__ __forceinline__ int chain_length(int whole) {
    return CHAINS ? max((whole + CHAINS - 1) / (CHAINS ? CHAINS : 1), SHORTEST_CHAIN) : whole;
}

// Float by float: vectors would tie neighbouring sums to neighbouring registers, and the compiler could no
// longer keep the main loop free of register-bank conflicts.
__device__ __forceinline__ float *kept_sum(float *kept, int i, int j) {
    return kept + (i * COLS + j) * THREADS + threadIdx.x;
}

// Add what was kept, if anything was, to the sums.
__device__ __forceinline__ void add_kept(float *kept, float (&acc)[ROWS][COLS], bool anything) {
    if (!anything) return;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLS; ++j) acc[i][j] = __fadd_rn(*kept_sum(kept, i, j), acc[i][j]);
}

// Keep the sums, with what was kept before if anything was, and begin anew.
__device__ __forceinline__ void end_chain(float *kept, float (&acc)[ROWS][COLS], bool anything) {
    add_kept(kept, acc, anything);
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLS; ++j) {
            *kept_sum(kept, i, j) = acc[i][j];
            acc[i][j] = 0.0f;
        }
}
