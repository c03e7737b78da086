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
    const int lane = threadIdx.x % SLICE;  // neighbours have neighbouring vectors
    auto vector = [&](int s, int i, int j) {
        return reinterpret_cast<float4 *>(shared) + ((s * SUMS + i) * (COLS / 4) + j / 4) * SLICE + lane;
    };
#pragma unroll
    for (int first = 0; first < ROWS; first += SUMS) {
        __syncthreads();
        if (slice != 0) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
#pragma unroll
                for (int j = 0; j < COLS; j += 4)
                    *vector(slice - 1, i, j) = make_float4(acc[first + i][j], acc[first + i][j + 1],
                                                           acc[first + i][j + 2], acc[first + i][j + 3]);
        }
        __syncthreads();
        if (slice == 0) {
#pragma unroll
            for (int s = 0; s < SLICES - 1; ++s)
#pragma unroll
                for (int i = 0; i < SUMS; ++i)
#pragma unroll
                    for (int j = 0; j < COLS; j += 4) {
                        const float4 other = *vector(s, i, j);
                        float *own = acc[first + i] + j;
                        own[0] = __fadd_rn(own[0], other.x);
                        own[1] = __fadd_rn(own[1], other.y);
                        own[2] = __fadd_rn(own[2], other.z);
                        own[3] = __fadd_rn(own[3], other.w);
                    }
        }
    }
}
