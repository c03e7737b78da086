// Split lines that are strided (row-major B, column-major A): X(k, line) lies at k * ldx + line. A tile goes
// through shared memory, because it is read along the lines' number and written along k. The blocks of a
// cluster have the same LINES lines and share out K. They look for the largest magnitudes, exchange them
// through shared memory, and read their elements again, in the opposite order: the last tile is still in
// registers, the others are mostly in L2, so memory is read once. Devices without clusters have too few
// blocks for that where K is long. There, column_maxima.cu has found the magnitudes before.
#pragma once
#include "device/split_format.cuh"
#include "device/cluster.cuh"

// A tile of a block of THREADS threads.
template <int THREADS>
struct ColumnTile {
    static constexpr int LINES = 32;              // a block
    static constexpr int LANES = LINES / 4;       // threads side by side, of four lines each
    static constexpr int ROWS = THREADS / LANES;  // of X that a block reads at a time
    static constexpr int STEPS = 4;               // such reads
    static constexpr int HEIGHT = ROWS * STEPS;   // steps of k
    static constexpr int PITCH = LINES + 1;  // floats: a warp then reads four lines of 32 steps from 32 banks
    static_assert(HEIGHT % BLOCK_K == 0 && THREADS <= 512,
                  "a tile is whole blocks of k, in 48 KB of shared memory");

    float elements[HEIGHT * PITCH];
    unsigned largest[LINES];
    int exponents[LINES];
};

// The shared memory for it, which both sides of a launch have in common.
template <int THREADS>
__device__ __forceinline__ ColumnTile<THREADS> &shared_tile() {
    __shared__ ColumnTile<THREADS> tile;
    return tile;
}

// Four elements of X per thread and step, in each of the four lines column(0) .. column(3).
template <class Tile, int VEC>
struct ColumnReader {
    const float *X;
    long long ldx, base;  // the block's first line
    int lines, lane, row;
    bool whole;

    __device__ __forceinline__ ColumnReader(const Side &side, int group)
        : X(side.X),
          ldx(side.ldx),
          base(static_cast<long long>(group) * Tile::LINES),
          lines(side.lines),
          lane(threadIdx.x % Tile::LANES),
          row(threadIdx.x / Tile::LANES),
          whole(VEC == 4 && base + column(3) < lines) {}
    // Neighbouring lanes read neighbouring floats, four or one each.
    __device__ __forceinline__ int column(int i) const {
        return VEC == 4 ? 4 * lane + i : lane + Tile::LANES * i;
    }
    __device__ __forceinline__ void read(float (&x)[Tile::STEPS][4], int k0, int end) const {
#pragma unroll
        for (int step = 0; step < Tile::STEPS; ++step) {
            const int k = k0 + row + step * Tile::ROWS;
            const float *from = X + k * ldx + base;
#pragma unroll
            for (int i = 0; i < 4; ++i) x[step][i] = 0.0f;
            if (k >= end) continue;
            if (whole) {
                const float4 v = *reinterpret_cast<const float4 *>(from + column(0));
                x[step][0] = v.x, x[step][1] = v.y, x[step][2] = v.z, x[step][3] = v.w;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (base + column(i) < lines) x[step][i] = from[column(i)];
            }
        }
    }
};

