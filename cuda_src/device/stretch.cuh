// Rung 11 on Hopper: what a bulk copy brings of a split operand.
#pragma once
#include "device/split_format.cuh"

// The lines of a tile in one block of k, which are one stretch of memory, and then in the next.
template <int ONE>
struct Stretch {
    static constexpr int LINE = LINE_BYTES<ONE> / 2;  // FP16 numbers

    const unsigned short *from;
    long long step;  // FP16 numbers from a block of k to the next
    unsigned bytes;

    // Lines past the end are not copied. What the stage holds in their place, be it NaN, takes part only in
    // sums of rows or columns past the end of C.
    template <class Number>
    __device__ __forceinline__ Stretch(const unsigned short *pairs, int lines, int block, Number first,
                                       int most)
        : from(pairs + (static_cast<long long>(block) * lines + first) * LINE),
          step(static_cast<long long>(lines) * LINE),
          bytes(min(most, int(lines - first)) * LINE_BYTES<ONE>) {}
};
