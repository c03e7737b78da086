// Split lines that are strided (row-major B, column-major A): X(k, line) lies at k * ldx + line. A block has
// LINES lines and a part of K, which passes through TILES tiles of shared memory: X is read along the lines'
// number and the pairs are written along k. All tiles are copied asynchronously at once, so that enough of
// memory is on its way. The blocks of a cluster share out K. They look for the largest magnitudes in their
// tiles, exchange them through shared memory and convert. So memory is read once where the part fits. What
// does not fit is read by both passes, mostly from L2 the second time. Without clusters, the blocks that
// share out K cannot exchange their magnitudes. So column_maxima.cu finds these before, and the tiles are the
// stages of a pipeline. 16-bit elements become FP32 numbers on their way to shared memory, through registers:
// cp.async copies no single ones.
#pragma once
#include "device/split_format.cuh"
#include "device/cluster.cuh"
#include "device/global_memory.cuh"
#include "device/shared_memory.cuh"

// A tile in shared memory: HEIGHT steps of k of LINES lines.
struct ColumnTile {
    static constexpr int LINES = 32, HEIGHT = 128;
    static constexpr int FLOATS = LINES * HEIGHT;

    // Where an element lies. Four neighbouring lines stay together, and their place in a row of 32 depends on
    // k: a warp that reads one of every four steps of 32, in four lines, then reads 32 banks.
    static __device__ __forceinline__ int place(int k, int line) {
        return k * LINES + ((line / 4 ^ k / 4 % 8) * 4 + line % 4);
    }
};

// A thread's share of a tile: VEC neighbouring lines from column on, in every ROWS-th step from row on.
template <int THREADS, int VEC, int TYPE>
struct ColumnReader {
    static constexpr int ACROSS = ColumnTile::LINES / VEC;  // threads side by side
    static constexpr int ROWS = THREADS / ACROSS;
    static constexpr int STEPS = ColumnTile::HEIGHT / ROWS;
    static_assert(THREADS % ACROSS == 0 && ColumnTile::HEIGHT % ROWS == 0, "threads share a tile evenly");

    const ElementType<TYPE> *X;  // of the first line
    long long ldx;
    int column, row, inside;  // inside: lines of this thread that exist, from 0 to VEC

    __device__ __forceinline__ ColumnReader(const Side &side, int base)
        : ldx(side.ldx), column(threadIdx.x % ACROSS * VEC), row(threadIdx.x / ACROSS) {
        X = reinterpret_cast<const ElementType<TYPE> *>(side.X) + base + column;
        inside = max(0, min(VEC, side.lines - base - column));
    }

    // Start copying the steps from k0 on; those from `end` on are zeros.
    __device__ __forceinline__ void copy(const float *tile, int k0, int end) const {
        const unsigned to = shared_address(tile);
        const ElementType<TYPE> *from = X + (k0 + row) * ldx;
        if constexpr (TYPE == 0) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step, from += ROWS * ldx) {
                const int k = row + step * ROWS;
                cp_async_src_size<VEC>(to + 4 * ColumnTile::place(k, column), from,
                                       k0 + k < end ? inside : 0);
            }
        } else {
            float x[STEPS][VEC];
#pragma unroll
            for (int step = 0; step < STEPS; ++step, from += ROWS * ldx)
                load_elements<VEC, TYPE>(x[step], from, k0 + row + step * ROWS < end ? inside : 0);
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                store_shared(to + 4 * ColumnTile::place(row + step * ROWS, column), x[step]);
        }
    }

    // Include the magnitudes of what this thread copied, which it can read once its copies have landed.
    __device__ __forceinline__ void include(unsigned (&largest)[VEC], const float *tile) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            float x[VEC];
            load_shared<VEC>(x, shared_address(tile) + 4 * ColumnTile::place(row + step * ROWS, column));
#pragma unroll
            for (int i = 0; i < VEC; ++i) largest[i] = max(largest[i], magnitude_bits(x[i]));
        }
    }

    // The same from memory, of the steps from `first` to `end`.
    __device__ __forceinline__ void include_unkept(unsigned (&largest)[VEC], int first, int end) const {
#pragma unroll 2
        for (int k = first + row; k < end; k += ROWS) {
            const ElementType<TYPE> *from = X + k * ldx;
            if (TYPE != 0 || inside == VEC) {
                float x[VEC];
                load_elements<VEC, TYPE>(x, from, inside);
#pragma unroll
                for (int i = 0; i < VEC; ++i) largest[i] = max(largest[i], magnitude_bits(x[i]));
            } else {
                // On its own, because load_elements of fewer than VEC float32 elements needs more registers.
#pragma unroll
                for (int i = 0; i < VEC; ++i)
                    if (i < inside) largest[i] = max(largest[i], magnitude_bits(to_float<TYPE>(from[i])));
            }
        }
    }

    // Include the magnitudes of all threads of the block in largest_of, which is zero before.
    __device__ __forceinline__ void reduce(const unsigned (&largest)[VEC], unsigned *largest_of) const {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            unsigned most = largest[i];
#pragma unroll
            for (int lanes = 16; lanes >= ACROSS; lanes /= 2)
                most = max(most, __shfl_xor_sync(0xffffffffu, most, lanes));
            if (threadIdx.x % 32 < ACROSS) atomicMax(&largest_of[column + i], most);
        }
    }
};

