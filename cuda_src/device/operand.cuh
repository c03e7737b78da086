// Where an element lies. TRANS_A = 0: A is row-major, A(m, k) at m * lda + k. TRANS_A = 1: A is column-major,
// A(m, k) at k * lda + m. B likewise. C is always row-major: the host swaps A and B for a column-major C.
// Offsets are 64 bits wide: an operand may span more than 2^31 elements.
#pragma once

__device__ __forceinline__ long long offset_a(long long m, long long k, long long lda) {
    return TRANS_A ? k * lda + m : m * lda + k;
}

__device__ __forceinline__ long long offset_b(long long k, long long n, long long ldb) {
    return TRANS_B ? n * ldb + k : k * ldb + n;
}
