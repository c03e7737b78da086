// The kernels that add up parts: which elements of a triangle a block adds up (device/triangle.cuh), and
// their store. The elements are a patch of the lower triangle, so that both its rows and its columns, which
// are stored as rows above the diagonal, are whole sectors of memory.
#pragma once
#include "device/epilogue.cuh"
#include "device/raster.cuh"
#include "device/source.cuh"
#include "device/triangle.cuh"

// The share that a thread has of its block's patch: from (m, n) on, every down-th element of column n.
struct Patch {
    Tile first;  // of the block
    int height, width, N;
    int m, n, down;

    // A patch of COUNT elements, a power of two: as wide as it is high, or twice as wide. grid.patch has the
    // same shape. `threads`, at least as many as it is wide, share it out.
    template <int COUNT>
    static __device__ __forceinline__ Patch of_block(int N, int thread, int threads) {
        constexpr int HEIGHT = 1 << log(COUNT) / 2, WIDTH = COUNT / HEIGHT;
        const Tile first = tile_of_block<HEIGHT, WIDTH, 1, 1>(N, N);
        return {first, HEIGHT, WIDTH, N, first.m + thread / WIDTH, first.n + thread % WIDTH, threads / WIDTH};
    }
    static __device__ constexpr int log(int x) { return x > 1 ? 1 + log(x / 2) : 0; }

    __device__ __forceinline__ bool is_inside(int i) const { return m + i * down < N && n <= m + i * down; }

    // Of the thread's element i in a dense N x N matrix.
    __device__ __forceinline__ long long offset(int i) const {
        return static_cast<long long>(m + i * down) * N + n;
    }

    // Store the elements of all threads. They call this together: one warp, or all of the block.
    template <int SYM, int TYPE_C = 0, int COUNT, class Old>
    __device__ __forceinline__ void store(const float (&sum)[COUNT], float *shared, int thread, int threads,
                                          float alpha, float beta, ElementType<TYPE_C> *C,
                                          long long row_stride, long long column_stride,
                                          const Old &values) const {
        const auto store_element = [&](int row, int column, float value) {
            ElementType<TYPE_C> *c = C + row * row_stride + column * column_stride;
            const ElementType<Old::TYPE> *old = nullptr;
            if constexpr (Old::IN_C) old = c;
            values.find(old, row, column);
            *c = from_float<TYPE_C>(epilogue<Old::TYPE>(alpha, value, beta, old));
        };
        if constexpr (stores_lower(SYM)) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                if (is_inside(i)) store_element(m + i * down, n, sum[i]);
        }
        if constexpr (stores_upper(SYM)) {
            const int pitch = width + 1;  // of a row in shared memory
#pragma unroll
            for (int i = 0; i < COUNT; ++i) shared[(m - first.m + i * down) * pitch + n - first.n] = sum[i];
            if (threads > 32)
                __syncthreads();
            else
                __syncwarp();
            // Now a thread has elements of a row, and its neighbour those of the row below.
            const int row = thread % height, column = thread / height, right = threads / height;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int to_m = first.m + row, to_n = first.n + column + i * right;
                if (to_m < N && ::is_inside<upper_of(SYM)>(to_n, to_m))
                    store_element(to_n, to_m, shared[row * pitch + column + i * right]);
            }
        }
    }
};
