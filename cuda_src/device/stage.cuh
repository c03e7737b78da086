// Rungs 3 to 5: copy one tile of A or B into shared memory, one float at a time. Neighbouring threads take
// neighbours in memory whatever the layout. Rows of A past M and columns of B past N are not read and count
// as zeros: their results are never stored. Only the first `depth` steps of k exist, which is TILE_K but for
// the ragged end of K; the steps beyond are left alone.
#pragma once

template <int TILE_MN, int TILE_K, bool K_CONTIGUOUS, int STRIDE_MN, int STRIDE_K, int THREADS>
__device__ __forceinline__ void stage(float* Xs, const float* X, long long ld, int mn0, int MN, int k0,
                                      int depth) {
    constexpr int LINE = K_CONTIGUOUS ? TILE_K : TILE_MN;
    constexpr bool WHOLE_LINES = THREADS % LINE == 0;  // a pass of all threads copies whole lines
    const int first = threadIdx.x / LINE;
    X += K_CONTIGUOUS ? mn0 * ld + k0 : k0 * ld + mn0;
#pragma unroll
    for (int i = 0; i < (TILE_MN * TILE_K + THREADS - 1) / THREADS; ++i) {
        const int e = threadIdx.x + i * THREADS;
        const int along = WHOLE_LINES ? threadIdx.x % LINE : e % LINE;
        const int across = WHOLE_LINES ? first + i * (THREADS / LINE) : e / LINE;
        const int mn = K_CONTIGUOUS ? across : along;
        const int k = K_CONTIGUOUS ? along : across;
        if (e < TILE_MN * TILE_K && k < depth)
            Xs[mn * STRIDE_MN + k * STRIDE_K] = mn < MN - mn0 ? X[across * ld + along] : 0.0f;
    }
}

// A as As[m][k], B as Bs[k][n].
template <int BM, int BK, int THREADS>
__device__ __forceinline__ void stage_a(float* As, const float* A, long long lda, int m0, int M, int k0,
                                        int depth) {
    stage<BM, BK, !TRANS_A, BK, 1, THREADS>(As, A, lda, m0, M, k0, depth);
}

template <int BN, int BK, int THREADS>
__device__ __forceinline__ void stage_b(float* Bs, const float* B, long long ldb, int n0, int N, int k0,
                                        int depth) {
    stage<BN, BK, TRANS_B, 1, BN, THREADS>(Bs, B, ldb, n0, N, k0, depth);
}