// Convert and store the steps of a tile, which begin at k0. Eight threads write a line of 128 bytes, four
// elements each; a thread always has the same line.
template <int THREADS, int TYPE>
__device__ __forceinline__ void store_tile(const Side &side, const float *tile, int base, int exponent,
                                           int k0, int end) {
    constexpr int LINES = ColumnTile::LINES, HEIGHT = ColumnTile::HEIGHT;
    constexpr int ABREAST = THREADS / 8 / LINES;  // blocks of k that the threads store at a time
    static_assert(THREADS % (8 * LINES) == 0 && HEIGHT / BLOCK_K % ABREAST == 0, "a thread has one line");
    const int n = threadIdx.x / 8 % LINES, k = threadIdx.x % 8 * 4;
    const int line = base + n;
    if (line >= side.lines) return;
    const float smallest = smallest_split(side.K);
#pragma unroll 1  // registers
    for (int down = threadIdx.x / 8 / LINES * BLOCK_K; down < HEIGHT; down += ABREAST * BLOCK_K) {
        if ((k0 + down) / PAD_K * PAD_K >= end) break;
        float scaled[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            scaled[j] =
                scale_or_leave_out<TYPE>(tile[ColumnTile::place(down + k + j, n)], exponent, smallest, [&] {
                    const unsigned slot = atomicAdd(&side.info[line].left_out, 1);
                    if (slot < SPARSE)
                        side.where[static_cast<long long>(line) * SPARSE + slot] = k0 + down + k + j;
                });
        store_pairs<TYPE>(side, line, k0 + down + k, scaled);
    }
}

// Block `block` of the `blocks` of a side. CLUSTER blocks share out K, or any number on devices without
// clusters.
template <int THREADS, int CLUSTER, int TILES, int VEC, int TYPE>
__device__ __forceinline__ void split_columns(const Side &side, int block, int blocks) {
    static_assert(CLUSTER == 1 || CLUSTER == 2 || CLUSTER == 4 || CLUSTER == 8,
                  "a portable cluster, or none");
    constexpr int LINES = ColumnTile::LINES, HEIGHT = ColumnTile::HEIGHT;
    extern __shared__ __align__(16) float tiles_kept[];  // TILES tiles
    __shared__ unsigned largest_of[LINES];
    __shared__ int exponents[LINES];
    const int groups = (side.lines + LINES - 1) / LINES;
    const int parts = HAS_CLUSTERS ? CLUSTER : blocks / groups;
    const int group = HAS_CLUSTERS ? block / CLUSTER : block % groups;
    const int part = HAS_CLUSTERS ? block % CLUSTER : block / groups;
    const int base = group * LINES, line = base + int(threadIdx.x);  // its first line; of the first threads
    const bool owns_line = threadIdx.x < LINES && line < side.lines;
    // Each block but the last has a multiple of PAD_K steps.
    const int chunk = padded_k((side.K + parts - 1) / parts);
    const int first = min(side.K, part * chunk), end = min(side.K, first + chunk);
    const int tiles = (end - first + HEIGHT - 1) / HEIGHT;
    const ColumnReader<THREADS, VEC, TYPE> reader(side, base);
    const auto copy = [&](int number) {
        if (number < tiles)
            reader.copy(tiles_kept + number % TILES * ColumnTile::FLOATS, first + number * HEIGHT, end);
        cp_async_commit_group();  // one group for each number, so that the groups can be counted
    };
#pragma unroll 1
    for (int number = 0; number < TILES; ++number) copy(number);

    if constexpr (HAS_CLUSTERS) {
        if (threadIdx.x < LINES) largest_of[threadIdx.x] = 0;
        if (owns_line && part == 0) side.info[line].left_out = 0;
        __syncthreads();
        unsigned largest[VEC] = {};
        if (tiles > TILES) reader.include_unkept(largest, first + TILES * HEIGHT, end);
        cp_async_wait_all();
        for (int number = 0; number < min(tiles, TILES); ++number)
            reader.include(largest, tiles_kept + number * ColumnTile::FLOATS);
        reader.reduce(largest, largest_of);
        if constexpr (CLUSTER > 1)
            cluster_sync();
        else
            __syncthreads();
    }
    if (threadIdx.x < LINES) {
        unsigned most = 0;
        if constexpr (!HAS_CLUSTERS) {
            for (int i = 0; i < side.maxima_parts && owns_line; ++i)
                most = max(most, side.maxima[static_cast<long long>(i) * side.lines + line]);
        } else if constexpr (CLUSTER > 1) {
#pragma unroll
            for (int rank = 0; rank < CLUSTER; ++rank)
                most = max(most, ld_shared_cluster(&largest_of[threadIdx.x], rank));
        } else {
            most = largest_of[threadIdx.x];
        }
        exponents[threadIdx.x] = line_exponent(most);
        if (owns_line && part == 0) {
            side.info[line].exponent = line_exponent(most);
            if (!is_finite(most)) atomicAdd(&side.info[line].left_out, DENSE);
        }
    }
    if constexpr (CLUSTER > 1) cluster_arrive();  // this block has read the others' shared memory
    __syncthreads();
    const int exponent = exponents[threadIdx.x / 8 % LINES];

    for (int number = 0; number < tiles; ++number) {
        if (!HAS_CLUSTERS || number >= TILES) {
            cp_async_wait_group<TILES - 1>();  // TILES + number groups have been committed
            __syncthreads();
        }
        const float *tile = tiles_kept + number % TILES * ColumnTile::FLOATS;
        store_tile<THREADS, TYPE>(side, tile, base, exponent, first + number * HEIGHT, end);
        if (!HAS_CLUSTERS || tiles > TILES) {
            if (number + TILES < tiles) __syncthreads();
            copy(number + TILES);
        }
    }
    if constexpr (CLUSTER > 1) cluster_wait();  // before this block's shared memory goes
}
