// Rung 9: the store of a symmetric result, or of one triangle of it (device/triangle.cuh). Rows go to C as
// they always do; where the tile meets the diagonal, this takes WarpStore, which looks at each element.
// Columns go to C as rows of the transpose.
#pragma once
#include "device/divisors.cuh"
#include "device/raster.cuh"
#include "device/shared_memory.cuh"
#include "device/source.cuh"
#include "device/thread_store.cuh"
#include "device/triangle.cuh"
#include "device/warp_store.cuh"

// The store of the transpose. A thread has TM neighbours of a row of it in each sub-tile; each warp lays its
// own rows through shared memory, and its lanes then store neighbours, up to 16 bytes each. It waits for no
// other warp. Rows are as long as they can be: of a sector in which one begins or ends, the memory must read
// what is not written.
//
// Traits: TM, TN, WNITER, WSUBM, WSUBN, ROWS, COLS, THREADS_PER_SLICE, SCRATCH_BYTES (of shared memory), SYM.
template <class Traits, int VEC_C>
struct MirroredStore {
    static constexpr int TM = Traits::TM, TN = Traits::TN, WNITER = Traits::WNITER;
    static constexpr int WSUBM = Traits::WSUBM, WSUBN = Traits::WSUBN;
    static constexpr int ROWS = Traits::ROWS, COLS = Traits::COLS;
    static constexpr Triangle TRIANGLE = upper_of(Traits::SYM);
    static constexpr int VEC = TM % 4 ? 1 : VEC_C;   // floats of a store
    static constexpr int WRITTEN = TM % 4 ? TM : 4;  // floats that go to shared memory together
    static constexpr int ACROSS = WSUBN / TN;        // lanes with the same rows of the sub-tile
    static constexpr int SHARE = WarpStore<Traits, Triangle::LOWER>::SHARE;  // floats of a warp

    // What goes through shared memory in one pass: PASS columns of each of GROUP neighbouring lanes. A column
    // is HEIGHT floats, from SUBTILES sub-tiles.
    static constexpr int SUBTILES = divisor(ROWS / TM, larger(1, (SHARE / ACROSS / 4 * 4 - 4) / WSUBM));
    static constexpr int HEIGHT = SUBTILES * WSUBM;
    static constexpr int PITCH = (HEIGHT + 3) / 4 * 4 + 4;  // floats from one column to the next, there
    static_assert(PITCH <= SHARE, "a column fits into shared memory");
    static constexpr int GROUP = divisor(ACROSS, SHARE / PITCH);
    static constexpr int COLUMN = GROUP * PITCH;                 // floats of one column of each lane
    static constexpr int COLUMNS = ROWS / TM / SUBTILES * COLS;  // of each lane
    static constexpr int PASS = divisor(COLUMNS, SHARE / COLUMN);
    static constexpr int LANES = HEIGHT / VEC;  // that store a column

    // Write the columns of a pass, from `first` on, times `scale` to this lane's place in shared memory. The
    // products need not be in neighbouring registers before, as vectors of accumulators would have to be.
    static __device__ __forceinline__ void write_pass(unsigned mine, const float (&acc)[ROWS][COLS],
                                                      int first, float scale) {
#pragma unroll
        for (int each = 0; each < COLUMNS; each += PASS) {
            if (first != each) continue;
#pragma unroll
            for (int e = 0; e < PASS * SUBTILES * TM; e += WRITTEN) {
                const int column = each + e / (SUBTILES * TM), below = e % (SUBTILES * TM);
                const int i = column / COLS * SUBTILES * TM + below, j = column % COLS;
                float values[WRITTEN];
#pragma unroll
                for (int k = 0; k < WRITTEN; ++k) values[k] = __fmul_rn(scale, acc[i + k][j]);
                const int to = (column - each) * COLUMN + below / TM * WSUBM + below % TM;
                store_shared<WRITTEN>(mine + 4 * to, values);
            }
        }
    }

