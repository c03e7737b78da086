// Rung 9: grouped products. A launch computes one product for each group of rows of A (GROUPED = 1), of steps
// of k (2) or of columns of B (3), see device/group_table.cuh.
#pragma once
#include "device/group_table.cuh"
#include "device/operand.cuh"
#include "device/source.cuh"

// The last argument of a kernel with the constants SOURCE and GROUPED. Of the batch, `count` is the number of
// groups; a[2], b[2] and c[2] are the elements from the operand of one group to that of the next, 0 for those
// that are divided into groups.
template <int SOURCE, int GROUPED>
struct GroupedBatch : BatchAndSource<SOURCE> {
    Groups groups;
};
template <int SOURCE>
struct GroupedBatch<SOURCE, 0> : BatchAndSource<SOURCE> {};

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
            group = table.of_tile(scratch, block / tiles_n, BM);
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
            group = table.of_tile(scratch, block / tiles_m, BN);
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
