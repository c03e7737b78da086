// Rung 9: C through shared memory, where it is not stored 16 bytes at a time. A thread has four neighbours of
// a row, which it would store one by one: 32 lanes then touch every sector of their lines four times. Here
// the block lays some rows of every thread into shared memory and stores whole lines of the tile, neighbours
// by neighbours. Included after the rung's constants, which it computes with.
#pragma once

constexpr int LINES = BM / ROWS;  // of the tile, for each row of a thread

// The rows of a thread that fit into shared memory at a time; 0 where not even one does.
__device__ constexpr int rows_at_a_time() {
    for (int rows = ROWS; rows > 0; --rows)
        if (ROWS % rows == 0 && 4 * LINES * rows * BN <= 2 * STAGE) return rows;
    return 0;
}
constexpr int AT_A_TIME = rows_at_a_time();

// Where row i of the threads that have line `line` of the tile lies in it.
__device__ __forceinline__ int row_of(int line, int i) {
    return line / DOWN * WM + line % DOWN * TM + i / TM * WSUBM + i % TM;
}

// Store what of the tile at `tile` is from `own` on and inside the matrix. No thread may still use `shared`.
__device__ __forceinline__ void store_lines(float *shared, const float (&acc)[ROWS][COLS], Tile tile,
                                            Tile own, int M, int N, float alpha, float beta, float *C,
                                            long long ldc) {
    const int warp = threadIdx.x % SLICE / 32, lane = threadIdx.x % 32;
    const int line = warp / (BN / WN) * DOWN + lane / ACROSS;
    const int col = warp % (BN / WN) * WN + lane % ACROSS * TN;
#pragma unroll
    for (int first = 0; first < ROWS; first += AT_A_TIME) {
        if (first) __syncthreads();
        if (SLICES == 1 || threadIdx.x < SLICE) {  // the first slice has the sums
#pragma unroll
            for (int i = 0; i < AT_A_TIME; ++i) {
                float *to = shared + (line * AT_A_TIME + i) * BN + col;
                const float *sum = acc[first + i];
#pragma unroll
                for (int j = 0; j < COLS; j += 4)
                    *reinterpret_cast<float4 *>(to + j / TN * WSUBN + j % TN) =
                        make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]);
            }
        }
        __syncthreads();
#pragma unroll 4
        for (int e = threadIdx.x; e < LINES * AT_A_TIME * BN; e += THREADS) {
            const int m = tile.m + row_of(e / BN / AT_A_TIME, first + e / BN % AT_A_TIME);
            const int n = tile.n + e % BN;
            if (m < own.m || m >= M || n < own.n || n >= N) continue;
            float *c = C + m * ldc + n;
            *c = epilogue(alpha, shared[e], beta, c);
        }
    }
}
