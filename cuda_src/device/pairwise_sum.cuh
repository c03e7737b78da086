// Rung 10: a sum of COUNT terms (a power of two), two by two. Its rounding error grows with the additions
// that a term goes through, log2(COUNT) here and up to COUNT - 1 in a row.
#pragma once

// The sum of `term(first)` and the COUNT - 1 after it.
template <int COUNT, class Term>
__device__ __forceinline__ float pairwise_sum(Term term, int first = 0) {
    if constexpr (COUNT == 1)
        return term(first);
    else
        return __fadd_rn(pairwise_sum<COUNT / 2>(term, first),
                         pairwise_sum<COUNT / 2>(term, first + COUNT / 2));
}
