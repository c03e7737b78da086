// Rung 9: the store of C where it cannot be written 16 bytes at a time. A thread has neighbours of a row; if
// it stored them one by one, the lanes of a warp would touch every sector of their lines TN times. So each
// warp exchanges its rows through its own shared memory and stores 32 neighbours at a time. It waits for no
// other warp.
//
// Traits: TM, TN, WNITER, WSUBM, WSUBN, ROWS, COLS, THREADS_PER_SLICE, SCRATCH_BYTES (of shared memory).
#pragma once
#include "device/epilogue.cuh"
#include "device/shared_memory.cuh"
#include "device/triangle.cuh"

template <class Traits, Triangle TRIANGLE = Triangle::WHOLE>
struct WarpStore {
    static constexpr int TM = Traits::TM, TN = Traits::TN, WNITER = Traits::WNITER;
    static constexpr int WSUBM = Traits::WSUBM, WSUBN = Traits::WSUBN;
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;
    static_assert(32 % TN == 0, "the lanes of a warp store whole thread tiles of a row");
    // One row of every lane in one sub-tile: result j of lane L lies at j * LD + L. It is written float by
    // float (see device/partial_accumulators.cuh for why); neighbours in C then lie in different banks.
    static constexpr int LD = 32 + 32 / TN;
    static constexpr int PATCH = TN * LD;                    // floats
    static constexpr int ABREAST = WSUBN < 32 ? WSUBN : 32;  // lanes that store neighbours

    // Rows per iteration. Little code is quick here: each block runs the loop once, so that longer code would
    // mostly wait for its instructions to be fetched.
    static constexpr int UNROLL = ROWS * COLS < 128 ? 2 : 1;

    // Rows of a thread per pass: as many as fit into the warp's share of shared memory.
    static __device__ constexpr int rows_per_pass() {
        for (int rows = ROWS; rows > 0; --rows)
            if (ROWS % rows == 0 &&
                4 * (Traits::THREADS_PER_SLICE / 32) * rows * WNITER * PATCH <= Traits::SCRATCH_BYTES)
                return rows;
        return 0;
    }
    static constexpr int PASS_ROWS = rows_per_pass();
    static_assert(PASS_ROWS > 0, "a row of every thread fits into shared memory");
    // Floats of a warp. Of a triangle, MirroredStore uses the same ones after this store.
    static constexpr int SHARE = TRIANGLE == Triangle::WHOLE
                                     ? PASS_ROWS * WNITER * PATCH
                                     : Traits::SCRATCH_BYTES / 16 / (Traits::THREADS_PER_SLICE / 32) * 4;

    // Write the rows of a pass, from `first` on, to this lane's place in shared memory. Registers need fixed
    // numbers, so this is written out for each pass. What follows is a loop over the passes.
    static __device__ __forceinline__ void write_pass(unsigned mine, const float (&acc)[ROWS][COLS],
                                                      int first) {
#pragma unroll
        for (int each = 0; each < ROWS; each += PASS_ROWS) {
            if (first != each) continue;
#pragma unroll
            for (int e = 0; e < PASS_ROWS * COLS; ++e) {
                const int i = e / COLS, j = e % COLS;
                store_shared(mine + 4 * ((i * WNITER + j / TN) * PATCH + j % TN * LD), acc[each + i][j]);
            }
        }
    }

    // Store the elements of the warp tile at (m, n) that are inside the matrix and the triangle, and not
    // before (first_m, first_n). No thread may still use `scratch` for anything else. Old is OldC or
    // OldValues.
    template <class Old>
    static __device__ __forceinline__ void store(float *scratch, const float (&acc)[ROWS][COLS], int m, int n,
                                                 int first_m, int first_n, int M, int N, float alpha,
                                                 float beta, float *C, long long ldc, const Old &values) {
        const int lane = threadIdx.x % 32;
        float *const mine = scratch + threadIdx.x % Traits::THREADS_PER_SLICE / 32 * SHARE;
        m += lane / ABREAST * TM;
        n += lane % ABREAST;
        float *line = C + m * ldc;  // advances from row to row: cheaper than computing each address
#pragma unroll 1
        for (int first = 0; first < ROWS; first += PASS_ROWS) {
            if (first) __syncwarp();  // the lanes have read the pass before
            write_pass(shared_address(mine + lane), acc, first);
            __syncwarp();  // the lanes have written
            const float *const from = mine + lane % TN * LD + lane / TN;
            const auto store_rows = [&](bool reads_old) {
#pragma unroll UNROLL
                for (int i = 0; i < PASS_ROWS; ++i) {
#pragma unroll
                    for (int e = 0; e < 32 * TN; e += 32) {
                        const int row = m + e / WSUBN * TM;
                        float *const c = line + e / WSUBN * TM * ldc;
#pragma unroll
                        for (int w = 0; w < WNITER; ++w) {
                            const int col = n + w * WSUBN + e % WSUBN;
                            const float sum = from[(i * WNITER + w) * PATCH + e / TN];
                            if (row < first_m || row >= M || col < first_n || col >= N) continue;
                            if (!is_inside<TRIANGLE>(row, col)) continue;
                            const float *old = c + col;
                            if (reads_old) values.find(old, row, col);
                            c[col] = reads_old ? epilogue(alpha, sum, beta, old) : __fmul_rn(alpha, sum);
                        }
                    }
                    const bool edge = (first + i + 1) % TM == 0;  // of the thread tile
                    m += edge ? WSUBM - TM + 1 : 1;
                    line += edge ? (WSUBM - TM + 1) * ldc : ldc;
                }
            };
            if (beta == 0.0f)  // one branch here, and none for each element
                store_rows(false);
            else
                store_rows(true);
        }
    }
};
