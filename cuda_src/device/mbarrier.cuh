// mbarrier objects in shared memory (sm_90): by them the tensor memory accelerator and the warps tell each
// other that a stage of shared memory is full or empty. An mbarrier counts arrivals and, where a transaction
// is expected, bytes. When all have arrived, its phase completes and the next begins. A thread waits for a
// phase by its parity: 0 for the first phase, 1 for the second, 0 for the third. A wait with parity 1 on a
// new mbarrier returns at once. `barrier` is the 32-bit shared address of the object, which has 8 bytes.
#pragma once

// A wait of more nanoseconds is a fault of the kernel, which then traps instead of hanging the device.
constexpr unsigned long long WAIT_LIMIT_NS = 10000000000ull;

// Return the time in nanoseconds.
__device__ __forceinline__ unsigned long long globaltimer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Make the mbarriers that this thread has initialised visible to the cluster. A barrier of the block follows.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Order this thread's accesses to shared memory before those of the async proxy that follow, such as a bulk
// copy to the same addresses.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive, and expect so many more bytes before the phase can complete.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Return whether the phase of this parity is complete. The hardware may suspend the thread before it says no.
__device__ __forceinline__ bool mbarrier_try_wait_parity(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done;
}

// Wait until the phase of this parity is complete.
__device__ __forceinline__ void mbarrier_wait_parity(unsigned barrier, unsigned parity) {
    if (mbarrier_try_wait_parity(barrier, parity)) return;
    const unsigned long long start = globaltimer();
    while (!mbarrier_try_wait_parity(barrier, parity))
        // The clock runs on while a debugger or a checkpoint stops the block, so the phase may be complete.
        if (globaltimer() - start > WAIT_LIMIT_NS && !mbarrier_try_wait_parity(barrier, parity))
            asm volatile("trap;");
}
