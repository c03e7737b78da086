// Which group of a grouped product a block of the grid computes. Group g begins where group g - 1 ends, the
// first at 0. The ends lie in device memory and the host never sees them, so each block looks for its group.
// An end below the one before counts as that one, and one past the ragged extent as that extent: no offsets
// lead out of an operand.
#pragma once

struct Groups {
    const int *ends;      // of 64 bits, the low half: extents have less than 32
    long long end_words;  // 32-bit words from one end to the next
};

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

// The groups of one launch, whose ends are at most `extent`. Tiles of a group begin at a multiple of ALIGN:
// the first one may begin before the group.
template <int THREADS, int ALIGN = 1>
struct GroupTable {
    const Groups &groups;
    const int count, extent;

    // Where group g ends, if the groups before it end at `begin`.
    __device__ __forceinline__ int end(int g, int begin) const {
        return min(max(groups.ends[g * groups.end_words], begin), extent);
    }

    // The tiles, of so many rows or columns, of a group from `begin` to `end`.
    static __device__ __forceinline__ int tiles(int begin, int end, int size) {
        const int from = ALIGN == 1 ? begin : begin / ALIGN * ALIGN;
        return ALIGN > 1 && begin == end ? 0 : (end - from + size - 1) / size;
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

    // A thread's share of the groups, from `first` on, and where it begins: with the tiles, of so many rows
    // or columns, that it has, and those of all threads.
    struct Share {
        int first, begin, tiles;
        Prefix prefix;
    };
    __device__ __forceinline__ Share own_share(int *scratch, int size) const {
        const auto later = [](int x, int y) { return max(x, y); };
        const auto sum = [](int x, int y) { return x + y; };
        const int share = (count + THREADS - 1) / THREADS, thread = min(int(threadIdx.x), THREADS);
        const int first = min(thread * share, count), last = min(first + share, count);
        const int begin = prefix_of<THREADS>(scratch, end_of(first, last), later).before;
        int own_tiles = 0, from = begin;
#pragma unroll 1
        for (int g = first; g < last; ++g) {
            const int to = end(g, from);
            own_tiles += tiles(from, to, size);
            from = to;
        }
        return {first, begin, own_tiles, prefix_of<THREADS>(scratch, own_tiles, sum)};
    }

    // How many tiles of so many rows or columns all groups have.
    __device__ __forceinline__ int count_tiles(int *scratch, int size) const {
        return own_share(scratch, size).prefix.all;
    }

    // The group that has tile number `tile` of all tiles, of `size` rows or columns each, or one of extent 0.
    // Each thread adds up the tiles of a share of the groups; the one whose share has the tile looks closer.
    __device__ __forceinline__ Group of_tile(int *scratch, int tile, int size) const {
        const Share own_groups = own_share(scratch, size);
        if (tile >= own_groups.prefix.all) return {0, 0, 0, 0};
        int before = own_groups.prefix.before, from = own_groups.begin;
        if (before <= tile && tile < before + own_groups.tiles) {
#pragma unroll 1
            for (int g = own_groups.first;; ++g) {
                const int to = end(g, from), own = tiles(from, to, size);
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
