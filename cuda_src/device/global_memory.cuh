// Reads of global memory, VEC = 1, 2 or 4 neighbouring floats at a time: plain, predicated, and asynchronous
// (cp.async, past the registers into shared memory, sm_80 and later). The address is aligned to VEC floats.
//
// They are written in PTX for two reasons. A load that is predicated rather than branched around lets the
// next one start before it arrives. And the compiler leaves a volatile load where it stands, instead of
// moving a prefetch down to its first use.
#pragma once

// Whether what is read gets a line of L1. Data that is read once is better off without.
enum class L1 { ALLOCATE, NO_ALLOCATE };

// Read VEC floats.
template <int VEC>
__device__ __forceinline__ void load_global(float (&value)[VEC], const float *p) {
    static_assert(VEC == 1 || VEC == 2 || VEC == 4, "operands are read 4, 8 or 16 bytes at a time");
    const unsigned long long address = __cvta_generic_to_global(p);
    if constexpr (VEC == 4) {
        asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                     : "l"(address));
    } else if constexpr (VEC == 2) {
        asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(value[0]), "=f"(value[1]) : "l"(address));
    } else {
        asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value[0]) : "l"(address));
    }
}

// Read VEC floats if `inside`, else leave `value` as it is.
template <int VEC, L1 POLICY = L1::ALLOCATE>
__device__ __forceinline__ void load_global_if(float (&value)[VEC], const float *p, bool inside) {
    static_assert(VEC == 1 || VEC == 2 || VEC == 4, "operands are read 4, 8 or 16 bytes at a time");
    static_assert(VEC != 2 || POLICY == L1::ALLOCATE, "no rung reads pairs past L1");
    const unsigned long long address = __cvta_generic_to_global(p);
    if constexpr (VEC == 4 && POLICY == L1::ALLOCATE) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %5, 0; @q ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                     : "+f"(value[0]), "+f"(value[1]), "+f"(value[2]), "+f"(value[3])
                     : "l"(address), "r"(int(inside)));
    } else if constexpr (VEC == 4) {
        asm volatile(
            "{ .reg .pred q; setp.ne.s32 q, %5, 0; "
            "@q ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4]; }"
            : "+f"(value[0]), "+f"(value[1]), "+f"(value[2]), "+f"(value[3])
            : "l"(address), "r"(int(inside)));
    } else if constexpr (VEC == 2) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %3, 0; @q ld.global.nc.v2.f32 {%0, %1}, [%2]; }"
                     : "+f"(value[0]), "+f"(value[1])
                     : "l"(address), "r"(int(inside)));
    } else if constexpr (POLICY == L1::ALLOCATE) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global.nc.f32 %0, [%1]; }"
                     : "+f"(value[0])
                     : "l"(address), "r"(int(inside)));
    } else {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global.nc.L1::no_allocate.f32 %0, [%1]; }"
                     : "+f"(value[0])
                     : "l"(address), "r"(int(inside)));
    }
}

// Read VEC floats if `inside`, else zeros.
template <int VEC, L1 POLICY = L1::ALLOCATE>
__device__ __forceinline__ void load_global_or_zero(float (&value)[VEC], const float *p, bool inside) {
#pragma unroll
    for (int j = 0; j < VEC; ++j) value[j] = 0.0f;
    load_global_if<VEC, POLICY>(value, p, inside);
}

// Start copying 16 bytes, past L1, to the shared address `to`: `bytes` of them (src-size in PTX), then zeros.
__device__ __forceinline__ void cp_async_16_bytes(unsigned to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

// Start copying VEC floats to the shared address `to`: `count` of them, from 0 to VEC (src-size in PTX), then
// zeros. Copies of 16 bytes bypass L1.
template <int VEC>
__device__ __forceinline__ void cp_async_src_size(unsigned to, const float *from, int count) {
    static_assert(VEC == 1 || VEC == 2 || VEC == 4, "operands are read 4, 8 or 16 bytes at a time");
    if constexpr (VEC == 4)
        cp_async_16_bytes(to, from, 4 * count);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to),
                     "l"(__cvta_generic_to_global(from)), "r"(4 * count), "n"(4 * VEC)
                     : "memory");
}

// Start copying VEC floats, or as many zeros if not `inside`.
template <int VEC>
__device__ __forceinline__ void cp_async_zfill(unsigned to, const float *from, bool inside) {
    cp_async_src_size<VEC>(to, from, inside ? VEC : 0);
}

// Commit the copies that this thread has started since the last call as a group.
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until at most the last PENDING groups of this thread are in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Wait for all copies of this thread.
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
