// Rung 9: the sums of the slices of a block, added up in their order in the registers of the first one.
// Included after the rung's constants, which it computes with.
#pragma once

// The rows of a thread whose sums fit into shared memory at a time.
__device__ constexpr int rows_of_sums() {
    for (int rows = ROWS; rows > 0; --rows)
        if (ROWS % rows == 0 && 4 * (SLICES - 1) * SLICE * rows * COLS <= 2 * STAGE) return rows;
    return 0;
}
constexpr int SUMS = rows_of_sums();
static_assert(SUMS > 0, "the sums of a row of every thread fit into shared memory");

__device__ __forceinline__ void add_slices(float *shared, float (&acc)[ROWS][COLS], int slice) {
    const int lane = threadIdx.x % SLICE;
    // Float by float: see device/chains.cuh for why.
    auto place = [&](int s, int i, int j) { return shared + ((s * SUMS + i) * COLS + j) * SLICE + lane; };
#pragma unroll
    for (int first = 0; first < ROWS; first += SUMS) {
        __syncthreads();
        if (slice != 0) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
#pragma unroll
                for (int j = 0; j < COLS; ++j) *place(slice - 1, i, j) = acc[first + i][j];
        }
        __syncthreads();
        if (slice == 0) {
#pragma unroll
            for (int s = 0; s < SLICES - 1; ++s)
#pragma unroll
                for (int i = 0; i < SUMS; ++i)
#pragma unroll
                    for (int j = 0; j < COLS; ++j)
                        acc[first + i][j] = __fadd_rn(acc[first + i][j], *place(s, i, j));
        }
    }
}
