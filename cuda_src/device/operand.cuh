// Where an element of a matrix lies. TRANS = 0: row-major, at row * ld + col. TRANS = 1: column-major, at col
// * ld + row. For A the row is m and the column k, for B the row is k and the column n. C is always
// row-major: the host swaps A and B for a column-major C. Offsets have 64 bits: an operand may span more than
// 2^31 elements.
#pragma once

template <int TRANS>
__device__ __forceinline__ long long element_offset(long long row, long long col, long long ld) {
    return TRANS ? col * ld + row : row * ld + col;
}
