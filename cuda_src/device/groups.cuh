// Rung 9: grouped products. A launch computes one product for each group of rows of A (GROUPED = 1), of steps
// of k (2) or of columns of B (3). Group g begins where group g - 1 ends, the first at 0. The ends lie in
// device memory and the host never sees them, so each block looks for its group. An end below the one before
// counts as that one, and one past the ragged extent as that extent: no offsets lead out of an operand.
#pragma once
#include "device/operand.cuh"
#include "device/source.cuh"

// Of the batch that stands before it, `count` is the number of groups; a[2], b[2] and c[2] are the elements
// from the operand of one group to that of the next, 0 for those that are divided into groups.
struct Groups {
    const int *ends;      // of 64 bits, the low half: extents have less than 32
    long long end_words;  // 32-bit words from one end to the next
};

// The last argument of a kernel with the constants SOURCE and GROUPED.
template <int SOURCE, int GROUPED>
struct GroupedBatch : BatchAndSource<SOURCE> {
    Groups groups;
};
template <int SOURCE>
struct GroupedBatch<SOURCE, 0> : BatchAndSource<SOURCE> {};

struct Prefix {
    int before;  // over the values of the threads before this one
    int all;     // over those of all threads
};

// Combine one value of each of the first THREADS threads, none of them negative, by an associative function
// for which 0 changes nothing. The block's `scratch` has 2 * THREADS ints, which it may use again afterwards.
template <int THREADS, class Function>
__device__ __forceinline__ Prefix prefix_of(int *scratch, int value, Function combine) {
    const int thread = threadIdx.x;
    int *from = scratch, *to = scratch + THREADS;
    if (thread < THREADS) from[thread] = value;
    __syncthreads();
#pragma unroll 1
    for (int step = 1; step < THREADS; step *= 2) {
        if (thread < THREADS)
            to[thread] = thread >= step ? combine(from[thread - step], from[thread]) : from[thread];
        __syncthreads();
        int *const written = to;
        to = from, from = written;
    }
    const Prefix prefix{thread > 0 && thread < THREADS ? from[thread - 1] : 0, from[THREADS - 1]};
    __syncthreads();
    return prefix;
}

struct Group {
    int number;
    int first;         // row, column or step of k
    int extent;        // rows, columns or steps
    int tiles_before;  // of the groups before, along the ragged extent
};

// The groups of one launch, whose ends are at most `extent`.
template <int THREADS>
struct GroupTable {
    const Groups &groups;
    const int count, extent;

    // Where group g ends, if the groups before it end at `begin`.
    __device__ __forceinline__ int end(int g, int begin) const {
        return min(max(groups.ends[g * groups.end_words], begin), extent);
    }

    // Where the groups from `first` to the one before `last` end.
    __device__ __forceinline__ int end_of(int first, int last) const {
        int latest = 0;
#pragma unroll 1
        for (int g = first; g < last; ++g) latest = end(g, latest);
        return latest;
    }

    // The group with this number, for a block of which all threads ask for the same one.
    __device__ __forceinline__ Group at(int *scratch, int number) const {
        const auto later = [](int x, int y) { return max(x, y); };
        int latest = 0;
        if (threadIdx.x < THREADS) {
#pragma unroll 1
            for (int g = threadIdx.x; g < number; g += THREADS) latest = end(g, latest);
        }
        const int first = prefix_of<THREADS>(scratch, latest, later).all;
        return {number, first, end(number, first) - first, 0};
    }

