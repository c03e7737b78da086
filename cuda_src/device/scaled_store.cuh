// Rung 11: the end of a tile of C, once its sums are in registers. Layout has the constants BM and BN, rows
// and columns of a tile; TRANS_C, 1 where C is column-major; VEC_C, floats of a store.
#pragma once
#include "device/split_format.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"

// Note for the guard kernel whether a tile holds lines with exceptions. By one warp.
template <class Layout>
__device__ __forceinline__ void note_exceptions(Tile tile, int M, int N, const Line *rows,
                                                const Line *columns, int *exceptions) {
    const int lane = threadIdx.x % 32;
    constexpr int BM = Layout::BM, BN = Layout::BN;
    int any = 0;
    for (int i = tile.m + lane; i < min(M, tile.m + BM); i += 32) any |= rows[i].left_out;
    for (int i = tile.n + lane; i < min(N, tile.n + BN); i += 32) any |= columns[i].left_out;
    any = __any_sync(0xffffffffu, any);
    const unsigned down = tile.m / BM, right = tile.n / BN;
    // In the order of C's memory: row by row where C is row-major.
    const unsigned place =
        Layout::TRANS_C ? right * ((M + BM - 1u) / BM) + down : down * ((N + BN - 1u) / BN) + right;
    if (lane == 0) exceptions[place] = any;
}

// Write 16 rows of C from m on and 2 PLACES columns from n on: the sums of a warp as mma and wgmma leave
// them. PLAIN: of a part of K, as they are. Else scaled, with alpha and beta, where both lines are sparse in
// exceptions.
template <class Layout, bool PLAIN, int PLACES>
__device__ __forceinline__ void store_sums(const float (&sum)[PLACES], int warp_m, int warp_n, int M, int N,
                                           float alpha, const Line *rows, const Line *columns, float beta,
                                           float *C, long long ldc) {
    // The old C of EIGHTS times eight columns is read before any of it is used, so that its loads are in
    // flight together. Wide tiles leave registers for fewer columns.
    constexpr bool TRANS_C = Layout::TRANS_C;
    constexpr int EIGHTS = PLACES > 64 || PLACES % 16 != 0 ? 2 : 4;
    const int lane = threadIdx.x % 32;
    const int m = warp_m + lane / 4, n0 = warp_n + lane % 4 * 2;
    const long long right = TRANS_C ? ldc : 1;  // from a column of C to the next
    Line row[2];                                // the rows m and m + 8
    bool row_stored[2];
    float *row_c[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const bool inside = m + 8 * h < M;
        row_c[h] = C + (m + 8 * h) * (TRANS_C ? 1 : ldc) + n0 * right;
        row[h] = inside && !PLAIN ? rows[m + 8 * h] : Line{0, 0};
        row_stored[h] = inside && row[h].left_out <= SPARSE;
    }
#pragma unroll
    for (int j = 0; j < PLACES / 4; j += EIGHTS) {
        const int n = n0 + 8 * j;
        int exponent[EIGHTS][2];
        bool stored[EIGHTS][2][2];
        float old[EIGHTS][2][2];
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) {
            int4 pair = make_int4(0, 0, 0, 0);  // two columns
            if (!PLAIN && n + 8 * e < N) pair = *reinterpret_cast<const int4 *>(columns + n + 8 * e);
            exponent[e][0] = pair.x, exponent[e][1] = pair.z;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                stored[e][h][0] = row_stored[h] && n + 8 * e < N && pair.y <= SPARSE;
                stored[e][h][1] = row_stored[h] && n + 8 * e + 1 < N && pair.w <= SPARSE;
                if (PLAIN || beta == 0.0f) continue;
                const float *c = row_c[h] + 8 * (j + e) * right;
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (stored[e][h][i]) old[e][h][i] = c[i * right];
            }
        }
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float value[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float plain = sum[4 * (j + e) + 2 * h + i];
                    value[i] = PLAIN
                                   ? plain
                                   : epilogue(alpha, scale_by_power(plain, row[h].exponent + exponent[e][i]),
                                              beta, &old[e][h][i]);
                }
                float *c = row_c[h] + 8 * (j + e) * right;
                if (Layout::VEC_C == 2 && stored[e][h][0] && stored[e][h][1]) {
                    *reinterpret_cast<float2 *>(c) = make_float2(value[0], value[1]);
                } else {
                    if (stored[e][h][0]) c[0] = value[0];
                    if (stored[e][h][1]) c[right] = value[1];
                }
            }
    }
}

template <class Layout, int PLACES>
__device__ __forceinline__ void store_plain(const float (&sum)[PLACES], int m, int n, int M, int N, float *C,
                                            long long ldc) {
    store_sums<Layout, true>(sum, m, n, M, N, 0.0f, nullptr, nullptr, 0.0f, C, ldc);
}

template <class Layout, int PLACES>
__device__ __forceinline__ void store_scaled(const float (&sum)[PLACES], int m, int n, int M, int N,
                                             float alpha, const Line *rows, const Line *columns, float beta,
                                             float *C, long long ldc) {
    store_sums<Layout, false>(sum, m, n, M, N, alpha, rows, columns, beta, C, ldc);
}
