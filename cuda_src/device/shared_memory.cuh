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

__device__ __forceinline__ void store_shared(unsigned to, const float (&value)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value[0]), "f"(value[1]),
                 "f"(value[2]), "f"(value[3])
                 : "memory");
}

__device__ __forceinline__ void store_shared(unsigned to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
