// Rung 9: the store of C, 16 bytes at a time. Neighbouring threads store neighbours of a row.
//
// Traits: TM, TN, WSUBM, WSUBN, ROWS, COLS. TN is a multiple of 4, and C allows vectors.
#pragma once
#include "device/source.cuh"

template <class Traits>
struct VectorStore {
    static constexpr int TM = Traits::TM, TN = Traits::TN, WSUBM = Traits::WSUBM, WSUBN = Traits::WSUBN;
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;

    // Store the accumulators of a thread, whose first is element (m, n): those from (first_m, first_n) on and
    // inside the matrix. first_n and N are multiples of 4. The epilogue has one form for all beta, because
    // two for each vector take the compiler long: adding -0 to a product leaves even the sign of a zero.
    template <class Old>
    static __device__ __forceinline__ void store(const float (&acc)[ROWS][COLS], int m, int n, int first_m,
                                                 int first_n, int M, int N, float alpha, float beta, float *C,
                                                 long long ldc, const Old &values) {
        bool in_columns[COLS / 4];
#pragma unroll
        for (int j = 0; j < COLS; j += 4) {
            const int column = n + along(j);
            in_columns[j / 4] = column >= first_n && column < N;
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = m + i / TM * WSUBM + i % TM;
            const bool in_rows = row >= first_m && row < M;
            float *const line = C + row * ldc + n;
#pragma unroll
            for (int j = 0; j < COLS; j += 4) {
                if (!in_rows || !in_columns[j / 4]) continue;
                float4 scaled = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);  // beta * C
                if (beta != 0.0f) {
                    const float *old = line + along(j);
                    values.find(old, row, n + along(j));
                    const float4 four = four_values<Old::VEC>(old, values.step());
                    scaled = make_float4(__fmul_rn(beta, four.x), __fmul_rn(beta, four.y),
                                         __fmul_rn(beta, four.z), __fmul_rn(beta, four.w));
                }
                *reinterpret_cast<float4 *>(line + along(j)) = make_float4(
                    __fmaf_rn(alpha, acc[i][j], scaled.x), __fmaf_rn(alpha, acc[i][j + 1], scaled.y),
                    __fmaf_rn(alpha, acc[i][j + 2], scaled.z), __fmaf_rn(alpha, acc[i][j + 3], scaled.w));
            }
        }
    }

private:
    // Columns from the first accumulator of a row to accumulator j.
    static __device__ constexpr int along(int j) { return j / TN * WSUBN + j % TN; }
};
