// The split format of rung 11: an FP32 operand as pairs of FP16 numbers, a 16-bit operand as single ones.
//
// A "line" is a row of A or a column of B: what runs along K. Every line is scaled by a power of two so that
// its largest magnitude lies in [2^14, 2^15). A scaled element is hi + lo 2^-12, with hi the nearest FP16
// number and lo the rest, 2^12 times enlarged and rounded to FP16. From 2^-14 on this is within 2^-23 of the
// element, relatively. A smaller element, below 2^-28 of the largest of its line, keeps fewer digits. Where K
// leaves no room for that in the error bound, it is left out of the pairs (hi = lo = 0), its k is noted, and
// the guard kernel adds its products in FP32. A line that has more than a few of them, or an infinity or a
// NaN, is "dense" in exceptions: the guard kernel computes the elements of C that it meets.
//
// A 16-bit element has no more digits than an FP16 number, so scaled it is hi alone, exactly: a bfloat16 down
// to 2^-31 of the largest of its line at least, a float16 down to 2^-28. One that is not exact is left out.
//
// In memory: lines of 128 bytes, 32 hi and then 32 lo, for 32 steps of k; all lines of the first 32 steps of
// k, then all lines of the next. K is filled up with zeros to a multiple of PAD_K. In line j, what would be
// the 16-byte piece i lies at place i xor j % 8: the 128-byte swizzle that wgmma reads and with which
// ldmatrix has no bank conflicts. So a tile of any operand is one stretch of memory that is copied to shared
// memory as it is, whatever the order and alignment of the caller's array were. Of a 16-bit operand the lines
// have 64 bytes, 32 hi, and piece i of line j lies at place i xor j / 2 % 4: the 64-byte swizzle.
#pragma once
#include "device/element.cuh"

constexpr int BLOCK_K = 32;      // steps of k in 128 bytes
constexpr int PAD_K = 64;        // steps of k that 11_fp16x3.cu may take at a time
constexpr int LINE_HALVES = 64;  // FP16 numbers in 128 bytes

// Bytes of a line: 64 where its elements are single FP16 numbers (ONE = 1), not pairs.
template <int ONE>
constexpr int LINE_BYTES = ONE ? 64 : 128;

// The place of a 16-byte piece of a line whose number is `line` modulo 8.
template <int ONE>
__device__ __forceinline__ int swizzled(int piece, int line) {
    return piece ^ (ONE ? line / 2 : line);
}

constexpr float LO_SCALE = 4096.0f;  // 2^12
constexpr int SPARSE = 4;            // places for elements left out of a line
constexpr unsigned DENSE = 1 << 20;  // added to the count of a line that holds an infinity or a NaN

// What the split says about a line.
struct alignas(8) Line {
    int exponent;       // x = (hi + lo 2^-12) 2^exponent, from -163 to 113
    unsigned left_out;  // elements left out of the pairs; more than most_left_out: dense
};

// How many elements a sparse line may lack. The guard adds their products, times alpha, to what the product
// stored: alpha times the sum of the others. That could overflow where the whole sum does not, so with an
// alpha above 1 every line that lacks one is dense. Parts of K are stored, and repaired, with an alpha of 1.
__device__ __forceinline__ unsigned most_left_out(float alpha) {
    return fabsf(alpha) <= 1.0f ? SPARSE : 0;
}

// Tiles begin at multiples of so many lines, because a line's place in the swizzle repeats. So do the lines
// of each matrix of a batch.
constexpr int SWIZZLED_LINES = 8;

__device__ __forceinline__ int whole_periods(int lines) {
    return (lines + SWIZZLED_LINES - 1) / SWIZZLED_LINES * SWIZZLED_LINES;
}

// An operand to split, or a panel of its lines, and the arrays of its split form.
struct Side {
    const float *X;  // where it begins; elements of 16 bits are cast where they are read
    long long ldx;
    int lines, K;
    int pitch;               // lines from a block of k to the next
    const unsigned *maxima;  // without clusters: largest magnitudes of strided lines, in parts of K
    int maxima_parts;
    unsigned short *pairs;
    Line *info;
    int *where;
};

__device__ __forceinline__ float power_of_two(int exponent) {  // from -126 to 127
    return __int_as_float((exponent + 127) << 23);
}

// x 2^exponent in two factors, because 2^exponent itself may be no FP32 number. The first product is exact
// unless the result is zero, and it overflows only where the result does.
__device__ __forceinline__ float scale_by_power(float x, int exponent) {
    const int clamped = max(-252, min(exponent, 252));
    const int half = clamped >> 1;
    return __fmul_rn(__fmul_rn(x, power_of_two(half)), power_of_two(clamped - half));
}

