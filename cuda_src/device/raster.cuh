// The tile of C that a block computes. The tiles lie along x alone, so neither M nor N meets the 65,535 limit
// of gridDim.y. GROUP_M = 1 walks the tiles row by row; GROUP_M > 1 walks GROUP_M tile rows together, column
// by column, so that the blocks in flight share rows of A and columns of B in L2.
//
// Of an N x N result with SYM != 0 (device/triangle.cuh), only the tiles that meet the lower triangle are
// computed: those whose last row is not above their first column.
#pragma once

struct Tile {
    int m;  // first row of C
    int n;  // first column of C
};

// The tiles of a lower triangle, in groups of tile rows that are as high as a whole number of tiles is wide.
// So group g consists of g squares of tiles and one square on the diagonal, which is cut.
//   ......
//   ....|.     group 1: a square, and one on the diagonal
//   ..
template <int BM, int BN, int GROUP_M>
struct TriangleRaster {
    static __device__ constexpr unsigned common_divisor(unsigned x, unsigned y) {
        return y ? common_divisor(y, x % y) : x;
    }
    static constexpr unsigned STEP = BN / common_divisor(BM, BN);  // the fewest tile rows of such a group
    static constexpr unsigned MOST = 64;  // tile rows, so that the walk of a square on the diagonal is short
    static constexpr unsigned ROWS = ((GROUP_M < MOST ? GROUP_M : MOST) + STEP - 1) / STEP * STEP;
    static constexpr unsigned COLUMNS = ROWS * BM / BN;
    static constexpr unsigned SQUARE = ROWS * COLUMNS;

    // Tiles of the tile row that ends before row `end` of C.
    static __device__ constexpr unsigned in_row(unsigned end) { return (end + BN - 1) / BN; }

    static __device__ constexpr unsigned count_on_diagonal() {
        unsigned count = 0;
        for (unsigned row = 1; row <= ROWS; ++row) count += in_row(row * BM);
        return count;
    }
    static constexpr unsigned ON_DIAGONAL = count_on_diagonal();

    // Of the first `groups` groups, where all their rows are inside of C. The first and the last have as many
    // tiles together as the second and the last but one.
    static __device__ __forceinline__ unsigned count_pair(unsigned groups) {
        return (groups - 1) * SQUARE + 2 * ON_DIAGONAL;
    }
    static __device__ __forceinline__ unsigned count(unsigned groups) {
        return groups * count_pair(groups) / 2;
    }

    // The walk takes the last whole group and the first, then the last but one and the second, and so on,
    // because no square root is needed to see which block has what; at the end comes what is left of the
    // rows.
    static __device__ __forceinline__ Tile tile(unsigned N, unsigned block) {
        const unsigned groups = N / (ROWS * BM), whole = count(groups);
        unsigned group = groups, left = block - whole;
        if (block < whole) {
            const unsigned of_pair = count_pair(groups);
            group = groups - 1 - block / of_pair, left = block % of_pair;
            const unsigned of_group = group * SQUARE + ON_DIAGONAL;
            if (left >= of_group) left -= of_group, group = groups - 1 - group;
        }
        unsigned row = group * ROWS;
        const unsigned rows = min(ROWS, (N + BM - 1) / BM - row), columns = group * COLUMNS;
        if (left < rows * columns) return {int((row + left % rows) * BM), int(left / rows * BN)};
        left -= rows * columns;
#pragma unroll 1
        for (;; ++row) {
            const unsigned count = in_row(min((row + 1) * BM, N)) - columns;
            if (left < count) return {int(row * BM), int((columns + left) * BN)};
            left -= count;
        }
    }
};

template <int BM, int BN, int SYM = 0>
__device__ __forceinline__ unsigned count_tiles(int M, int N) {
    if constexpr (SYM) {  // grid.triangle_tiles counts them for the host
        using Steps = TriangleRaster<BM, BN, 1>;
        const unsigned groups = unsigned(N) / (Steps::ROWS * BM), rows = (N + BM - 1u) / BM;
        unsigned count = Steps::count(groups);
#pragma unroll 1
        for (unsigned row = groups * Steps::ROWS; row < rows; ++row)
            count += Steps::in_row(min((row + 1) * BM, unsigned(N)));
        return count;
    } else {
        return (M + BM - 1u) / BM * ((N + BN - 1u) / BN);
    }
}

template <int BM, int BN, int GROUP_M, int SYM = 0>
__device__ __forceinline__ Tile tile_of_block(int M, int N, unsigned block = blockIdx.x) {
    if constexpr (SYM) return TriangleRaster<BM, BN, GROUP_M>::tile(N, block);
    const unsigned tiles_m = (M + BM - 1u) / BM;
    const unsigned tiles_n = (N + BN - 1u) / BN;
    const unsigned group_m = min(unsigned(GROUP_M), tiles_m);  // so that a group has at most 2^31 tiles
    const unsigned per_group = group_m * tiles_n;
    const unsigned group = block / per_group;
    const unsigned in_group = block % per_group;
    const unsigned first = group * group_m;
    const unsigned rows = min(group_m, tiles_m - first);
    return {int((first + in_group % rows) * BM), int(in_group / rows * BN)};
}
