// Rung 9: C where it cannot be stored 16 bytes at a time. A thread has neighbours of a row; if it stored them
// one by one, the lanes of a warp would touch every sector of their lines TN times. Here a warp lays rows of
// its own through shared memory and stores 32 neighbours at a time, waiting for no other warp. Included after
// the rung's constants, which it computes with.
#pragma once

// Of a row of every lane in one sub-tile, result j of lane L lies at j * APART + L, written float by float
// (see device/chains.cuh for why), and neighbours in C then lie in different banks.
constexpr int APART = 32 + 32 / TN;
constexpr int PATCH = TN * APART;                 // floats
constexpr int ABREAST = WSUBN < 32 ? WSUBN : 32;  // lanes that store neighbours

// The rows of a thread that fit into shared memory at a time, if every warp has its share of it.
__device__ constexpr int rows_at_a_time() {
    for (int rows = ROWS; rows > 0; --rows)
        if (ROWS % rows == 0 && 4 * (SLICE / 32) * rows * WNITER * PATCH <= 2 * STAGE) return rows;
    return 0;
}
constexpr int AT_A_TIME = rows_at_a_time();
static_assert(AT_A_TIME > 0, "a row of every thread fits into shared memory");

// Store the warp tile that begins at (m, n): what is from (first_m, first_n) on and inside the matrix. No
// thread may still use `shared` for anything else.
__device__ __forceinline__ void store_by_warps(float *shared, const float (&acc)[ROWS][COLS], int m, int n,
                                               int first_m, int first_n, int M, int N, float alpha,
                                               float beta, float *C, long long ldc) {
    const int lane = threadIdx.x % 32;
    float *const mine = shared + threadIdx.x % SLICE / 32 * (AT_A_TIME * WNITER * PATCH);
    m += lane / ABREAST * TM;
    n += lane % ABREAST;
#pragma unroll
    for (int first = 0; first < ROWS; first += AT_A_TIME) {
        if (first) __syncwarp();
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i)
#pragma unroll
            for (int j = 0; j < COLS; ++j)
                mine[(i * WNITER + j / TN) * PATCH + j % TN * APART + lane] = acc[first + i][j];
        __syncwarp();
        const float *const from = mine + lane % TN * APART + lane / TN;
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i)
#pragma unroll
            for (int e = 0; e < 32 * TN; e += 32) {
                const int row = m + (first + i) / TM * WSUBM + (first + i) % TM + e / WSUBN * TM;
                if (row < first_m || row >= M) continue;
                float *const c = C + row * ldc;
#pragma unroll
                for (int w = 0; w < WNITER; ++w) {
                    const int col = n + w * WSUBN + e % WSUBN;
                    if (col < first_n || col >= N) continue;
                    c[col] = epilogue(alpha, from[(i * WNITER + w) * PATCH + e / TN], beta, c + col);
                }
            }
    }
}