    // Store VEC neighbours of a row, from `column` on.
    template <class Old>
    static __device__ __forceinline__ void store_vector(const float *from, int row, int column,
                                                        bool reads_old, float alpha, float beta, float *c,
                                                        const Old &values) {
        float value[VEC];
        load_shared<VEC>(value, shared_address(from));
        const float *old = c;
        if (reads_old) values.find(old, row, column);
        const bool all = is_inside<TRIANGLE>(row, column);  // if the first is, the others are
        if (VEC == 4 && all) {
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (reads_old) {
                four = four_values<Old::VEC>(old, values.step());
                four.x = epilogue(alpha, value[0], beta, &four.x);
                four.y = epilogue(alpha, value[1 % VEC], beta, &four.y);
                four.z = epilogue(alpha, value[2 % VEC], beta, &four.z);
                four.w = epilogue(alpha, value[3 % VEC], beta, &four.w);
            } else {
                four = make_float4(value[0], value[1 % VEC], value[2 % VEC], value[3 % VEC]);
            }
            *reinterpret_cast<float4 *>(c) = four;
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (is_inside<TRIANGLE>(row, column + i))
                    c[i] = reads_old ? epilogue(alpha, value[i], beta, old + i * values.step()) : value[i];
        }
    }

    // Store the transpose of the warp tile that begins at (m, n): of what is from `own` on and inside of C,
    // what lies in the triangle. No thread may still use `scratch` for anything else. Old is OldC or what it
    // can be exchanged for.
    template <class Old>
    static __device__ __forceinline__ void store(float *scratch, const float (&acc)[ROWS][COLS], int m, int n,
                                                 Tile own, int N, float alpha, float beta, float *C,
                                                 long long ldc, const Old &values) {
        const int lane = threadIdx.x % 32;
        float *const shared = scratch + threadIdx.x % Traits::THREADS_PER_SLICE / 32 * SHARE;
        const unsigned mine = shared_address(shared + lane % GROUP * PITCH + lane / ACROSS * TM);
        const auto store_pass = [&](bool reads_old, int first, int group) {
#pragma unroll 2
            for (int column = 0; column < PASS; ++column) {
                const int of_lane = (first + column) % COLS;
                const int to_m = m + (first + column) / COLS * HEIGHT;
                const int to_n = n + of_lane / TN * WSUBN + group * TN + of_lane % TN;
#pragma unroll 4
                for (int e = 0; e < GROUP * LANES; e += 32) {
                    const int right = (e + lane) % LANES * VEC, down = (e + lane) / LANES;
                    const int row = to_n + down * TN, col = to_m + right;
                    if (e + lane >= GROUP * LANES || row < own.n || row >= N || col < own.m || col >= N)
                        continue;
                    store_vector(shared + column * COLUMN + down * PITCH + right, row, col, reads_old, alpha,
                                 beta, C + row * ldc + col, values);
                }
            }
        };
#pragma unroll 1
        for (int pass = 0; pass < COLUMNS * (ACROSS / GROUP); pass += PASS) {
            const int first = pass % COLUMNS, group = pass / COLUMNS * GROUP;
            if (pass) __syncwarp();  // the lanes have read the pass before
            if (lane % ACROSS / GROUP * GROUP == group)
                write_pass(mine, acc, first, beta == 0.0f ? alpha : 1.0f);
            __syncwarp();  // the lanes have written
            if (beta == 0.0f)
                store_pass(false, first, group);
            else
                store_pass(true, first, group);
        }
    }
};

template <class Traits, int VEC_C>
struct SymmetricStore {
    static constexpr int TM = Traits::TM, TN = Traits::TN, ROWS = Traits::ROWS, COLS = Traits::COLS;

    // Store the warp tile that begins at (m, n): what is from `own` on, inside of C and in the triangles that
    // are stored. `crosses`: the tile of the block has elements above the diagonal. No thread may still use
    // `scratch` for anything else. Old is OldC or what it can be exchanged for.
    template <class Old>
    static __device__ __forceinline__ void store(float *scratch, const float (&acc)[ROWS][COLS], int m, int n,
                                                 Tile own, bool crosses, int N, float alpha, float beta,
                                                 float *C, long long ldc, const Old &values) {
        if constexpr (stores_lower(Traits::SYM)) {
            if (VEC_C == 1 || TN % 4 || crosses) {
                WarpStore<Traits, Triangle::LOWER>::store(scratch, acc, m, n, own.m, own.n, N, N, alpha, beta,
                                                          C, ldc, values);
                __syncwarp();  // the lanes have read what the next store overwrites
            } else {
                constexpr int ACROSS = Traits::WSUBN / TN;
                const int lane = threadIdx.x % 32;
                ThreadStore<Traits>::store(acc, m + lane / ACROSS * TM, n + lane % ACROSS * TN, own.m, own.n,
                                           N, N, alpha, beta, C, ldc, values);
            }
        }
        if constexpr (stores_upper(Traits::SYM))
            MirroredStore<Traits, VEC_C>::store(scratch, acc, m, n, own, N, alpha, beta, C, ldc, values);
    }
};