// Block `block` of the `blocks` of a side. CLUSTER blocks share out K, or with `maxima` any number.
template <int THREADS, int CLUSTER, int VEC>
__device__ __forceinline__ void split_columns(const Side &side, int block, int blocks) {
    using Tile = ColumnTile<THREADS>;
    static_assert(CLUSTER == 1 || CLUSTER == 2 || CLUSTER == 4 || CLUSTER == 8,
                  "a portable cluster, or none");
    Tile &tile = shared_tile<THREADS>();
    const int groups = (side.lines + Tile::LINES - 1) / Tile::LINES;  // of lines
    const int parts = CLUSTER > 1 ? CLUSTER : blocks / groups;
    const int group = CLUSTER > 1 ? block / CLUSTER : block % groups;
    const int part = CLUSTER > 1 ? block % CLUSTER : block / groups;
    const ColumnReader<Tile, VEC> reader(side, group);
    const long long line = reader.base + threadIdx.x;  // of the first LINES threads
    const bool speaks = threadIdx.x < Tile::LINES && line < side.lines;
    // Each block has whole blocks of BLOCK_K steps.
    const int k_blocks = (side.K + BLOCK_K - 1) / BLOCK_K, chunk = (k_blocks + parts - 1) / parts * BLOCK_K;
    const int first = min(side.K, part * chunk), end = min(side.K, first + chunk);
    const int tiles = (end - first + Tile::HEIGHT - 1) / Tile::HEIGHT;
    const bool known = CLUSTER == 1 && side.maxima_parts > 0;
    float x[Tile::STEPS][4];

    if (!known) {
        if (threadIdx.x < Tile::LINES) tile.largest[threadIdx.x] = 0;
        if (speaks && part == 0) side.info[line].left_out = 0;
        __syncthreads();
        unsigned own[4] = {};
        for (int number = 0; number < tiles; ++number) {
            reader.read(x, first + number * Tile::HEIGHT, end);
#pragma unroll
            for (int step = 0; step < Tile::STEPS; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) own[i] = max(own[i], magnitude_bits(x[step][i]));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int lanes = 16; lanes >= Tile::LANES; lanes /= 2)
                own[i] = max(own[i], __shfl_xor_sync(0xffffffffu, own[i], lanes));
            if (threadIdx.x % 32 < Tile::LANES) atomicMax(&tile.largest[reader.column(i)], own[i]);
        }
        if constexpr (CLUSTER > 1)
            cluster_barrier();
        else
            __syncthreads();
    }
    if (threadIdx.x < Tile::LINES) {
        unsigned most = 0;
        if (known)
            for (int i = 0; i < side.maxima_parts && speaks; ++i)
                most = max(most, side.maxima[static_cast<long long>(i) * side.lines + line]);
        else if constexpr (CLUSTER > 1)
            for (int rank = 0; rank < CLUSTER; ++rank)
                most = max(most, read_cluster(&tile.largest[threadIdx.x], rank));
        else
            most = tile.largest[threadIdx.x];
        tile.exponents[threadIdx.x] = line_exponent(most);
        if (speaks && part == 0) {
            side.info[line].exponent = tile.exponents[threadIdx.x];
            if (!is_finite(most)) atomicAdd(&side.info[line].left_out, DENSE);
        }
    }
    __syncthreads();
    int exponent[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) exponent[i] = tile.exponents[reader.column(i)];

    for (int number = tiles - 1; number >= 0; --number) {
        const int k0 = first + number * Tile::HEIGHT;
        if (known || number < tiles - 1) reader.read(x, k0, end);
#pragma unroll
        for (int step = 0; step < Tile::STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int k = reader.row + step * Tile::ROWS;
                const float scaled = scale_or_leave_out(x[step][i], exponent[i], [&] {
                    const long long found = reader.base + reader.column(i);
                    const int slot = atomicAdd(&side.info[found].left_out, 1);
                    if (slot < SPARSE) side.where[found * SPARSE + slot] = k0 + k;
                });
                tile.elements[k * Tile::PITCH + reader.column(i)] = scaled;
            }
        __syncthreads();
        // Eight threads write a line of 128 bytes, four elements each.
#pragma unroll
        for (int i = threadIdx.x / 8; i < Tile::LINES * Tile::HEIGHT / BLOCK_K; i += THREADS / 8) {
            const int n = i % Tile::LINES, down = i / Tile::LINES, k = threadIdx.x % 8 * 4;
            if (reader.base + n >= side.lines || k0 + down * BLOCK_K >= end) continue;
            float quad[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) quad[j] = tile.elements[(down * BLOCK_K + k + j) * Tile::PITCH + n];
            const long long place =
                static_cast<long long>(k0 / BLOCK_K + down) * side.lines + reader.base + n;
            store_pairs(side.pairs + place * LINE_HALVES, k, quad);
        }
        __syncthreads();
    }
    if constexpr (CLUSTER > 1) cluster_barrier();  // before this block's shared memory goes
}
