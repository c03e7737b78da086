// Bulk copies (sm_90): one thread has the tensor memory accelerator copy a stretch of global memory to shared
// memory, as it is, or only bring it to L2.
#pragma once

// Copy so many bytes, which `mbarrier` counts. Both addresses and the number are multiples of 16.
__device__ __forceinline__ void cp_async_bulk(unsigned to, const void *from, unsigned bytes,
                                              unsigned mbarrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(mbarrier)
        : "memory");
}

// Bring so many bytes to L2, where a copy finds them later. Address and number are multiples of 16.
__device__ __forceinline__ void cp_async_bulk_prefetch(const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
