// Rung 11: grouped products (GROUPED = 1). The rows of A and C are in groups (device/group_table.cuh), and
// each group has its own B. A is split as one tall operand, B as a batch of which each matrix has whole
// periods of the swizzle (SWIZZLED_LINES). The tiles of a group begin at such a multiple, too: the first one
// may compute rows of the group before, which are not stored.
#pragma once
#include "device/group_table.cuh"
#include "device/raster.cuh"
#include "device/scaled_store.cuh"
#include "device/split_format.cuh"

// The last argument of the kernels of rung 11: with GROUPED = 0, the steps from a column of the source to the
// next.
struct GroupedRows {
    long long source_column;
    Groups groups;
    long long count;
    long long step_b;  // elements from the B of a group to that of the next
};
template <int GROUPED>
struct LastArgument {
    using Type = GroupedRows;
    static __device__ __forceinline__ GroupedRows rows(const Type &last) { return last; }
};
template <>
struct LastArgument<0> {
    using Type = long long;
    static __device__ __forceinline__ GroupedRows rows(long long last) { return {last}; }
};

// The first line of the split B of a group whose B has N columns.
__device__ __forceinline__ long long first_line_of_b(int group, int N) {
    return static_cast<long long>(group) * whole_periods(N);
}

// A tile of C of a group.
struct GroupedTile {
    Tile tile;  // its first row may be before the group's
    int group;
    RowRange rows;  // of the group
    int word;       // the tile's number, row by row of tiles

    // Number `in_group` of a group's tiles of BM x BN; the groups before have `before` rows of tiles.
    template <int BM, int BN, int GROUP_M>
    static __device__ __forceinline__ GroupedTile of(int group, RowRange rows, int before, int N,
                                                     unsigned in_group) {
        const int begin = rows.first / SWIZZLED_LINES * SWIZZLED_LINES;
        const Tile tile = tile_of_block<BM, BN, GROUP_M>(rows.end - begin, N, in_group);
        const unsigned tiles_n = (N + BN - 1u) / BN;
        return {{begin + tile.m, tile.n}, group, rows, int((before + tile.m / BM) * tiles_n + tile.n / BN)};
    }
};

// Note for the guard kernel whether a tile holds lines with exceptions; `columns` are those of its group's B.
// By one warp.
template <class Layout>
__device__ __forceinline__ void note_group(const GroupedTile &work, int N, const Line *rows,
                                           const Line *columns, int *exceptions) {
    const unsigned any = has_exceptions<Layout>(work.tile, work.rows.end, N, rows, columns);
    if (threadIdx.x % 32 == 0) exceptions[work.word] = any;
}

// Let `found` be the tile with the number of this block, if there is one. By a block of THREADS threads,
// whose scratch has 2 * THREADS ints.
template <int BM, int BN, int GROUP_M, int THREADS>
__device__ __forceinline__ bool find_tile(GroupedTile &found, int *scratch, const GroupedRows &last, int M,
                                          int N) {
    const GroupTable<THREADS, SWIZZLED_LINES> table{last.groups, int(last.count), M};
    const unsigned tiles_n = (N + BN - 1u) / BN;
    const Group group = table.of_tile(scratch, blockIdx.x / tiles_n, BM);
    if (group.extent == 0) return false;
    found =
        GroupedTile::of<BM, BN, GROUP_M>(group.number, {group.first, group.first + group.extent},
                                         group.tiles_before, N, blockIdx.x - group.tiles_before * tiles_n);
    return true;
}

// Finds the groups of tiles whose numbers ascend. By whole warps: each lane knows one of 32 groups.
template <int BM, int BN, int GROUP_M>
struct GroupWalk {
    const GroupedRows last;
    const int M, N;          // rows of all groups, and columns
    int base = -32;          // number of the first of the 32 groups
    int latest = 0;          // where the last of them ends
    int tiles_with = 0;      // rows of tiles of the groups up to them
    int begin, end, before;  // of the lane's group: its rows, and the rows of tiles of all groups before

    __device__ __forceinline__ GroupWalk(const GroupedRows &last, int M, int N) : last(last), M(M), N(N) {}

    __device__ __forceinline__ void look_at_next() {
        constexpr unsigned ALL = 0xffffffffu;
        const int lane = threadIdx.x % 32;
        base += 32;
        const int g = base + lane;
        end = g < last.count ? min(max(last.groups.ends[g * last.groups.end_words], 0), M) : 0;
        end = max(end, latest);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_sync(ALL, end, lane - step);
            if (lane >= step) end = max(end, other);
        }
        begin = __shfl_sync(ALL, end, lane - 1);
        if (lane == 0) begin = latest;
        const int own = GroupTable<32, SWIZZLED_LINES>::tiles(begin, end, BM);
        int sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_sync(ALL, sum, lane - step);
            if (lane >= step) sum += other;
        }
        before = tiles_with + sum - own;
        latest = __shfl_sync(ALL, end, 31);
        tiles_with += __shfl_sync(ALL, sum, 31);
    }

    // Let `found` be tile number `tile` of all groups, if there is one. No number may be less than one
    // before.
    __device__ __forceinline__ bool find(GroupedTile &found, unsigned tile) {
        constexpr unsigned ALL = 0xffffffffu;
        const unsigned tiles_n = (N + BN - 1u) / BN;
        const int row = int(tile / tiles_n);
        while (row >= tiles_with && base + 32 < last.count) look_at_next();
        if (row >= tiles_with) return false;
        const int own = GroupTable<32, SWIZZLED_LINES>::tiles(begin, end, BM);
        const int lane = __ffs(__ballot_sync(ALL, before <= row && row < before + own)) - 1;
        const RowRange rows{__shfl_sync(ALL, begin, lane), __shfl_sync(ALL, end, lane)};
        const int before_it = __shfl_sync(ALL, before, lane);
        found = GroupedTile::of<BM, BN, GROUP_M>(base + lane, rows, before_it, N, tile - before_it * tiles_n);
        return true;
    }
};
