// Rung 9: the store of a symmetric result, or of one triangle of it (device/triangle.cuh). Rows go to C as
// they always do; where the tile meets the diagonal, this takes WarpStore, which looks at each element. Then
// columns go to C as rows of the transposed tile, through shared memory as well, 32 neighbours at a time.
//
// Traits: those of WarpStore and of ThreadStore.
#pragma once
#include "device/raster.cuh"
#include "device/thread_store.cuh"
#include "device/triangle.cuh"
#include "device/warp_store.cuh"

// What WarpStore has to know of the transposed tile of a warp: rows are columns, and columns are rows. Each
// of its rows has one sub-tile, those after it along n follow as further rows.
template <class Traits>
struct MirroredTraits {
    static constexpr int TM = Traits::TN, TN = Traits::TM, WNITER = 1;
    static constexpr int WSUBM = Traits::WSUBN, WSUBN = Traits::WSUBM;
    static constexpr int SUBTILE_ROWS = Traits::COLS;  // of a lane
    static constexpr int ROWS = Traits::ROWS / Traits::TM * SUBTILE_ROWS, COLS = Traits::TM;
    static constexpr int THREADS_PER_SLICE = Traits::THREADS_PER_SLICE, SYM = Traits::SYM;
    static constexpr int SCRATCH_BYTES = Traits::SCRATCH_BYTES;
};

template <class Traits, int VEC>
struct SymmetricStore {
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS, SYM = Traits::SYM;

    // Store the warp tile that begins at (m, n): what is from `own` on, inside of C and in the triangles that
    // are stored. `crosses`: the tile of the block has elements above the diagonal. No thread may still use
    // `scratch` for anything else.
    template <class Old>
    static __device__ __forceinline__ void store(float *scratch, const float (&acc)[ROWS][COLS], int m, int n,
                                                 Tile own, bool crosses, int N, float alpha, float beta,
                                                 float *C, long long ldc, const Old &values) {
        if constexpr (stores_lower(SYM)) {
            if (VEC == 1 || crosses) {
                WarpStore<Traits, Triangle::LOWER>::store(scratch, acc, m, n, own.m, own.n, N, N, alpha, beta,
                                                          C, ldc, values);
                __syncwarp();  // the lanes have read what the next store overwrites
            } else {
                constexpr int ACROSS = Traits::WSUBN / Traits::TN;
                const int lane = threadIdx.x % 32;
                ThreadStore<Traits>::store(acc, m + lane / ACROSS * Traits::TM,
                                           n + lane % ACROSS * Traits::TN, own.m, own.n, N, N, alpha, beta, C,
                                           ldc, values);
            }
        }
        if constexpr (stores_upper(SYM))
            WarpStore<MirroredTraits<Traits>, upper_of(SYM), true>::store(scratch, acc, n, m, own.n, own.m, N,
                                                                          N, alpha, beta, C, ldc, values);
    }
};