    // The group that has tile number `tile` of all tiles, of TILE rows or columns each, or one of extent 0.
    // Each thread adds up the tiles of a share of the groups; the one whose share has the tile looks closer.
    template <int TILE>
    __device__ __forceinline__ Group of_tile(int *scratch, int tile) const {
        const auto later = [](int x, int y) { return max(x, y); };
        const auto sum = [](int x, int y) { return x + y; };
        const int share = (count + THREADS - 1) / THREADS, thread = min(int(threadIdx.x), THREADS);
        const int first = min(thread * share, count), last = min(first + share, count);
        const int begin = prefix_of<THREADS>(scratch, end_of(first, last), later).before;
        int tiles = 0, from = begin;
#pragma unroll 1
        for (int g = first; g < last; ++g) {
            const int to = end(g, from);
            tiles += (to - from + TILE - 1) / TILE;
            from = to;
        }
        const Prefix prefix = prefix_of<THREADS>(scratch, tiles, sum);
        if (tile >= prefix.all) return {0, 0, 0, 0};
        int before = prefix.before;
        if (before <= tile && tile < before + tiles) {
            from = begin;
#pragma unroll 1
            for (int g = first;; ++g) {
                const int to = end(g, from), own = (to - from + TILE - 1) / TILE;
                if (tile < before + own) {
                    scratch[0] = g, scratch[1] = from, scratch[2] = to - from, scratch[3] = before;
                    break;
                }
                from = to, before += own;
            }
        }
        __syncthreads();
        const Group group{scratch[0], scratch[1], scratch[2], scratch[3]};
        __syncthreads();  // the scratch is free again
        return group;
    }
};

// Let the operands and extents be those of this block's group, and `block` the block's number in it; return
// whether there is one. M, N or K, the ragged extent, is that of all groups before. A K of 0 stays 0: A and B
// are then not read.
//
// Traits: A, B (of the copies: TILE_MN, K_CONTIGUOUS), THREADS_PER_SLICE (whose scratch holds 8 bytes each).
template <class Traits, int SOURCE, int GROUPED, class Read, class Written>
__device__ __forceinline__ bool move_to_group(float *shared, GroupedBatch<SOURCE, GROUPED> &batch, int &M,
                                              int &N, int &K, float &alpha, Read &A, long long lda, Read &B,
                                              long long ldb, float beta, Written &C, long long ldc,
                                              unsigned &block) {
    if constexpr (GROUPED) {
        constexpr int BM = Traits::A::TILE_MN, BN = Traits::B::TILE_MN;
        int *const scratch = reinterpret_cast<int *>(shared);
        const int extent = GROUPED == 1 ? M : GROUPED == 2 ? K : N;
        const GroupTable<Traits::THREADS_PER_SLICE> table{batch.groups, int(batch.count), extent};
        const unsigned tiles_m = (M + BM - 1u) / BM, tiles_n = (N + BN - 1u) / BN;
        Group group;
        block = blockIdx.x;
        if constexpr (GROUPED == 1) {
            group = table.template of_tile<BM>(scratch, block / tiles_n);
            if (group.extent == 0) return false;
            block -= group.tiles_before * tiles_n;
            M = group.extent;
            A += element_offset<!Traits::A::K_CONTIGUOUS>(group.first, 0, lda);
            C += group.first * ldc;
            if constexpr (SOURCE) batch.source.first += group.first * batch.source.row_stride;
        } else if constexpr (GROUPED == 2) {
            group = table.at(scratch, block / (tiles_m * tiles_n));
            block %= tiles_m * tiles_n;
            K = group.extent;
            if (K == 0) alpha = beta == 0.0f ? 0.0f : -0.0f;  // as grid.steps does for one product
            A += element_offset<!Traits::A::K_CONTIGUOUS>(0, group.first, lda);
            B += element_offset<Traits::B::K_CONTIGUOUS>(group.first, 0, ldb);
        } else {
            group = table.template of_tile<BN>(scratch, block / tiles_m);
            if (group.extent == 0) return false;
            block -= group.tiles_before * tiles_m;
            N = group.extent;
            B += element_offset<Traits::B::K_CONTIGUOUS>(0, group.first, ldb);
            C += group.first;
            if constexpr (SOURCE) batch.source.first += group.first * batch.source.column_stride;
        }
        A += group.number * batch.a[2];
        B += group.number * batch.b[2];
        C += group.number * batch.c[2];
        if constexpr (SOURCE) batch.source.first += group.number * batch.source.steps[2];
    }
    return true;
}
