// How work is shared out evenly, computed by the compiler.
#pragma once

__device__ constexpr int larger(int x, int y) {
    return x > y ? x : y;
}
__device__ constexpr int smaller(int x, int y) {
    return x < y ? x : y;
}

// The largest number that divides `whole` and is at most `limit`.
__device__ constexpr int divisor(int whole, int limit) {
    int found = smaller(whole, limit);
    while (whole % found) --found;
    return found;
}

// The largest one that is also a divisor or a multiple of `unit`.
__device__ constexpr int aligned_divisor(int whole, int limit, int unit) {
    int found = divisor(whole, limit);
    while (found % unit && unit % found) found = divisor(whole, found - 1);
    return found;
}
