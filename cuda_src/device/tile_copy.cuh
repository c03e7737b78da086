// Rungs 3 to 8: a tile of A or B on its way from global to shared memory, VEC floats at a time, through
// registers. Neighbouring threads take neighbours in global memory whatever the layout; element (mn, k) of
// the tile lands at Xs[mn * STRIDE_MN + k * STRIDE_K]. From rung 6 on that is k-major, so that a thread's
// fragment is contiguous, and a tile whose k is contiguous in global memory is transposed on the way.
//
// fetch (global to registers) and store (registers to shared) are apart, so that a kernel can put its
// arithmetic between them. Vectors past the matrix are not read and count as zeros: their results are never
// stored. VEC = 4 needs 16-byte alignment, ld % 4 == 0 and an extent that is a multiple of 4; the host
// chooses VEC so that all hold, and a vector is then inside the matrix or outside, never across its edge.
#pragma once
#include "device/global_memory.cuh"

template <int TILE_MN, int TILE_K, bool K_CONTIGUOUS, int VEC, int THREADS, int STRIDE_MN = 1,
          int STRIDE_K = TILE_MN>
struct TileCopy {
    static constexpr int CONTIGUOUS = K_CONTIGUOUS ? TILE_K : TILE_MN;
    static constexpr int VECTORS = CONTIGUOUS / VEC;                  // per line of the tile
    static constexpr int COUNT = TILE_MN * TILE_K / (VEC * THREADS);  // vectors per thread
    static constexpr bool WHOLE_LINES = THREADS % VECTORS == 0;  // a pass of all threads copies whole lines
    static_assert(CONTIGUOUS % VEC == 0, "a line of the tile is whole vectors");
    static_assert(COUNT * VEC * THREADS == TILE_MN * TILE_K,
                  "every thread copies the same number of vectors");

    const float *source;  // this thread's first vector of the next tile
    long long ld;
    int left;  // rows (or columns) of the matrix from the tile's first on
    float value[COUNT][VEC];

    // Vector i of this thread: its place along a line and across the lines. The first form says the same as
    // the second but shows that all vectors of a thread lie a fixed number of lines apart: one address, not
    // COUNT.
    static __device__ __forceinline__ int along(int i) {
        if constexpr (WHOLE_LINES) return threadIdx.x % VECTORS * VEC;
        return (threadIdx.x + i * THREADS) % VECTORS * VEC;
    }
    static __device__ __forceinline__ int across(int i) {
        if constexpr (WHOLE_LINES) return threadIdx.x / VECTORS + i * (THREADS / VECTORS);
        return (threadIdx.x + i * THREADS) / VECTORS;
    }
    static __device__ __forceinline__ int k_of(int i) { return K_CONTIGUOUS ? along(i) : across(i); }
    static __device__ __forceinline__ int mn_of(int i) { return K_CONTIGUOUS ? across(i) : along(i); }

    __device__ __forceinline__ TileCopy(const float *X, long long ld, int mn0, int MN)
        : source(X + mn0 * (K_CONTIGUOUS ? ld : 1) + across(0) * ld + along(0)), ld(ld), left(MN - mn0) {}

    // Read the next tile, of which only the first `depth` steps of k exist unless it is WHOLE. WHOLE with
    // depth = 0 means that there is no next tile, and reads nothing.
    template <bool WHOLE>
    __device__ __forceinline__ void fetch(int depth) {
        const int rows = depth > 0 ? left : 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float *p = source + (across(i) - across(0)) * ld + (along(i) - along(0));
            load_global_or_zero(value[i], p, mn_of(i) < rows && (WHOLE || k_of(i) < depth));
        }
        if (depth > 0) source += K_CONTIGUOUS ? TILE_K : TILE_K * ld;
    }

    __device__ __forceinline__ void store(float *Xs) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            float *to = Xs + mn_of(i) * STRIDE_MN + k_of(i) * STRIDE_K;
            if constexpr (VEC == 4 && !K_CONTIGUOUS && STRIDE_MN == 1) {
                *reinterpret_cast<float4 *>(to) =
                    make_float4(value[i][0], value[i][1], value[i][2], value[i][3]);
            } else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) to[j * (K_CONTIGUOUS ? STRIDE_K : STRIDE_MN)] = value[i][j];
            }
        }
    }

    // Fetch and store, for the rungs that have no arithmetic between the two.
    template <bool WHOLE>
    __device__ __forceinline__ void copy(float *Xs, int depth) {
        fetch<WHOLE>(depth);
        store(Xs);
    }
};
