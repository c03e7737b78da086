// Rung 9: the store of C, 16 bytes at a time. Neighbouring threads store neighbours of a row.
//
// Traits: TM, TN, WSUBM, WSUBN, ROWS, COLS. TN is a multiple of 4, and C allows vectors.
#pragma once
#include "device/source.cuh"

template <class Traits>
struct VectorStore {
    static constexpr int TM = Traits::TM, TN = Traits::TN, WSUBM = Traits::WSUBM, WSUBN = Traits::WSUBN;
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;
    // Rows of a thread that an iteration stores. Each block runs this loop once, and little code compiles
    // sooner.
    static constexpr int PASS_ROWS = ROWS % 4 == 0 ? 4 : TM;

    // Store the accumulators of a thread, whose first is element (m, n): those from (first_m, first_n) on and
    // inside the matrix. first_n and N are multiples of 4.
    template <class Old>
    static __device__ __forceinline__ void store(const float (&acc)[ROWS][COLS], int m, int n, int first_m,
                                                 int first_n, int M, int N, float alpha, float beta, float *C,
                                                 long long ldc, const Old &values) {
#pragma unroll 1
        for (int first = 0; first < ROWS; first += PASS_ROWS) {
            // Registers cannot be indexed, so the rows of each pass are moved to the same ones first.
            float sums[PASS_ROWS][COLS];
#pragma unroll
            for (int pass = 0; pass < ROWS; pass += PASS_ROWS) {
                if (pass != first) continue;
#pragma unroll
                for (int i = 0; i < PASS_ROWS; ++i)
#pragma unroll
                    for (int j = 0; j < COLS; ++j) sums[i][j] = acc[pass + i][j];
            }
#pragma unroll
            for (int i = 0; i < PASS_ROWS; ++i) {
                const int row = m + (first + i) / TM * WSUBM + (first + i) % TM;
                if (row < first_m || row >= M) continue;
#pragma unroll
                for (int j = 0; j < COLS; j += TN) {
                    const int col = n + j / TN * WSUBN;
                    store_row<TN, 4>(C + row * ldc + col, sums[i] + j, N - col, alpha, beta, first_n - col,
                                     values, row, col);
                }
            }
        }
    }
};
