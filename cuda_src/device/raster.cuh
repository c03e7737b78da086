// The tile of C that a block computes. The tiles lie along x alone, so neither M nor N meets the 65,535 limit
// of gridDim.y. GROUP_M = 1 walks the tiles row by row; GROUP_M > 1 walks GROUP_M tile rows together, column
// by column, so that the blocks in flight share rows of A and columns of B in L2.
#pragma once

struct Tile {
    int m;  // first row of C
    int n;  // first column of C
};

template <int BM, int BN>
__device__ __forceinline__ unsigned count_tiles(int M, int N) {
    return (M + BM - 1u) / BM * ((N + BN - 1u) / BN);
}

template <int BM, int BN, int GROUP_M>
__device__ __forceinline__ Tile tile_of_block(int M, int N, unsigned block = blockIdx.x) {
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