__device__ __forceinline__ unsigned magnitude_bits(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

__device__ __forceinline__ bool is_finite(unsigned magnitude) {
    return magnitude < 0x7f800000u;
}

// The exponent of a line whose largest magnitude has these bits.
__device__ __forceinline__ int line_exponent(unsigned largest) {
    if (largest == 0 || !is_finite(largest)) return 0;
    const int exponent = largest >= 0x00800000u ? int(largest >> 23) - 127 : 31 - __clz(largest) - 149;
    return exponent - 14;
}

__device__ __forceinline__ unsigned to_half2(float first, float second) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

__device__ __forceinline__ float2 from_half2(unsigned pair) {
    float2 value;
    asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\n"
        "cvt.f32.f16 %0, first;\ncvt.f32.f16 %1, second;\n}"
        : "=f"(value.x), "=f"(value.y)
        : "r"(pair));
    return value;
}

// The smallest of the scaled magnitudes that are split: 2^-14, or 2^-(14 + t) where K leaves room in the
// error bound for pairs with fewer digits, from K = 512 on: with the largest t up to 8 for which
// 4^t <= K / 8 (docs/fp16x3.md).
__device__ __forceinline__ float smallest_split(int K) {
    return power_of_two(K < 512 ? -14 : -14 - min((28 - __clz(K)) / 2, 8));
}

__device__ __forceinline__ int padded_k(int K) {
    return (K + PAD_K - 1) / PAD_K * PAD_K;
}

// Read `count` of COUNT neighbouring elements, then zeros. With VEC = 4 there are four of them, aligned, and
// they are read at once if all exist. Not by the read-only path; see device/dependent_launch.cuh.
template <int VEC, int TYPE, int COUNT>
__device__ __forceinline__ void load_elements(float (&x)[COUNT], const ElementType<TYPE> *from, int count) {
    if constexpr (VEC == 4) {
        static_assert(COUNT == 4, "four elements are read at a time");
        if (count >= 4) {
            if constexpr (TYPE == 0) {
                const float4 v = *reinterpret_cast<const float4 *>(from);
                x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
            } else {
                const uint2 v = *reinterpret_cast<const uint2 *>(from);
                const Elements<TYPE, 4> quad{{v.x, v.y}};
#pragma unroll
                for (int i = 0; i < 4; ++i) x[i] = quad[i];
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = i < count ? to_float<TYPE>(from[i]) : 0.0f;
}

// Split four neighbouring scaled elements and write them to their line, from its k-th step on.
template <int TYPE>
__device__ __forceinline__ void store_pairs(const Side &side, long long line, int k, const float (&x)[4]) {
    const uint2 hi = make_uint2(to_half2(x[0], x[1]), to_half2(x[2], x[3]));
    if constexpr (TYPE != 0) {
        const long long place = static_cast<long long>(k / BLOCK_K) * side.pitch + line;
        const auto in_line = reinterpret_cast<unsigned long long>(side.pairs) + place * LINE_BYTES<1>;
        *reinterpret_cast<uint2 *>(in_line + (k % BLOCK_K * 2 ^ int(line) % 8 / 2 * 16)) = hi;
        return;
    }
    const float2 first = from_half2(hi.x), second = from_half2(hi.y);
    const uint2 lo = make_uint2(to_half2((x[0] - first.x) * LO_SCALE, (x[1] - first.y) * LO_SCALE),
                                to_half2((x[2] - second.x) * LO_SCALE, (x[3] - second.y) * LO_SCALE));
    const long long place = static_cast<long long>(k / BLOCK_K) * side.pitch + line;
    const auto in_line = reinterpret_cast<unsigned long long>(side.pairs + place * LINE_HALVES);
    const auto at = in_line + (k % BLOCK_K * 2 ^ int(line) % 8 * 16);  // a line begins at a multiple of 128
    *reinterpret_cast<uint2 *>(at) = hi;
    *reinterpret_cast<uint2 *>(at ^ 64) = lo;
}

// Return the element to split: x scaled, or zero if it is below `smallest` or, of 16 bits, not exactly an
// FP16 number; then `found` is called.
template <int TYPE, class Found>
__device__ __forceinline__ float scale_or_leave_out(float x, int exponent, float smallest, Found found) {
    const float scaled = scale_by_power(x, -exponent);
    if constexpr (TYPE != 0) {
        // Nothing is lost by scaling what is not zero then: FP16 numbers end long before FP32 numbers do.
        if (from_half2(to_half2(scaled, 0.0f)).x == scaled && (scaled != 0.0f || x == 0.0f)) return scaled;
    } else {
        if (x == 0.0f || !(fabsf(scaled) < smallest)) return scaled;
    }
    found();
    return 0.0f;
}
