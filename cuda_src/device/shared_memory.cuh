// Rung 9: shared memory by its 32-bit addresses. What a thread reads and writes in the main loop then lies at
// fixed distances from a few registers, and costs no instruction to find.
#pragma once

__device__ __forceinline__ unsigned shared_address(const float *p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void load_shared(float *value, unsigned from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                 : "r"(from)
                 : "memory");
}

// COUNT neighbouring floats, as wide as their number allows; the address has that alignment.
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
        for (int i = 0; i < COUNT; ++i)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 4 * i), "f"(value[i]) : "memory");
    }
}
