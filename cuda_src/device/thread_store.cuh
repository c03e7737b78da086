// Rung 9: the store of C 16 bytes at a time, by each thread on its own.
//
// Traits: TM, TN (a multiple of 4, or nothing is stored), WSUBM, WSUBN, ROWS, COLS.
#pragma once
#include "device/epilogue.cuh"
#include "device/source.cuh"

template <class Traits>
struct ThreadStore {
    static constexpr int TM = Traits::TM, TN = Traits::TN, WSUBM = Traits::WSUBM, WSUBN = Traits::WSUBN;
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;

    // Store the accumulators whose elements of C are inside the matrix and not before (first_m, first_n). The
    // first accumulator is element (m, n). Old is OldC or OldValues.
    template <class Old>
    static __device__ __forceinline__ void store(const float (&acc)[ROWS][COLS], int m, int n, int first_m,
                                                 int first_n, int M, int N, float alpha, float beta, float *C,
                                                 long long ldc, const Old &values) {
        if constexpr (TN % 4 == 0) {
            if (beta == 0.0f)  // one branch here, and none for each vector
                store_rows(acc, m, n, first_m, first_n, M, N, alpha, 0.0f, C, ldc, values);
            else
                store_rows(acc, m, n, first_m, first_n, M, N, alpha, beta, C, ldc, values);
        }
    }

private:
    // Advance the address from row to row: computing each anew would take most of the instructions.
    template <class Old>
    static __device__ __forceinline__ void store_rows(const float (&acc)[ROWS][COLS], int m, int n,
                                                      int first_m, int first_n, int M, int N, float alpha,
                                                      float beta, float *C, long long ldc,
                                                      const Old &values) {
        float *c = C + m * ldc + n;
        const float *old = c;
        values.find(old, m, n);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLS; j += 4) {
                const int e = j / TN * WSUBN + j % TN;
                if (m < first_m || m >= M || n + e < first_n || n + e >= N) continue;
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (beta != 0.0f) four = four_values<Old::VEC>(old + e * values.step(), values.step());
                *reinterpret_cast<float4 *>(c + e) = make_float4(
                    epilogue(alpha, acc[i][j], beta, &four.x), epilogue(alpha, acc[i][j + 1], beta, &four.y),
                    epilogue(alpha, acc[i][j + 2], beta, &four.z),
                    epilogue(alpha, acc[i][j + 3], beta, &four.w));
            }
            const int rows = (i + 1) % TM ? 1 : WSUBM - TM + 1;  // to the next
            m += rows, c += rows * ldc, old += rows * values.line_step(ldc);
        }
    }
};
