// Reads and writes of shared memory, 16 bytes at a time where they can be. With 32-bit addresses instead of
// pointers everything that a thread touches in a main loop lies at fixed distances from a few registers,
// which costs no instructions.
#pragma once

__device__ __forceinline__ unsigned shared_address(const float *p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Read COUNT neighbouring floats; the pointer has 16-byte alignment.
template <int COUNT>
__device__ __forceinline__ void load_fragment(float *fragment, const float *shared) {
    static_assert(COUNT % 4 == 0, "fragments are read 16 bytes at a time");
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float4 v = *reinterpret_cast<const float4 *>(shared + i);
        fragment[i] = v.x, fragment[i + 1] = v.y, fragment[i + 2] = v.z, fragment[i + 3] = v.w;
    }
}

// Read or write one float, in the order of the program relative to all other volatile assembly. The compiler
// is done sooner with hundreds of these than with accesses through pointers, whose order it tries to change.
__device__ __forceinline__ float load_shared(unsigned from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
}
__device__ __forceinline__ void store_shared(unsigned to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

// Read COUNT = 1, 2 or 4 neighbouring floats, in the order of the program as well. The address is aligned to
// so many floats.
template <int COUNT>
__device__ __forceinline__ void load_shared(float *value, unsigned from) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "fragments are read 4, 8 or 16 bytes at a time");
    if constexpr (COUNT == 4) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                     : "r"(from)
                     : "memory");
    } else if constexpr (COUNT == 2) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(value[0]), "=f"(value[1])
                     : "r"(from)
                     : "memory");
    } else {
        value[0] = load_shared(from);
    }
}

// Write COUNT neighbouring floats, 16, 8 or 4 bytes at a time; the address is aligned to that.
template <int COUNT>
__device__ __forceinline__ void store_shared(unsigned to, const float (&value)[COUNT]) {
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + 4 * i), "f"(value[i]),
                         "f"(value[i + 1]), "f"(value[i + 2]), "f"(value[i + 3])
                         : "memory");
    } else if constexpr (COUNT % 2 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + 4 * i), "f"(value[i]),
                         "f"(value[i + 1])
                         : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) store_shared(to + 4 * i, value[i]);
    }
}
