// The offset of an element of a matrix.
#pragma once

// Row-major with TRANS = 0, column-major with TRANS = 1. For A the row is m and the column k, for B the row
// is k and the column n. C is always row-major: the host swaps A and B for a column-major C. Offsets have 64
// bits: an operand may span more than 2^31 elements.
template <int TRANS>
__device__ __forceinline__ long long element_offset(long long row, long long col, long long ld) {
    return TRANS ? col * ld + row : row * ld + col;
}

struct Element {
    long long row, column;
};

// Element number `number` of a matrix of `size` elements, counted row by row. A 64-bit division takes many
// times the instructions of a 32-bit one, and few matrices are so large that they need it.
__device__ __forceinline__ Element element_of(long long number, long long size, int columns) {
    const long long row = size >> 32 ? number / columns : unsigned(number) / unsigned(columns);
    return {row, number - row * columns};
}
