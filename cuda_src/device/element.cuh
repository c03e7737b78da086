// The elements of an operand: TYPE = 0: float32, 1: bfloat16, 2: float16. The host counts them alike (DType
// in src/fastsgemm/problem.py). Elements of 16 bits are read as bits, and converted where they are used:
// exactly, since each of them is a float32 number. So a prefetch waits for nothing.
#pragma once
#include "device/global_memory.cuh"

template <int TYPE>
struct ElementOf {
    static_assert(TYPE == 1 || TYPE == 2, "float32, bfloat16 or float16");
    using type = unsigned short;
};
template <>
struct ElementOf<0> {
    using type = float;
};
template <int TYPE>
using ElementType = typename ElementOf<TYPE>::type;

// Convert a 16-bit element, given as the low (or, with HIGH, the high) half of `bits`.
template <int TYPE, bool HIGH = false>
__device__ __forceinline__ float element_value(unsigned bits) {
    if constexpr (TYPE == 1) {
        return __uint_as_float(HIGH ? bits & 0xffff0000u : __byte_perm(bits, 0u, 0x1044u));
    } else {
        float value;
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}"
            : "=f"(value)
            : "r"(HIGH ? bits >> 16 : bits));
        return value;
    }
}
template <int TYPE>
__device__ __forceinline__ float to_float(unsigned short element) {
    return element_value<TYPE>(element);
}
template <int TYPE>
__device__ __forceinline__ float to_float(float element) {
    return element;
}

// Round to a 16-bit element, to nearest even.
template <int TYPE>
__device__ __forceinline__ ElementType<TYPE> from_float(float value) {
    if constexpr (TYPE == 0) {
        return value;
    } else if constexpr (TYPE == 1) {
        const unsigned bits = __float_as_uint(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // a NaN, whose bits a carry might change
        return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    } else {
        unsigned short half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
        return half;
    }
}

// Round two neighbours, each as `from_float` does; the first is the low half.
template <int TYPE>
__device__ __forceinline__ unsigned from_floats(float first, float second) {
    unsigned both;
#if __CUDA_ARCH__ >= 800
    if constexpr (TYPE == 1) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
        return both;
    }
    if constexpr (TYPE == 2) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
        return both;
    }
#endif
    return from_float<TYPE>(first) | unsigned(from_float<TYPE>(second)) << 16;
}

// Read four neighbours, whose address is aligned to all of them, and write them.
template <int TYPE>
__device__ __forceinline__ float4 four_elements(const ElementType<TYPE> *p) {
    if constexpr (TYPE == 0) {
        return *reinterpret_cast<const float4 *>(p);
    } else {
        const uint2 bits = *reinterpret_cast<const uint2 *>(p);
        return make_float4(element_value<TYPE>(bits.x), element_value<TYPE, true>(bits.x),
                           element_value<TYPE>(bits.y), element_value<TYPE, true>(bits.y));
    }
}
template <int TYPE>
__device__ __forceinline__ void store_four(ElementType<TYPE> *p, float4 value) {
    if constexpr (TYPE == 0)
        *reinterpret_cast<float4 *>(p) = value;
    else
        *reinterpret_cast<uint2 *>(p) =
            make_uint2(from_floats<TYPE>(value.x, value.y), from_floats<TYPE>(value.z, value.w));
}

// COUNT neighbouring elements in registers, as they were read: floats, or two to a register.
template <int TYPE, int COUNT>
struct Elements {
    static constexpr int WORDS = (COUNT + 1) / 2;
    unsigned word[WORDS];

    // Read them if `inside`, else zeros. The address is aligned to all of them.
    template <L1 POLICY = L1::ALLOCATE>
    __device__ __forceinline__ void read_or_zero(const unsigned short *p, bool inside) {
        static_assert(COUNT == 1 || COUNT == 4, "16-bit operands are read 2 or 8 bytes at a time");
        const unsigned long long address = __cvta_generic_to_global(p);
#pragma unroll
        for (int i = 0; i < WORDS; ++i) word[i] = 0u;
        if constexpr (COUNT == 4 && POLICY == L1::ALLOCATE) {
            asm volatile("{ .reg .pred q; setp.ne.s32 q, %3, 0; @q ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
                         : "+r"(word[0]), "+r"(word[WORDS - 1])
                         : "l"(address), "r"(int(inside)));
        } else if constexpr (COUNT == 4) {
            asm volatile(
                "{ .reg .pred q; setp.ne.s32 q, %3, 0; "
                "@q ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                : "+r"(word[0]), "+r"(word[WORDS - 1])
                : "l"(address), "r"(int(inside)));
        } else {
            unsigned short half = 0;
            asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global.nc.u16 %0, [%1]; }"
                         : "+h"(half)
                         : "l"(address), "r"(int(inside)));
            word[0] = half;
        }
    }
    // Element i; a constant after unrolling.
    __device__ __forceinline__ float operator[](int i) const {
        return i % 2 ? element_value<TYPE, true>(word[i / 2]) : element_value<TYPE>(word[i / 2]);
    }
};
template <int COUNT>
struct Elements<0, COUNT> {
    float value[COUNT];

    template <L1 POLICY = L1::ALLOCATE>
    __device__ __forceinline__ void read_or_zero(const float *p, bool inside) {
        load_global_or_zero<COUNT, POLICY>(value, p, inside);
    }
    __device__ __forceinline__ float operator[](int i) const { return value[i]; }
};
