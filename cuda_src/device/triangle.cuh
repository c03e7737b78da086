// Which elements of C a kernel stores. The constant SYM says it:
//   0  all
//   1  those on and below the diagonal, and those below it once more, transposed: alpha A B is symmetric
//   2  those on and below the diagonal
//   3  those on and above the diagonal
// With any SYM but 0, C is square, and only tiles that meet the lower triangle are computed. What is stored
// above the diagonal is their transpose, with the old values that C has there: C need not be symmetric.
#pragma once

enum class Triangle { WHOLE, LOWER, UPPER, STRICTLY_UPPER };

// Whether elements are stored where they were computed: of a symmetric C, on and below the diagonal.
__device__ constexpr bool stores_lower(int sym) {
    return sym != 3;
}

// Whether they are stored transposed.
__device__ constexpr bool stores_upper(int sym) {
    return sym == 1 || sym == 3;
}

// What the transposed store of a kernel with this SYM writes, so that each element is written once.
__device__ constexpr Triangle upper_of(int sym) {
    return sym == 1 ? Triangle::STRICTLY_UPPER : Triangle::UPPER;
}

template <Triangle TRIANGLE>
__device__ __forceinline__ bool is_inside(int row, int column) {
    return TRIANGLE == Triangle::WHOLE || (TRIANGLE == Triangle::LOWER   ? column <= row
                                           : TRIANGLE == Triangle::UPPER ? column >= row
                                                                         : column > row);
}
